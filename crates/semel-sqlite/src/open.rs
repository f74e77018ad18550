//! Opening a file: its version, its settings, and the model rebuilt from its live rows.

use std::collections::HashSet;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use semel_core::draft::{Map, QueueRow};
use semel_core::ident::{JobId, QueueName};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::model::{Model, QueueTotals};

use crate::error::SqliteError;
use crate::log::Log;
use crate::names::Names;
use crate::rows::{self, HEAD_COLUMNS};

/// The format this program writes.
pub const FORMAT: i64 = 1;
/// Marks a file as ours: "Seml".
const APPLICATION_ID: i64 = 0x5365_6d6c;
/// The first SQLite without the WAL-reset race.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// Pages SQLite keeps in memory, in KiB.
const CACHE_KIB: i64 = 64 * 1024;

/// What is kept in memory of a file.
pub struct Loaded {
    pub model: Model,
    pub names: Names,
    pub log: Log,
    /// Rows of live jobs whose ids callers chose.
    pub foreign: Map<JobId, i64>,
    /// Live jobs that have notes.
    pub noted: HashSet<JobId>,
    /// Live jobs whose keys an operator released.
    pub released: HashSet<JobId>,
    /// Where heads that are only remembered were last read.
    pub seen: Map<JobId, (UniqueKey, i64)>,
    /// Finished jobs that are still among the live rows.
    pub unfiled: Vec<JobId>,
    /// Since when there are any.
    pub unfiled_since: Option<Timestamp>,
    /// Finished jobs that are being filed, sorted by key.
    pub round: Vec<JobId>,
    /// The first row number nobody has used.
    pub next_row: u64,
    /// The last time anything was committed.
    pub floor: Timestamp,
}

/// Opens a file and makes it ours if it is new.
pub fn open(path: &Path) -> Result<Connection, SqliteError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(SqliteError::Unsupported(format!(
            "SQLite {} loses data in rare cases; link 3.51.3 or later",
            rusqlite::version()
        )));
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    // Statements are not prepared anew when other values are bound: a quarter of the time of a write.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.set_prepared_statement_cache_capacity(64);
    db.pragma_update(None, "cache_size", -CACHE_KIB)?;
    db.pragma_update(None, "temp_store", "MEMORY")?;
    let format: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let shown = path.display();
    if tables > 0 && application != APPLICATION_ID {
        return Err(SqliteError::Unsupported(format!(
            "{shown} is a database of another program; name another file"
        )));
    }
    if format > FORMAT {
        return Err(SqliteError::Unsupported(format!(
            "{shown} has format {format}, this program knows {FORMAT}; use the newer program, or restore a backup"
        )));
    }
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(SqliteError::Unsupported(format!(
            "{shown}: the file system does not allow a write-ahead log"
        )));
    }
    db.pragma_update(None, "synchronous", "FULL")?;
    if tables == 0 {
        create(&db)?;
    }
    Ok(db)
}

fn create(db: &Connection) -> Result<(), SqliteError> {
    db.execute_batch("BEGIN IMMEDIATE")?;
    db.execute_batch(include_str!("schema.sql"))?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", FORMAT)?;
    db.execute_batch("COMMIT")?;
    Ok(())
}

/// Reads everything that is kept in memory. The cost follows the live jobs, not the history.
pub fn load(db: &Connection) -> Result<Loaded, SqliteError> {
    let names = Names::load(db)?;
    let (log, logged) = Log::load(db)?;
    let mut loaded = Loaded {
        model: Model::new(false),
        names,
        log,
        foreign: Map::default(),
        noted: HashSet::new(),
        released: HashSet::new(),
        seen: Map::default(),
        unfiled: Vec::new(),
        unfiled_since: None,
        round: Vec::new(),
        next_row: 1,
        floor: logged,
    };
    load_queues(db, &mut loaded)?;
    load_heads(db, &mut loaded)?;
    let used: i64 = db.query_row("SELECT coalesce(max(seq), 0) FROM job", [], |row| row.get(0))?;
    loaded.next_row = loaded.next_row.max(used.unsigned_abs() + 1).max(fact(db, "next_row")?.unsigned_abs());
    loaded.floor = loaded.floor.max(Timestamp::from_micros(fact(db, "floor")?));
    Ok(loaded)
}

fn load_queues(db: &Connection, loaded: &mut Loaded) -> Result<(), SqliteError> {
    let mut query = db.prepare(
        "SELECT name, paused, version, created, purged, completed, cancelled, discarded FROM queue",
    )?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let number = |column| -> rusqlite::Result<u64> { Ok(row.get::<_, i64>(column)?.unsigned_abs()) };
        let name = QueueName::from_stored(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
        let mut totals = QueueTotals { created: number(3)?, purged: number(4)?, ..QueueTotals::default() };
        for (state, column) in [(State::Completed, 5), (State::Cancelled, 6), (State::Discarded, 7)] {
            totals.counts[usize::from(state.code())] = number(column)?;
        }
        loaded.model.restore_queue(QueueRow { name, paused: row.get(1)?, version: number(2)? }, totals);
    }
    Ok(())
}

fn load_heads(db: &Connection, loaded: &mut Loaded) -> Result<(), SqliteError> {
    let mut query = db.prepare(&format!(
        "SELECT {HEAD_COLUMNS} FROM status s INDEXED BY live JOIN job j USING (seq) WHERE s.filed IS NULL \
         ORDER BY s.seq"
    ))?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let head = rows::head(row, &loaded.names)?;
        loaded.floor = loaded.floor.max(Timestamp::from_micros(rows::version(head.version)));
        let seq: i64 = row.get(0)?;
        if head.id.row() != seq.unsigned_abs() {
            loaded.foreign.insert(head.id, seq);
        }
        if rows::is_released(row)? {
            loaded.released.insert(head.id);
        }
        if head.state.is_finished() {
            // It was counted when it ended.
            loaded.unfiled.push(head.id);
            loaded.model.readmit(head);
        } else {
            loaded.model.put(head);
        }
    }
    drop(rows);
    let mut query = db.prepare(
        "SELECT DISTINCT j.id FROM status s INDEXED BY live JOIN note n USING (seq) JOIN job j USING (seq) \
             WHERE s.filed IS NULL",
    )?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        loaded.noted.insert(JobId::from_bytes(row.get(0)?));
    }
    let mut query =
        db.prepare("SELECT f.id, f.seq FROM foreign_id f JOIN status s USING (seq) WHERE s.filed IS NULL")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        loaded.foreign.insert(JobId::from_bytes(row.get(0)?), row.get(1)?);
    }
    Ok(())
}

/// A number the file keeps by name; 0 when it does not.
fn fact(db: &Connection, name: &str) -> Result<i64, SqliteError> {
    let mut query = db.prepare_cached("SELECT value FROM fact WHERE name = ?1")?;
    let mut rows = query.query([name])?;
    Ok(match rows.next()? {
        Some(row) => row.get(0)?,
        None => 0,
    })
}

/// Keeps a number by name.
pub fn set_fact(db: &Connection, name: &str, value: i64) -> Result<(), SqliteError> {
    db.prepare_cached("INSERT INTO fact (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2")?
        .execute(rusqlite::params![name, value])?;
    Ok(())
}
