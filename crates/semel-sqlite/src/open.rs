//! Opening a file: checks its version, applies its settings, and rebuilds the model from live rows and
//! journal.

use std::io::ErrorKind;
use std::path::Path;

use bytes::Bytes;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use semel_core::draft::{Map, QueueRow};
use semel_core::ident::{JobId, QueueName};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::model::{Model, QueueTotals};
use semel_store::random;

use crate::change::Record;
use crate::durable::{sync_file, sync_folder, write_again};
use crate::error::SqliteError;
use crate::filing::Round;
use crate::journal::Entry;
use crate::location::wal_of;
use crate::log::{self, Log};
use crate::names::Names;
use crate::pending::Pending;
use crate::private;
use crate::reader;
use crate::replay::{Journaled, Replay};
use crate::rows::{self, HEAD_COLUMNS};

/// The file format that this program writes. Formats 1 and 2 were never released.
pub const FORMAT: i64 = 3;
/// The SQLite application id that marks a file as a Semel store: "Seml".
const APPLICATION_ID: i64 = 0x5365_6d6c;
/// The first SQLite version without the WAL-reset race.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// How long a connection waits at most for a lock, such as until a checkpoint ends.
const BUSY_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// The size of SQLite's page cache, in KiB.
const CACHE_KIB: i64 = 64 * 1024;

/// What is kept in memory of an open file.
pub struct Loaded {
    pub model: Model,
    pub names: Names,
    pub log: Log,
    /// Row numbers of jobs in memory whose ids were chosen by callers.
    pub foreign: Map<JobId, i64>,
    /// Jobs in memory that have notes.
    pub noted: Map<JobId, ()>,
    /// Jobs in memory whose keys an operator released.
    pub released: Map<JobId, ()>,
    /// Where in the keys' memory each head that is kept only for its key was last read: its key and row
    /// number.
    pub seen: Map<JobId, (UniqueKey, i64)>,
    /// What is in the journal but not in the rows yet.
    pub pending: Pending,
    /// The round under way.
    pub round: Option<Round>,
    /// The record of the commit under way.
    pub record: Record,
    /// The first row number that was never used.
    pub next_row: u64,
    /// The latest time at which anything was committed: the store's time starts no earlier.
    pub floor: Timestamp,
    /// Whether memory may differ from what is stored; nothing may be peeked at then.
    pub is_in_doubt: bool,
}

impl Loaded {
    /// Returns the row number of a job that is in memory.
    pub fn seq(&self, id: JobId) -> i64 {
        if !self.foreign.is_empty()
            && let Some(seq) = self.foreign.get(&id)
        {
            return *seq;
        }
        i64::try_from(id.row()).unwrap_or(i64::MAX)
    }

    /// Whether an operator released the key of a job that is in memory.
    pub fn is_released(&self, id: JobId) -> bool {
        !self.released.is_empty() && self.released.contains_key(&id)
    }

    /// Drops what is kept besides the head, for a job that leaves memory.
    pub fn leave_memory(&mut self, id: JobId) {
        self.foreign.remove(&id);
        self.noted.remove(&id);
        self.released.remove(&id);
    }

    /// Jobs whose rows are not up to date. A job may be listed more than once.
    pub fn unsettled(&self) -> impl Iterator<Item = JobId> + '_ {
        let inserted = self.pending.fresh.jobs().map(|(_, id)| id);
        let pending = inserted.chain(self.pending.moved.iter().copied());
        pending.chain(self.round.iter().flat_map(Round::jobs))
    }

    /// Returns the body of a job whose row may not be written yet.
    pub fn body(&self, seq: i64, job: JobId) -> Option<&Bytes> {
        self.pending.fresh.body(seq, job).or_else(|| self.round.as_ref()?.body(seq, job))
    }

    /// Whether the job's whole row is still to be written. It will be written as the job is at that time.
    pub fn is_unwritten(&self, seq: i64, job: JobId) -> bool {
        self.pending.fresh.contains(seq, job)
            || self.round.as_ref().is_some_and(|round| round.is_unwritten(seq, job))
    }

    /// Bytes of journal that are not carried over to the rows yet.
    pub fn journal_bytes(&self) -> usize {
        self.pending.bytes + self.round.as_ref().map_or(0, |round| round.bytes)
    }
}

/// Syncs files that an earlier process may have written without syncing, because it was killed or its sync
/// failed. Opening the store relies on what these files say, and overwrites journal files that they say are
/// no longer needed. SQLite's log is written again before the sync. Pages of the database need not be: until
/// they are on the disk they are all in the log, and SQLite writes them again from there. Must be called
/// before SQLite opens the file: closing a descriptor here would release SQLite's locks.
///
/// # Errors
/// When it is unknown what is on the disk.
pub fn bring_to_disk(path: &Path) -> Result<(), SqliteError> {
    let log = wal_of(path);
    for (file, synced) in [(&*log, write_again(&log)), (path, sync_file(path))] {
        match synced {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            synced => synced,
        }
        .map_err(|source| SqliteError::Io { path: file.display().to_string(), source })?;
    }
    sync_folder(path).map_err(|source| SqliteError::Io { path: path.display().to_string(), source })
}

