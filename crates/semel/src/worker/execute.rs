//! One job from its grant to its report, in small steps: wait for a place, run, report.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use semel_store::backend::BoxFuture;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::beat::{Beats, Signals};
use super::handler::Erased;
use super::link::{Link, Reported};
use super::middleware::{Middleware, Next};
use super::run::{Delivery, Run, States};
use super::verdict::{Failure, Outcome};

/// The first pause before a report is sent again; it doubles.
const REPORT_AGAIN_MIN: Duration = Duration::from_millis(20);
/// The longest.
const REPORT_AGAIN_MAX: Duration = Duration::from_secs(2);
/// So long after the grace time what has not been heard is given up, and no report sooner after it began: far longer than a store or
/// server that is well needs. What is held then goes to others when its lease has ended.
pub(super) const OVERDUE_AFTER: Duration = Duration::from_secs(5);
/// A job that this worker does not handle waits so long for one that does: in a fleet that is being renewed they come soon, and
/// attempts that follow each other in seconds would be used up by then.
const NO_HANDLER_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// So many types that are not handled are told of.
const UNHANDLED_TOLD_MAX: usize = 100;

/// What the runs of a worker share.
pub(crate) struct Shared {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) handlers: HashMap<String, Arc<dyn Erased>>,
    pub(crate) layers: Arc<[Arc<dyn Middleware>]>,
    pub(crate) states: Arc<States>,
    pub(crate) beats: Arc<Beats>,
    pub(crate) worker: Arc<str>,
    pub(crate) lease: Option<Duration>,
    pub(crate) grace: Duration,
    /// The types without a handler that have been told of.
    pub(crate) unhandled: Mutex<HashSet<String>>,
    /// No more jobs are taken, and none is begun.
    pub(crate) stop: CancellationToken,
    /// Runs are to come to an end.
    pub(crate) abort: CancellationToken,
    /// Reports that have not been heard are given up.
    pub(crate) give_up: CancellationToken,
}

/// How a run came to its end.
enum End {
    /// The handler said so, or it panicked, or had run too long.
    Outcome(Outcome),
    /// The lease is lost: nothing is left to report.
    Lost,
}

impl Shared {
    /// Runs a job and reports its end; `loss` ends when its lease is gone. Says how it ended, if it still counted.
    pub(crate) async fn execute(
        &self,
        job: &Delivery,
        loss: impl Future<Output = ()>,
        signals: &Signals,
    ) -> Option<Outcome> {
        let end = self.run(job, loss, signals.ran_out.child_token()).await;
        signals.ended.cancel();
        match end {
            End::Lost => {
                tracing::info!(job = %job.id, attempt = job.attempt, "the run's lease is lost; its end does not count");
                None
            }
            End::Outcome(outcome) => {
                let counted = self.report(job, &outcome).await;
                counted.then_some(outcome)
            }
        }
    }

    async fn run(&self, job: &Delivery, loss: impl Future<Output = ()>, token: CancellationToken) -> End {
        // The store lets the next attempt begin so long after the grant, however long this one waited for its place.
        let until = job.attempt_ends();
        if until <= Instant::now() {
            return End::Outcome(Outcome::Retry(too_long(job.timeout)));
        }
        // Whatever drops this run tells what the handler has spawned.
        let fires = token.clone().drop_guard();
        let run = Run::new(job.clone(), Arc::clone(&self.states), token.clone(), Arc::clone(&self.link));
        let mut handler = self.handler(run);
        let mut running = AssertUnwindSafe(&mut handler).catch_unwind();
        let end = tokio::select! {
            biased;
            ended = &mut running => End::Outcome(ended.unwrap_or_else(|panic| panicked(&*panic))),
            // The others are heard without tokio's budget: a handler that is always ready has used it up.
            () = unconstrained(loss) => {
                token.cancel();
                // Past its timeout the next attempt may be under way.
                let left = until.saturating_duration_since(Instant::now());
                drop(tokio::time::timeout(self.grace.min(left), &mut running).await);
                End::Lost
            }
            () = unconstrained(tokio::time::sleep_until(until)) => {
                token.cancel();
                End::Outcome(Outcome::Retry(too_long(job.timeout)))
            }
            () = unconstrained(self.abort.cancelled()) => {
                token.cancel();
                let left = until.saturating_duration_since(Instant::now());
                let ended = tokio::time::timeout(self.grace.min(left), &mut running).await;
                match ended.map(|ended| ended.unwrap_or_else(|panic| panicked(&*panic))) {
                    Ok(Outcome::Retry(failure)) => {
                        // It stopped because it was told to.
                        tracing::info!(job = %job.id, error = failure.error_type(), "the run was broken off by the shutdown");
                        End::Outcome(Outcome::GiveBack)
                    }
                    Ok(outcome) => End::Outcome(outcome),
                    Err(_) => End::Outcome(Outcome::GiveBack),
                }
            }
        };
        drop(fires);
        let_go(job, handler);
        end
    }

