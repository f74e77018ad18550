//! Sweeping out what was kept for a key's sake and is needed no longer.

use rusqlite::{Connection, params};
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, is_kept};

use crate::error::SqliteError;
use crate::filing::delete_memory;
use crate::rows;

/// Remembered heads looked over in one go.
const FORGET_LOOKS_MAX: u32 = 1_000;

/// A remembered head: its key, its row and its job.
pub type Kept = (UniqueKey, i64, JobId);

/// Remembered heads whose time is over, looking at a bounded number from where the last look ended. No decision sees them
/// any more, whether or not they are deleted.
pub fn over(db: &Connection, cursor: &mut Vec<u8>, now: Timestamp) -> Result<Vec<Kept>, SqliteError> {
    let mut query =
        db.prepare_cached("SELECT key, seq, forget_at, id FROM memory WHERE key > ?1 ORDER BY key LIMIT ?2")?;
    let mut found = query.query(params![&*cursor, FORGET_LOOKS_MAX])?;
    let (mut over, mut looked) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        looked += 1;
        let key: [u8; 32] = row.get(0)?;
        cursor.clear();
        cursor.extend_from_slice(&key);
        if row.get::<_, Option<i64>>(2)?.is_some_and(|at| !is_kept(Timestamp::from_micros(at), now)) {
            over.push((UniqueKey::from_bytes(key), row.get::<_, i64>(1)?, JobId::from_bytes(row.get(3)?)));
        }
    }
    if looked < FORGET_LOOKS_MAX {
        cursor.clear();
    }
    Ok(over)
}

/// Deletes remembered heads.
pub fn forget(db: &Connection, over: &[Kept]) -> Result<(), SqliteError> {
    for (key, seq, id) in over {
        delete_memory(db, key, *seq)?;
        rows::free_id(db, *id)?;
    }
    Ok(())
}
