//! The carrier, the only writer of rows: carries the journal over to them, does housekeeping, and clears the
//! store.

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

/// How long, at most, a copy made by another process may hold up the writing of rows; commits go on
/// meanwhile.
pub(super) const COPY_MAX: Duration = Duration::from_secs(3_600);
/// How often a wait for SQLite's lock checks whether the store is being closed.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After how long a wait for SQLite's lock is logged.
const TELL_AFTER: Duration = Duration::from_secs(10);
/// How often the warning is repeated.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// How long one piece of housekeeping looks for expired heads: there may be millions, and most are still
/// kept.
const LOOKING_MAX: Duration = Duration::from_millis(10);
/// Pages of SQLite's log from which on it is checkpointed.
const CHECKPOINT_PAGES: i64 = 1_000;

/// The writer of rows.
pub(super) struct Carrier {
    /// Its busy timeout is at most [`LOOK_EVERY`].
    pub(super) db: Connection,
    /// The last remembered head that was looked over.
    pub(super) forget_cursor: forgetting::Cursor,
    /// How many events have rows; `None` until counted.
    pub(super) events: Option<u64>,
    /// How many events may have rows.
    pub(super) events_max: u64,
    /// The piece to be written next.
    pub(super) prepared: Option<Prepared>,
}

/// A piece taken out of the round. Until it is in the rows there is no other copy of it in memory.
pub(super) struct Prepared {
    pub(super) piece: Piece,
    /// The generation of memory that it was prepared from.
    generation: u64,
}

impl Sqlite {
    /// Carries over a piece of the round or, if there is none, does a piece of housekeeping. Waits at most
    /// `wait` for another process that has SQLite's lock. Returns whether more is waiting. With a `wait` of
    /// zero, a lock that is taken is not an error: the work is left for later.
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
        // The round is freed here, while nobody waits for the store's lock.
        drop((prepared.take(), over));
        Ok(true)
    }

    /// Settles a piece that was written, or failed to be. Returns the round when it is over.
    pub(super) fn settle(
        &self,
        prepared: &Prepared,
        written: Result<(), SqliteError>,
    ) -> Result<Option<Round>, StoreError> {
        self.with(|inner, _| match written {
            Err(error) if error.is_fatal() => Err(error),
            // Memory was read again since: it has the piece as pending from the journal, though the rows may
            // have it now.
            written if inner.generation != prepared.generation => {
                inner.doubtful |= written.is_ok();
                Ok(None)
            }
            // The same piece will be written again: nothing of it is in the rows, and memory is unchanged.
            Err(error) => {
                inner.doubtful |= error.is_contradiction();
                Err(error)
            }
            Ok(()) => Ok(inner.carried(&prepared.piece)),
        })
    }

    /// Takes the next piece of the round, beginning a round if it is time, unless a prepared piece is not in
    /// the rows yet. Returns the current time.
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

    /// Deletes expired heads and trims the event log, a bounded piece at a time. Returns whether more is
    /// waiting.
    fn keep_house(&self, carrier: &mut Carrier, now: Timestamp, wait: Duration) -> Result<bool, SqliteError> {
        let mut over = forgetting::over(&carrier.db, &mut carrier.forget_cursor, now, LOOKING_MAX)?;
        if !over.is_empty() {
            // The journal may say otherwise by now: a window may have been renewed.
            let inner = self.lock();
            let at = look(&inner.at);
            over.retain(|(key, _, _)| !at.pending.memory.contains_key(key));
        }
        let is_full = forgetting::is_full(&over);
        // Synced if ids become free: the next commit may reuse an id that nothing keeps any more.
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

    /// Makes the store take the place of another. The whole journal is carried over to the rows first, so
    /// that no record is left with a number below the other store's last.
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
    /// Applies a written piece to memory, and frees the journal's files when the round is over. Returns the
    /// round then.
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

/// Writes all or nothing. While another process holds SQLite's lock, as for a copy, it retries for up to
/// `wait`, or until the store is being closed.
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
                "another process, such as one that makes a copy, holds SQLite's lock on the store; jobs are still accepted, and the journal grows"
            );
        }
        // SQLite does not wait for the lock if the transaction has already read something.
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

/// Checkpoints SQLite's log when it is long. SQLite would do so by itself, but without reporting a failed
/// sync, after which the system takes pages for written that may not be, and the store must not go on. Other
/// failures are ignored: the log is complete, and grows until the database has room.
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
    // Neither row numbers nor record numbers are ever reused, whatever was deleted.
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
