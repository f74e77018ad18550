//! A head and its rows.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement, params};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head, Lease, Role};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};

use crate::error::SqliteError;
use crate::names::Names;

const FOLLOW_UP: i64 = 1;
const KEY_RELEASED: i64 = 2;
const AWAITED: i64 = 4;

/// The columns of `job` that make a head, in the order [`head`] reads them.
pub const HEAD_COLUMNS: &str = "seq, id, key, hold, type, queue, priority, max_attempts, visibility_ms, timeout_ms, \
     created_at, state, version, available_at, fence, attempt, flags, expires_at, started_at, finished_at, renewed_at, \
     visible_until, run_until, worker, follow_up, ending, burned_until";

/// Writes a whole row where there is none. Not `OR REPLACE`: that copies every page aside before it touches it.
pub const INSERT: &str = "INSERT INTO job (seq, id, key, hold, type, queue, priority, max_attempts, \
     visibility_ms, timeout_ms, created_at, state, version, available_at, fence, attempt, flags, expires_at, started_at, \
     finished_at, renewed_at, visible_until, run_until, worker, follow_up, ending, burned_until, filed, body) VALUES (?1, ?2, ?3, ?4, \
     ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29)";

/// Writes what moves of a row.
pub const UPDATE: &str = "UPDATE job SET state = ?2, version = ?3, available_at = ?4, fence = ?5, attempt = ?6, \
     flags = ?7, expires_at = ?8, started_at = ?9, finished_at = ?10, renewed_at = ?11, visible_until = ?12, \
     run_until = ?13, worker = ?14, follow_up = ?15, ending = ?16, burned_until = ?17, filed = ?18 WHERE seq = ?1";

/// Files a head under its key, where it is not filed yet.
pub const INSERT_MEMORY: &str = "INSERT INTO memory (key, seq, id, hold, type, queue, state, version, fence, \
     created_at, finished_at, renewed_at, ending, forget_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, \
     ?13, ?14)";

fn flags(head: &Head, released: bool) -> i64 {
    let role = if head.role == Role::FollowUp { FOLLOW_UP } else { 0 };
    let awaited = if head.awaited { AWAITED } else { 0 };
    role | awaited | if released { KEY_RELEASED } else { 0 }
}

/// Writes the row of a job that has none, by [`INSERT`]. `names` are the numbers of its type and queue.
pub fn insert(
    statement: &mut Statement<'_>,
    seq: i64,
    head: &Head,
    names: (i64, i64),
    released: bool,
    filed: Option<u8>,
    body: &[u8],
) -> rusqlite::Result<usize> {
    let lease = head.lease.as_ref();
    statement.execute(params![
        seq,
        head.id.to_bytes(),
        head.key.as_ref().map(UniqueKey::as_bytes),
        // An operator may have released the key before the row was written.
        (head.hold != Hold::NONE).then(|| head.hold.to_bytes()),
        names.0,
        names.1,
        head.priority,
        head.max_attempts,
        head.visibility_ms,
        head.timeout_ms,
        head.created_at.as_micros(),
        head.state.code(),
        version(head.version),
        head.available_at.as_micros(),
        version(head.fence),
        head.attempt,
        flags(head, released),
        head.expires_at.map(Timestamp::as_micros),
        head.started_at.map(Timestamp::as_micros),
        head.finished_at.map(Timestamp::as_micros),
        head.renewed_at.map(Timestamp::as_micros),
        lease.map(|lease| lease.visible_until.as_micros()),
        lease.map(|lease| lease.run_until.as_micros()),
        lease.map(|lease| &*lease.worker),
        head.follow_up.map(JobId::to_bytes),
        head.ending.map(|ending| ending as u8),
        head.burned_until.map(Timestamp::as_micros),
        filed,
        body,
    ])
}

/// Writes what moves of a job's row, by [`UPDATE`].
pub fn update(
    statement: &mut Statement<'_>,
    seq: i64,
    head: &Head,
    released: bool,
    filed: Option<u8>,
) -> rusqlite::Result<usize> {
    let lease = head.lease.as_ref();
    statement.execute(params![
        seq,
        head.state.code(),
        version(head.version),
        head.available_at.as_micros(),
        version(head.fence),
        head.attempt,
        flags(head, released),
        head.expires_at.map(Timestamp::as_micros),
        head.started_at.map(Timestamp::as_micros),
        head.finished_at.map(Timestamp::as_micros),
        head.renewed_at.map(Timestamp::as_micros),
        lease.map(|lease| lease.visible_until.as_micros()),
        lease.map(|lease| lease.run_until.as_micros()),
        lease.map(|lease| &*lease.worker),
        head.follow_up.map(JobId::to_bytes),
        head.ending.map(|ending| ending as u8),
        head.burned_until.map(Timestamp::as_micros),
        filed,
    ])
}

