//! Heartbeats: the lease of every job that a worker holds, running or waiting for a slot, is extended well
//! before it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use semel_core::ident::JobId;
use semel_core::settings::Directive;
use semel_store::StoreError;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{Beaten, Held, Link, Speaker};
use super::rest::{News, chance, spread};
use super::run::Delivery;
use super::stop::{Cause, Stop};
use crate::Error;

/// How many heartbeats are sent per lease: with three, two may be lost.
const BEATS_PER_LEASE: u32 = 3;
/// The least time between heartbeats, however short a lease is.
const BEAT_EVERY_MIN: Duration = Duration::from_millis(10);
/// How long after a failed heartbeat the next one is sent, unless it is due sooner. Doubles with each further
/// failure.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// The longest such wait.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(10);
/// The least number of further tries within what is left of a lease.
const AGAIN_PER_REST: u32 = 4;

/// The least time to wait for an answer before the same jobs are included in another heartbeat.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// How long a late answer is still accepted after that; less if the longest lease it may extend is shorter,
/// because a later answer extends none.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long the worker still counts a job as its own when an open transaction holds the job's row. Another
/// heartbeat is sent sooner: if its lease is over, the job may be taken as soon as the row is released.
const HELD_LASTS: Duration = Duration::from_secs(5);

/// How often a worker that holds nothing sends a heartbeat (OJS core 7.5), and so how soon it gets an
/// operator's directive.
const BEAT_IDLE_EVERY: Duration = Duration::from_secs(15);

fn unheard() -> Error {
    Error::Store(StoreError::Unavailable("the heartbeat was not answered in time".to_owned()))
}

/// How long to wait after `failed` consecutive failures before the next heartbeat, for a lease with `left` to
/// go. `asked` is how long the server asked to be left alone.
fn again_after(failed: u32, left: Duration, asked: Option<Duration>, chance: u32) -> Duration {
    let own = AGAIN_AFTER.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(AGAIN_AFTER_MAX);
    // Hurry cannot save a lease that has run out.
    let most = if left.is_zero() { AGAIN_AFTER_MAX } else { (left / AGAIN_PER_REST).max(AGAIN_AFTER) };
    spread(own, asked, chance).min(most)
}

/// The jobs a worker holds.
#[derive(Default)]
pub(crate) struct Beats {
    held: Mutex<Jobs>,
    /// Wakes the sender: something is due earlier than it knows.
    sooner: Notify,
    told: watch::Sender<Directive>,
    /// The store's error once it was found gone for good; the first one stays.
    gone: watch::Sender<Option<StoreError>>,
    /// Failed heartbeats that were logged recently.
    unheard: News,
}

/// What a run is told about its lease.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// Fires when the store or the server says that the lease is gone.
    pub(crate) lost: CancellationToken,
    /// Fires when the lease has run out by this worker's reckoning: nothing was answered for so long. The
    /// store may still accept the run's end.
    pub(crate) ran_out: CancellationToken,
    /// Fires when nothing runs any more that could be told, and only the end is to be reported.
    pub(crate) ended: CancellationToken,
    /// Why the run's token fires, set before it does.
    pub(crate) cause: Cause,
}

impl Signals {
    /// Tells the run that its lease is gone, and why.
    fn lose(&self, why: Stop) {
        self.cause.tell(why);
        self.lost.cancel();
    }
}

#[derive(Default)]
struct Jobs {
    by_id: BTreeMap<JobId, Beating>,
    /// When the sender next wakes: a new job is compared with this, not with all other jobs.
    wakes: Option<Instant>,
    /// When the heartbeat was sent whose answer last brought an operator's directive.
    told: Option<Instant>,
}

impl Jobs {
    /// The entry with the same fence: the job may have been granted to this worker again meanwhile.
    fn of(&mut self, job: &Held) -> Option<&mut Beating> {
        self.by_id.get_mut(&job.id).filter(|beating| beating.held.fence == job.fence)
    }
}

