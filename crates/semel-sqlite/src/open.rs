//! Opening a file: its version, its settings, and the model rebuilt from its live rows.

use std::collections::hash_map::Entry;
use std::path::Path;

use bytes::Bytes;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use semel_core::draft::{Map, QueueRow};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::model::{Model, QueueTotals};

use crate::error::SqliteError;
use crate::filing::Round;
use crate::journal::{Change, Changes, Record};
use crate::log::Log;
use crate::names::Names;
use crate::pending::Pending;
use crate::reader;
use crate::rows::{self, HEAD_COLUMNS};

/// The format this program writes. Format 1 was never released.
pub const FORMAT: i64 = 2;
/// Marks a file as ours: "Seml".
const APPLICATION_ID: i64 = 0x5365_6d6c;
/// The first SQLite without the WAL-reset race.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// A page of a new file: a record of the journal is half as many of them as of SQLite's usual 4 KiB, and each is two calls to write; larger ones cost the memory of keys, whose pages are touched at random.
const PAGE_BYTES: i64 = 8 * 1024;
/// Pages SQLite keeps in memory, in KiB.
const CACHE_KIB: i64 = 64 * 1024;

/// What is kept in memory of a file.
pub struct Loaded {
    pub model: Model,
    pub names: Names,
    pub log: Log,
    /// Rows of jobs in memory whose ids callers chose.
    pub foreign: Map<JobId, i64>,
    /// Jobs in memory that have notes.
    pub noted: Map<JobId, ()>,
    /// Jobs in memory whose keys an operator released.
    pub released: Map<JobId, ()>,
    /// Where heads that are only remembered were last read.
    pub seen: Map<JobId, (UniqueKey, i64)>,
    /// What the journal has and the rows have not.
    pub pending: Pending,
    /// The round under way.
    pub round: Option<Round>,
    /// The number of the journal's last record.
    pub last_record: i64,
    /// The record of the commit under way.
    pub record: Record,
    /// The first row number nobody has used.
    pub next_row: u64,
    /// The last time anything was committed.
    pub floor: Timestamp,
}

