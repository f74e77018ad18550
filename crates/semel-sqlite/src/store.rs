//! The embedded store: one file, one owner, one writer.

mod carrier;
mod closing;
mod looking;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use semel_core::draft::{QueueRow, Reads, Snapshot};
use semel_core::planted::{Bug, is_planted};
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use semel_store::backend::{
    Applied, Backend, Batch, BoxFuture, DueIds, Facts, Filter, Found, Listing, Peek, QueueStats, Seek,
};
use semel_store::carry::{Heritage, Part, Piece};
use semel_store::clock::{Clock, SteadyTime, SystemClock};
use semel_store::{LogPage, StoreError};

use self::carrier::Carrier;
use crate::backup::refuse_remains;
use crate::change::Record;
use crate::documents;
use crate::error::SqliteError;
use crate::filing::Patience;
use crate::heritage;
use crate::journal::Journal;
use crate::location::real;
use crate::lock::FileLock;
use crate::log;
use crate::open::{Loaded, bring_to_disk, brought, carried, identity, last_of, load, open, secret};
use crate::place::Place;
use crate::reader;
use crate::view::{self, Glance, hold, look};
use crate::whole::{note_journal, refuse_half, refuse_older};
use crate::writer::{Writer, purgeable};

/// Rows that the purge looks at in one call.
const PURGE_LOOKS: u32 = 2_000;
/// Bytes of journal above which a commit first carries a piece of the journal over to the rows.
const JOURNAL_LONG: u64 = 192 << 20;
/// Bytes of journal above which commits are refused: all of it is in memory, and is read when the file is
/// opened.
const JOURNAL_MAX: u64 = 4 << 30;

/// The embedded store.
pub struct Sqlite {
    /// To be locked before `inner` by a caller that needs both.
    carrier: Mutex<Carrier>,
    inner: Mutex<Inner>,
    rows: Arc<AtomicU64>,
    path: PathBuf,
    secret: [u8; 16],
    /// Set when the store is being closed: waiting for a copy made by another process ends.
    closing: AtomicBool,
    /// Bytes of journal above which commits carry a piece over first, and above which they are refused.
    journal: (u64, u64),
}

struct Inner {
    /// A read-only connection, and the last to be closed.
    db: Connection,
    /// Not locked while a commit's record is being synced, so that [peeks](Peek) can go on.
    at: Arc<RwLock<Loaded>>,
    journal: Journal,
    /// Increases when `at` is read again from the files: pieces prepared before do not apply to it any more.
    generation: u64,
    time: Arc<SteadyTime>,
    lock: FileLock,
    place: Place,
    /// When the files' places were last [checked](Self::find_in_place).
    looked: Instant,
    /// Whether one of the files was not in its place at that time.
    is_astray: bool,
    patience: Patience,
    purge_cursor: i64,
    /// Memory may differ from the files, because a commit failed after it was applied.
    doubtful: bool,
    /// The error after which the engine refuses every call.
    failed: Option<StoreError>,
}