    /// Ends when the store or a heartbeat says that the lease is gone.
    pub(crate) async fn hears_of_loss(&self, job: &Delivery, lost: &CancellationToken) {
        tokio::select! {
            biased;
            () = self.link.lost(job) => {}
            () = lost.cancelled() => {}
        }
    }

    fn handler(&self, run: Run) -> BoxFuture<'static, Outcome> {
        let Some(handler) = self.handlers.get(run.job_type()).cloned() else {
            if self.is_news(run.job_type()) {
                tracing::error!(
                    job_type = run.job_type(),
                    queue = run.queue(),
                    "jobs of a type are fetched that this worker has no handler for; each fails its attempt, and waits a minute for a worker that has one"
                );
            }
            let failure =
                Failure::new("no_handler", format!("this worker has no handler for {}", run.job_type()));
            return Box::pin(std::future::ready(Outcome::Retry(failure.after(NO_HANDLER_AGAIN_AFTER))));
        };
        let next = Next { layers: Arc::clone(&self.layers), at: 0, handler };
        // Inside the future, so that what panics before its first await is caught too.
        Box::pin(async move { next.run(run).await })
    }

    /// Whether nobody has been told yet that this type is not handled.
    fn is_news(&self, job_type: &str) -> bool {
        let mut told = self.unhandled.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < UNHANDLED_TOLD_MAX && told.insert(job_type.to_owned())
    }

    /// Reports until it is heard; gives up when the lease has ended, or when a shutdown waits no longer.
    pub(super) async fn report(&self, job: &Delivery, outcome: &Outcome) -> bool {
        // A run that held its thread for longer than the shutdown waits is reported all the same: what it did is done.
        let overdue = Instant::now() + OVERDUE_AFTER;
        let given_up = async {
            self.give_up.cancelled().await;
            tokio::time::sleep_until(overdue).await;
        };
        tokio::select! {
            biased;
            counted = self.report_until_heard(job, outcome) => counted,
            () = given_up => {
                tracing::error!(job = %job.id, "the end of a run is not heard, and the shutdown waits no longer; the job runs again when its lease has ended");
                false
            }
        }
    }

    /// Whether a report may still count then that was begun at that time: heartbeats extend the lease meanwhile.
    fn may_count(&self, job: &Delivery, begun: Instant, then: Instant) -> bool {
        then < begun + job.lease || self.beats.until(job).is_some_and(|until| then < until)
    }

    async fn report_until_heard(&self, job: &Delivery, outcome: &Outcome) -> bool {
        let begun = Instant::now();
        let (mut pause, mut is_last) = (REPORT_AGAIN_MIN, false);
        let may_count = |then: Instant| self.may_count(job, begun, then);
        loop {
            match self.link.settle(job, outcome).await {
                Ok(Reported::Counted) => return true,
                Ok(Reported::Late) => {
                    tracing::info!(job = %job.id, attempt = job.attempt, "the run ended after it had lost its lease");
                    return false;
                }
                // Once more also when the lease must be over: it may have hung for so long while nobody else was given the job.
                Err(error) if error.may_be_told_again() && (!is_last || may_count(Instant::now())) => {
                    is_last = !may_count(Instant::now() + pause);
                    tracing::warn!(%error, job = %job.id, "the end of a run could not be reported; it is tried again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(REPORT_AGAIN_MAX);
                }
                Err(error) => {
                    tracing::error!(%error, job = %job.id, "the end of a run could not be reported; the job runs again when its lease has ended");
                    return false;
                }
            }
        }
    }
}

fn too_long(timeout: Duration) -> Failure {
    Failure::new("timeout", format!("the attempt ran longer than its timeout of {timeout:?}"))
}

fn panicked(panic: &(dyn Any + Send)) -> Outcome {
    Outcome::Retry(Failure::new("panic", words(panic)))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the handler panicked")
}

/// Drops a handler. What it holds may panic by that; the end of its run is told all the same.
fn let_go(job: &Delivery, handler: BoxFuture<'static, Outcome>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
        tracing::error!(job = %job.id, job_type = &*job.job_type, panic = words(&*panic), "a handler panicked while it was dropped");
    }
}

#[cfg(test)]
mod tests {
    use semel_core::ident::QueueName;
    use semel_core::state::State;

    use bytes::Bytes;
    use semel_store::StoreError;

    use super::super::link::{Ask, Beaten, Hears, Held, Speaker};
    use super::*;
    use crate::{Envelope, Error, Semel, Worker};

    #[tokio::test]
    async fn a_type_that_is_not_handled_is_told_of_once() {
        let semel = Semel::open("memory:").await.unwrap();
        let shared = Worker::new(&semel).shared().unwrap();
        assert_eq!(["a.b", "a.c", "a.b"].map(|job_type| shared.is_news(job_type)), [true, true, false]);
    }

    /// A link over which heartbeats are answered from some time on, and a report is answered when that many were made.
    struct Deaf {
        begun: Instant,
        beats_after: Duration,
        /// How long each report takes that is not heard.
        takes: Duration,
        unheard: Mutex<u32>,
    }

