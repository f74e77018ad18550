//! The embedded store: one file, one owner, one writer.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use semel_core::draft::{Full, Reads, Snapshot, next_version};
use semel_core::ident::JobId;
use semel_core::slot::Due;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, leave_out_outlived};
use semel_store::StoreError;
use semel_store::backend::{
    Applied, Backend, Batch, BoxFuture, DueIds, Facts, Filter, Listing, QueueStats, Recorded,
};
use semel_store::clock::{Clock, SteadyTime, SystemClock};

use crate::error::SqliteError;
use crate::filing::{self, Patience};
use crate::lock::FileLock;
use crate::log::Log;
use crate::open::{Loaded, load, open, set_fact};
use crate::reader;
use crate::writer::{Writer, purgeable};

/// Rows the purge looks at in one go.
const PURGE_LOOKS: u32 = 2_000;
/// Remembered heads whose place in the file is kept in mind between a load and a commit.
const SEEN_MAX: usize = 10_000;

/// The embedded store.
pub struct Sqlite {
    inner: Mutex<Inner>,
    rows: Arc<AtomicU64>,
    path: PathBuf,
}

struct Inner {
    db: Connection,
    at: Loaded,
    time: SteadyTime,
    lock: FileLock,
    patience: Patience,
    purge_cursor: i64,
    forget_cursor: Vec<u8>,
    /// What is in memory may differ from the file: a transaction failed after it had been applied.
    doubtful: bool,
    /// Why the engine does not go on.
    failed: Option<StoreError>,
}

impl Loaded {
    /// The row number of a job that is in memory.
    pub fn seq(&self, id: JobId) -> i64 {
        if !self.foreign.is_empty()
            && let Some(seq) = self.foreign.get(&id)
        {
            return *seq;
        }
        i64::try_from(id.row()).unwrap_or(i64::MAX)
    }

    /// Drops what is kept beside the head of a job that leaves memory.
    pub fn leave_memory(&mut self, id: JobId) {
        self.foreign.remove(&id);
        self.noted.remove(&id);
        self.released.remove(&id);
    }
}

impl Sqlite {
    /// Opens a file, or makes a new one.
    ///
    /// # Errors
    /// When another process owns it, it is of another program or a newer version, or it cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SqliteError> {
        Self::open_with_clock(path, SystemClock)
    }

    /// As [`open`](Self::open), with another clock than the machine's.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with_clock(path: impl AsRef<Path>, clock: impl Clock) -> Result<Self, SqliteError> {
        let path = path.as_ref().to_path_buf();
        let lock = FileLock::take(&path)?;
        let db = open(&path)?;
        let at = load(&db)?;
        let rows = Arc::new(AtomicU64::new(at.next_row));
        let time = SteadyTime::new(clock, at.floor);
        let inner = Inner {
            db,
            at,
            time,
            lock,
            patience: Patience::DEFAULT,
            purge_cursor: 0,
            forget_cursor: Vec::new(),
            doubtful: false,
            failed: None,
        };
        Ok(Self { inner: Mutex::new(inner), rows, path })
    }

    /// Files ended jobs as soon as the store keeps house, instead of many at a time: for tests and tools that look at
    /// what is on the disk.
    #[must_use]
    pub fn filing_at_once(self) -> Self {
        self.lock().patience = Patience::NONE;
        self
    }

    /// Leaves a word for those who find the file taken, such as the address of the server that owns it.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn announce(&self, word: &str) -> Result<(), SqliteError> {
        self.lock().lock.say(word)
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

    fn answer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner, &AtomicU64) -> Result<T, SqliteError>,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        Box::pin(std::future::ready(self.with(work)))
    }
}

impl Inner {
    fn rebuild(&mut self, rows: &AtomicU64) {
        match load(&self.db) {
            Ok(at) => {
                rows.fetch_max(at.next_row, Ordering::Relaxed);
                self.time.not_before(at.floor);
                self.at = at;
                self.doubtful = false;
            }
            Err(error) => {
                let error = StoreError::from(error);
                tracing::error!(%error, "the store could not be read again after a failed commit");
                self.failed = Some(StoreError::Poisoned(error.to_string()));
            }
        }
    }

    fn fail(&mut self, error: SqliteError) -> StoreError {
        let fatal = error.is_fatal();
        let error = StoreError::from(error);
        if fatal {
            tracing::error!(%error, "the store has failed; every call fails until it is opened again");
            self.failed = Some(StoreError::Poisoned(error.to_string()));
        }
        error
    }

