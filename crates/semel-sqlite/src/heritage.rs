//! What a store's file provides for copying from this store to another, and from another store into this one.

use bytes::Bytes;
use rusqlite::{Connection, params};
use semel_core::unique::UniqueKey;
use semel_store::carry::{Heritage, Piece};

use crate::error::SqliteError;
use crate::log::DROPPED;
use crate::open::{Loaded, fact, set_fact, set_secret};
use crate::pending::Remembered;
use crate::rows;

/// Returns a piece of the heads that are kept only for their keys, by key and row. Heads that are only in the
/// journal so far come with the first piece.
pub fn remembered(
    db: &Connection,
    at: &Loaded,
    after: Option<&Bytes>,
    limit: usize,
) -> Result<Piece, SqliteError> {
    let mut piece = Piece::default();
    if after.is_none() {
        let newer = at.pending.memory.values().flatten().filter_map(|change| change.remembered.clone());
        piece.heads.extend(newer.filter_map(|Remembered { head, forget_at }| Some((head, forget_at?))));
    }
    let (key, seq) = match after.and_then(|after| after.split_last_chunk()) {
        Some((key, seq)) => (key, i64::from_be_bytes(*seq)),
        None => (&[][..], i64::MIN),
    };
    let mut query = db.prepare_cached(
        "SELECT key, seq, id, hold, type, queue, state, version, fence, created_at, finished_at, renewed_at, ending, \
         forget_at FROM memory WHERE (key, seq) > (?1, ?2) AND forget_at IS NOT NULL ORDER BY key, seq LIMIT ?3",
    )?;
    let mut found = query.query(params![key, seq, i64::try_from(limit).unwrap_or(i64::MAX)])?;
    let mut looked = 0;
    while let Some(row) = found.next()? {
        let (key, seq): ([u8; 32], i64) = (row.get(0)?, row.get(1)?);
        looked += 1;
        piece.next = (looked >= limit).then(|| [&key[..], &seq.to_be_bytes()].concat().into());
        let newer = at.pending.memory.get(&UniqueKey::from_bytes(key));
        if newer.is_none_or(|changes| changes.iter().all(|change| change.seq != seq)) {
            let Remembered { head, forget_at } = rows::remembered(row, Some(&at.names))?;
            piece.heads.extend(forget_at.map(|until| (head, until)));
        }
    }
    Ok(piece)
}

/// Records in the database which store this one replaces. `last` is the number of this store's last journal
/// record.
pub fn take_over(db: &mut Connection, heritage: &Heritage, last: u64) -> Result<(), SqliteError> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    db.pragma_update(None, "synchronous", "FULL")?;
    let transaction = db.transaction()?;
    set_secret(&transaction, &heritage.secret)?;
    set_fact(&transaction, "carried", signed(last))?;
    set_fact(&transaction, DROPPED, signed(last))?;
    let gone = fact(&transaction, "gone")?.max(heritage.time.as_micros());
    set_fact(&transaction, "gone", gone)?;
    Ok(transaction.commit()?)
}