/// Opens a file, and creates the schema in it if it is empty.
pub fn open(path: &Path) -> Result<Connection, SqliteError> {
    if rusqlite::version_number() < SQLITE_VERSION_MIN {
        return Err(SqliteError::Unsupported(format!(
            "SQLite {} can lose data in rare cases; link 3.51.3 or later",
            rusqlite::version()
        )));
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    private::make(path);
    let db = Connection::open_with_flags(path, flags)?;
    // Binding other values must not prepare a statement again: that took a quarter of the time of a write.
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
            "{shown} is the database of another program; name another file"
        )));
    }
    if format > FORMAT {
        return Err(SqliteError::Unsupported(format!(
            "{shown} has format {format}, but this program knows {FORMAT}; use the newer program, or restore a backup"
        )));
    }
    if tables > 0 && format < FORMAT {
        return Err(SqliteError::Unsupported(format!(
            "{shown} has format {format}, which was never released; start with a new file"
        )));
    }
    let mode: String = db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(SqliteError::Unsupported(format!(
            "{shown}: the file system does not allow a write-ahead log"
        )));
    }
    db.pragma_update(None, "synchronous", "FULL")?;
    db.busy_timeout(BUSY_MAX)?;
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
    set_identity(db)?;
    db.execute_batch("COMMIT")?;
    Ok(())
}

/// Returns the number of the last journal record that is carried over to the rows.
pub fn carried(db: &Connection) -> Result<u64, SqliteError> {
    Ok(fact(db, "carried")?.unsigned_abs())
}

/// Returns the last record number that is in use, as far as the database file itself says.
pub fn last(db: &Connection) -> Result<u64, SqliteError> {
    let carried = carried(db)?;
    last_of(db, &brought(db, carried)?, carried)
}

/// Like [`last`], for a caller that has already read the records a backup `brought` with it.
pub fn last_of(db: &Connection, brought: &[Entry], carried: u64) -> Result<u64, SqliteError> {
    let last = brought.last().map_or(carried, |entry| entry.cursor);
    Ok(last.max(log::left_out(db)?))
}

/// Returns the identity of the store, which tells its journal from another store's.
pub fn identity(db: &Connection) -> Result<i64, SqliteError> {
    fact(db, "identity")
}

/// Gives the store a new random identity, so that no journal that already exists is taken for its own.
pub fn set_identity(db: &Connection) -> Result<(), SqliteError> {
    set_fact(db, "identity", random::number().cast_signed())
}

/// Replaces the store's secret by that of another store.
pub fn set_secret(db: &Connection, secret: &[u8; 16]) -> Result<(), SqliteError> {
    for (name, half) in SECRET.into_iter().zip(secret.chunks_exact(8)) {
        set_fact(db, name, half.try_into().map_or(0, i64::from_le_bytes))?;
    }
    Ok(())
}

/// The names of the two facts that hold the halves of the secret.
const SECRET: [&str; 2] = ["secret_1", "secret_2"];

/// Returns the store's secret, which is random and not shown outside. It is generated on first use, and is
/// copied with the file.
pub fn secret(db: &Connection) -> Result<[u8; 16], SqliteError> {
    let mut secret = [0; 16];
    let known: i64 =
        db.query_row("SELECT count(*) FROM fact WHERE name IN (?1, ?2)", SECRET, |row| row.get(0))?;
    if known < 2 {
        secret = random::secret();
        // One transaction: both halves are stored, or none.
        let transaction = db.unchecked_transaction()?;
        set_secret(&transaction, &secret)?;
        transaction.commit()?;
        return Ok(secret);
    }
    for (name, half) in SECRET.into_iter().zip(secret.chunks_exact_mut(8)) {
        half.copy_from_slice(&fact(db, name)?.to_le_bytes());
    }
    Ok(secret)
}

/// Returns the journal records that a backup contains, after `carried`.
pub fn brought(db: &Connection, carried: u64) -> Result<Vec<Entry>, SqliteError> {
    let mut query =
        db.prepare("SELECT cursor, at, payload FROM journal WHERE cursor > ?1 ORDER BY cursor")?;
    let mut rows = query.query([i64::try_from(carried).unwrap_or(i64::MAX)])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(Entry {
            cursor: row.get::<_, i64>(0)?.unsigned_abs(),
            at: Timestamp::from_micros(row.get(1)?),
            payload: Bytes::copy_from_slice(row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?),
        });
    }
    Ok(entries)
}