    /// Runs `work` in a transaction. When anything fails nothing is applied, and what is in memory is read again
    /// before it is used again.
    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Loaded, Timestamp) -> Result<T, SqliteError>,
    ) -> Result<T, SqliteError> {
        let now = self.time.now();
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        // A panic in here would leave the two apart.
        self.doubtful = true;
        let worked = work(&self.db, &mut self.at, now)
            .and_then(|value| Ok(self.db.prepare_cached("COMMIT")?.execute([]).map(|_| value)?));
        match worked {
            Ok(value) => {
                self.doubtful = false;
                Ok(value)
            }
            Err(error) => {
                self.at.log.discard();
                if !self.db.is_autocommit() {
                    // The first failure is the one to report; a failed rollback shows when everything is read again.
                    drop(self.db.execute_batch("ROLLBACK"));
                }
                Err(error)
            }
        }
    }

    fn load(&mut self, reads: &Reads) -> Result<Snapshot, SqliteError> {
        let now = self.time.now();
        let mut snapshot = Snapshot::with_room_for(now, reads);
        let (db, at) = (&self.db, &mut self.at);
        at.model.load(reads, &mut snapshot);
        for read in &reads.keys {
            let looks_at_ends = read.states.intersects(StateSet::FINISHED);
            let mut view = if looks_at_ends { at.model.key_view(read) } else { continue };
            for (seq, head) in reader::remembered(db, &at.names, &read.key)? {
                see(at, head.id, read.key, seq);
                view.holders.push(head);
            }
            // Those in memory may outlive those that are filed, and the other way round.
            leave_out_outlived(&mut view.holders);
            view.states = StateSet::ALL;
            snapshot.add_key(read.key, view);
        }
        for id in &reads.heads {
            if !snapshot.has_head(*id) {
                snapshot.add_head(*id, reader::filed(db, &at.names, *id)?.map(|(_, head)| head));
            }
        }
        for id in &reads.fulls {
            let row = match (reader::head(db, at, *id)?, reader::seq(db, at, *id)?) {
                (Some(head), Some(seq)) => {
                    let body = reader::body(db, seq)?.unwrap_or_default();
                    Some((head, Full { body, notes: reader::notes(db, seq)? }))
                }
                _ => None,
            };
            if row.is_none()
                && let Some(spent) = reader::spent(db, at, *id)?
            {
                snapshot.add_spent(*id, spent);
            }
            snapshot.add_full(*id, row);
        }
        Ok(snapshot)
    }

    /// Files ended jobs, forgets remembered heads, trims the log: a bounded piece. Says whether more is waiting.
    fn maintain(&mut self) -> Result<bool, SqliteError> {
        let now = self.time.now();
        filing::begin(&mut self.at, self.patience, now);
        if self.at.round.is_empty() {
            let mut cursor = std::mem::take(&mut self.forget_cursor);
            self.transaction(|db, _, now| filing::forget(db, &mut cursor, now))?;
            self.forget_cursor = cursor;
        } else {
            let ids = self.transaction(filing::file)?;
            filing::filed(&mut self.at, ids);
            // Decisions that saw these keys without their filed holders are to be taken again.
            self.at.model.move_absent_version(next_version(0, now));
        }
        let more = !self.at.round.is_empty();
        Ok(self.transaction(|db, at, _| at.log.trim(db))? || more)
    }

    fn clear(&mut self, rows: &AtomicU64) -> Result<(), SqliteError> {
        let next_row = i64::try_from(rows.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.transaction(|db, _, _| {
            // Neither a row's number nor a time is given twice, whatever was deleted.
            set_fact(db, "next_row", next_row)?;
            for table in ["queue", "job", "status", "note", "memory", "foreign_id", "absorbed", "event"] {
                db.execute(&format!("DELETE FROM {table}"), [])?;
            }
            Ok(())
        })?;
        self.doubtful = true;
        Ok(())
    }
}

fn see(at: &mut Loaded, id: JobId, key: UniqueKey, seq: i64) {
    if at.seen.len() >= SEEN_MAX {
        at.seen.clear();
    }
    at.seen.insert(id, (key, seq));
}

impl Backend for Sqlite {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.answer(|inner, _| inner.load(reads))
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        self.answer(|inner, rows| {
            inner.transaction(|db, at, now| Writer::new(db, at, rows, now)?.apply(batch))
        })
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        self.answer(|inner, _| {
            let now = inner.time.now();
            if due == Due::Purge {
                let ids = purgeable(&inner.db, &mut inner.purge_cursor, now, PURGE_LOOKS, limit as usize)?;
                return Ok(DueIds { now, ids, next: None });
            }
            let (ids, next) = inner.at.model.due(due, now, limit as usize);
            Ok(DueIds { now, ids, next })
        })
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        self.answer(|inner, _| reader::list(&inner.db, &inner.at, &filter))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        self.answer(|inner, _| Ok(inner.at.model.queues()))
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<Vec<Recorded>, StoreError>> {
        self.answer(|inner, _| Log::read(&inner.db, &inner.at.names, cursor, limit as usize))
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.answer(|inner, _| inner.maintain())
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.answer(|inner, rows| inner.clear(rows))
    }

    fn backup(&self, path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        // A reader of its own: the writer goes on while the copy is made.
        let copied = crate::backup::copy(&self.path, &path).map_err(StoreError::from);
        Box::pin(std::future::ready(copied))
    }

    fn rows(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rows)
    }

    fn facts(&self) -> Facts {
        Facts {
            engine: "sqlite",
            mechanism: "one writer, versioned group commit",
            durability: "every answer after an fsync of the write-ahead log: survives a crash of the process and of the machine",
            commits_in_flight: 1,
            blocks: true,
        }
    }
}
