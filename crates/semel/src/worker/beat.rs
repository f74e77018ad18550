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
use super::run::Delivery;
use crate::Error;

/// A lease is extended this many times before it would end: two heartbeats may be lost.
const BEATS_PER_LEASE: u32 = 3;
/// However short a lease is.
const BEAT_EVERY_MIN: Duration = Duration::from_millis(10);
/// A heartbeat that failed is sent again after so long, or sooner if it was due sooner.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A heartbeat is waited for at least so long.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// A worker that holds nothing is heard of so often (OJS core 7.5), and hears within that time what it is told.
const BEAT_IDLE_EVERY: Duration = Duration::from_secs(15);

fn unheard() -> Error {
    Error::Store(StoreError::Unavailable("the heartbeat was not answered in time".to_owned()))
}

/// The jobs a worker holds.
#[derive(Default)]
pub(crate) struct Beats {
    held: Mutex<BTreeMap<JobId, Beating>>,
    /// Something is to be done sooner than it was.
    sooner: Notify,
    told: watch::Sender<Directive>,
    /// What the store said when it was found gone for good, by whoever found it first.
    gone: watch::Sender<Option<StoreError>>,
}

/// What a run hears of its lease.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// The store or the server says that it is gone.
    pub(crate) lost: CancellationToken,
    /// It has run out as far as is known here: nobody has answered for so long. The store may still have the run's end.
    pub(crate) ran_out: CancellationToken,
    /// Nothing runs any more that could be told: only the end is to be reported.
    pub(crate) ended: CancellationToken,
}

struct Beating {
    held: Held,
    every: Duration,
    next: Instant,
    /// How long the lease lasts from what was answered last.
    lease: Duration,
    /// When it runs out, unless a heartbeat is answered: counted from when that was sent, for the store counts from no earlier.
    until: Instant,
    /// Since when it is spoken of; until that is answered, or given up, it is not spoken of again.
    under_way: Option<Instant>,
    signals: Signals,
}

impl Beating {
    /// When something is to be done about it: it is to be spoken of, or told that its lease has run out.
    fn due(&self) -> Option<Instant> {
        let next = Some(self.next).filter(|_| self.is_to_be_spoken_of());
        let until = Some(self.until).filter(|_| self.may_run_out());
        next.into_iter().chain(until).min()
    }

    /// A lease that is lost is nobody's to extend.
    fn is_to_be_spoken_of(&self) -> bool {
        self.under_way.is_none() && !self.signals.lost.is_cancelled()
    }

    /// Whether somebody is there who would have to be told, and has not been.
    fn may_run_out(&self) -> bool {
        let Signals { lost, ran_out, ended } = &self.signals;
        ![lost, ran_out, ended].into_iter().any(CancellationToken::is_cancelled)
    }
}

/// When something is to be done next.
fn soonest_of(jobs: &BTreeMap<JobId, Beating>) -> Option<Instant> {
    jobs.values().filter_map(Beating::due).min()
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
        if held.get(&self.id).is_some_and(|beating| beating.held.fence == self.fence) {
            held.remove(&self.id);
        }
    }
}

