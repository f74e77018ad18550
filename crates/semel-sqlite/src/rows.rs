//! Conversion between a head and its rows.

use rusqlite::{Connection, Row, Statement, params};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head, KeyMemory};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};

use crate::error::SqliteError;
use crate::filing::Written;
use crate::names::Names;
use crate::packed::{Fixed, Packer, Unpacker};
use crate::pending::Remembered;

/// The columns of `job` that make up a head, in the order in which [`head`] reads them.
pub const HEAD_COLUMNS: &str = "seq, id, key, type, queue, priority, max_attempts, created_at, rest";

/// Inserts a whole row, where there is none. Not `OR REPLACE`: it copies each page aside before changing it.
pub const INSERT: &str = "INSERT INTO job (seq, id, key, type, queue, priority, max_attempts, created_at, state, attempt, \
     finished_at, worker, filed, rest, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

/// Updates the columns of a row that change.
pub const UPDATE: &str = "UPDATE job SET state = ?2, attempt = ?3, finished_at = ?4, worker = ?5, filed = ?6, rest = ?7 \
     WHERE seq = ?1";

/// Inserts a head into its key's memory; it must not be there yet.
pub const INSERT_MEMORY: &str = "INSERT INTO memory (key, seq, id, hold, type, queue, state, version, fence, \
     created_at, finished_at, renewed_at, ending, forget_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, \
     ?13, ?14)";

/// The packed column: everything without a column of its own, read and written as one.
#[derive(Debug, Default)]
pub struct Rest(Packer);

impl Rest {
    fn of(&mut self, head: &Head, released: bool) -> &[u8] {
        self.0.0.clear();
        self.0.options(head);
        self.0.moving(head, released);
        &self.0.0
    }
}

/// Inserts the row of a job, by [`INSERT`]. `names` are the numbers of its type and queue.
pub fn insert(
    statement: &mut Statement<'_>,
    rest: &mut Rest,
    written: &Written,
    body: &[u8],
) -> rusqlite::Result<usize> {
    let Written { seq, head, names, released, filed, .. } = written;
    statement.execute(params![
        seq,
        head.id.to_bytes(),
        head.key.as_ref().map(UniqueKey::as_bytes),
        names.0,
        names.1,
        head.priority,
        head.max_attempts,
        head.created_at.as_micros(),
        head.state.code(),
        head.attempt,
        head.finished_at.map(Timestamp::as_micros),
        head.lease.as_ref().map(|lease| &*lease.worker),
        filed,
        rest.of(head, *released),
        body,
    ])
}

/// Updates the columns of a job's row that change, by [`UPDATE`].
pub fn update(statement: &mut Statement<'_>, rest: &mut Rest, written: &Written) -> rusqlite::Result<usize> {
    let Written { seq, head, released, filed, .. } = written;
    statement.execute(params![
        seq,
        head.state.code(),
        head.attempt,
        head.finished_at.map(Timestamp::as_micros),
        head.lease.as_ref().map(|lease| &*lease.worker),
        filed,
        rest.of(head, *released),
    ])
}

/// Converts a version or fence to SQLite's signed integer. They start at microseconds since 1970 and count up
/// from there, so they fit until the year 294246.
pub fn version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

/// Reads a head by [`HEAD_COLUMNS`]. Also returns whether an operator released its key.
pub fn head(row: &Row<'_>, names: &Names) -> Result<(Head, bool), SqliteError> {
    let seq: i64 = row.get(0)?;
    let id = id(row, 1)?.ok_or(SqliteError::Row { seq, what: "no id" })?;
    let wrong = |what| SqliteError::Job { id, seq, what };
    let mut rest = Unpacker(row.get_ref(8)?.as_blob().map_err(rusqlite::Error::from)?);
    let (options, moving) =
        rest.options().zip(rest.moving()).ok_or(wrong("its packed part is not in this program's format"))?;
    let (visibility_ms, timeout_ms, hold) = options;
    let fixed = Fixed {
        id,
        key: key(row, 2)?,
        hold,
        job_type: row.get(3)?,
        queue: row.get(4)?,
        priority: row.get(5)?,
        max_attempts: row.get(6)?,
        visibility_ms,
        timeout_ms,
        created_at: Timestamp::from_micros(row.get(7)?),
    };
    let released = moving.released;
    let head = fixed.head(names).map_err(|_| wrong("its type or its queue has no name"))?;
    Ok((moving.onto(&head), released))
}

