//! Wake-up hints, and counts of offers. Hints may be lost or come in vain; correctness never depends on them.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use semel_core::draft::{Group, Offered, Write};
use semel_core::ident::{JobId, QueueName};
use semel_core::slot::{Filing, Slot};
use semel_core::time::Timestamp;
use tokio::sync::Notify;

use crate::backend::Claimed;
use crate::batcher::Ready;
use crate::lanes::ClosedLanes;
use crate::news::{News, freed_lane};
use crate::readiness::{Mark, Readiness};
use crate::watch::{Watch, Watchers};

/// Wake-ups for callers that wait for jobs or events, and for duties that wait for a time.
#[derive(Debug)]
pub struct Hints {
    ready: Readiness,
    timers: Notify,
    log: Notify,
    /// When the duties will look next, in microseconds.
    looks_at: AtomicI64,
    watchers: Arc<Watchers>,
    closed: ClosedLanes,
    /// The number of callers waiting for other processes' news, without the watchers of single jobs.
    waiting: AtomicUsize,
    awaited: Notify,
    /// Counts offers whose outcome is reported to no caller.
    counter: OnceLock<Counter>,
}

/// A callback that counts what became of one offer.
struct Counter(Box<dyn Fn(&Offered) + Send + Sync>);

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counter")
    }
}

/// A registration of interest in other processes' writes, until it is dropped.
#[derive(Debug)]
pub struct Waiting(Arc<Hints>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Hints {
    fn default() -> Self {
        Self {
            ready: Readiness::default(),
            timers: Notify::new(),
            log: Notify::new(),
            looks_at: AtomicI64::new(i64::MAX),
            watchers: Arc::default(),
            closed: ClosedLanes::default(),
            waiting: AtomicUsize::new(0),
            awaited: Notify::new(),
            counter: OnceLock::new(),
        }
    }
}

impl Hints {
    /// Registers `counter` for offers whose outcome no caller receives (a cron's tick, a workflow's step); it
    /// is called once they are committed. Only the first registration counts.
    pub fn count_by(&self, counter: impl Fn(&Offered) + Send + Sync + 'static) {
        drop(self.counter.set(Counter(Box::new(counter))));
    }

    pub(crate) fn count(&self, offered: &[Offered]) {
        if let Some(Counter(counter)) = self.counter.get() {
            offered.iter().for_each(counter);
        }
    }

    /// The current position in the news of these queues, which go by the names the store has for them. Take a
    /// mark, then look for jobs, then wait with [`ready_since`](Self::ready_since).
    pub fn mark(&self, queues: &[QueueName]) -> Mark {
        self.ready.mark(queues)
    }

    /// Waits until jobs may have become ready in the mark's queues since it was taken.
    pub async fn ready_since(&self, mark: &Mark) {
        self.ready.since(mark).await;
    }

    /// The limits under which nothing may start right now.
    pub fn closed_lanes(&self) -> &ClosedLanes {
        &self.closed
    }

    /// Notifies when the log has grown. Register, then look, then wait.
    pub fn logged(&self) -> tokio::sync::futures::Notified<'_> {
        self.log.notified()
    }

    /// Watches one job: every committed change of its head is news, and so is its deletion. Its creation and
    /// its notes are not.
    pub fn watch(&self, id: JobId) -> Watch {
        let watch = self.watchers.watch(id);
        self.awaited.notify_one();
        watch
    }

    /// Registers a wait for jobs or for the log to grow. Register before looking: what other processes write
    /// afterwards is then reported.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.awaited.notify_one();
        Waiting(Arc::clone(self))
    }

    /// Whether any caller waits for anything.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.watchers.is_any()
    }

    /// Waits until some caller waits for something.
    pub async fn awaited(&self) {
        while !self.is_awaited() {
            self.awaited.notified().await;
        }
    }

    /// Passes on the news of other processes' writes.
    pub fn hear(&self, news: &News) {
        if news.lanes {
            self.closed.clear();
        }
        if news.ready || news.lanes {
            self.ready.stir_all();
        }
        if news.log {
            self.log.notify_waiters();
        }
        if news.more_jobs {
            self.watchers.wake_all();
        } else {
            self.watchers.among(news.jobs.iter().copied()).iter().for_each(|news| news.notify_waiters());
        }
    }

    /// Waits until something falls due sooner than the duties expect.
    pub async fn sooner(&self) {
        self.timers.notified().await;
    }

    /// Notes that the duties will look at `at` and need no hint about anything later.
    pub fn looks_at(&self, at: Timestamp) {
        self.looks_at.store(at.as_micros(), Ordering::Release);
    }

    /// Wakes every waiter, for instance after the store was silent for long.
    pub fn wake_all(&self) {
        self.ready.stir_all();
        self.timers.notify_one();
        self.log.notify_waiters();
        self.watchers.wake_all();
    }

    /// What a commit of these groups means to waiters. If `is_alone`, nothing is read beside it: all
    /// interested watchers have registered already.
    pub(crate) fn gather(&self, groups: &[Group], is_alone: bool) -> Ready {
        let mut ready =
            Ready { told: groups.iter().any(|group| !group.events.is_empty()), ..Ready::default() };
        let written = groups.iter().flat_map(|group| &group.writes).filter_map(|write| match write {
            Write::Update { head } => Some(head.id),
            Write::Forget { job, .. } => Some(*job),
            Write::Insert { .. }
            | Write::Note { .. }
            | Write::Spend { .. }
            | Write::Free { .. }
            | Write::Queue { .. }
            | Write::Document { .. } => None,
        });
        if !is_alone || self.watchers.is_any() {
            ready.written.extend(written);
        }
        for write in groups.iter().flat_map(|group| &group.writes) {
            if let Write::Document { document: Some(document), .. } = write
                && let Some(at) = document.due
            {
                ready.due = sooner(ready.due, at);
            }
            let (Write::Insert { head, .. } | Write::Update { head }) = write else { continue };
            let filing = Filing::of(head);
            ready.lanes.extend(freed_lane(head, filing.slot));
            match filing.slot {
                Slot::Ready => ready.queues.add(&head.queue),
                Slot::Timer | Slot::Lease => ready.due = sooner(ready.due, filing.at),
                Slot::Held | Slot::Done => {}
            }
            if let Some(at) = filing.expires {
                ready.due = sooner(ready.due, at);
            }
        }
        ready
    }

    /// Adds the due times of the leases just granted.
    pub(crate) fn add_leases(ready: &mut Ready, claimed: &Claimed) {
        ready.told |= !claimed.jobs.is_empty();
        for (head, _) in &claimed.jobs {
            ready.due = sooner(ready.due, Filing::of(head).at);
        }
    }

    pub(crate) fn give(&self, ready: &Ready) {
        if self.closed.open(&ready.lanes) {
            self.ready.stir_all();
        } else if !ready.queues.is_empty() {
            self.ready.stir(&ready.queues);
        }
        if ready.told {
            self.log.notify_waiters();
        }
        // A caller that began to watch after the commit was sent may have looked before it landed.
        for news in self.watchers.among(ready.written.iter().copied()) {
            news.notify_waiters();
        }
        if ready.due.is_some_and(|at| at.as_micros() < self.looks_at.load(Ordering::Acquire)) {
            self.timers.notify_one();
        }
    }
}

fn sooner(known: Option<Timestamp>, at: Timestamp) -> Option<Timestamp> {
    Some(known.map_or(at, |known| known.min(at)))
}
