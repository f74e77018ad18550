//! A head and its rows.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement, params};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, Lease, Role};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};

use crate::error::SqliteError;
use crate::names::Names;

const FOLLOW_UP: i64 = 1;
const KEY_RELEASED: i64 = 2;

/// The columns of `job` that make a head, in the order [`head`] reads them; `s` is the row that moves.
pub const HEAD_COLUMNS: &str = "j.seq, j.id, j.key, j.hold, j.type, j.queue, j.priority, j.max_attempts, \
     j.visibility_ms, j.timeout_ms, j.created_at, s.state, s.version, s.available_at, s.fence, s.attempt, s.flags, \
     s.expires_at, s.started_at, s.finished_at, s.renewed_at, s.visible_until, s.run_until, s.worker, s.follow_up, \
     s.ending, s.burned_until";

/// Writes the moving row of `head` by a statement whose parameters are the columns of `status`, in order.
pub fn write_moving(
    statement: &mut Statement<'_>,
    seq: i64,
    head: &Head,
    released: bool,
) -> rusqlite::Result<usize> {
    let flags =
        if head.role == Role::FollowUp { FOLLOW_UP } else { 0 } | if released { KEY_RELEASED } else { 0 };
    let lease = head.lease.as_ref();
    statement.execute(params![
        seq,
        head.state.code(),
        version(head.version),
        head.available_at.as_micros(),
        version(head.fence),
        head.attempt,
        flags,
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
    })
}

/// The columns of `memory`, in the order [`remembered`] reads them.
pub const MEMORY_COLUMNS: &str =
    "key, seq, id, hold, type, queue, state, version, fence, created_at, finished_at, renewed_at, ending";

/// Reads a head that is kept for its key's sake.
pub fn remembered(row: &Row<'_>, names: &Names) -> Result<Head, SqliteError> {
    let seq: i64 = row.get(1)?;
    let wrong = |what| SqliteError::Row { seq, what };
    let finished_at = Timestamp::from_micros(row.get(10)?);
    Ok(Head {
        id: id(row, 2)?.ok_or(wrong("no id"))?,
        key: key(row, 0)?,
        hold: hold(row, 3)?,
        job_type: names.job_type(row.get(4)?)?,
        queue: names.queue(row.get(5)?)?,
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
pub fn free_id(db: &Connection, id: JobId) -> Result<(), SqliteError> {
    db.prepare_cached(
        "DELETE FROM foreign_id WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM job WHERE job.seq = foreign_id.seq)",
    )?
    .execute([id.to_bytes()])?;
    Ok(())
}

/// Files an ended job under its key.
pub fn write_memory(db: &Connection, names: &mut Names, seq: i64, head: &Head) -> Result<(), SqliteError> {
    let Some(key) = &head.key else { return Ok(()) };
    let job_type = names.id(db, head.job_type.as_str())?;
    let queue = names.id(db, head.queue.as_str())?;
    db.prepare_cached(
        "INSERT OR REPLACE INTO memory (key, seq, id, hold, type, queue, state, version, fence, created_at, \
         finished_at, renewed_at, ending) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?
    .execute(params![
        key.as_bytes(),
        seq,
        head.id.to_bytes(),
        head.hold.to_bytes(),
        job_type,
        queue,
        head.state.code(),
        version(head.version),
        version(head.fence),
        head.created_at.as_micros(),
        head.finished_at.unwrap_or(head.created_at).as_micros(),
        head.renewed_at.map(Timestamp::as_micros),
        head.ending.map(|ending| ending as u8),
    ])?;
    Ok(())
}