impl Beats {
    fn held(&self) -> MutexGuard<'_, BTreeMap<JobId, Beating>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a job from now on; `signals` fire when a heartbeat is told that the lease is gone, or it has run out unheard.
    pub(crate) fn hold(self: &Arc<Self>, job: &Delivery, signals: Signals) -> Holding {
        let every = (job.lease / BEATS_PER_LEASE).max(BEAT_EVERY_MIN);
        let held = Held { id: job.id, fence: job.fence, has_own_lease: job.has_own_lease };
        let next = Instant::now() + every;
        let (lease, until) = (job.lease, job.granted + job.lease);
        let is_soonest = {
            let mut jobs = self.held();
            let soonest = soonest_of(&jobs);
            let beating = Beating { held, every, next, lease, until, under_way: None, signals };
            if let Some(old) = jobs.insert(job.id, beating) {
                // Granted again, so the run before it has lost its lease, whoever told of that.
                old.signals.lost.cancel();
            }
            soonest.is_none_or(|soonest| next.min(until) < soonest)
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

    fn soonest(&self) -> Option<Instant> {
        soonest_of(&self.held())
    }

    /// Sends heartbeats until `stop` fires.
    pub(crate) async fn run(self: Arc<Self>, link: Arc<dyn Link>, speaker: Speaker, stop: CancellationToken) {
        let mut idle = Instant::now();
        // Beside each other: one that is not answered keeps nobody from speaking of other jobs.
        let mut under_way = FuturesUnordered::new();
        loop {
            let next = self.soonest().unwrap_or(idle).min(idle);
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
        for beating in self.held().values() {
            if beating.until <= now && beating.may_run_out() {
                tracing::warn!(job = %beating.held.id, "nobody has answered for so long that the lease must have run out; the run is told");
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
        let mut patience = BEAT_IDLE_EVERY;
        let mut held = self.held();
        for beating in held.values_mut().filter(|beating| beating.is_to_be_spoken_of()) {
            if beating.next <= now + beating.every / 4 {
                due.push(beating.held);
                patience = patience.min(beating.every);
                beating.next = now + beating.every;
                beating.under_way = Some(now);
            }
        }
        let holds = held.len();
        drop(held);
        self.speak(link, speaker, due, holds, now, patience.max(PATIENCE_MIN))
    }

    async fn speak(
        &self,
        link: &dyn Link,
        speaker: &Speaker,
        due: Vec<Held>,
        holds: usize,
        sent: Instant,
        patience: Duration,
    ) {
        let hears = |part: Beaten| self.hear(sent, part);
        // One that hangs must not keep the next one from being sent in time.
        let beaten = tokio::time::timeout(patience, link.beat(speaker, &due, holds, &hears)).await;
        let left = self.again(sent, &due);
        if let Err(error) = beaten.unwrap_or_else(|_| Err(unheard())) {
            tracing::warn!(%error, jobs = left, "a heartbeat failed; what was not answered is sent again");
            if let Some(gone) = error.store_is_gone() {
                self.found_gone(&speaker.worker, gone);
            }
        }
    }

    /// A part of the answer to a heartbeat that was sent then.
    fn hear(&self, sent: Instant, part: Beaten) {
        let Beaten { extended, lost, unheard, directive } = part;
        if let Some(directive) = directive {
            self.told.send_if_modified(|told| std::mem::replace(told, directive) != directive);
        }
        if !unheard.is_empty() {
            tracing::debug!(jobs = unheard.len(), "leases that could not be extended are spoken of again");
        }
        let mut held = self.held();
        for job in &lost {
            if let Some(beating) = of(&mut held, job) {
                beating.under_way = None;
                beating.signals.lost.cancel();
            }
        }
        let again = Instant::now() + AGAIN_AFTER;
        let extended = extended.iter().map(|job| (job, None));
        for (job, again) in extended.chain(unheard.iter().map(|job| (job, Some(again)))) {
            if let Some(beating) = of(&mut held, job) {
                beating.under_way = None;
                // Also of one that could not be extended: whoever answers would have told of its loss.
                beating.until = beating.until.max(sent + beating.lease);
                beating.next = again.map_or(beating.next, |again| beating.next.min(again));
            }
        }
        drop(held);
        // They may be due again before the rest of the answer is there.
        self.sooner.notify_one();
    }

    /// Has heartbeats sent again soon for those that were not answered of the one that was sent then. Says how many they are.
    fn again(&self, sent: Instant, due: &[Held]) -> usize {
        let again = Instant::now() + AGAIN_AFTER;
        let (mut held, mut left) = (self.held(), 0);
        for job in due {
            if let Some(beating) = of(&mut held, job).filter(|beating| beating.under_way == Some(sent)) {
                beating.under_way = None;
                beating.next = beating.next.min(again);
                left += 1;
            }
        }
        left
    }
}

/// By its fence: meanwhile the job may have been given to this worker again.
fn of<'a>(held: &'a mut BTreeMap<JobId, Beating>, job: &Held) -> Option<&'a mut Beating> {
    held.get_mut(&job.id).filter(|beating| beating.held.fence == job.fence)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use semel_core::time::Timestamp;
    use semel_store::backend::BoxFuture;

    use super::super::link::{Ask, Hears, Reported};
    use super::super::verdict::Outcome;
    use super::*;

    fn granted(fence: u64) -> Delivery {
        Delivery {
            id: JobId::mint(Timestamp::EPOCH, 1, 1),
            job_type: "a".into(),
            queue: "default".into(),
            attempt: 1,
            max_attempts: 2,
            args: "[]".into(),
            meta: "{}".into(),
            has_sensitive: false,
            tags: Vec::new(),
            created_at: Timestamp::EPOCH,
            fence,
            has_own_lease: false,
            lease: Duration::from_secs(30),
            granted: Instant::now(),
            timeout: Duration::from_secs(60),
            parent_results: None,
        }
    }

    /// A link that never answers for the first job, nor in one heartbeat with it unless by half, and keeps when it was spoken of the
    /// other.
    #[derive(Default)]
    struct Hangs {
        spoken: Mutex<Vec<Instant>>,
        answers_half: bool,
    }

    impl Hangs {
        fn by_half() -> Self {
            Self { answers_half: true, ..Self::default() }
        }
    }

    impl Link for Hangs {
        fn beat<'a>(
            &'a self,
            _: &'a Speaker,
            jobs: &'a [Held],
            _: usize,
            hears: Hears<'a>,
        ) -> BoxFuture<'a, Result<(), Error>> {
            let is_of = |fence| jobs.iter().any(|job| job.fence == fence);
            if is_of(2) {
                self.spoken.lock().unwrap().push(Instant::now());
            }
            let hangs = is_of(1);
            if !hangs || self.answers_half {
                let extended = jobs.iter().filter(|job| job.fence != 1).copied().collect();
                hears(Beaten { extended, ..Beaten::default() });
            }
            if hangs { Box::pin(std::future::pending()) } else { Box::pin(async { Ok(()) }) }
        }

        fn fetch<'a>(
            &'a self,
            _: &'a Ask,
            _: &'a CancellationToken,
        ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
            Box::pin(std::future::pending())
        }

        fn settle<'a>(&'a self, _: &'a Delivery, _: &'a Outcome) -> BoxFuture<'a, Result<Reported, Error>> {
            Box::pin(std::future::pending())
        }

        fn lost<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, ()> {
            Box::pin(std::future::pending())
        }

        fn progress<'a>(&'a self, _: &'a Delivery, _: Bytes) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_that_is_not_answered_keeps_no_other_job_from_being_spoken_of() {
        let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::default()));
        let stop = CancellationToken::new();
        let _first = beats.hold(&granted(1), Signals::default());
        let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
        let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
        // The first heartbeat for it is under way.
        tokio::time::sleep(Duration::from_millis(10_500)).await;
        let lease = Duration::from_secs(1);
        let short = Delivery { id: JobId::mint(Timestamp::EPOCH, 2, 2), lease, ..granted(2) };
        let _second = beats.hold(&short, Signals::default());
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(9)).await;
        let mut before = begun;
        let spoken = link.spoken.lock().unwrap().clone();
        for at in spoken.into_iter().chain([Instant::now()]) {
            assert!(at - before < lease, "{:?} after {:?}", at - begun, before - begun);
            before = at;
        }
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_has_run_out_when_nothing_was_answered_for_so_long() {
        let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::default()));
        let stop = CancellationToken::new();
        let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
        let running = tokio::spawn(Arc::clone(&beats).run(link, speaker, stop.clone()));
        let (unanswered, answered) = (Signals::default(), Signals::default());
        let _first = beats.hold(&granted(1), unanswered.clone());
        let began = Instant::now();
        // Never in one heartbeat with the first one, which would not be answered.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let other = Delivery { id: JobId::mint(Timestamp::EPOCH, 2, 2), ..granted(2) };
        let _second = beats.hold(&other, answered.clone());
        unanswered.ran_out.cancelled().await;
        assert_eq!(began.elapsed().as_secs(), 30);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!answered.ran_out.is_cancelled() && !answered.lost.is_cancelled());
        assert!(!unanswered.lost.is_cancelled(), "its end may still count");
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_extended_is_whatever_becomes_of_the_rest_of_the_answer() {
        let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::by_half()));
        let stop = CancellationToken::new();
        let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
        let (unanswered, answered) = (Signals::default(), Signals::default());
        let _first = beats.hold(&granted(1), unanswered.clone());
        let other = Delivery { id: JobId::mint(Timestamp::EPOCH, 2, 2), ..granted(2) };
        let _second = beats.hold(&other, answered.clone());
        let running = tokio::spawn(Arc::clone(&beats).run(link.clone(), speaker, stop.clone()));
        unanswered.ran_out.cancelled().await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!answered.ran_out.is_cancelled() && !answered.lost.is_cancelled());
        // Nor is it spoken of again before it is due.
        let spoken = link.spoken.lock().unwrap().clone();
        let every = granted(2).lease / BEATS_PER_LEASE;
        assert!(spoken.windows(2).all(|two| two[1] - two[0] >= every * 3 / 4), "{spoken:?}");
        stop.cancel();
        running.await.unwrap();
    }

    /// Whoever has lost its lease has been answered, and whoever has ended has nobody to be told.
    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_of_a_lease_that_is_lost_or_needed_no_more() {
        let (beats, link) = (Arc::new(Beats::default()), Arc::new(Hangs::default()));
        let stop = CancellationToken::new();
        let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease: None };
        let running = tokio::spawn(Arc::clone(&beats).run(link, speaker, stop.clone()));
        let all: Vec<(Signals, Holding)> = (1..=3)
            .map(|number| {
                let (id, signals) = (JobId::mint(Timestamp::EPOCH, number, 1), Signals::default());
                let holding = beats.hold(&Delivery { id, ..granted(1) }, signals.clone());
                (signals, holding)
            })
            .collect();
        all[0].0.lost.cancel();
        all[1].0.ended.cancel();
        all[2].0.ran_out.cancelled().await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!all[0].0.ran_out.is_cancelled() && !all[1].0.ran_out.is_cancelled());
        stop.cancel();
        running.await.unwrap();
    }

    /// Nobody else would tell it: from then on heartbeats speak of the newer lease.
    #[tokio::test]
    async fn a_job_that_is_granted_again_has_lost_the_lease_before() {
        let beats = Arc::new(Beats::default());
        let (first, second) = (Signals::default(), Signals::default());
        let before = beats.hold(&granted(1), first.clone());
        let now = beats.hold(&granted(2), second.clone());
        assert!(first.lost.is_cancelled() && !second.lost.is_cancelled());
        drop(before);
        assert_eq!(beats.held().len(), 1, "the newer one is held");
        drop(now);
        assert!(beats.held().is_empty());
    }
}