/// Reads the key a job was enqueued with, released or not, by [`HEAD_COLUMNS`].
pub fn own_key(row: &Row<'_>) -> rusqlite::Result<Option<UniqueKey>> {
    key(row, 2)
}

/// Reads a head that is kept for its key. Without `names` its type and queue are empty: comparing two holders
/// of one key does not need them. How long a job's body is kept is not stored here either, but in [its own
/// row](crate::reader::add_kept_until).
pub fn remembered(row: &Row<'_>, names: Option<&Names>) -> Result<Remembered, SqliteError> {
    let seq: i64 = row.get(1)?;
    let wrong = |what| SqliteError::Row { seq, what };
    let memory = KeyMemory {
        id: id(row, 2)?.ok_or(wrong("no id"))?,
        key: key(row, 0)?,
        hold: hold(row, 3)?,
        job_type: match names {
            Some(names) => names.job_type(row.get(4)?)?,
            None => JobType::from_stored(""),
        },
        queue: match names {
            Some(names) => names.queue(row.get(5)?)?,
            None => QueueName::from_stored(""),
        },
        state: State::from_code(row.get(6)?).ok_or(wrong("no such state"))?,
        version: unsigned(row.get(7)?),
        fence: unsigned(row.get(8)?),
        created_at: Timestamp::from_micros(row.get(9)?),
        finished_at: Timestamp::from_micros(row.get(10)?),
        renewed_at: time(row, 11)?,
        ending: row.get::<_, Option<u8>>(12)?.and_then(Ending::from_code),
    };
    Ok(Remembered { head: memory.into(), forget_at: time(row, 13)? }.settled())
}

/// Reads the `until` of a job's head from the column `rest`: until when the job honours a burned lease, or is
/// kept. `None` if the column cannot be read.
pub fn until(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    let mut rest = Unpacker(row.get_ref(column)?.as_blob()?);
    Ok(rest.options().and_then(|_| rest.moving()).and_then(|moving| moving.until))
}

fn unsigned(version: i64) -> u64 {
    u64::try_from(version).unwrap_or(0)
}

fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

fn id(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<JobId>> {
    Ok(row.get::<_, Option<[u8; 16]>>(column)?.map(JobId::from_bytes))
}

fn key(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<UniqueKey>> {
    Ok(row.get::<_, Option<[u8; 32]>>(column)?.map(UniqueKey::from_bytes))
}

fn hold(row: &Row<'_>, column: usize) -> rusqlite::Result<Hold> {
    // An unreadable hold must not be taken for none: its key would be free.
    let Some(bytes) = row.get_ref(column)?.as_blob_or_null()? else { return Ok(Hold::NONE) };
    Hold::from_bytes(bytes).map_err(|unreadable| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Blob, Box::new(unreadable))
    })
}

/// Frees an id that a caller chose, unless a stored job has it.
pub fn free_id(db: &Connection, id: JobId) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM foreign_id WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM job WHERE job.seq = foreign_id.seq)",
    )?
    .execute([id.to_bytes()])?;
    Ok(())
}

/// Inserts an ended job into its key's memory, by [`INSERT_MEMORY`]. `names` are the numbers of its type and
/// queue.
pub fn write_memory(
    statement: &mut Statement<'_>,
    names: (i64, i64),
    seq: i64,
    head: &Head,
    forget_at: Option<Timestamp>,
) -> rusqlite::Result<usize> {
    let Some(key) = &head.key else { return Ok(0) };
    statement.execute(params![
        key.as_bytes(),
        seq,
        head.id.to_bytes(),
        head.hold.to_bytes(),
        names.0,
        names.1,
        head.state.code(),
        version(head.version),
        version(head.fence),
        head.created_at.as_micros(),
        head.finished_at.unwrap_or(head.created_at).as_micros(),
        head.renewed_at.map(Timestamp::as_micros),
        head.ending.map(|ending| ending as u8),
        forget_at.map(Timestamp::as_micros),
    ])
}
