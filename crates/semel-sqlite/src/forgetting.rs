//! Sweeping out ended heads that were kept for their keys and are no longer needed.

use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, is_kept};

use crate::error::SqliteError;
use crate::filing::delete_memory;
use crate::rows;

/// Remembered heads read by one query.
const LOOKS: u32 = 1_000;
/// The number of expired heads that makes a full piece.
const PIECE: usize = 1_000;

/// A remembered head: its key, its row and its job.
pub type Kept = (UniqueKey, i64, JobId);

/// The key and row of the last head that was looked at; `None` at the beginning, and after the end.
pub type Cursor = Option<(UniqueKey, i64)>;

/// Whether the piece is full, so that there may be more expired heads.
pub const fn is_full(over: &[Kept]) -> bool {
    over.len() >= PIECE
}

/// Finds remembered heads whose time is over, from where the last look ended: at most about a piece of them,
/// or those found before the table ends or `looking` has passed. Decisions ignore them already, whether or
/// not they are deleted.
pub fn over(
    db: &Connection,
    cursor: &mut Cursor,
    now: Timestamp,
    looking: Duration,
) -> Result<Vec<Kept>, SqliteError> {
    let began = Instant::now();
    let mut over = Vec::new();
    loop {
        look(db, cursor, now, &mut over)?;
        if cursor.is_none() || is_full(&over) || began.elapsed() >= looking {
            return Ok(over);
        }
    }
}

/// Looks at one bounded batch of heads.
fn look(
    db: &Connection,
    cursor: &mut Cursor,
    now: Timestamp,
    over: &mut Vec<Kept>,
) -> Result<(), SqliteError> {
    let mut query = db.prepare_cached(
        "SELECT key, seq, forget_at, id FROM memory WHERE (key, seq) > (?1, ?2) ORDER BY key, seq LIMIT ?3",
    )?;
    let last = cursor.take();
    // An empty key sorts before every key.
    let (key, seq) = last.as_ref().map_or((&[] as &[u8], 0), |(key, seq)| (&key.as_bytes()[..], *seq));
    let mut found = query.query(params![key, seq, LOOKS])?;
    let (mut looked, mut reached) = (0, None);
    while let Some(row) = found.next()? {
        looked += 1;
        let (key, seq) = (UniqueKey::from_bytes(row.get(0)?), row.get(1)?);
        reached = Some((key, seq));
        if row.get::<_, Option<i64>>(2)?.is_some_and(|at| !is_kept(Timestamp::from_micros(at), now)) {
            over.push((key, seq, JobId::from_bytes(row.get(3)?)));
        }
    }
    *cursor = reached.filter(|_| looked == LOOKS);
    Ok(())
}

/// Deletes remembered heads, and frees their ids.
pub fn forget(db: &Connection, over: &[Kept]) -> Result<(), SqliteError> {
    for (key, seq, id) in over {
        delete_memory(db, key, *seq)?;
        rows::free_id(db, *id)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

    use super::*;
    use crate::open::open;

    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn what_is_over_is_found_behind_much_that_is_kept_and_however_much_one_key_has() {
        let dir = semel_testkit::TempDir::new();
        let db = open(&dir.path().join("a.db")).unwrap();
        let (kept, many) = (UniqueKey::from_bytes([1; 32]), UniqueKey::from_bytes([2; 32]));
        let before = db.unchecked_transaction().unwrap();
        for (key, number, forget_at) in [(kept, 5_500, None), (many, 1_500, Some(1))] {
            for seq in 0..number {
                let sql = "INSERT INTO memory (key, seq, id, hold, type, queue, state, version, fence, created_at, finished_at, \
                           forget_at) VALUES (?1, ?2, zeroblob(16), x'', 0, 0, 5, 1, 0, 0, 0, ?3)";
                before.execute(sql, params![key.as_bytes(), seq, forget_at]).unwrap();
            }
        }
        before.commit().unwrap();
        let (mut cursor, now) = (None, Timestamp::from_micros(2));
        let mut found = Vec::new();
        for is_first in [true, false] {
            let over = over(&db, &mut cursor, now, LONG).unwrap();
            assert_eq!((is_full(&over), cursor.is_some()), (is_first, is_first), "{}", over.len());
            found.extend(over.into_iter().map(|(key, seq, _)| (key, seq)));
        }
        assert!(found == (0..1_500).map(|seq| (many, seq)).collect::<Vec<_>>(), "{}", found.len());
    }
}
