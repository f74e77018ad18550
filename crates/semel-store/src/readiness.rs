//! Counts of queues becoming ready, by a hash of their names, so that a caller waiting for some queues does
//! not look for every job of others. Queues that share a slot wake each other's waiters in vain.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::ident::QueueName;
use tokio::sync::Notify;

/// The number of slots.
const PLACES: usize = 256;

/// The slot of a queue: the same in every run.
fn place_of(queue: &QueueName) -> usize {
    let mut hasher = DefaultHasher::new();
    queue.as_str().hash(&mut hasher);
    (hasher.finish() % PLACES as u64) as usize
}

/// A set of slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places([u64; PLACES / 64]);

impl Places {
    pub(crate) fn add(&mut self, queue: &QueueName) {
        let place = place_of(queue);
        self.0[place / 64] |= 1 << (place % 64);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }

    fn has(&self, place: usize) -> bool {
        self.0[place / 64] & 1 << (place % 64) != 0
    }
}

/// How often jobs became ready since the store was opened, per slot.
#[derive(Debug)]
pub(crate) struct Readiness {
    changed: Notify,
    by_place: [AtomicU64; PLACES],
    /// How often they may have become ready in any queue.
    anywhere: AtomicU64,
}

/// The counts of some queues when a caller was about to look in them.
#[derive(Clone, Debug)]
pub struct Mark {
    by_place: Vec<(usize, u64)>,
    anywhere: u64,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            changed: Notify::new(),
            by_place: std::array::from_fn(|_| AtomicU64::new(0)),
            anywhere: AtomicU64::new(0),
        }
    }
}

impl Readiness {
    pub(crate) fn mark(&self, queues: &[QueueName]) -> Mark {
        let count = |queue: &QueueName| {
            let place = place_of(queue);
            (place, self.by_place[place].load(Ordering::Acquire))
        };
        Mark { by_place: queues.iter().map(count).collect(), anywhere: self.anywhere.load(Ordering::Acquire) }
    }

    /// Waits until the counts differ from the mark.
    pub(crate) async fn since(&self, mark: &Mark) {
        loop {
            // Registered before looking, so that no change in between is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_news(mark) {
                return;
            }
            changed.await;
        }
    }

    fn is_news(&self, mark: &Mark) -> bool {
        let has_moved =
            |(place, count): &(usize, u64)| self.by_place[*place].load(Ordering::Acquire) != *count;
        self.anywhere.load(Ordering::Acquire) != mark.anywhere || mark.by_place.iter().any(has_moved)
    }

    /// Notes that jobs became ready in these queues.
    pub(crate) fn stir(&self, queues: &Places) {
        for (_, count) in self.by_place.iter().enumerate().filter(|(place, _)| queues.has(*place)) {
            count.fetch_add(1, Ordering::AcqRel);
        }
        self.changed.notify_waiters();
    }

    /// Notes that jobs may have become ready in any queue.
    pub(crate) fn stir_all(&self) {
        self.anywhere.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }
}