    impl Deaf {
        fn new(unheard: u32, takes: Duration, beats_after: Duration) -> Arc<Self> {
            Arc::new(Self { begun: Instant::now(), beats_after, takes, unheard: Mutex::new(unheard) })
        }
    }

    impl Link for Deaf {
        fn beat<'a>(
            &'a self,
            _: &'a Speaker,
            jobs: &'a [Held],
            _: usize,
            hears: Hears<'a>,
        ) -> BoxFuture<'a, Result<(), Error>> {
            if self.begun.elapsed() < self.beats_after {
                return Box::pin(async { Err(StoreError::Unavailable(String::new()).into()) });
            }
            hears(Beaten { extended: jobs.to_vec(), ..Beaten::default() });
            Box::pin(async { Ok(()) })
        }

        fn fetch<'a>(
            &'a self,
            _: &'a Ask,
            _: &'a CancellationToken,
        ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
            Box::pin(std::future::pending())
        }

        fn settle<'a>(&'a self, _: &'a Delivery, _: &'a Outcome) -> BoxFuture<'a, Result<Reported, Error>> {
            let mut unheard = self.unheard.lock().unwrap();
            if *unheard == 0 {
                return Box::pin(async { Ok(Reported::Counted) });
            }
            *unheard -= 1;
            Box::pin(async {
                tokio::time::sleep(self.takes).await;
                Err(StoreError::Unavailable(String::new()).into())
            })
        }

        fn lost<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, ()> {
            Box::pin(std::future::pending())
        }

        fn progress<'a>(&'a self, _: &'a Delivery, _: Bytes) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(std::future::pending())
        }
    }

    /// Whether an end is heard over such a link, of a job with a lease of five seconds that is held by then, or is not.
    async fn is_heard(link: Arc<Deaf>, is_held: bool) -> bool {
        let semel = Semel::open("memory:").await.unwrap();
        semel.enqueue(Envelope::new("a.b")).await.unwrap();
        let mut shared = Worker::new(&semel).shared().unwrap();
        let lease = Some(Duration::from_secs(5));
        let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease };
        let run = shared.link.fetch(&ask, &shared.stop).await.unwrap().remove(0);
        shared.link = link;
        let holding = is_held.then(|| {
            shared.beats.hold(&Delivery { asked: Instant::now(), ..run.clone() }, Signals::default())
        });
        let speaker = Speaker { worker: "w".into(), queues: Vec::new(), lease };
        let beats = Arc::clone(&shared.beats).run(Arc::clone(&shared.link), speaker, shared.stop.clone());
        let beats = tokio::spawn(beats);
        let is_heard = shared.report(&run, &Outcome::Done).await;
        drop(holding);
        shared.stop.cancel();
        beats.await.unwrap();
        is_heard
    }

    /// The store would take it, and whoever gave up would have the work done again.
    #[tokio::test(start_paused = true)]
    async fn an_end_is_told_for_as_long_as_its_lease_is_extended() {
        let second = Duration::from_secs(1);
        assert!(!is_heard(Deaf::new(60, second, Duration::ZERO), false).await, "nobody extends it");
        assert!(is_heard(Deaf::new(60, second, Duration::ZERO), true).await);
        // It is extended after all, while what would be the last report is under way.
        assert!(is_heard(Deaf::new(2, second * 6, second * 7), true).await);
    }

    /// A grant that was long on its way leaves the attempt less, but a second at least.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_ends_when_the_store_says() {
        let semel = Semel::open("memory:").await.unwrap();
        semel.enqueue(Envelope::new("a.b")).await.unwrap();
        let shared = Worker::new(&semel).shared().unwrap();
        let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease: None };
        let run = shared.link.fetch(&ask, &shared.stop).await.unwrap().remove(0);
        let asked = Instant::now();
        tokio::time::sleep(Duration::from_secs(8)).await;
        let lasts = |timeout| {
            let timeout = Duration::from_millis(timeout);
            let run = Delivery { asked, granted: Instant::now(), timeout, ..run.clone() };
            assert!(run.begins_by() < run.attempt_ends());
            run.attempt_ends().duration_since(Instant::now()).as_millis()
        };
        assert_eq!([30_000, 8_500, 2_000, 200].map(lasts), [22_000, 1_000, 1_000, 200]);
    }

    /// Nobody else would know that its work is done.
    #[tokio::test]
    async fn an_end_is_heard_that_comes_when_the_shutdown_waits_no_longer() {
        let semel = Semel::open("memory:").await.unwrap();
        let job = semel.enqueue(Envelope::new("a.b")).await.unwrap();
        let shared = Worker::new(&semel).shared().unwrap();
        let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease: None };
        let run = shared.link.fetch(&ask, &shared.stop).await.unwrap().remove(0);
        shared.give_up.cancel();
        assert!(shared.report(&run, &Outcome::Done).await);
        assert_eq!(job.wait().await.unwrap().state(), State::Completed);
    }
}
