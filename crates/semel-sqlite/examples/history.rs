//! What a long history costs: makes a store with so many finished jobs (default 10,000,000), all filed and remembered
//! under keys of their own, and tells how long it takes to open and how fast jobs are admitted beside them, and beside
//! none.
//!
//! `cargo run --release -p semel-sqlite --example history -- 10000000`

#![allow(clippy::print_stdout, reason = "a figure for people")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, params};
use semel_core::draft::{Draft, Reads};
use semel_core::enqueue::{Mode, Offer, enqueue_batch};
use semel_core::ident::JobId;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_sqlite::Sqlite;
use semel_store::backend::{Backend, Batch};
use semel_testkit::make::job;
use semel_testkit::{Fixture, Step, TempDir, Want};

/// Jobs offered in one commit, and commits measured.
const BATCH: u64 = 1_000;
const BATCHES: u64 = 100;
/// Rows written in one transaction.
const PIECE: i64 = 100_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let jobs: i64 = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse())?;
    for jobs in [0, jobs] {
        let dir = TempDir::new();
        let path = dir.path().join("semel.db");
        one_finished(dir.path()).await;
        fill(&path, jobs)?;
        let began = Instant::now();
        let store = Sqlite::open(&path)?;
        let opened = began.elapsed();
        let live = offer_many(&store, 0, |number| job().keyed_by_number(number)).await?;
        let ever = offer_many(&store, BATCH * BATCHES, strict).await?;
        let size = std::fs::metadata(&path)?.len() >> 20;
        println!(
            "{jobs} finished jobs, {size} MB: opened in {opened:.2?}; admitted {live}/s looking at live holders, {ever}/s at all"
        );
    }
    Ok(())
}

/// A store with one job that ended and was filed, whose rows the others are made of.
async fn one_finished(dir: &Path) {
    let dir = dir.to_path_buf();
    let f = Fixture::new(Step::Nothing, move |_| {
        std::sync::Arc::new(
            Sqlite::open(dir.join("semel.db")).map(Sqlite::filing_at_once).unwrap_or_else(never),
        )
    });
    f.finished(&strict(u64::MAX - 1).offer()).await;
    f.maintain().await;
}

fn never<T>(error: impl Error) -> T {
    println!("{error}");
    std::process::exit(1)
}

fn strict(number: u64) -> Want {
    job().keyed_by_number(number).states(StateSet::ALL)
}

/// Writes so many rows like the first one's, with ids of their own, and keys in order, as filing writes them.
fn fill(path: &Path, jobs: i64) -> Result<(), Box<dyn Error>> {
    let mut db = Connection::open(path)?;
    db.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -200000;")?;
    let first: i64 = db.query_row("SELECT max(seq) FROM job", [], |row| row.get(0))?;
    for piece in 0..(jobs + PIECE - 1) / PIECE {
        let piece = piece * PIECE..((piece + 1) * PIECE).min(jobs);
        let transaction = db.transaction()?;
        {
            let mut job = transaction.prepare(
                "INSERT INTO job SELECT ?1, ?2, ?3, type, queue, priority, max_attempts, created_at, state, attempt, \
                 finished_at, worker, filed, rest, body FROM job WHERE seq = ?4",
            )?;
            let mut memory = transaction.prepare(
                "INSERT INTO memory SELECT ?3, ?1, ?2, hold, type, queue, state, version, fence, created_at, finished_at, \
                 renewed_at, ending, forget_at FROM memory WHERE seq = ?4 AND key = (SELECT key FROM job WHERE seq = ?4)",
            )?;
            for number in piece {
                let seq = first + 1 + number;
                let id =
                    JobId::mint(Timestamp::from_millis(1_767_225_600_000), seq.unsigned_abs(), 7).to_bytes();
                let mut key = [0_u8; 32];
                let place = number.unsigned_abs().wrapping_mul(u64::MAX / jobs.unsigned_abs());
                key[..8].copy_from_slice(&place.to_be_bytes());
                key[8..16].copy_from_slice(&number.to_be_bytes());
                job.execute(params![seq, id, key, first])?;
                memory.execute(params![seq, id, key, first])?;
            }
        }
        transaction.commit()?;
    }
    db.execute("UPDATE queue SET created = created + ?1, completed = completed + ?1", [jobs])?;
    db.execute("UPDATE fact SET value = ?1 WHERE name = 'next_row'", [first + jobs + 1])?;
    db.pragma_update(None, "wal_checkpoint", "TRUNCATE")?;
    Ok(())
}

/// Admits jobs in batches; how many a second.
async fn offer_many(store: &Sqlite, from: u64, want: impl Fn(u64) -> Want) -> Result<u64, Box<dyn Error>> {
    let began = Instant::now();
    for batch in 0..BATCHES {
        let first = from + batch * BATCH;
        let offers: Vec<Offer> = (first..first + BATCH).map(|number| want(number).offer()).collect();
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let mut draft = Draft::new(store.load(&reads).await?, first, store.rows());
        enqueue_batch(&mut draft, &offers, Mode::Each).map_err(|_| "a read was missing")?;
        store.commit(Batch { groups: vec![draft.finish()], claims: Vec::new() }).await?;
    }
    Ok((f64::from(u32::try_from(BATCH * BATCHES)?) / began.elapsed().as_secs_f64()) as u64)
}
