//! The store's own duty: ended jobs leave the live rows and memory, sorted by key, in bounded pieces.

use rusqlite::{Connection, params};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::unique::outlives;

use crate::error::SqliteError;
use crate::open::{Loaded, set_fact};
use crate::reader;
use crate::rows::{self, MOVING_COLUMNS};

/// Ended jobs filed in one transaction. Sorted by key, so that the more there are, the more keys share a page.
pub const FILE_JOBS_MAX: usize = 4_000;
/// Remembered heads looked over in one go.
const FORGET_LOOKS_MAX: u32 = 1_000;

/// Files a piece of the ended jobs, inside an open transaction. Gives back those filed, to be dropped from memory when
/// the transaction is committed.
pub fn file(db: &Connection, at: &mut Loaded, now: Timestamp) -> Result<Vec<JobId>, SqliteError> {
    let from = at.unfiled.len().saturating_sub(FILE_JOBS_MAX);
    // An ended job that an operator sent back is live again, and stays.
    let mut heads: Vec<(i64, Head)> = at.unfiled[from..]
        .iter()
        .filter_map(|id| at.model.head(*id))
        .filter(|head| head.state.is_finished())
        .map(|head| (at.seq(head.id), head.clone()))
        .collect();
    heads.sort_unstable_by_key(|(seq, _)| *seq);
    heads.dedup_by_key(|(seq, _)| *seq);
    let copy = format!(
        "INSERT INTO done (seq, {MOVING_COLUMNS}, purge_at) SELECT seq, {MOVING_COLUMNS}, ?2 FROM live WHERE seq = ?1"
    );
    let mut copy = db.prepare_cached(&copy)?;
    let mut delete = db.prepare_cached("DELETE FROM live WHERE seq = ?1")?;
    for (seq, head) in &heads {
        let purge_at = head.purge_at().unwrap_or(now);
        copy.execute(params![seq, purge_at.as_micros()])?;
        delete.execute([seq])?;
    }
    heads.sort_unstable_by_key(|(seq, head)| (head.key.map(|key| *key.as_bytes()), *seq));
    for (seq, head) in &heads {
        remember(db, at, *seq, head)?;
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
        }
    }
    rows::write_memory(db, &mut at.names, seq, head)
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