impl Loaded {
    /// Jobs whose rows are not as they are now, some of them more than once.
    pub fn unsettled(&self) -> impl Iterator<Item = JobId> + '_ {
        let pending = self.pending.bodies.keys().chain(&self.pending.moved).copied();
        pending.chain(self.round.iter().flat_map(Round::jobs))
    }

    /// Bytes of journal that are not carried over.
    pub fn journal_bytes(&self) -> usize {
        self.pending.bytes + self.round.as_ref().map_or(0, |round| round.bytes)
    }
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
    db.pragma_update(None, "page_size", PAGE_BYTES)?;
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
    if tables > 0 && format < FORMAT {
        return Err(SqliteError::Unsupported(format!(
            "{shown} has format {format}, which was never released; begin a new file"
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

/// Reads everything that is kept in memory. The cost follows the live jobs and the journal, not the history.
pub fn load(db: &Connection) -> Result<Loaded, SqliteError> {
    let names = Names::load(db)?;
    let (log, logged) = Log::load(db)?;
    let mut loaded = Loaded {
        model: Model::new(false),
        names,
        log,
        foreign: Map::default(),
        noted: Map::default(),
        released: Map::default(),
        seen: Map::default(),
        pending: Pending::default(),
        round: None,
        last_record: 0,
        record: Record::default(),
        next_row: 1,
        floor: logged,
    };
    let mut queues = read_queues(db)?;
    let journaled = replay(db, &mut loaded, &mut queues)?;
    for (row, totals) in queues.into_values() {
        loaded.model.restore_queue(row, totals);
    }
    read_live(db, &mut loaded, &journaled)?;
    for (seq, job) in journaled {
        if let Some(job) = job {
            // One that was sent back after it had been filed is not among the live rows.
            if reader::has_notes(db, seq)? {
                loaded.noted.insert(job.head.id, ());
            }
            admit(&mut loaded, seq, job.head, job.released);
        }
    }
    let used: i64 = db.query_row("SELECT coalesce(max(seq), 0) FROM job", [], |row| row.get(0))?;
    loaded.next_row = loaded.next_row.max(used.unsigned_abs() + 1).max(fact(db, "next_row")?.unsigned_abs());
    loaded.floor = loaded.floor.max(Timestamp::from_micros(fact(db, "floor")?));
    Ok(loaded)
}

type Queues = Map<QueueName, (QueueRow, QueueTotals)>;

fn read_queues(db: &Connection) -> Result<Queues, SqliteError> {
    let mut queues = Queues::default();
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
        let settings = QueueRow { name: name.clone(), paused: row.get(1)?, version: number(2)? };
        queues.insert(name, (settings, totals));
    }
    Ok(queues)
}

/// A job as the journal leaves it.
struct Journaled {
    head: Head,
    released: bool,
}

/// Reads the journal again: the jobs it speaks of, as it leaves them; one that is gone is `None`.
fn replay(
    db: &Connection,
    loaded: &mut Loaded,
    queues: &mut Queues,
) -> Result<Map<i64, Option<Journaled>>, SqliteError> {
    let mut jobs: Map<i64, Option<Journaled>> = Map::default();
    let mut written = db.prepare("SELECT 1 FROM job WHERE seq = ?1")?;
    let mut query = db.prepare("SELECT cursor, at, writes FROM journal ORDER BY cursor")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        loaded.last_record = loaded.last_record.max(row.get(0)?);
        let at = Timestamp::from_micros(row.get(1)?);
        loaded.floor = loaded.floor.max(at);
        loaded.pending.since.get_or_insert(at);
        let record = Bytes::copy_from_slice(row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?);
        loaded.pending.bytes += record.len();
        let mut changes = Changes::new(loaded.last_record, record, &loaded.names);
        while let Some(change) = changes.next()? {
            match change {
                Change::Insert { seq, head, body } => {
                    loaded.next_row = loaded.next_row.max(seq.unsigned_abs() + 1);
                    // A round that was lost may have written its row.
                    if written.exists([seq])? {
                        loaded.pending.moved.push(head.id);
                    } else {
                        // A copy of its own: the record it came in is let go.
                        loaded.pending.bodies.insert(head.id, Bytes::copy_from_slice(&body));
                    }
                    jobs.insert(seq, Some(Journaled { head, released: false }));
                }
                Change::Update { seq, moving } => {
                    let known = match jobs.entry(seq) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(free) => free.insert(read_row(db, &loaded.names, seq)?),
                    };
                    // One that is gone was forgotten later, in a record yet to be read or already dropped.
                    if let Some(job) = known {
                        job.released = moving.released;
                        moving.onto(&mut job.head);
                        if !loaded.pending.bodies.contains_key(&job.head.id) {
                            loaded.pending.moved.push(job.head.id);
                        }
                    }
                }
                Change::Note { seq, job, kind, text } => {
                    let text = text.map(|text| Bytes::copy_from_slice(&text));
                    loaded.pending.note(seq, job, kind, text);
                }
                Change::Forget { seq } => {
                    if let Some(Some(job)) = jobs.insert(seq, None) {
                        loaded.pending.forget(job.head.id);
                    }
                    loaded.pending.notes.retain(|_, notes| notes.seq != seq);
                }
                Change::Queue { row, totals } => {
                    loaded.pending.queues.insert(row.name.clone());
                    queues.insert(row.name.clone(), (row, totals));
                }
            }
        }
    }
    Ok(jobs)
}

fn read_row(db: &Connection, names: &Names, seq: i64) -> Result<Option<Journaled>, SqliteError> {
    let mut query = db.prepare_cached(&format!("SELECT {HEAD_COLUMNS} FROM job WHERE seq = ?1"))?;
    let mut rows = query.query([seq])?;
    Ok(match rows.next()? {
        Some(row) => Some(Journaled { head: rows::head(row, names)?, released: rows::is_released(row)? }),
        None => None,
    })
}

/// Reads the live rows that the journal does not speak of.
fn read_live(
    db: &Connection,
    loaded: &mut Loaded,
    journaled: &Map<i64, Option<Journaled>>,
) -> Result<(), SqliteError> {
    let mut query = db.prepare(&format!(
        "SELECT {HEAD_COLUMNS} FROM job INDEXED BY live WHERE filed IS NULL ORDER BY seq"
    ))?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        if !journaled.contains_key(&seq) {
            let head = rows::head(row, &loaded.names)?;
            admit(loaded, seq, head, rows::is_released(row)?);
        }
    }
    drop(rows);
    let mut query = db.prepare(
        "SELECT DISTINCT j.id FROM job j INDEXED BY live JOIN note n USING (seq) WHERE j.filed IS NULL",
    )?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        loaded.noted.insert(JobId::from_bytes(row.get(0)?), ());
    }
    Ok(())
}

/// Puts a job into memory that has been counted in its queue's totals, as far as it has ended.
fn admit(loaded: &mut Loaded, seq: i64, head: Head, released: bool) {
    let id = head.id;
    loaded.floor = loaded.floor.max(Timestamp::from_micros(rows::version(head.version)));
    if id.row() != seq.unsigned_abs() {
        loaded.foreign.insert(id, seq);
    }
    if released {
        loaded.released.insert(id, ());
    }
    if loaded.pending.notes.contains_key(&id) {
        loaded.noted.insert(id, ());
    }
    if head.state.is_finished() {
        loaded.pending.ended += 1;
        loaded.model.readmit(head);
    } else {
        loaded.model.put(head);
    }
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