struct Beating {
    held: Held,
    every: Duration,
    next: Instant,
    /// How long each confirmed heartbeat makes the lease last.
    lease: Duration,
    /// When the lease runs out unless another heartbeat is answered. Counted from when the last answered one
    /// was sent, because the store counts from no earlier.
    until: Instant,
    /// When the heartbeat now under way was sent; until it is answered or has taken too long, the job is in
    /// no other.
    under_way: Option<Instant>,
    /// How many heartbeats for the job have failed since the last one that was answered.
    failed: u32,
    /// Whether an open transaction held the job's row at the last answer, which then counts for less time.
    is_busy: bool,
    /// Whether its own run has already completed it: no lease is left to extend or to run out, and no other
    /// worker has it.
    is_completed: bool,
    signals: Signals,
}

impl Beating {
    /// When the job next needs attention: a heartbeat, or being told that its lease has run out.
    fn due(&self) -> Option<Instant> {
        let next = Some(self.next).filter(|_| self.is_to_be_spoken_of());
        let until = Some(self.until).filter(|_| self.may_run_out());
        next.into_iter().chain(until).min()
    }

    /// The interval of the job's heartbeats, and how long an answer is waited for.
    fn every(&self) -> Duration {
        if self.is_busy { self.every.min(HELD_LASTS / BEATS_PER_LEASE) } else { self.every }
    }

    /// Whether the job may be in a heartbeat. A lost lease can no longer be extended.
    fn is_to_be_spoken_of(&self) -> bool {
        self.under_way.is_none() && !self.is_completed && !self.signals.lost.is_cancelled()
    }

    /// Whether a run would still have to be told that the lease has run out.
    fn may_run_out(&self) -> bool {
        let Signals { lost, ran_out, ended, .. } = &self.signals;
        !self.is_completed && ![lost, ran_out, ended].into_iter().any(CancellationToken::is_cancelled)
    }
}

/// Keeps a job's lease extended until dropped.
pub(crate) struct Holding {
    beats: Arc<Beats>,
    id: JobId,
    fence: u64,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut held = self.beats.held();
        // The job may have been granted to this worker again meanwhile.
        if held.by_id.get(&self.id).is_some_and(|beating| beating.held.fence == self.fence) {
            held.by_id.remove(&self.id);
        }
    }
}

impl Beats {
    fn held(&self) -> MutexGuard<'_, Jobs> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends a job's lease from now on; `signals` fire if the lease is reported gone, or runs out
    /// unanswered.
    pub(crate) fn hold(self: &Arc<Self>, job: &Delivery, signals: Signals) -> Holding {
        let every = (job.lease / BEATS_PER_LEASE).max(BEAT_EVERY_MIN);
        let held = Held { id: job.id, fence: job.fence, has_own_lease: job.has_own_lease };
        // Counted from the request, however long its answer took.
        let next = job.asked + every;
        // An answer that took as long as the lease lasts may still be new: ask by a heartbeat before the
        // lease counts as run out.
        let until = (job.asked + job.lease).max(Instant::now() + job.lease.min(PATIENCE_MIN));
        let lease = job.lease;
        let is_soonest = {
            let mut jobs = self.held();
            let beating = Beating {
                held,
                every,
                next,
                lease,
                until,
                under_way: None,
                failed: 0,
                is_busy: false,
                is_completed: false,
                signals,
            };
            if let Some(old) = jobs.by_id.insert(job.id, beating) {
                // Granted again, so the earlier run has lost its lease, even if nobody has told it.
                old.signals.lose(Stop::LeaseLost);
            }
            let due = next.min(until);
            let is_soonest = jobs.wakes.is_none_or(|wakes| due < wakes);
            if is_soonest {
                jobs.wakes = Some(due);
            }
            is_soonest
        };
        if is_soonest {
            self.sooner.notify_one();
        }
        Holding { beats: Arc::clone(self), id: job.id, fence: job.fence }
    }

    /// The operator's directive to the worker.
    pub(crate) fn told(&self) -> watch::Receiver<Directive> {
        self.told.subscribe()
    }

