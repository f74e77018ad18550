//! The one who writes rows: carries over what the journal has, keeps house, and clears it all away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use semel_core::time::Timestamp;
use semel_store::StoreError;
use semel_store::bounds::PLACE_BITS;
use semel_store::carry::Heritage;

use super::Sqlite;
use crate::error::SqliteError;
use crate::filing::{self, Patience};
use crate::open::set_fact;
use crate::view::{hold, look};
use crate::{forgetting, heritage, log};

/// The longest that making a copy may hold up the writing of rows; commits go on meanwhile.
const COPY_MAX: Duration = Duration::from_secs(3_600);
/// Who waits for it looks so often whether the store is being closed.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pages of SQLite's log from which on they are moved to the database.
const CHECKPOINT_PAGES: i64 = 1_000;

/// The one who writes rows.
pub(super) struct Carrier {
    /// It waits for a lock no longer than for a [look](LOOK_EVERY).
    pub(super) db: Connection,
    pub(super) forget_cursor: Vec<u8>,
    /// How many events have rows, once counted.
    pub(super) events: Option<u64>,
    /// How many may have.
    pub(super) events_max: u64,
}

impl Sqlite {
    /// Carries a piece of the round over, or keeps other house. Says whether more is waiting.
    pub(super) fn carry(
        &self,
        carrier: &mut Carrier,
        patience: Option<Patience>,
    ) -> Result<bool, StoreError> {
        let (prepared, generation, now) = self.with(|inner, rows| {
            let now = inner.time.now();
            let patience = patience.unwrap_or(inner.patience);
            let at = &mut *hold(&inner.at);
            filing::begin(at, patience, now, || inner.journal.rotate());
            let next_row = rows.load(Ordering::Relaxed);
            Ok((filing::prepare(at, next_row, now), inner.generation, now))
        })?;
        let Some(piece) = prepared else {
            let kept = self.keep_house(carrier, now);
            return self.with(|_, _| kept);
        };
        carrier.events = None;
        let written = patiently(&mut carrier.db, &self.closing, |db| filing::write(db, &piece))
            .and_then(|()| carrier.checkpoint());
        let over = self.with(|inner, _| {
            // What was read again since then has what the piece says in the journal, or in the rows.
            if inner.generation != generation {
                return Ok(None);
            }
            if let Err(error) = written {
                inner.doubtful = true;
                return Err(error);
            }
            let at = &mut *hold(&inner.at);
            let over = filing::settle(at, &piece);
            // No commit is under way, and what left memory here is in the rows.
            at.model.settle();
            if let Some(round) = &over {
                inner.journal.carried(round.upto);
            }
            Ok(over)
        })?;
        // Nobody waits for the lock while it is let go.
        drop((piece, over));
        Ok(true)
    }

    /// Forgets remembered heads and trims the log: a bounded piece. Says whether more is waiting.
    fn keep_house(&self, carrier: &mut Carrier, now: Timestamp) -> Result<bool, SqliteError> {
        let mut over = forgetting::over(&carrier.db, &mut carrier.forget_cursor, now)?;
        if !over.is_empty() {
            // The journal may say otherwise by now: a window was renewed.
            let inner = self.lock();
            let at = look(&inner.at);
            over.retain(|(key, _, _)| !at.pending.memory.contains_key(key));
        }
        // An id is free again once nothing keeps it, and may be given away in the next commit.
        let Carrier { db, events, events_max, .. } = &mut *carrier;
        let more = patiently(db, &self.closing, |db| {
            db.pragma_update(None, "synchronous", if over.is_empty() { "NORMAL" } else { "FULL" })?;
            let transaction = db.transaction()?;
            forgetting::forget(&transaction, &over)?;
            let more = log::trim(&transaction, events, *events_max)?;
            transaction.commit()?;
            Ok(more)
        })?;
        carrier.checkpoint()?;
        Ok(more)
    }

    /// Takes the place of another store. Everything is brought to the rows first, so that no record of the journal is left whose
    /// number is before the other's.
    pub(super) fn take_over(&self, heritage: Heritage) -> Result<(), StoreError> {
        let mut carrier = self.carrier();
        while self.carry(&mut carrier, Some(Patience::NONE))? {}
        self.with(|inner, _| {
            let last = inner.journal.rotate().max(heritage.log >> PLACE_BITS);
            patiently(&mut carrier.db, &self.closing, |db| heritage::take_over(db, &heritage, last))?;
            inner.journal.go_on_behind(last);
            inner.journal.carried(last);
            inner.doubtful = true;
            hold(&inner.at).is_in_doubt = true;
            Ok(())
        })
    }
}

/// Writes, all of it or nothing. Another process that makes a copy holds it up until that is made, unless the store is being closed.
fn patiently<T>(
    db: &mut Connection,
    closing: &AtomicBool,
    mut write: impl FnMut(&mut Connection) -> Result<T, SqliteError>,
) -> Result<T, SqliteError> {
    let began = Instant::now();
    loop {
        let written = write(db);
        let is_held_up = written.as_ref().is_err_and(SqliteError::is_busy);
        if !is_held_up || closing.load(Ordering::Relaxed) || began.elapsed() >= COPY_MAX {
            return written;
        }
        // SQLite waits for no lock where something has been read before.
        std::thread::sleep(LOOK_EVERY);
    }
}

impl Carrier {
    /// Deletes everything.
    pub(super) fn clear(
        &mut self,
        next_row: u64,
        last: u64,
        closing: &AtomicBool,
    ) -> Result<(), SqliteError> {
        patiently(&mut self.db, closing, |db| clear(db, next_row, last))?;
        self.events = None;
        self.forget_cursor.clear();
        self.checkpoint()
    }

    /// Moves pages from SQLite's log to the database when the log is long, as SQLite would of itself, were it not silent about
    /// a sync that fails: what the system then takes for written, and may not be, nobody may go on from.
    fn checkpoint(&self) -> Result<(), SqliteError> {
        let pages = |mode: &str| self.db.query_row(mode, [], |row| row.get::<_, i64>(1));
        if pages("PRAGMA wal_checkpoint(NOOP)")? < CHECKPOINT_PAGES {
            return Ok(());
        }
        match pages("PRAGMA wal_checkpoint(PASSIVE)").map_err(SqliteError::from) {
            Err(error) if error.is_fatal() => Err(error),
            // The log is whole, and goes on until there is room in the database.
            _ => Ok(()),
        }
    }
}

fn clear(db: &mut Connection, next_row: u64, last: u64) -> Result<(), SqliteError> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    db.pragma_update(None, "synchronous", "FULL")?;
    let transaction = db.transaction()?;
    // Neither a row's number nor a record's is given twice, whatever was deleted.
    set_fact(&transaction, "next_row", signed(next_row))?;
    set_fact(&transaction, "carried", signed(last))?;
    set_fact(&transaction, log::DROPPED, signed(last))?;
    for table in
        ["journal", "queue", "job", "note", "memory", "foreign_id", "absorbed", "event", "name", "document"]
    {
        transaction.execute(&format!("DELETE FROM {table}"), [])?;
    }
    Ok(transaction.commit()?)
}