impl Sqlite {
    /// Opens a store's file, or creates a new one.
    ///
    /// # Errors
    /// When another process owns the file, when it is another program's or has a newer format, or when it
    /// cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SqliteError> {
        Self::open_with_clock(path, SystemClock)
    }

    /// Like [`open`](Self::open), with another clock than the machine's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_clock(path: impl AsRef<Path>, clock: impl Clock) -> Result<Self, SqliteError> {
        let path = real(path.as_ref())?;
        Self::open_real(&path, clock).map_err(|error| error.of_files(&path))
    }

    fn open_real(path: &Path, clock: impl Clock) -> Result<Self, SqliteError> {
        let mut lock = FileLock::take(path)?;
        lock.hold(path)?;
        refuse_remains(path)?;
        bring_to_disk(path)?;
        let writes = open(path)?;
        // Repeated, because a new file exists only now.
        lock.hold(path)?;
        refuse_half(&writes, path)?;
        refuse_older(&writes, path)?;
        let place = Place::of(path)?;
        // The carrier runs checkpoints instead.
        writes.pragma_update(None, "wal_autocheckpoint", 0)?;
        let secret = secret(&writes)?;
        // Short, because another process may hold the lock for as long as it copies the file; the carrier
        // retries.
        writes.busy_timeout(carrier::LOOK_EVERY)?;
        let carrier = Carrier {
            db: writes,
            forget_cursor: None,
            events: None,
            events_max: log::EVENTS_MAX,
            prepared: None,
        };
        let db = open(path)?;
        db.pragma_update(None, "query_only", true)?;
        let carried = carried(&db)?;
        let mut entries = brought(&db, carried)?;
        let last = last_of(&db, &entries, carried)?;
        let (mut journal, newer) = Journal::open(path, identity(&db)?, last)?;
        entries.extend(newer);
        journal.make_first()?;
        note_journal(&carrier.db).inspect_err(|_| stay_off_the_database(&carrier.db))?;
        let at = load(&db, entries)?;
        let rows = Arc::new(AtomicU64::new(at.next_row));
        let time = Arc::new(SteadyTime::new(clock, at.floor));
        let inner = Inner {
            db,
            at: Arc::new(RwLock::new(at)),
            journal,
            generation: 0,
            time,
            lock,
            place,
            looked: Instant::now(),
            is_astray: false,
            patience: Patience::DEFAULT,
            purge_cursor: 0,
            doubtful: false,
            failed: None,
        };
        let (carrier, inner) = (Mutex::new(carrier), Mutex::new(inner));
        let closing = AtomicBool::new(false);
        let path = path.to_path_buf();
        Ok(Self { carrier, inner, rows, path, secret, closing, journal: (JOURNAL_LONG, JOURNAL_MAX) })
    }

    /// Makes every piece of housekeeping file ended jobs, without waiting until there are many. For tests and
    /// tools that look at what is on the disk.
    #[must_use]
    pub fn filing_at_once(self) -> Self {
        self.lock().patience = Patience::NONE;
        self
    }

    /// Sets about how many of the newest events are kept, instead of a million.
    #[must_use]
    pub fn keeping_events(self, events: u64) -> Self {
        self.carrier().events_max = events;
        self
    }

    /// Leaves a note for processes that find the store taken: `word`, such as the address of the server that
    /// owns it, and the `instance` by which they recognise that server.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn announce(&self, word: &str, instance: &str) -> Result<(), SqliteError> {
        self.lock().lock.say(word, instance)
    }

    /// Replaces that note by the process id: this process still owns the file, but its server no longer
    /// listens.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn withdraw(&self) -> Result<(), SqliteError> {
        self.lock().lock.say_who()
    }

    fn carrier(&self) -> MutexGuard<'_, Carrier> {
        // A transaction interrupted by a panic was rolled back when it was dropped.
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| {
            let mut inner = PoisonError::into_inner(poisoned);
            inner.doubtful = true;
            inner
        });
        if inner.failed.is_none() && inner.doubtful {
            inner.rebuild(&self.rows);
        }
        inner
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut Inner, &AtomicU64) -> Result<T, SqliteError>,
    ) -> Result<T, StoreError> {
        let mut inner = self.lock();
        if let Some(failed) = &inner.failed {
            return Err(failed.clone());
        }
        work(&mut inner, &self.rows).map_err(|error| inner.fail(error))
    }

    /// Bounds the journal before a commit, even if nobody calls for housekeeping.
    fn bound_journal(&self) -> Result<(), StoreError> {
        let (long, most) = self.journal;
        let bytes = self.with(|inner, _| {
            inner.find_in_place(false)?;
            Ok(look(&inner.at).journal_bytes() as u64)
        })?;
        if bytes > long
            && let Ok(mut carrier) = self.carrier.try_lock()
        {
            // Does not wait: another process may hold SQLite's lock for a whole copy, and all callers wait
            // for this thread.
            self.carry(&mut carrier, Some(Patience::NONE), Duration::ZERO)?;
        }
        self.has_room_for(bytes, most)
    }

    fn has_room_for(&self, bytes: u64, most: u64) -> Result<(), StoreError> {
        if bytes <= most {
            return Ok(());
        }
        Err(StoreError::Unavailable(format!(
            "{bytes} bytes of journal are waiting to be moved to the rows of {}, more than the limit of {most}; nothing was \
             stored. If another process holds SQLite's lock, such as one that makes a copy, let it finish, and try again",
            self.path.display()
        )))
    }

    fn answer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner, &AtomicU64) -> Result<T, SqliteError>,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        Box::pin(std::future::ready(self.with(work)))
    }
}

