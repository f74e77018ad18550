//! The store's own duty: ended jobs leave the live rows and memory, sorted by key, in bounded pieces.

use std::time::Duration;

use rusqlite::{Connection, params};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::unique::outlives;

use crate::error::SqliteError;
use crate::open::{Loaded, set_fact};
use crate::reader;
use crate::rows;

/// Ended jobs filed in one transaction, which holds up the groups behind it.
const FILE_JOBS_MAX: usize = 1_500;
/// Values of `filed`.
const FILED: u8 = 1;
const DEAD_LETTER: u8 = 2;
/// Remembered heads looked over in one go.
const FORGET_LOOKS_MAX: u32 = 1_000;

/// When ended jobs are filed. A round takes all there are, sorted by key: the more they are, the more of them share a
/// page of the memory of keys, and a page is written once for all of its jobs.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A round begins when there are so many,
    pub jobs: usize,
    /// or when the first of them has waited so long.
    pub time: Duration,
}

impl Patience {
    /// What a server does: about 12 MB of memory at most.
    pub const DEFAULT: Self = Self { jobs: 50_000, time: Duration::from_secs(30) };
    /// Everything at once.
    pub const NONE: Self = Self { jobs: 1, time: Duration::ZERO };
}

/// Begins a round if it is time for one.
pub fn begin(at: &mut Loaded, patience: Patience, now: Timestamp) {
    if !at.round.is_empty() || at.unfiled.is_empty() {
        return;
    }
    let since = *at.unfiled_since.get_or_insert(now);
    if at.unfiled.len() < patience.jobs && now.since(since) < patience.time {
        return;
    }
    at.unfiled_since = None;
    let mut round: Vec<_> = std::mem::take(&mut at.unfiled)
        .into_iter()
        .map(|id| (at.model.head(id).and_then(|head| head.key).map(|key| *key.as_bytes()), id))
        .collect();
    round.sort_unstable();
    at.round = round.into_iter().map(|(_, id)| id).collect();
}

/// The jobs of the round that the next transaction files.
fn piece(at: &Loaded) -> &[JobId] {
    &at.round[at.round.len().saturating_sub(FILE_JOBS_MAX)..]
}

/// A piece has been filed: it leaves memory.
pub fn filed(at: &mut Loaded, ids: Vec<JobId>) {
    let rest = at.round.len().saturating_sub(FILE_JOBS_MAX);
    at.round.truncate(rest);
    for id in ids {
        at.model.evict(id);
        at.leave_memory(id);
    }
}

/// Files a piece of the round, inside an open transaction. Gives back those filed, to be dropped from memory when the
/// transaction is committed.
pub fn file(db: &Connection, at: &mut Loaded, now: Timestamp) -> Result<Vec<JobId>, SqliteError> {
    // An ended job that an operator sent back is live again, and stays.
    let mut heads: Vec<(i64, Head)> = piece(at)
        .iter()
        .filter_map(|id| at.model.head(*id))
        .filter(|head| head.state.is_finished())
        .map(|head| (at.seq(head.id), head.clone()))
        .collect();
    heads.sort_unstable_by_key(|(seq, _)| *seq);
    heads.dedup_by_key(|(seq, _)| *seq);
    let mut file = db.prepare_cached("UPDATE status SET filed = ?2 WHERE seq = ?1")?;
    for (seq, head) in &heads {
        file.execute(params![seq, if head.is_dead_letter() { DEAD_LETTER } else { FILED }])?;
    }
    heads.sort_unstable_by_key(|(seq, head)| (head.key.map(|key| *key.as_bytes()), *seq));
    for (seq, head) in &heads {
        // A row for one that was left out in favour of a later one would only be deleted again.
        if at.model.holds(head.id) {
            remember(db, at, *seq, head)?;
        }
    }
    set_fact(db, "floor", now.as_micros())?;
    Ok(heads.into_iter().map(|(_, head)| head.id).collect())
}

/// Files an ended head under its key, in place of those it outlives.
fn remember(db: &Connection, at: &mut Loaded, seq: i64, head: &Head) -> Result<(), SqliteError> {
    let Some(key) = &head.key else { return Ok(()) };
    for (other_seq, other) in reader::remembered(db, &at.names, key)? {
        if outlives(&other, head) {
            return Ok(());
        }
        if outlives(head, &other) {
            db.prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?
                .execute(params![key.as_bytes(), other_seq])?;
            rows::free_id(db, other.id)?;
        }
    }
    rows::write_memory(db, &mut at.names, seq, head)
}

/// Deletes remembered heads whose time is over, looking at a bounded number from where the last look ended.
pub fn forget(db: &Connection, cursor: &mut Vec<u8>, now: Timestamp) -> Result<(), SqliteError> {
    let mut query =
        db.prepare_cached("SELECT key, seq, forget_at, id FROM memory WHERE key > ?1 ORDER BY key LIMIT ?2")?;
    let mut found = query.query(params![&*cursor, FORGET_LOOKS_MAX])?;
    let (mut over, mut looked) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        looked += 1;
        let key: [u8; 32] = row.get(0)?;
        cursor.clear();
        cursor.extend_from_slice(&key);
        if row.get::<_, Option<i64>>(2)?.is_some_and(|at| at <= now.as_micros()) {
            over.push((key, row.get::<_, i64>(1)?, JobId::from_bytes(row.get(3)?)));
        }
    }
    drop(found);
    if looked < FORGET_LOOKS_MAX {
        cursor.clear();
    }
    for (key, seq, id) in over {
        db.prepare_cached("DELETE FROM memory WHERE key = ?1 AND seq = ?2")?.execute(params![key, seq])?;
        rows::free_id(db, id)?;
    }
    Ok(())
}
