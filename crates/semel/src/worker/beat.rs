//! Signs of life: every job a worker holds, running or waiting for its turn, has its lease extended well before it ends.

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

/// A lease is extended this many times before it would end: two heartbeats may be lost.
const BEATS_PER_LEASE: u32 = 3;
/// However short a lease is.
const BEAT_EVERY_MIN: Duration = Duration::from_millis(10);
/// A heartbeat that failed is sent again after so long, or sooner if it was due sooner; each time that it fails again after
/// twice as long.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Up to this.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(10);
/// But so many times at least in what is left of a lease.
const AGAIN_PER_REST: u32 = 4;

/// A heartbeat is waited for at least so long before what it spoke of is spoken of again.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// So long after that its answer is still heard, or for as long as the leases last that it may extend: one that comes later extends none.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// So long a job still counts as the worker's that somebody's open transaction was found to hold. It is spoken of again sooner, and may be
/// taken as soon as it is let go, if its lease is over.
const HELD_LASTS: Duration = Duration::from_secs(5);

/// A worker that holds nothing is heard of so often (OJS core 7.5), and hears within that time what it is told.
const BEAT_IDLE_EVERY: Duration = Duration::from_secs(15);

fn unheard() -> Error {
    Error::Store(StoreError::Unavailable("the heartbeat was not answered in time".to_owned()))
}

/// How long after so many heartbeats that failed, one after the other, the next one is sent for a lease with so much left.
/// The server may have asked to be left alone.
fn again_after(failed: u32, left: Duration, asked: Option<Duration>, chance: u32) -> Duration {
    let own = AGAIN_AFTER.saturating_mul(1 << failed.saturating_sub(1).min(16)).min(AGAIN_AFTER_MAX);
    // What has run out cannot be saved by hurry.
    let most = if left.is_zero() { AGAIN_AFTER_MAX } else { (left / AGAIN_PER_REST).max(AGAIN_AFTER) };
    spread(own, asked, chance).min(most)
}

/// The jobs a worker holds.
#[derive(Default)]
pub(crate) struct Beats {
    held: Mutex<Jobs>,
    /// Something is to be done sooner than it was.
    sooner: Notify,
    told: watch::Sender<Directive>,
    /// What the store said when it was found gone for good, by whoever found it first.
    gone: watch::Sender<Option<StoreError>>,
    /// Of heartbeats that failed.
    unheard: News,
}

/// What a run hears of its lease.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// The store or the server says that it is gone.
    pub(crate) lost: CancellationToken,
    /// It has run out as far as is known here: nobody has said anything of it for so long. The store may still have the run's end.
    pub(crate) ran_out: CancellationToken,
    /// Nothing runs any more that could be told: only the end is to be reported.
    pub(crate) ended: CancellationToken,
    /// Why the run's token fires, told before it does.
    pub(crate) cause: Cause,
}

impl Signals {
    /// The lease is gone, for this.
    fn lose(&self, why: Stop) {
        self.cause.tell(why);
        self.lost.cancel();
    }
}

#[derive(Default)]
struct Jobs {
    by_id: BTreeMap<JobId, Beating>,
    /// When something is to be done next, as far as is known to whoever does it: a job that is added is compared with that, and not with all
    /// others.
    wakes: Option<Instant>,
    /// When the heartbeat was sent whose answer told last what an operator says.
    told: Option<Instant>,
}

impl Jobs {
    /// By its fence: meanwhile the job may have been given to this worker again.
    fn of(&mut self, job: &Held) -> Option<&mut Beating> {
        self.by_id.get_mut(&job.id).filter(|beating| beating.held.fence == job.fence)
    }
}

struct Beating {
    held: Held,
    every: Duration,
    next: Instant,
    /// How long the lease lasts from what was answered last.
    lease: Duration,
    /// When it runs out, unless a heartbeat is answered: counted from when that was sent, for the store counts from no earlier.
    until: Instant,
    /// Since when it is spoken of; until that is answered, or has taken too long, it is not spoken of again.
    under_way: Option<Instant>,
    /// How many heartbeats for it have failed since one was answered.
    failed: u32,
    /// Whether somebody's open transaction was found to hold it last: it counts for less long then.
    is_busy: bool,
    /// Whether its own run has ended it already: it is nobody else's, and there is no lease to be extended or to run out.
    is_completed: bool,
    signals: Signals,
}

impl Beating {
    /// When something is to be done about it: it is to be spoken of, or told that its lease has run out.
    fn due(&self) -> Option<Instant> {
        let next = Some(self.next).filter(|_| self.is_to_be_spoken_of());
        let until = Some(self.until).filter(|_| self.may_run_out());
        next.into_iter().chain(until).min()
    }

    /// How soon it is spoken of again, and how long an answer is waited for.
    fn every(&self) -> Duration {
        if self.is_busy { self.every.min(HELD_LASTS / BEATS_PER_LEASE) } else { self.every }
    }

    /// A lease that is lost is nobody's to extend.
    fn is_to_be_spoken_of(&self) -> bool {
        self.under_way.is_none() && !self.is_completed && !self.signals.lost.is_cancelled()
    }