/// Keeps SQLite from running a checkpoint when the connection closes: after a failed sync, a power cut could
/// leave some of its pages in the database without all of the log. The next process to open the file writes
/// the log again first.
fn stay_off_the_database(db: &Connection) {
    drop(db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true));
}

impl Inner {
    fn rebuild(&mut self, rows: &AtomicU64) {
        self.generation += 1;
        match self.read_again() {
            Ok(at) => {
                rows.fetch_max(at.next_row, Ordering::Relaxed);
                self.time.not_before(at.floor);
                *hold(&self.at) = at;
                self.at.clear_poison();
                self.doubtful = false;
            }
            Err(error) => {
                let error = StoreError::from(error);
                tracing::error!(%error, "the store could not be read again after a failed commit");
                self.give_up(&error);
            }
        }
    }

    /// Stops the engine for good; peeks get no answer from now on either.
    fn give_up(&mut self, error: &StoreError) {
        hold(&self.at).is_in_doubt = true;
        stay_off_the_database(&self.db);
        self.failed = Some(StoreError::Poisoned(error.to_string()));
    }

    fn read_again(&self) -> Result<Loaded, SqliteError> {
        let carried = carried(&self.db)?;
        let mut entries = brought(&self.db, carried)?;
        let last = last_of(&self.db, &entries, carried)?;
        entries.extend(self.journal.entries(last)?);
        load(&self.db, entries)
    }

    fn fail(&mut self, error: SqliteError) -> StoreError {
        let fatal = error.is_fatal();
        let error = StoreError::from(error);
        if fatal {
            tracing::error!(%error, "the store has failed; every call fails until it is opened again");
            self.give_up(&error);
        }
        error
    }

    /// Applies a batch to memory and syncs its record. If anything fails nothing is applied, and memory is
    /// read again from the files before it is next used.
    fn commit(&mut self, batch: Batch, rows: &AtomicU64) -> Result<Applied, SqliteError> {
        self.journal.find_room()?;
        let now = self.time.now();
        // A panic in between would leave memory and the journal different.
        self.doubtful = !is_planted(Bug::FailedCommitKept);
        let (applied, mut record) = self.apply(batch, rows, now)?;
        if record.len() > 0 {
            self.journal.append(now, record.bytes())?;
        }
        self.settle(record, now);
        self.doubtful = false;
        Ok(applied)
    }

    /// Applies a batch to memory. Peeks see nothing of it before it has [settled](Self::settle).
    fn apply(
        &self,
        batch: Batch,
        rows: &AtomicU64,
        now: Timestamp,
    ) -> Result<(Applied, Record), SqliteError> {
        let mut at = hold(&self.at);
        let applied = Writer::new(&self.db, &mut at, rows, now).apply(batch)?;
        self.time.not_before(at.model.after_the_gone());
        Ok((applied, std::mem::take(&mut at.record)))
    }

    /// Finishes a commit whose record, if it has any contents, is on the disk.
    fn settle(&self, record: Record, now: Timestamp) {
        let mut at = hold(&self.at);
        if record.len() > 0 {
            at.pending.bytes += record.len();
            at.pending.since.get_or_insert(now);
            at.log.committed(self.journal.last(), now);
        }
        // Its buffer is reused for the next record.
        at.record = record;
        at.model.settle();
    }
}

