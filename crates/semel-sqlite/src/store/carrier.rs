//! The one who writes rows: carries over what the journal has, keeps house, and clears it all away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use semel_core::time::Timestamp;
use semel_store::StoreError;
use semel_store::bounds::PLACE_BITS;
use semel_store::carry::Heritage;

use super::{Inner, Sqlite};
use crate::error::SqliteError;
use crate::filing::{self, Patience, Piece, Round};
use crate::open::set_fact;
use crate::view::{hold, look};
use crate::{forgetting, heritage, log};

/// The longest that making a copy may hold up the writing of rows; commits go on meanwhile.
pub(super) const COPY_MAX: Duration = Duration::from_secs(3_600);
/// Who waits for it looks so often whether the store is being closed.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Who has waited so long says so,
const TELL_AFTER: Duration = Duration::from_secs(10);
/// and again each time that so much has gone by.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The most that one piece of housekeeping looks over what is remembered: there may be millions, most of them to be kept.
const LOOKING_MAX: Duration = Duration::from_millis(10);
/// Pages of SQLite's log from which on they are moved to the database.
const CHECKPOINT_PAGES: i64 = 1_000;

/// The one who writes rows.
pub(super) struct Carrier {
    /// It waits for a lock no longer at once than for a [look](LOOK_EVERY).
    pub(super) db: Connection,
    /// The last remembered head that was looked over.
    pub(super) forget_cursor: forgetting::Cursor,
    /// How many events have rows, once counted.
    pub(super) events: Option<u64>,
    /// How many may have.
    pub(super) events_max: u64,
    /// What is to be written next.
    pub(super) prepared: Option<Prepared>,
}

/// A piece that the round has given away, until it is in the rows: there is no other copy of it in memory.
pub(super) struct Prepared {
    pub(super) piece: Piece,
    /// Of what is in memory, when it was made.
    generation: u64,
}

impl Sqlite {
    /// Carries a piece of the round over, or keeps other house, and waits at most so long for another process that has SQLite's
    /// lock. Says whether more is waiting. For who waits for nobody a lock that is taken is no error: it is done later.
    pub(super) fn carry(
        &self,
        carrier: &mut Carrier,
        patience: Option<Patience>,
        wait: Duration,
    ) -> Result<bool, StoreError> {
        let is_for_later = |error: &SqliteError| wait.is_zero() && error.is_busy();
        let now = self.prepare(carrier, patience)?;
        let Carrier { db, events, prepared, .. } = &mut *carrier;
        let Some(next) = prepared else {
            let kept = self.keep_house(carrier, now, wait);
            return self.with(|_, _| {
                kept.or_else(|error| if is_for_later(&error) { Ok(false) } else { Err(error) })
            });
        };
        *events = None;
        let written = patiently(db, &self.closing, wait, |db| filing::write(db, &next.piece));
        if written.as_ref().is_err_and(is_for_later) {
            return Ok(false);
        }
        let over = self.settle(next, written.and_then(|()| checkpoint(db)))?;
        // Nobody waits for the lock while it is let go.
        drop((prepared.take(), over));
        Ok(true)
    }

    /// What was prepared is in the rows, or why it is not. Gives back the round when it is over.
    pub(super) fn settle(
        &self,
        prepared: &Prepared,
        written: Result<(), SqliteError>,
    ) -> Result<Option<Round>, StoreError> {
        self.with(|inner, _| match written {
            Err(error) if error.is_fatal() => Err(error),
            // What was read again since then has what the piece says in the journal, and may not have it in the rows.
            written if inner.generation != prepared.generation => {
                inner.doubtful |= written.is_ok();
                Ok(None)
            }
            // The same piece is written again: nothing of it is in the rows, and memory is as it was.
            Err(error) => {
                inner.doubtful |= error.is_contradiction();
                Err(error)
            }
            Ok(()) => Ok(inner.carried(&prepared.piece)),
        })
    }

    /// Takes the next piece of the round, or of a new one if it is time for one, unless there is one that is not in the rows
    /// yet. Says what time it is.
    pub(super) fn prepare(
        &self,
        carrier: &mut Carrier,
        patience: Option<Patience>,
    ) -> Result<Timestamp, StoreError> {
        self.with(|inner, rows| {
            let (now, generation) = (inner.time.now(), inner.generation);
            if carrier.prepared.as_ref().is_none_or(|prepared| prepared.generation != generation) {
                let patience = patience.unwrap_or(inner.patience);
                let at = &mut *hold(&inner.at);
                filing::begin(at, patience, now, || inner.journal.rotate());
                let piece = filing::prepare(at, rows.load(Ordering::Relaxed), now);
                carrier.prepared = piece.map(|piece| Prepared { piece, generation });
            }
            Ok(now)
        })
    }