    /// Whether somebody is there who would have to be told, and has not been.
    fn may_run_out(&self) -> bool {
        let Signals { lost, ran_out, ended, .. } = &self.signals;
        !self.is_completed && ![lost, ran_out, ended].into_iter().any(CancellationToken::is_cancelled)
    }
}

/// A job is held for as long as this is kept.
pub(crate) struct Holding {
    beats: Arc<Beats>,
    id: JobId,
    fence: u64,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut held = self.beats.held();
        // The same job may have been granted to this worker again meanwhile.
        if held.by_id.get(&self.id).is_some_and(|beating| beating.held.fence == self.fence) {
            held.by_id.remove(&self.id);
        }
    }
}

impl Beats {
    fn held(&self) -> MutexGuard<'_, Jobs> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a job from now on; `signals` fire when a heartbeat is told that the lease is gone, or it has run out unheard.
    pub(crate) fn hold(self: &Arc<Self>, job: &Delivery, signals: Signals) -> Holding {
        let every = (job.lease / BEATS_PER_LEASE).max(BEAT_EVERY_MIN);
        let held = Held { id: job.id, fence: job.fence, has_own_lease: job.has_own_lease };
        // However long it was on its way.
        let next = job.asked + every;
        // One that was as long on its way as its lease lasts may have been granted just now: a heartbeat asks, before it counts as run out.
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
                // Granted again, so the run before it has lost its lease, whoever told of that.
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

    /// What an operator tells the worker.
    pub(crate) fn told(&self) -> watch::Receiver<Directive> {
        self.told.subscribe()
    }

    /// The store was found gone for good.
    pub(crate) fn found_gone(&self, worker: &str, said: StoreError) {
        let error = said.to_string();
        let is_news = self.gone.send_if_modified(|gone| {
            let is_news = gone.is_none();
            gone.get_or_insert(said);
            is_news
        });
        if is_news {
            tracing::error!(error, worker, "the store is gone for good; no more jobs are taken");
        }
    }

    /// Ends when the store is gone for good, with what it said.
    pub(crate) async fn gone(&self) -> StoreError {
        let mut gone = self.gone.subscribe();
        // The sender is kept by what `self` keeps.
        let said = gone.wait_for(Option::is_some).await.ok().and_then(|said| said.clone());
        said.unwrap_or(StoreError::Closed)
    }

    /// When something is to be done next, and no later than then. Who adds what is to be done sooner says so.
    fn soonest(&self, idle: Instant) -> Instant {
        let mut held = self.held();
        let soonest = held.by_id.values().filter_map(Beating::due).min();
        let wakes = soonest.map_or(idle, |soonest| soonest.min(idle));
        held.wakes = Some(wakes);
        wakes
    }

    /// Until when the job's lease lasts, as far as is known here; none where it is not held.
    pub(crate) fn until(&self, job: &Delivery) -> Option<Instant> {
        let held = self.held();
        held.by_id.get(&job.id).filter(|beating| beating.held.fence == job.fence).map(|beating| beating.until)
    }

    /// Sends heartbeats until `stop` fires.
    pub(crate) async fn run(self: Arc<Self>, link: Arc<dyn Link>, speaker: Speaker, stop: CancellationToken) {
        let mut idle = Instant::now();
        // Beside each other: one that is not answered keeps nobody from speaking of other jobs.
        let mut under_way = FuturesUnordered::new();
        loop {
            let next = self.soonest(idle);
            tokio::select! {
                // In one order, here and in the map, so that a run can be played again.
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

    /// Tells those whose leases have run out, and says whether one is to be spoken of.
    fn run_out(&self, now: Instant) -> bool {
        let mut is_due = false;
        for beating in self.held().by_id.values() {
            if beating.until <= now && beating.may_run_out() {
                tracing::warn!(job = %beating.held.id, "nothing was heard of the lease for so long that it must have run out; the run is told");
                beating.signals.cause.tell(Stop::LeaseLost);
                beating.signals.ran_out.cancel();
            }
            is_due |= beating.next <= now && beating.is_to_be_spoken_of();
        }
        is_due
    }

    /// One heartbeat, for what is due and for what would be due soon.
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
        // One that hangs must not keep the next one from being sent in time. It may be answered yet: what it extends is extended, and no run
        // is to be broken off because a store is slow.
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
            tracing::warn!(%error, jobs = left, "a heartbeat failed; what was not answered is sent again");
        }
    }

    /// A part of the answer to a heartbeat that was sent then.
    fn hear(&self, sent: Instant, part: Beaten) {
        let Beaten { extended, completed, lost, cancelled, busy, unheard, directive } = part;
        if !busy.is_empty() || !unheard.is_empty() {
            let (busy, unheard) = (busy.len(), unheard.len());
            tracing::debug!(busy, unheard, "leases that could not be extended are spoken of again");
        }
        let mut held = self.held();
        // An answer that comes late is no news.
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
        // They may be due again before the rest of the answer is there.
        self.sooner.notify_one();
    }

    /// Has heartbeats sent again soon for those that were not answered of the one that was sent then, or when the server asks
    /// for it. Says how many they are.
    fn again(&self, sent: Instant, due: &[Held], asked: Option<Duration>) -> usize {
        // One draw for all: they stay in one heartbeat.
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