/// Versions and fences are microseconds since 1970 and counters from there: they fit until the year 294246.
pub fn version(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

/// Reads a head by [`HEAD_COLUMNS`].
pub fn head(row: &Row<'_>, names: &Names) -> Result<Head, SqliteError> {
    let seq: i64 = row.get(0)?;
    let wrong = |what| SqliteError::Row { seq, what };
    let flags: i64 = row.get(16)?;
    let released = flags & KEY_RELEASED != 0;
    let visible_until = time(row, 21)?;
    let lease = match (visible_until, time(row, 22)?) {
        (Some(visible_until), Some(run_until)) => Some(Lease {
            worker: match row.get_ref(23)? {
                ValueRef::Text(text) => {
                    Arc::from(str::from_utf8(text).map_err(|_| wrong("worker is no text"))?)
                }
                _ => Arc::from(""),
            },
            visible_until,
            run_until,
        }),
        _ => None,
    };
    Ok(Head {
        id: id(row, 1)?.ok_or(wrong("no id"))?,
        key: if released { None } else { key(row, 2)? },
        hold: hold(row, 3)?,
        job_type: names.job_type(row.get(4)?)?,
        queue: names.queue(row.get(5)?)?,
        priority: row.get(6)?,
        max_attempts: row.get(7)?,
        visibility_ms: row.get(8)?,
        timeout_ms: row.get(9)?,
        created_at: Timestamp::from_micros(row.get(10)?),
        state: State::from_code(row.get(11)?).ok_or(wrong("no such state"))?,
        version: unsigned(row.get(12)?),
        available_at: Timestamp::from_micros(row.get(13)?),
        fence: unsigned(row.get(14)?),
        attempt: row.get(15)?,
        role: if flags & FOLLOW_UP != 0 { Role::FollowUp } else { Role::Plain },
        expires_at: time(row, 17)?,
        started_at: time(row, 18)?,
        finished_at: time(row, 19)?,
        renewed_at: time(row, 20)?,
        burned_until: time(row, 26)?,
        lease,
        follow_up: id(row, 24)?,
        ending: row.get::<_, Option<u8>>(25)?.and_then(Ending::from_code),
        awaited: flags & AWAITED != 0,
    })
}

/// Reads a head that is kept for its key's sake. Without `names` it has none; comparing two of one key needs none.
pub fn remembered(row: &Row<'_>, names: Option<&Names>) -> Result<Head, SqliteError> {
    let seq: i64 = row.get(1)?;
    let wrong = |what| SqliteError::Row { seq, what };
    let finished_at = Timestamp::from_micros(row.get(10)?);
    Ok(Head {
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
        priority: 0,
        state: State::from_code(row.get(6)?).ok_or(wrong("no such state"))?,
        role: Role::Plain,
        attempt: 0,
        max_attempts: 0,
        visibility_ms: 0,
        timeout_ms: 0,
        version: unsigned(row.get(7)?),
        fence: unsigned(row.get(8)?),
        created_at: Timestamp::from_micros(row.get(9)?),
        available_at: finished_at,
        expires_at: None,
        started_at: None,
        finished_at: Some(finished_at),
        renewed_at: time(row, 11)?,
        burned_until: None,
        lease: None,
        follow_up: None,
        ending: row.get::<_, Option<u8>>(12)?.and_then(Ending::from_code),
        awaited: false,
    })
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
    let bytes = row.get_ref(column)?;
    Ok(bytes.as_blob_or_null().ok().flatten().and_then(Hold::from_bytes).unwrap_or(Hold::NONE))
}

/// Whether an operator released the key of the job in this row.
pub fn is_released(row: &Row<'_>) -> rusqlite::Result<bool> {
    Ok(row.get::<_, i64>(16)? & KEY_RELEASED != 0)
}

/// Gives an id free that a caller chose, unless it is a stored job's.
pub fn free_id(db: &Connection, id: JobId) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM foreign_id WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM job WHERE job.seq = foreign_id.seq)",
    )?
    .execute([id.to_bytes()])?;
    Ok(())
}

/// Files an ended job under its key, by [`INSERT_MEMORY`]. `names` are the numbers of its type and queue.
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
