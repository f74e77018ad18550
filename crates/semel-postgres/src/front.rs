//! Where queues begin whose index is full of jobs that are no longer ready.
//!
//! PostgreSQL keeps the index entries of claimed jobs until no transaction can see them as ready: a dump or a
//! forgotten transaction keeps them for as long as it lasts, and every claim would go over all of them. So a
//! claim that went over many reports it. From then on this server follows the queue: it regularly looks for the
//! first ready job of the queue's lowest priority, and its claims skip the index entries before that job, which
//! is the queue's front. Claims still see all jobs of other priorities. Most looks start at the front and move
//! it forward. Beside them, looks at everything move it back if they find a job before it.
//!
//! A commit of this server that makes a job ready before the front moves the front back. A job that another
//! server, the outbox or a caller's own transaction makes ready there is found by the next look at everything,
//! so no job is left behind. Queues whose claims are short are not followed, and their claims see everything.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use semel_core::draft::Group;
use semel_core::ident::QueueName;
use semel_core::job::Head;
use semel_core::limits::PRIORITY_DEFAULT;
use semel_core::slot::{Filing, Slot};
use semel_core::time::Timestamp;
use semel_store::News;
use semel_store::backend::Batch;
use semel_store::hints::Hints;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use crate::begin::rest;
use crate::error::PostgresError;
use crate::sql::WALK_MAX;
use crate::store::Shared;
use crate::values::Params;

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(250);
/// How far behind the present a front stays, in microseconds: jobs that other servers are committing during a
/// look have an earlier time, and so have due jobs that other servers make ready.
const RECENT: i64 = 300_000;

/// A queue's front: claims skip jobs of this priority that became ready before `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub priority: i8,
    pub at: Timestamp,
}

impl Place {
    /// The place of a job, if it is ready and under no limit: others are in another index.
    fn of(head: &Head) -> Option<Self> {
        let filing = Filing::of(head);
        (filing.slot == Slot::Ready && head.lane.is_none())
            .then_some(Self { priority: head.priority, at: filing.at })
    }
}

/// A front as two parameters.
pub(crate) fn split(front: Option<Place>) -> (Option<i32>, Option<i64>) {
    front.map(|place| (i32::from(place.priority), place.at.as_micros())).unzip()
}

/// A search for the first ready job of a queue's priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// The number of the [`Front`] that the look is for.
    number: u64,
    priority: i8,
    /// Where it begins; `None` for everything.
    from: Option<Timestamp>,
}

/// What a look found.
#[derive(Clone, Copy, Debug)]
struct Seen {
    now: Timestamp,
    first: Option<Timestamp>,
    /// How many entries it went over.
    walked: i64,
    took: Duration,
}

/// A followed queue.
#[derive(Debug)]
struct Front {
    /// Differs each time a queue is followed anew, so that a look for an earlier front is not applied to it.
    number: u64,
    /// The lowest priority known in it.
    priority: i8,
    /// Whether `priority` is a guess, because no claim has been granted a job of the queue yet.
    is_guess: bool,
    /// The time at which claims start. `None` before the first look has ended.
    from: Option<Timestamp>,
    /// `from` as the last look set it, without the writes since.
    seen: Option<Timestamp>,
    /// The earliest time at which a commit of this server made a job ready since the current look began.
    written: Option<Timestamp>,
    /// When the next look at everything is due. `None` while one is under way.
    all_at: Option<Instant>,
}

impl Front {
    /// A job becomes ready at `place`.
    fn write(&mut self, place: Place) {
        if place.priority == self.priority {
            self.written = self.written.into_iter().chain([place.at]).min();
            self.from = self.from.map(|from| from.min(place.at));
        }
    }
}

/// The followed queues.
#[derive(Default)]
pub(crate) struct Fronts {
    known: Mutex<BTreeMap<QueueName, Front>>,
    /// The number of the next front.
    number: AtomicU64,
    /// Whether any queue is followed. Usually none is, and then commits and claims check nothing else.
    has_any: AtomicBool,
    woken: Notify,
    hints: Mutex<Vec<Weak<Hints>>>,
}