    /// Forgets remembered heads and trims the log: a bounded piece. Says whether more is waiting.
    fn keep_house(&self, carrier: &mut Carrier, now: Timestamp, wait: Duration) -> Result<bool, SqliteError> {
        let mut over = forgetting::over(&carrier.db, &mut carrier.forget_cursor, now, LOOKING_MAX)?;
        if !over.is_empty() {
            // The journal may say otherwise by now: a window was renewed.
            let inner = self.lock();
            let at = look(&inner.at);
            over.retain(|(key, _, _)| !at.pending.memory.contains_key(key));
        }
        let is_full = forgetting::is_full(&over);
        // An id is free again once nothing keeps it, and may be given away in the next commit.
        let Carrier { db, events, events_max, .. } = &mut *carrier;
        let more = patiently(db, &self.closing, wait, |db| {
            db.pragma_update(None, "synchronous", if over.is_empty() { "NORMAL" } else { "FULL" })?;
            let transaction = db.transaction()?;
            forgetting::forget(&transaction, &over)?;
            let more = log::trim(&transaction, events, *events_max)?;
            transaction.commit()?;
            Ok(more)
        })?;
        checkpoint(&carrier.db)?;
        Ok(more || is_full)
    }

    /// Takes the place of another store. Everything is brought to the rows first, so that no record of the journal is left whose
    /// number is before the other's.
    pub(super) fn take_over(&self, heritage: Heritage) -> Result<(), StoreError> {
        let mut carrier = self.carrier();
        while self.carry(&mut carrier, Some(Patience::NONE), COPY_MAX)? {}
        self.with(|inner, _| {
            let last = inner.journal.rotate().max(heritage.log >> PLACE_BITS);
            patiently(&mut carrier.db, &self.closing, COPY_MAX, |db| {
                heritage::take_over(db, &heritage, last)
            })?;
            inner.journal.go_on_behind(last);
            inner.journal.carried(last);
            inner.doubtful = true;
            hold(&inner.at).is_in_doubt = true;
            Ok(())
        })
    }
}

impl Inner {
    /// A piece is in the rows. Gives back the round when it is over.
    fn carried(&mut self, piece: &Piece) -> Option<Round> {
        let at = &mut *hold(&self.at);
        let over = filing::settle(at, piece);
        // No commit is under way, and what left memory here is in the rows.
        at.model.settle();
        if let Some(round) = &over {
            self.journal.carried(round.upto);
        }
        over
    }
}

/// Writes, all of it or nothing. Another process that makes a copy holds it up until that is made, but for no longer than it may
/// wait, and not where the store is being closed.
fn patiently<T>(
    db: &mut Connection,
    closing: &AtomicBool,
    wait: Duration,
    mut write: impl FnMut(&mut Connection) -> Result<T, SqliteError>,
) -> Result<T, SqliteError> {
    db.busy_timeout(wait.min(LOOK_EVERY))?;
    let began = Instant::now();
    let mut tell_at = TELL_AFTER;
    loop {
        let written = write(db).map_err(|error| error.for_want_of_room(db));
        let is_held_up = written.as_ref().is_err_and(SqliteError::is_busy);
        let waited = began.elapsed();
        if !is_held_up || closing.load(Ordering::Relaxed) || waited >= wait {
            return written;
        }
        if waited >= tell_at {
            tell_at = waited + TELL_EVERY;
            tracing::warn!(
                seconds = waited.as_secs(),
                "another process, such as one that makes a copy, has SQLite's lock on the store; jobs are taken meanwhile, and the journal grows"
            );
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
        patiently(&mut self.db, closing, COPY_MAX, |db| clear(db, next_row, last))?;
        self.events = None;
        self.forget_cursor = None;
        checkpoint(&self.db)
    }
}

/// Moves pages from SQLite's log to the database when the log is long, as SQLite would of itself, were it not silent about
/// a sync that fails: what the system then takes for written, and may not be, nobody may go on from. Of what else may fail
/// nothing is told: the log is whole, and goes on until there is room in the database.
fn checkpoint(db: &Connection) -> Result<(), SqliteError> {
    let pages = |mode: &str| db.query_row(mode, [], |row| row.get::<_, i64>(1)).map_err(SqliteError::from);
    let moved = match pages("PRAGMA wal_checkpoint(NOOP)") {
        Ok(long) if long >= CHECKPOINT_PAGES => pages("PRAGMA wal_checkpoint(PASSIVE)"),
        short => short,
    };
    let moved = moved.map_err(|error| error.for_want_of_room(db));
    moved.map(drop).or_else(|error| if error.is_fatal() { Err(error) } else { Ok(()) })
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
