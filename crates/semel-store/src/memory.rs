//! The `memory:` store: the model, with job bodies beside it. Nothing survives the process. It is the
//! reference that all other stores are compared with.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use semel_core::draft::{Full, Map, QueueRow, Reads, Snapshot, Spent, Write};
use semel_core::event::Event;
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::lease::Grant;
use semel_core::slot::Due;
use semel_core::time::Timestamp;

use crate::backend::{
    Applied, Backend, Batch, BoxFuture, Claimed, DueIds, Facts, Filter, Found, Listing, Peek, QueueStats,
    Seek, Unwritten, Verdict,
};
use crate::carry::{Heritage, Part, Piece};
use crate::clock::{Clock, SteadyTime, SystemClock};
use crate::documents::Documents;
use crate::error::StoreError;
use crate::log::{LogPage, Recorded};
use crate::model::Model;
use crate::random;

/// The most events kept; older ones are dropped.
const EVENTS_MAX: usize = 100_000;

/// The store that lives in memory.
pub struct Memory {
    inner: Arc<Mutex<Inner>>,
    rows: Arc<AtomicU64>,
    /// The number of partitions that loads report; the store itself has none.
    partitions: u16,
}

struct Inner {
    model: Model,
    fulls: Map<JobId, Full>,
    spent: SpentIds,
    documents: Documents,
    events: VecDeque<Recorded>,
    cursor: u64,
    /// The cursor of the last dropped event.
    dropped: u64,
    time: SteadyTime,
    secret: [u8; 16],
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(SystemClock)
    }
}

impl Memory {
    /// An empty store whose time source is `clock`.
    pub fn new(clock: impl Clock) -> Self {
        let inner = Inner {
            model: Model::new(true),
            fulls: Map::default(),
            spent: SpentIds::default(),
            documents: Documents::default(),
            events: VecDeque::new(),
            cursor: 0,
            dropped: 0,
            time: SteadyTime::new(clock, Timestamp::EPOCH),
            secret: random::secret(),
        };
        Self { inner: Arc::new(Mutex::new(inner)), rows: Arc::new(AtomicU64::new(1)), partitions: 1 }
    }

    /// Makes the store mint the ids that a store with this many partitions would, to be compared with one.
    #[must_use]
    pub fn minting_for(self, partitions: u16) -> Self {
        Self { partitions, ..self }
    }

    fn lock(&self) -> (MutexGuard<'_, Inner>, Timestamp) {
        // A panic elsewhere leaves at worst a group's writes half done in the model; nothing here panics.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = inner.time.now();
        (inner, now)
    }
}

/// Ids of requests that were absorbed into jobs.
#[derive(Default)]
struct SpentIds {
    by_id: Map<JobId, Spent>,
    by_job: Map<JobId, Vec<JobId>>,
}

impl SpentIds {
    fn get(&self, id: JobId) -> Option<Spent> {
        self.by_id.get(&id).copied()
    }

    fn add(&mut self, id: JobId, job: JobId, digest: Option<[u8; 32]>) {
        self.by_id.insert(id, Spent::absorbed_by(job, digest));
        self.by_job.entry(job).or_default().push(id);
    }

    fn free(&mut self, id: JobId) {
        if let Some(spent) = self.by_id.remove(&id)
            && let Some(ids) = self.by_job.get_mut(&spent.job)
        {
            ids.retain(|known| *known != id);
        }
    }

    fn forget(&mut self, job: JobId) {
        for id in self.by_job.remove(&job).unwrap_or_default() {
            self.by_id.remove(&id);
        }
    }
}

impl Inner {
    fn full(&self, id: JobId) -> Option<(Head, Full)> {
        let head = self.model.head(id)?;
        let full = self.fulls.get(&id)?;
        Some((head.clone(), full.clone()))
    }

    /// Why no job can have this id, if it is unused but spent.
    fn spent(&self, id: JobId) -> Option<Spent> {
        let remembered = || self.model.head(id).filter(|_| !self.fulls.contains_key(&id));
        self.spent.get(id).or_else(|| remembered().map(|head| Spent::remembered(id, head.version)))
    }

    fn write(&mut self, write: Write) {
        self.model.apply(&write);
        match write {
            Write::Insert { head, body, .. } => {
                self.fulls.insert(head.id, Full { body, notes: Vec::new() });
            }
            Write::Note { job, kind, text } => {
                if let Some(full) = self.fulls.get_mut(&job) {
                    put_note(full, kind, text);
                }
            }
            Write::Spend { id, job, digest } => self.spent.add(id, job, digest),
            Write::Free { id } => self.spent.free(id),
            Write::Forget { job, .. } => {
                self.fulls.remove(&job);
                self.spent.forget(job);
            }
            Write::Document { key, document } => self.documents.put(key, document),
            Write::Update { .. } | Write::Queue { .. } => {}
        }
    }

    fn record(&mut self, at: Timestamp, event: Event) {
        self.cursor += 1;
        if self.events.len() >= EVENTS_MAX
            && let Some(oldest) = self.events.pop_front()
        {
            self.dropped = oldest.cursor;
        }
        self.events.push_back(Recorded { cursor: self.cursor, at, event });
    }
}