impl Fronts {
    fn known(&self) -> MutexGuard<'_, BTreeMap<QueueName, Front>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fronts of these queues; `None` if none of them has one.
    pub(crate) fn of(&self, queues: &[QueueName]) -> Option<Vec<Option<Place>>> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let known = self.known();
        let fronts: Vec<Option<Place>> = queues
            .iter()
            .map(|queue| {
                known.get(queue).and_then(|front| front.from.map(|at| Place { priority: front.priority, at }))
            })
            .collect();
        fronts.iter().any(Option::is_some).then_some(fronts)
    }

    /// Follows these queues from now on, because a claim on them went over many entries. `granted` are the jobs
    /// that it was granted.
    pub(crate) fn follow<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
        granted: impl Iterator<Item = &'a Head>,
    ) {
        let mut lowest: BTreeMap<&QueueName, i8> = BTreeMap::new();
        for head in granted {
            lowest
                .entry(&head.queue)
                .and_modify(|lowest| *lowest = head.priority.min(*lowest))
                .or_insert(head.priority);
        }
        let mut known = self.known();
        let mut saw_less = false;
        for queue in queues {
            let lowest = lowest.get(queue).copied();
            if let Some(front) = known.get(queue) {
                let is_lower =
                    |lowest: i8| lowest < front.priority || front.is_guess && lowest != front.priority;
                if !lowest.is_some_and(is_lower) {
                    continue;
                }
                saw_less |= front.from.is_some();
            }
            let front = Front {
                number: self.number.fetch_add(1, Ordering::Relaxed),
                priority: lowest.unwrap_or(PRIORITY_DEFAULT),
                is_guess: lowest.is_none(),
                from: None,
                seen: None,
                written: None,
                all_at: Some(Instant::now()),
            };
            known.insert(queue.clone(), front);
        }
        self.has_any.store(!known.is_empty(), Ordering::Release);
        drop(known);
        if saw_less {
            self.wake();
        }
        self.woken.notify_one();
    }

    /// Moves fronts back to the jobs that a commit makes ready. Called when the commit is sent, for the claims
    /// sent with it, and when it is done, for a look that did not see it.
    pub(crate) fn note(&self, batch: &Batch) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        let mut known = self.known();
        for head in batch.groups.iter().flat_map(Group::heads) {
            if let (Some(front), Some(place)) = (known.get_mut(&head.queue), Place::of(head)) {
                front.write(place);
            }
        }
    }

    /// Registers the waiters to wake whenever a look finds jobs that claims did not see.
    pub(crate) fn tell(&self, hints: Weak<Hints>) {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).push(hints);
    }

    /// Wakes the task, so that it notices that the store is gone.
    pub(crate) fn end(&self) {
        self.woken.notify_one();
    }

    fn queues(&self) -> Vec<QueueName> {
        self.known().keys().cloned().collect()
    }

    /// The queue whose look at everything is due first.
    fn first_due(&self) -> Option<QueueName> {
        let known = self.known();
        let due = known.iter().filter_map(|(queue, front)| front.all_at.map(|at| (at, queue)));
        due.min().map(|(_, queue)| queue.clone())
    }

    /// Returns the looks at this queue to make now. Only if `may_see_all`, one of them may be a look at
    /// everything.
    fn begin(&self, queue: &QueueName, may_see_all: bool) -> Vec<Look> {
        let mut known = self.known();
        let Some(front) = known.get_mut(queue) else { return Vec::new() };
        let sees_all = may_see_all && front.all_at.is_some_and(|at| at <= Instant::now());
        let look = |from| Look { number: front.number, priority: front.priority, from };
        let mut looks = Vec::new();
        if front.from.is_some() {
            looks.push(look(front.from));
        }
        if sees_all {
            looks.push(look(None));
        }
        if front.from.is_some() || sees_all {
            front.written = None;
        }
        if sees_all {
            front.all_at = None;
        }
        looks
    }

    /// Applies what a look found. Returns whether claims may now see jobs that they did not see before.
    fn apply(&self, queue: &QueueName, look: Look, seen: Seen) -> bool {
        let mut known = self.known();
        let Some(front) = known.get_mut(queue).filter(|front| front.number == look.number) else {
            return false;
        };
        let is_all = look.from.is_none();
        if is_all && seen.walked <= WALK_MAX / 2 {
            let saw_less = front.from.is_some();
            self.drop(&mut known, queue);
            return saw_less;
        }
        let recent = Timestamp::from_micros(seen.now.as_micros().saturating_sub(RECENT));
        let mut place = seen.first.map_or(recent, |first| first.min(recent));
        if is_all {
            front.all_at = Some(Instant::now() + rest(seen.took, PAUSE));
            // Looks that started at the front may have moved it forward meanwhile.
            place = front.seen.map_or(place, |seen| seen.min(place));
        }
        // The front may have moved back to a job that this look did not go over.
        let has_moved = |from: &Timestamp| is_all || Some(*from) < look.from;
        let places = [Some(place), front.written, front.from.filter(has_moved)];
        front.from = places.into_iter().flatten().min();
        front.seen.replace(place).is_some_and(|before| place < before)
    }

    /// Stops following a queue, if this is still its front: claims see everything again.
    fn forget(&self, queue: &QueueName, number: u64) {
        let mut known = self.known();
        if known.get(queue).is_some_and(|front| front.number == number) {
            self.drop(&mut known, queue);
        }
    }

    fn drop(&self, known: &mut BTreeMap<QueueName, Front>, queue: &QueueName) {
        known.remove(queue);
        self.has_any.store(!known.is_empty(), Ordering::Release);
    }

    fn wake(&self) {
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        hints.retain(|hints| {
            hints.upgrade().map(|hints| hints.hear(&News { ready: true, ..News::default() })).is_some()
        });
    }
}