    /// Records that the store is gone for good; the first error stays.
    pub(crate) fn found_gone(&self, worker: &str, said: StoreError) {
        let error = said.to_string();
        let is_news = self.gone.send_if_modified(|gone| {
            let is_news = gone.is_none();
            gone.get_or_insert(said);
            is_news
        });
        if is_news {
            tracing::error!(error, worker, "the store has failed for good; no more jobs are fetched");
        }
    }

    /// Completes with the store's error when the store is gone for good.
    pub(crate) async fn gone(&self) -> StoreError {
        let mut gone = self.gone.subscribe();
        // `self` keeps the sender alive.
        let said = gone.wait_for(Option::is_some).await.ok().and_then(|said| said.clone());
        said.unwrap_or(StoreError::Closed)
    }

    /// When the next job needs attention, or `idle` if that is sooner. Code that adds something due earlier
    /// must notify `sooner`.
    fn soonest(&self, idle: Instant) -> Instant {
        let mut held = self.held();
        let soonest = held.by_id.values().filter_map(Beating::due).min();
        let wakes = soonest.map_or(idle, |soonest| soonest.min(idle));
        held.wakes = Some(wakes);
        wakes
    }

    /// Until when the job's lease lasts, as far as this worker knows; `None` if the job is not held.
    pub(crate) fn until(&self, job: &Delivery) -> Option<Instant> {
        let held = self.held();
        held.by_id.get(&job.id).filter(|beating| beating.held.fence == job.fence).map(|beating| beating.until)
    }