fn put_note(full: &mut Full, kind: NoteKind, text: Option<Bytes>) {
    full.notes.retain(|(known, _)| *known != kind);
    if let Some(text) = text {
        full.notes.push((kind, text));
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, Result<T, StoreError>> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Peek for Mutex<Inner> {
    fn peek(&self, reads: &Reads) -> Option<Snapshot> {
        let inner = self.try_lock().ok()?;
        inner.model.peek(reads, || inner.time.now())
    }
}

impl Backend for Memory {
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let (inner, now) = self.lock();
        let mut snapshot = Snapshot::with_room_for(now, reads);
        snapshot.partitions = self.partitions;
        inner.model.load(reads, &mut snapshot);
        for id in &reads.heads {
            if !snapshot.has_head(*id) {
                snapshot.add_head(*id, None);
            }
        }
        for id in &reads.fulls {
            snapshot.add_full(*id, inner.full(*id));
            if let Some(spent) = inner.spent(*id) {
                snapshot.add_spent(*id, spent);
            }
        }
        for key in &reads.documents {
            snapshot.add_document(key.clone(), inner.documents.get(key).cloned());
        }
        ready(snapshot)
    }

    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        Some(Arc::clone(&self.inner) as Arc<dyn Peek>)
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        let (mut inner, now) = self.lock();
        let mut applied = Applied::default();
        let mut unwritten = Unwritten::before(&batch.groups, |key| inner.model.key_version(key));
        for group in batch.groups {
            let current = inner.model.is_current(
                &group,
                |id| inner.spent.get(id).map_or(0, |spent| spent.version),
                |key| inner.documents.get(key).map_or(0, |document| document.version),
            );
            if unwritten.concerns(&group) || !current {
                unwritten.note(&group);
                applied.groups.push(Verdict::Stale);
                continue;
            }
            for write in group.writes {
                inner.write(write);
            }
            for event in group.events {
                inner.record(now, event);
            }
            applied.groups.push(Verdict::Applied);
        }
        let after = inner.model.after_the_gone();
        inner.time.not_before(after);
        for claim in &batch.claims {
            let (heads, unclaimable) = inner.model.claim(claim, now);
            for head in &heads {
                inner.record(now, started(head));
            }
            let jobs = heads
                .into_iter()
                .map(|head| {
                    let full = inner.fulls.get(&head.id).cloned().unwrap_or_default();
                    (head, full)
                })
                .collect();
            applied.claims.push(Claimed { jobs, unclaimable });
        }
        ready(applied)
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        let (inner, now) = self.lock();
        let (ids, next) = inner.model.due(due, now, limit as usize);
        ready(DueIds { now, ids, next })
    }

    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>> {
        let (inner, _) = self.lock();
        let (mut heads, next) = inner.model.list(&filter);
        // A head kept only for its key is no longer a job.
        heads.retain(|head| inner.fulls.contains_key(&head.id) || filter.with_key);
        ready(Listing { heads, next })
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>> {
        let (inner, _) = self.lock();
        ready(inner.model.queues())
    }

    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        let (inner, _) = self.lock();
        ready(inner.model.settings())
    }

    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>> {
        let (inner, now) = self.lock();
        ready(inner.documents.find(&seek, now))
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        let (inner, _) = self.lock();
        let from = inner.events.partition_point(|recorded| recorded.cursor <= cursor);
        ready(LogPage {
            events: inner.events.iter().skip(from).take(limit as usize).cloned().collect(),
            kept_after: inner.dropped,
            newest: inner.cursor,
            waits: false,
        })
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        let (mut inner, now) = self.lock();
        inner.model.forget_remembered(now);
        ready(false)
    }

    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let (mut inner, _) = self.lock();
        inner.model = Model::new(true);
        inner.fulls.clear();
        inner.spent = SpentIds::default();
        inner.documents = Documents::default();
        inner.events.clear();
        // Takes a cursor of its own, so that a reader that had read everything learns that it is gone.
        inner.cursor += 1;
        inner.dropped = inner.cursor;
        ready(())
    }

    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>> {
        let (inner, _) = self.lock();
        ready(match part {
            Part::Remembered => inner.model.remembered(after.as_ref(), limit as usize),
            Part::Rows => inner.model.rows(after.as_ref(), limit as usize),
        })
    }

    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>> {
        let (mut inner, _) = self.lock();
        inner.secret = heritage.secret;
        inner.cursor = inner.cursor.max(heritage.log);
        inner.dropped = inner.cursor;
        inner.model.note_gone(heritage.time.as_micros().try_into().unwrap_or(0));
        let after = inner.model.after_the_gone();
        inner.time.not_before(after);
        ready(())
    }

    fn backup(&self, _path: PathBuf) -> BoxFuture<'_, Result<(), StoreError>> {
        let message = "a store in memory cannot be backed up; use --store sqlite:PATH".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Unsupported(message))))
    }

    fn rows(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rows)
    }

    fn secret(&self) -> [u8; 16] {
        self.lock().0.secret
    }

    fn facts(&self) -> Facts {
        Facts {
            engine: "memory",
            mechanism: "versioned commit, one writer",
            durability: "none: everything is lost with the process",
            // The keys and the callers that know of them end together.
            is_strong: true,
            commits_in_flight: 1,
            blocks: false,
        }
    }
}

/// The event that the log records for a grant.
pub fn started(head: &Head) -> Event {
    Event {
        kind: Grant::EVENT,
        job: head.id,
        job_type: head.job_type.clone(),
        queue: head.queue.clone(),
        attempt: head.attempt,
        amount: 0,
    }
}