/// Keeps the fronts of the followed queues up to date, until the store is gone.
pub(crate) async fn run(store: Weak<Shared>, fronts: Arc<Fronts>) {
    // Looks at everything may take long: they run beside the others, one at a time.
    let mut all: Option<JoinHandle<()>> = None;
    loop {
        fronts.woken.notified().await;
        while fronts.has_any.load(Ordering::Acquire) {
            for queue in fronts.queues() {
                let may_see_all = all.as_ref().is_none_or(JoinHandle::is_finished)
                    && fronts.first_due().as_ref() == Some(&queue);
                for look in fronts.begin(&queue, may_see_all) {
                    let Some(shared) = store.upgrade() else { return };
                    let (fronts, queue) = (Arc::clone(&fronts), queue.clone());
                    let looking = async move { shared.look_for_front(&fronts, &queue, look).await };
                    if look.from.is_some() {
                        looking.await;
                    } else {
                        all = Some(tokio::spawn(looking));
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        if store.strong_count() == 0 {
            return;
        }
    }
}

impl Shared {
    async fn look_for_front(&self, fronts: &Fronts, queue: &QueueName, look: Look) {
        let has_more = match self.front(queue, look).await {
            Ok(seen) => fronts.apply(queue, look, seen),
            Err(error) => {
                tracing::debug!(%error, %queue, "it could not be found out where a queue begins");
                fronts.forget(queue, look.number);
                true
            }
        };
        if has_more {
            fronts.wake();
        }
    }

    /// Searches for the first ready job of a queue's priority.
    async fn front(&self, queue: &QueueName, look: Look) -> Result<Seen, PostgresError> {
        let mut params = Params::default();
        self.push_time(&mut params);
        params.push(queue.as_str(), Type::TEXT);
        params.push(i32::from(look.priority), Type::INT4);
        params.number(look.from.map_or(i64::MIN, Timestamp::as_micros));
        let sql =
            format!("SELECT now_at, slot_at, walked, took FROM {}({})", self.name("front"), params.marks());
        let _turn = self.turn_aside().await?;
        let rows = self.current(&sql, &params).await?;
        let row = rows.first().ok_or(PostgresError::Answer("front"))?;
        let first: Option<i64> = row.try_get(1)?;
        Ok(Seen {
            now: self.saw(row.try_get(0)?),
            first: first.map(Timestamp::from_micros),
            walked: row.try_get(2)?,
            took: Duration::from_micros(u64::try_from(row.try_get::<_, i64>(3)?).unwrap_or(0)),
        })
    }
}

#[cfg(test)]
mod tests;