impl Backend for Sqlite {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.answer(|inner, _| view::snapshot(&inner.db, &inner.at, reads, inner.time.now()))
    }

    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        let inner = self.lock();
        Some(Arc::new(Glance::new(&inner.at, &inner.time)))
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        if let Err(error) = self.bound_journal() {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.answer(|inner, rows| inner.commit(batch, rows))
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let bytes = look(&self.lock().at).journal_bytes() as u64;
        if let Err(error) = self.has_room_for(bytes, self.journal.1) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.answer(|inner, _| {
            inner.find_in_place(true)?;
            inner.journal.find_room()
        })
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        self.answer(|inner, _| {
            let now = inner.time.now();
            if due == Due::Purge {
                let ids = purgeable(
                    &inner.db,
                    &look(&inner.at),
                    &mut inner.purge_cursor,
                    now,
                    PURGE_LOOKS,
                    limit as usize,
                )?;
                // Rows not looked at yet may be of jobs that are due.
                return Ok(DueIds { now, ids, next: (inner.purge_cursor > 0).then_some(now) });
            }
            let (ids, next) = look(&inner.at).model.due(due, now, limit as usize);
            Ok(DueIds { now, ids, next })
        })
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.answer(|inner, rows| {
            reader::list(&inner.db, &look(&inner.at), &filter, rows.load(Ordering::Relaxed))
        })
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        self.answer(|inner, _| Ok(look(&inner.at).model.queues()))
    }

    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        self.answer(|inner, _| Ok(look(&inner.at).model.settings()))
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        self.answer(|inner, _| {
            let now = inner.time.now();
            documents::find(&inner.db, &look(&inner.at).pending.documents, &seek, now)
        })
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        self.answer(|inner, _| {
            let last = inner.journal.last();
            let at = &*look(&inner.at);
            at.log.page(&inner.db, &at.names, last, cursor, limit as usize)
        })
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        let found = self.with(|inner, _| inner.find_in_place(true));
        let kept = found.and_then(|()| self.carry(&mut self.carrier(), None, carrier::COPY_MAX));
        Box::pin(std::future::ready(kept))
    }

    fn closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let mut carrier = self.carrier();
        let cleared = self.with(|inner, rows| {
            inner.find_in_place(true)?;
            let last = inner.journal.rotate();
            carrier.clear(rows.load(Ordering::Relaxed), last, &self.closing)?;
            inner.journal.carried(last);
            inner.doubtful = true;
            hold(&inner.at).is_in_doubt = true;
            Ok(())
        });
        Box::pin(std::future::ready(cleared))
    }

    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>> {
        self.answer(move |inner, _| {
            let at = &*look(&inner.at);
            match part {
                Part::Remembered => heritage::remembered(&inner.db, at, after.as_ref(), limit as usize),
                Part::Rows => Ok(at.model.rows(after.as_ref(), limit as usize)),
            }
        })
    }

    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(self.take_over(heritage)))
    }

    fn backup(&self, path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        let _carrier = self.carrier();
        // The copy reads the file by name, so it must be the one that is open.
        let found = self.lock().find_in_place(true);
        let copied = found.and_then(|()| crate::backup::copy(&self.path, &path)).map_err(StoreError::from);
        Box::pin(std::future::ready(copied))
    }

    fn rows(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rows)
    }

    fn secret(&self) -> [u8; 16] {
        self.secret
    }

    fn facts(&self) -> Facts {
        Facts {
            engine: "sqlite",
            mechanism: "one writer, versioned group commit",
            durability: "acknowledged only after an fsync of the journal: survives a crash of the process and of the machine",
            is_strong: true,
            commits_in_flight: 1,
            blocks: true,
        }
    }
}

#[cfg(test)]
mod tests;