    /// Sends heartbeats until `stop` fires.
    pub(crate) async fn run(self: Arc<Self>, link: Arc<dyn Link>, speaker: Speaker, stop: CancellationToken) {
        let mut idle = Instant::now();
        // Concurrently: an unanswered heartbeat must not delay those for other jobs.
        let mut under_way = FuturesUnordered::new();
        loop {
            let next = self.soonest(idle);
            tokio::select! {
                // In a fixed order, here and in the map, so that a run can be replayed.
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(next) => {
                    let now = Instant::now();
                    if self.run_out(now) || idle <= now {
                        idle = now + BEAT_IDLE_EVERY;
                        under_way.push(self.beat(&*link, &speaker));
                    }
                }
                Some(()) = under_way.next() => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Tells the runs whose leases have run out, and returns whether a heartbeat is due.
    fn run_out(&self, now: Instant) -> bool {
        let mut is_due = false;
        for beating in self.held().by_id.values() {
            if beating.until <= now && beating.may_run_out() {
                tracing::warn!(job = %beating.held.id, "a lease went unconfirmed for so long that it must have expired; the run is told to stop");
                beating.signals.cause.tell(Stop::LeaseLost);
                beating.signals.ran_out.cancel();
            }
            is_due |= beating.next <= now && beating.is_to_be_spoken_of();
        }
        is_due
    }

    /// One heartbeat, for the jobs that are due now or soon.
    fn beat<'a>(&'a self, link: &'a dyn Link, speaker: &'a Speaker) -> impl Future<Output = ()> {
        let now = Instant::now();
        let mut due = Vec::new();
        let (mut patience, mut longest) = (BEAT_IDLE_EVERY, Duration::ZERO);
        let mut held = self.held();
        for beating in held.by_id.values_mut().filter(|beating| beating.is_to_be_spoken_of()) {
            if beating.next <= now + beating.every / 4 {
                due.push(beating.held);
                patience = patience.min(beating.every());
                longest = longest.max(beating.lease);
                beating.next = now + beating.every();
                beating.under_way = Some(now);
            }
        }
        let holds = held.by_id.len();
        drop(held);
        let late = longest.clamp(PATIENCE_MIN, ANSWER_MAX);
        self.speak(link, speaker, due, holds, now, (patience.max(PATIENCE_MIN), late))
    }

    async fn speak(
        &self,
        link: &dyn Link,
        speaker: &Speaker,
        due: Vec<Held>,
        holds: usize,
        sent: Instant,
        (patience, late): (Duration, Duration),
    ) {
        let hears = |part: Beaten| self.hear(sent, part);
        let mut beat = link.beat(speaker, &due, holds, &hears);
        // A heartbeat that hangs must not delay the next one. It may still be answered, and then counts: a
        // slow store must not break runs off.
        let beaten = match tokio::time::timeout(patience, &mut beat).await {
            Ok(beaten) => beaten,
            Err(_) => {
                self.note_unanswered(sent, &due, &unheard());
                self.sooner.notify_one();
                tokio::time::timeout(late, beat).await.unwrap_or(Ok(()))
            }
        };
        match beaten {
            Ok(()) => {
                self.again(sent, &due, None);
            }
            Err(error) => {
                self.note_unanswered(sent, &due, &error);
                if let Some(gone) = error.store_is_gone() {
                    self.found_gone(&speaker.worker, gone);
                }
            }
        }
    }

    fn note_unanswered(&self, sent: Instant, due: &[Held], error: &Error) {
        let left = self.again(sent, due, error.retry_after());
        if (left > 0 || due.is_empty()) && self.unheard.is_news(error) {
            tracing::warn!(%error, jobs = left, "a heartbeat failed; its leases are sent again");
        }
    }

    /// Applies a part of the answer to the heartbeat sent at `sent`.
    fn hear(&self, sent: Instant, part: Beaten) {
        let Beaten { extended, completed, lost, cancelled, busy, unheard, directive } = part;
        if !busy.is_empty() || !unheard.is_empty() {
            let (busy, unheard) = (busy.len(), unheard.len());
            tracing::debug!(busy, unheard, "leases that could not be extended are sent again");
        }
        let mut held = self.held();
        // The directive in an older heartbeat's answer is outdated.
        if let Some(directive) = directive.filter(|_| held.told.is_none_or(|told| told <= sent)) {
            held.told = Some(sent);
            self.told.send_if_modified(|told| std::mem::replace(told, directive) != directive);
        }
        for job in &completed {
            if let Some(beating) = held.of(job) {
                beating.under_way = None;
                beating.is_completed = true;
            }
        }
        for (jobs, why) in [(&lost, Stop::LeaseLost), (&cancelled, Stop::Cancelled)] {
            for job in jobs {
                if let Some(beating) = held.of(job).filter(|beating| !beating.is_completed) {
                    beating.under_way = None;
                    beating.signals.lose(why);
                }
            }
        }
        let now = Instant::now();
        for job in &extended {
            if let Some(beating) = held.of(job) {
                (beating.under_way, beating.failed) = (None, 0);
                beating.is_busy = false;
                beating.until = beating.until.max(sent + beating.lease);
            }
        }
        for job in busy.iter().chain(&unheard) {
            if let Some(beating) = held.of(job) {
                beating.under_way = None;
                beating.next = beating.next.min(now + AGAIN_AFTER);
            }
        }
        for job in &busy {
            if let Some(beating) = held.of(job) {
                (beating.is_busy, beating.failed) = (true, 0);
                beating.until = beating.until.max(sent + beating.lease.min(HELD_LASTS));
            }
        }
        drop(held);
        // Some jobs may be due again before the rest of the answer arrives.
        self.sooner.notify_one();
    }

    /// Schedules another heartbeat for the jobs that the one sent at `sent` left unanswered: soon, or when
    /// the server asks for it. Returns how many they are.
    fn again(&self, sent: Instant, due: &[Held], asked: Option<Duration>) -> usize {
        // One draw for all jobs, so that they stay in one heartbeat.
        let (now, chance) = (Instant::now(), chance());
        let (mut held, mut left) = (self.held(), 0);
        for job in due {
            if let Some(beating) = held.of(job).filter(|beating| beating.under_way == Some(sent)) {
                beating.under_way = None;
                beating.failed += 1;
                let rest = beating.until.saturating_duration_since(now);
                beating.next = beating.next.min(now + again_after(beating.failed, rest, asked, chance));
                left += 1;
            }
        }
        left
    }
}

#[cfg(test)]
mod tests;