/// Reads everything that is kept in memory: the live rows, with the changes in `entries` of the journal
/// applied. The cost depends on the live jobs and the journal, not on the history.
pub fn load(db: &Connection, entries: Vec<Entry>) -> Result<Loaded, SqliteError> {
    // Read in one transaction, from one snapshot: a piece of a round may be written meanwhile.
    let db = &db.unchecked_transaction()?;
    let mut loaded = Loaded {
        model: Model::new(false),
        names: Names::load(db)?,
        log: Log::default(),
        foreign: Map::default(),
        noted: Map::default(),
        released: Map::default(),
        seen: Map::default(),
        pending: Pending::default(),
        round: None,
        record: Record::default(),
        next_row: 1,
        floor: Timestamp::from_micros(fact(db, "floor")?),
        is_in_doubt: false,
    };
    let used: i64 = db.query_row("SELECT coalesce(max(seq), 0) FROM job", [], |row| row.get(0))?;
    let mut replay = Replay::new(db, read_queues(db)?, used);
    for entry in entries {
        replay.entry(&mut loaded, entry)?;
    }
    for (row, totals) in std::mem::take(&mut replay.queues).into_values() {
        loaded.model.restore_queue(row, totals);
    }
    read_live(db, &mut loaded, &replay)?;
    for (seq, job) in replay.into_jobs() {
        // A filed job that was sent back by an operator is not among the live rows read above.
        if seq <= used && reader::has_notes(db, seq)? {
            loaded.noted.insert(job.head.id, ());
        }
        take_in(&mut loaded, seq, job);
    }
    loaded.model.note_gone(fact(db, "gone")?.unsigned_abs());
    loaded.floor = loaded.floor.max(loaded.model.after_the_gone());
    // What was loaded is durable: it was synced before the file was opened.
    loaded.model.note_moves();
    loaded.next_row = loaded.next_row.max(used.unsigned_abs() + 1).max(fact(db, "next_row")?.unsigned_abs());
    Ok(loaded)
}

/// Settings and counters of the queues, by name.
pub type Queues = Map<QueueName, (QueueRow, QueueTotals)>;

fn read_queues(db: &Connection) -> Result<Queues, SqliteError> {
    let mut queues = Queues::default();
    let mut query = db.prepare(
        "SELECT name, paused, version, created, purged, completed, cancelled, discarded, settings FROM queue",
    )?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let number = |column| -> rusqlite::Result<u64> { Ok(row.get::<_, i64>(column)?.unsigned_abs()) };
        let name = QueueName::from_stored(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
        let mut totals = QueueTotals { created: number(3)?, purged: number(4)?, ..QueueTotals::default() };
        for (state, column) in [(State::Completed, 5), (State::Cancelled, 6), (State::Discarded, 7)] {
            totals.counts[usize::from(state.code())] = number(column)?;
        }
        let text: Option<String> = row.get(8)?;
        let settings = QueueRow {
            name: name.clone(),
            paused: row.get(1)?,
            settings: text.map(Into::into),
            version: number(2)?,
        };
        queues.insert(name, (settings, totals));
    }
    Ok(queues)
}

/// Reads the live rows of jobs that the journal says nothing about.
fn read_live(db: &Connection, loaded: &mut Loaded, journal: &Replay<'_>) -> Result<(), SqliteError> {
    let mut query = db.prepare(&format!(
        "SELECT {HEAD_COLUMNS} FROM job INDEXED BY live WHERE filed IS NULL ORDER BY seq"
    ))?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        if !journal.speaks_of(seq) {
            let (head, released) = rows::head(row, &loaded.names)?;
            take_in(loaded, seq, Journaled { head, released, left_out: false });
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

/// Puts a job into memory. If it has ended, its queue's totals already count it.
fn take_in(loaded: &mut Loaded, seq: i64, job: Journaled) {
    let Journaled { head, released, left_out } = job;
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
        if !loaded.pending.fresh.contains(seq, id) {
            // It stays in memory until it is filed.
            loaded.pending.moved.push(id);
        }
        if left_out {
            loaded.model.readmit_left_out(head);
        } else {
            loaded.model.readmit(head);
        }
    } else {
        loaded.model.put(head);
    }
}

/// Reads a number that the file keeps under a name; 0 when there is none.
pub fn fact(db: &Connection, name: &str) -> Result<i64, SqliteError> {
    let mut query = db.prepare_cached("SELECT value FROM fact WHERE name = ?1")?;
    let mut rows = query.query([name])?;
    Ok(match rows.next()? {
        Some(row) => row.get(0)?,
        None => 0,
    })
}

/// Stores a number under a name.
pub fn set_fact(db: &Connection, name: &str, value: i64) -> Result<(), SqliteError> {
    db.prepare_cached("INSERT INTO fact (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2")?
        .execute(rusqlite::params![name, value])?;
    Ok(())
}
