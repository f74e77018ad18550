//! The store's own duty, in rounds of bounded pieces: what the journal has is carried over to the rows, ended jobs are
//! filed by their keys and leave memory, and the journal's records are dropped.
//!
//! A round is safe to lose at any point: until its records are dropped, opening the file does them again, and every
//! write here puts the values a job has by then.

use std::time::Duration;

use rusqlite::{CachedStatement, Connection, params};
use semel_core::draft::next_version;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::unique::outlives;

use crate::error::SqliteError;
use crate::open::{Loaded, set_fact};
use crate::pending::{Notes, Pending};
use crate::reader;
use crate::rows;
use crate::writer::write_queue;

/// Rows written in one transaction, which holds up the groups behind it.
const PIECE_ROWS: usize = 1_500;
/// Records of the journal dropped for the price of one row: freeing a record's pages is about that much work.
const DROPS_PER_ROW: usize = 16;
/// Remembered heads looked over in one go.
const FORGET_LOOKS_MAX: u32 = 1_000;
/// Values of `filed`.
const FILED: u8 = 1;
const DEAD_LETTER: u8 = 2;

/// When a round begins. The more it takes, the more jobs have ended by then and are written once, and the more keys
/// share a page of the memory of keys.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// When the journal has grown so long,
    pub bytes: usize,
    /// or so many jobs have ended,
    pub ended: usize,
    /// or the first of it has waited so long.
    pub time: Duration,
}

impl Patience {
    /// What a server does. Opening a file after a crash reads a journal of about two rounds.
    pub const DEFAULT: Self = Self { bytes: 64 << 20, ended: 100_000, time: Duration::from_secs(30) };
    /// Everything at once.
    pub const NONE: Self = Self { bytes: 1, ended: 1, time: Duration::ZERO };
}

/// A job whose row is written, on its way out of memory.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    key: [u8; 32],
    seq: i64,
    id: JobId,
    /// The version in its row. One that has moved on stays for the next round.
    version: u64,
}

/// A round under way.
#[derive(Debug)]
pub struct Round {
    /// The last record it carries over.
    upto: i64,
    /// Bytes of journal it will free.
    pub bytes: usize,
    /// Rows to write, the first last.
    rows: Vec<(i64, JobId)>,
    /// Ended jobs to file, in the order of their keys once all rows are written, the first last.
    ended: Vec<Ended>,
    is_sorted: bool,
}

impl Round {
    /// Jobs that are not in the rows as they should be.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> + '_ {
        self.rows.iter().map(|(_, id)| *id).chain(self.ended.iter().map(|ended| ended.id))
    }
}

/// Begins a round if it is time for one.
pub fn begin(at: &mut Loaded, patience: Patience, now: Timestamp) {
    let pending = &at.pending;
    if at.round.is_some() || pending.is_empty() {
        return;
    }
    let waited = pending.since.map_or(Duration::ZERO, |since| now.since(since));
    if pending.bytes < patience.bytes && pending.ended < patience.ended && waited < patience.time {
        return;
    }
    let fresh = Pending {
        bodies: std::mem::take(&mut at.pending.bodies),
        notes: std::mem::take(&mut at.pending.notes),
        ..Pending::default()
    };
    let taken = std::mem::replace(&mut at.pending, fresh);
    let noted = at.pending.notes.iter().map(|(id, notes)| (notes.seq, *id));
    // Some of them may have been forgotten meanwhile; they are left out when their turn comes.
    let heads = at.pending.bodies.keys().chain(&taken.moved);
    let mut rows: Vec<(i64, JobId)> = heads.map(|id| (at.seq(*id), *id)).chain(noted).collect();
    rows.sort_unstable_by(|a, b| b.cmp(a));
    rows.dedup();
    at.pending.queues = taken.queues;
    at.round =
        Some(Round { upto: at.last_record, bytes: taken.bytes, rows, ended: Vec::new(), is_sorted: false });
}

/// Does a piece of the round inside an open transaction. Says whether more of it is waiting.
pub fn carry_over(db: &Connection, at: &mut Loaded, now: Timestamp) -> Result<bool, SqliteError> {
    let Some(mut round) = at.round.take() else { return Ok(false) };
    let mut left = PIECE_ROWS;
    set_fact(db, "floor", now.as_micros())?;
    write_rows(db, at, &mut round, &mut left)?;
    if round.rows.is_empty() {
        if !round.is_sorted {
            round.ended.sort_unstable_by(|a, b| b.cmp(a));
            round.is_sorted = true;
        }
        file(db, at, &mut round, &mut left, now)?;
    }
    if round.rows.is_empty() && round.ended.is_empty() && left > 0 && drop_records(db, at, &round, left)? {
        return Ok(false);
    }
    at.round = Some(round);
    Ok(true)
}

