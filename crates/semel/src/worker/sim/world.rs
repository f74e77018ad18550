//! State shared by all processes of a run. In reality they would share only the store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_testkit::history::Checked;
use semel_testkit::sim::dice::Dice;
use semel_testkit::sim::store::{SharedStore, SimClock};

use super::book::Book;
use super::plan::Plan;

/// The world of one run. Times are microseconds since it began.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) store: Arc<SharedStore>,
    /// The store's clock.
    pub(super) clock: SimClock,
    /// The record of what handlers do.
    pub(super) book: Arc<Mutex<Book>>,
    now: AtomicU64,
    requests: AtomicU64,
    calling: AtomicU64,
    starts: AtomicU64,
    is_quiet: AtomicBool,
    is_over: AtomicBool,
    ended: AtomicU64,
}

impl World {
    pub(super) fn new(seed: u64, plan: Plan, store: Arc<SharedStore>, clock: SimClock) -> Arc<Self> {
        let book = Book::new(plan.is_calm(), plan.is_steady());
        Arc::new(Self {
            plan,
            seed,
            store,
            clock,
            book: Arc::new(Mutex::new(book)),
            now: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            calling: AtomicU64::new(0),
            starts: AtomicU64::new(0),
            is_quiet: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            ended: AtomicU64::new(0),
        })
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Moves the world's time and the store's clock to `at`.
    pub(super) fn pass_to(&self, at: u64) {
        let before = self.now.swap(at, Ordering::Relaxed);
        self.clock.pass(Duration::from_micros(at.saturating_sub(before)));
    }

    /// Records a broken promise; the store keeps the first.
    pub(super) fn judge(&self, checked: Checked) {
        self.store.judge(checked);
    }

    /// A number and a random stream for something that starts.
    pub(super) fn start(&self) -> (u64, Dice) {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        (number, Dice::of(self.seed, 1_000 + number))
    }

    /// The number of the next request, while some are left.
    pub(super) fn request(&self) -> Option<u64> {
        let next = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        (next <= self.plan.requests).then_some(next)
    }

    /// Whether all requests were sent and answered.
    pub(super) fn has_asked(&self) -> bool {
        self.requests.load(Ordering::Relaxed) >= self.plan.requests
            && self.calling.load(Ordering::Relaxed) == 0
    }

    /// Marks that a caller enqueues a job, until the guard is dropped.
    pub(super) fn calls(&self) -> Calling<'_> {
        self.calling.fetch_add(1, Ordering::Relaxed);
        Calling(self)
    }

    /// Ends all troubles: handlers become quick, and workers stay.
    pub(super) fn heal(&self) {
        self.is_quiet.store(true, Ordering::Relaxed);
        self.store.heal();
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }

    /// All jobs have ended: tells the workers to stop.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// A process has come to its end by itself.
    pub(super) fn has_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// How many processes have come to their end.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

/// A caller that is enqueueing a job.
pub(super) struct Calling<'a>(&'a World);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.calling.fetch_sub(1, Ordering::Relaxed);
    }
}
