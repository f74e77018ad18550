//! What the same disk and the same SQLite do without a queue: the bound that the engine's figures are
//! compared with.

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rusqlite::{Connection, params};

use crate::report::{BenchError, Figure};

/// Rows of one transaction of the raw writer.
const GROUP: u64 = 512;

/// One writer that inserts the rows of a job, in groups as large as the callers in flight would make, each fsynced.
///
/// # Errors
/// When the file cannot be written.
pub fn raw_writer(folder: &Path, args_bytes: usize, duration: Duration) -> Result<Figure, BenchError> {
    let db = Connection::open(folder.join("limit.db"))?;
    db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "cache_size", -65_536)?;
    db.execute_batch(
        "CREATE TABLE job (seq INTEGER PRIMARY KEY, id BLOB, key BLOB, hold BLOB, type INTEGER, queue INTEGER, \
         priority INTEGER, max_attempts INTEGER, created_at INTEGER, body BLOB) STRICT;
         CREATE TABLE live (seq INTEGER PRIMARY KEY, state INTEGER, version INTEGER, available_at INTEGER) STRICT;",
    )?;
    let body = vec![b'x'; args_bytes + 60];
    let mut latencies: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000, 3)
        .map_err(|error| BenchError::Invalid(error.to_string()))?;
    let started = Instant::now();
    let mut seq: i64 = 0;
    while started.elapsed() < duration {
        let began = Instant::now();
        db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut job = db.prepare_cached("INSERT INTO job VALUES (?1, ?2, ?3, ?4, 1, 2, 0, 3, ?5, ?6)")?;
        let mut live = db.prepare_cached("INSERT INTO live VALUES (?1, 1, ?2, ?3)")?;
        for _ in 0..GROUP {
            seq += 1;
            job.execute(params![seq, [7u8; 16], [9u8; 32], [1u8; 16], seq, &body])?;
            live.execute(params![seq, seq, seq])?;
        }
        db.prepare_cached("COMMIT")?.execute([])?;
        latencies.saturating_record(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    let jobs = u64::try_from(seq).unwrap_or(0);
    Ok(Figure::new(
        "limit: the same rows by one SQLite writer, groups of 512",
        jobs,
        started.elapsed(),
        &latencies,
    ))
}

/// One 4 KiB write in place and its fsync, again and again.
///
/// # Errors
/// When the file cannot be written.
pub fn one_fsync(folder: &Path, duration: Duration) -> Result<Figure, BenchError> {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = std::fs::File::create(folder.join("fsync"))?;
    file.write_all(&[0; 4096])?;
    file.sync_all()?;
    let mut latencies: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000, 3)
        .map_err(|error| BenchError::Invalid(error.to_string()))?;
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < duration {
        let began = Instant::now();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        count += 1;
        latencies.saturating_record(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    Ok(Figure::new("limit: one write of 4 KiB and its fsync", count, started.elapsed(), &latencies))
}