/// Writes the rows of jobs as they are now.
fn write_rows(
    db: &Connection,
    at: &mut Loaded,
    round: &mut Round,
    left: &mut usize,
) -> Result<(), SqliteError> {
    if round.rows.is_empty() {
        return Ok(());
    }
    let mut insert = db.prepare_cached(rows::INSERT)?;
    let mut update = db.prepare_cached(rows::UPDATE)?;
    while *left > 0
        && let Some((seq, id)) = round.rows.pop()
    {
        *left -= 1;
        let body = at.pending.bodies.remove(&id);
        if let Some(head) = at.model.head(id) {
            let filed = match (head.state.is_finished(), head.is_dead_letter()) {
                (false, _) => None,
                (true, false) => Some(FILED),
                (true, true) => Some(DEAD_LETTER),
            };
            let released = at.is_released(id);
            match body {
                Some(body) => {
                    let job_type = at.names.id(db, head.job_type.as_str())?;
                    let queue = at.names.id(db, head.queue.as_str())?;
                    rows::insert(&mut insert, seq, head, (job_type, queue), released, filed, &body)?;
                    if id.row() != seq.unsigned_abs() {
                        db.prepare_cached("INSERT OR REPLACE INTO foreign_id (id, seq) VALUES (?1, ?2)")?
                            .execute(params![id.to_bytes(), seq])?;
                    }
                }
                None => {
                    if rows::update(&mut update, seq, head, released, filed)? != 1 {
                        return Err(SqliteError::Row { seq, what: "a job has no row" });
                    }
                }
            }
            if head.state.is_finished() {
                let key = head.key.map_or([0; 32], |key| *key.as_bytes());
                round.ended.push(Ended { key, seq, id, version: head.version });
            }
        }
        if let Some(notes) = at.pending.notes.remove(&id) {
            write_notes(db, &notes)?;
        }
    }
    Ok(())
}

fn write_notes(db: &Connection, notes: &Notes) -> Result<(), SqliteError> {
    for (kind, text) in &notes.texts {
        match text {
            Some(text) => db
                .prepare_cached("INSERT OR REPLACE INTO note (seq, kind, text) VALUES (?1, ?2, ?3)")?
                .execute(params![notes.seq, kind.code(), &**text])?,
            None => db
                .prepare_cached("DELETE FROM note WHERE seq = ?1 AND kind = ?2")?
                .execute(params![notes.seq, kind.code()])?,
        };
    }
    Ok(())
}

/// Files ended jobs under their keys and lets them leave memory.
fn file(
    db: &Connection,
    at: &mut Loaded,
    round: &mut Round,
    left: &mut usize,
    now: Timestamp,
) -> Result<(), SqliteError> {
    if round.ended.is_empty() || *left == 0 {
        return Ok(());
    }
    let mut others = db.prepare_cached(reader::REMEMBERED)?;
    let mut insert = db.prepare_cached(rows::INSERT_MEMORY)?;
    while *left > 0
        && let Some(ended) = round.ended.pop()
    {
        // One that an operator sent back, or that changed since its row was written, stays.
        let Some(head) = at.model.head(ended.id).filter(|head| head.version == ended.version) else {
            continue;
        };
        *left -= 1;
        if head.key.is_some() {
            let head = head.clone();
            remember(db, at, &mut others, &mut insert, ended.seq, &head)?;
        }
        at.model.evict(ended.id);
        at.leave_memory(ended.id);
    }
    // Decisions that saw these keys without their filed holders are to be taken again.
    at.model.move_absent_version(next_version(0, now));
    Ok(())
}

/// Files an ended head under its key, in place of those it outlives.
fn remember(
    db: &Connection,
    at: &mut Loaded,
    others: &mut CachedStatement<'_>,
    insert: &mut CachedStatement<'_>,
    seq: i64,
    head: &Head,
) -> Result<(), SqliteError> {
    let Some(key) = &head.key else { return Ok(()) };
    for (other_seq, other) in reader::remembered(others, &at.names, key)? {
        if other_seq != seq && outlives(&other, head) {
            return Ok(());
        }
        if other_seq == seq || outlives(head, &other) {
            db.prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?
                .execute(params![key.as_bytes(), other_seq])?;
        }
    }
    rows::write_memory(insert, db, &mut at.names, seq, head)
}

/// Drops the round's records once nothing needs them. Says whether all are gone.
fn drop_records(db: &Connection, at: &mut Loaded, round: &Round, left: usize) -> Result<bool, SqliteError> {
    // As they are now: what is in later records says the same or newer.
    for name in std::mem::take(&mut at.pending.queues) {
        write_queue(db, at, &name)?;
    }
    let records = i64::try_from(left.div_ceil(DROPS_PER_ROW)).unwrap_or(i64::MAX);
    let first: Option<i64> =
        db.prepare_cached("SELECT min(cursor) FROM journal")?.query_row([], |row| row.get(0))?;
    let Some(first) = first else { return Ok(true) };
    let upto = round.upto.min(first.saturating_add(records));
    db.prepare_cached("DELETE FROM journal WHERE cursor <= ?1")?.execute([upto])?;
    Ok(upto == round.upto)
}

/// Deletes remembered heads whose time is over, looking at a bounded number from where the last look ended.
pub fn forget(db: &Connection, cursor: &mut Vec<u8>, now: Timestamp) -> Result<(), SqliteError> {
    let mut query =
        db.prepare_cached("SELECT key, seq, forget_at FROM memory WHERE key > ?1 ORDER BY key LIMIT ?2")?;
    let mut found = query.query(params![&*cursor, FORGET_LOOKS_MAX])?;
    let (mut over, mut looked) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        looked += 1;
        let key: [u8; 32] = row.get(0)?;
        cursor.clear();
        cursor.extend_from_slice(&key);
        if row.get::<_, Option<i64>>(2)?.is_some_and(|at| at <= now.as_micros()) {
            over.push((key, row.get::<_, i64>(1)?));
        }
    }
    drop(found);
    if looked < FORGET_LOOKS_MAX {
        cursor.clear();
    }
    for (key, seq) in over {
        db.prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?.execute(params![key, seq])?;
    }
    Ok(())
}
