//! One job from its grant to its report, in small steps: wait for a slot, run, report.

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
use tracing::Instrument as _;

use super::beat::{Beats, Signals};
use super::handler::Erased;
use super::link::{Link, Reported};
use super::middleware::{Middleware, Next, no_handler};
use super::rest::{News, Rest};
use super::run::{Delivery, Run, States};
use super::stop::Stop;
use super::verdict::{Failure, Outcome};
use crate::error::Again;

/// The first pause before a report is sent again; it doubles.
const REPORT_AGAIN_MIN: Duration = Duration::from_millis(20);
/// The longest pause that the worker chooses itself; a server may ask for a longer one.
const REPORT_AGAIN_MAX: Duration = Duration::from_secs(10);
/// The least number of pauses per lease: after a longer pause, a report that would have been accepted may
/// come too late.
const REPORTS_PER_LEASE: u32 = 3;
/// The longest pause of a stopping worker, which waits for its reports only a few seconds.
const REPORT_AGAIN_MAX_AT_STOP: Duration = Duration::from_secs(1);
/// How long a refused report is repeated: long enough for all servers to learn a token, but no longer,
/// because its job occupies a slot meanwhile.
const REFUSED_LASTS: Duration = Duration::from_secs(120);
/// How long after the grace time unacknowledged reports are given up, and no sooner than this after a report
/// began: far longer than a healthy store or server needs. Jobs still held then go to others when their
/// leases end.
pub(super) const OVERDUE_AFTER: Duration = Duration::from_secs(5);
/// The most unhandled job types that are logged.
const UNHANDLED_TOLD_MAX: usize = 100;

/// State shared by the runs of a worker.
pub(crate) struct Shared {
    pub(crate) link: Arc<dyn Link>,
    pub(crate) handlers: HashMap<String, Arc<dyn Erased>>,
    pub(crate) layers: Arc<[Arc<dyn Middleware>]>,
    pub(crate) states: Arc<States>,
    pub(crate) beats: Arc<Beats>,
    pub(crate) worker: Arc<str>,
    pub(crate) lease: Option<Duration>,
    pub(crate) grace: Duration,
    /// The types without a handler that have been logged.
    pub(crate) unhandled: Mutex<HashSet<String>>,
    /// Unacknowledged reports that were logged recently.
    pub(crate) unheard: News,
    /// Fires when no more jobs are to be taken or begun.
    pub(crate) stop: CancellationToken,
    /// Fires when runs are to come to an end.
    pub(crate) abort: CancellationToken,
    /// Fires when unacknowledged reports are to be given up.
    pub(crate) give_up: CancellationToken,
}

/// How a run ended.
enum End {
    /// The handler returned an outcome, panicked, or ran too long.
    Outcome(Outcome),
    /// The lease is lost, so there is nothing to report.
    Lost,
}

impl Shared {
    /// Runs a job and reports its end; `loss` completes when its lease is gone. Returns the outcome if it
    /// still counted.
    pub(crate) async fn execute(
        &self,
        job: &Delivery,
        loss: impl Future<Output = ()>,
        signals: &Signals,
    ) -> Option<Outcome> {
        let end = self.run(job, loss, signals).await;
        signals.ended.cancel();
        match end {
            End::Lost => {
                tracing::info!(job = %job.id, attempt = job.attempt, "the run lost its lease; its outcome does not count");
                None
            }
            End::Outcome(outcome) => {
                let outcome = outcome.within_bounds(job.id);
                let counted = self.report(job, &outcome).await;
                counted.then_some(outcome)
            }
        }
    }

    async fn run(&self, job: &Delivery, loss: impl Future<Output = ()>, signals: &Signals) -> End {
        // The store allows the next attempt this long after the grant, however long this one waited for a
        // slot.
        let until = job.attempt_ends();
        if until <= Instant::now() {
            return End::Outcome(Outcome::Retry(too_long(job.timeout)));
        }
        let (token, cause) = (signals.ran_out.child_token(), signals.cause.clone());
        // Fires the token however this run is dropped, for tasks that the handler has spawned.
        let fires = token.clone().drop_guard();
        let states = Arc::clone(&self.states);
        let run = Run::new(job.clone(), states, token.clone(), cause.clone(), Arc::clone(&self.link));
        let mut handler = self.handler(run);
        let mut running = AssertUnwindSafe(&mut handler).catch_unwind();
        let end = tokio::select! {
            biased;
            ended = &mut running => End::Outcome(ended.unwrap_or_else(panicked)),
            // The other branches ignore tokio's budget: a handler that is always ready has used it up.
            // The cause was set where the loss was found.
            () = unconstrained(loss) => {
                token.cancel();
                // Past the timeout the next attempt may be under way.
                let left = until.saturating_duration_since(Instant::now());
                if let Ok(Err(panic)) = tokio::time::timeout(self.grace.min(left), &mut running).await {
                    put_away(panic);
                }
                End::Lost
            }
            () = unconstrained(tokio::time::sleep_until(until)) => {
                cause.tell(Stop::TimedOut);
                token.cancel();
                End::Outcome(Outcome::Retry(too_long(job.timeout)))
            }
            () = unconstrained(self.abort.cancelled()) => {
                cause.tell(Stop::ShuttingDown);
                token.cancel();
                let left = until.saturating_duration_since(Instant::now());
                let ended = tokio::time::timeout(self.grace.min(left), &mut running).await;
                match ended.map(|ended| ended.unwrap_or_else(panicked)) {
                    Ok(Outcome::Retry(failure)) => {
                        // It failed because it was told to stop.
                        tracing::info!(job = %job.id, error = failure.error_type(), "the run was interrupted by the shutdown");
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

    /// Completes when the store or a heartbeat says that the lease is gone; the cause is set by then.
    pub(crate) async fn hears_of_loss(&self, job: &Delivery, signals: &Signals) {
        tokio::select! {
            biased;
            why = self.link.lost(job) => signals.cause.tell(why),
            () = signals.lost.cancelled() => {}
        }
    }

    /// The run within all its layers, also for a type without a handler, in a span that names the job in
    /// whatever the handler logs.
    fn handler(&self, run: Run) -> BoxFuture<'static, Outcome> {
        let handler = self.handlers.get(run.job_type()).cloned();
        if handler.is_none() && self.is_news(run.job_type()) {
            tracing::error!(
                job_type = run.job_type(),
                queue = run.queue(),
                "jobs are fetched whose type has no handler in this worker; each fails its attempt and waits a minute for a worker that has one"
            );
        }
        // A layer's view of the failure must not end a job that another worker can handle.
        let unhandled = handler.is_none().then(|| no_handler(run.job_type()));
        let next = Next { layers: Arc::clone(&self.layers), at: 0, handler };
        let span =
            tracing::info_span!("job", id = %run.id(), "type" = run.job_type(), attempt = run.attempt());
        // Inside the future, so that a panic before the handler's first await is caught too.
        let running = async move {
            let outcome = next.run(run).await;
            unhandled.unwrap_or(outcome)
        };
        Box::pin(running.instrument(span))
    }

    /// Whether it has not been logged yet that this type is not handled.
    fn is_news(&self, job_type: &str) -> bool {
        let mut told = self.unhandled.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < UNHANDLED_TOLD_MAX && told.insert(job_type.to_owned())
    }

    /// Reports until it is acknowledged. Gives up when the lease has ended, when the report has been refused
    /// for long, or when a shutdown waits no longer. Returns whether it counted.
    pub(super) async fn report(&self, job: &Delivery, outcome: &Outcome) -> bool {
        // A run that blocked its thread for longer than the shutdown waits is still reported: its work is
        // done.
        let overdue = Instant::now() + OVERDUE_AFTER;
        let given_up = async {
            self.give_up.cancelled().await;
            tokio::time::sleep_until(overdue).await;
        };
        tokio::select! {
            biased;
            counted = self.report_until_heard(job, outcome) => counted,
            () = given_up => {
                tracing::error!(job = %job.id, "the outcome of a run could not be reported, and the shutdown waits no longer; the job runs again when its lease has expired");
                false
            }
        }
    }

    /// Whether a report begun at `begun` may still count at `then`: heartbeats extend the lease meanwhile.
    fn may_count(&self, job: &Delivery, begun: Instant, then: Instant) -> bool {
        then < begun + job.lease || self.beats.until(job).is_some_and(|until| then < until)
    }

    async fn report_until_heard(&self, job: &Delivery, outcome: &Outcome) -> bool {
        let begun = Instant::now();
        let mut rest = Rest::between(REPORT_AGAIN_MIN, REPORT_AGAIN_MAX);
        let (mut refused_since, mut is_last) = (None, false);
        let may_count = |then: Instant| self.may_count(job, begun, then);
        loop {
            let error = match self.link.settle(job, outcome).await {
                Ok(reported @ (Reported::Counted | Reported::Discarded)) => {
                    tell_of_failure(job, outcome, reported == Reported::Discarded);
                    return true;
                }
                Ok(Reported::Late) => {
                    tracing::info!(job = %job.id, attempt = job.attempt, "the run ended after it had lost its lease");
                    return false;
                }
                Err(error) => error,
            };
            let (now, again) = (Instant::now(), error.again());
            refused_since = refused_since.or(Some(now)).filter(|_| again == Again::ForAWhile);
            if refused_since.is_some_and(|since| now - since >= REFUSED_LASTS) {
                tracing::error!(%error, job = %job.id, "the outcome of a run was refused again and again, and is given up; the job runs again when its lease has expired: check that the worker's token may end jobs, and that no proxy refuses its requests");
                return false;
            }
            // Tries once more even after the lease must be over: the report may have hung, and nobody else
            // been given the job.
            if again == Again::Never || is_last && !may_count(now) {
                tracing::error!(%error, job = %job.id, "the outcome of a run could not be reported; the job runs again when its lease has expired");
                return false;
            }
            let pause = rest.after(&error).min((job.lease / REPORTS_PER_LEASE).max(REPORT_AGAIN_MIN));
            is_last = !may_count(now + pause);
            if self.unheard.is_news(&error) {
                tracing::warn!(%error, job = %job.id, "the outcome of a run could not be reported; trying again");
            }
            self.pause(pause).await;
        }
    }

    /// Waits this long, or less if the worker stops.
    async fn pause(&self, pause: Duration) {
        let stops = async {
            self.stop.cancelled().await;
            tokio::time::sleep(REPORT_AGAIN_MAX_AT_STOP).await;
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => {}
            () = stops => {}
        }
    }
}

/// Logs that an attempt has failed and whether that discarded the job, without the message: it may quote
/// sensitive values.
fn tell_of_failure(job: &Delivery, outcome: &Outcome, is_discarded: bool) {
    let (Outcome::Retry(failure) | Outcome::Discard(failure)) = outcome else { return };
    let Delivery { id, job_type, queue, attempt, .. } = job;
    let (job_type, queue, error) = (&**job_type, &**queue, failure.error_type());
    if is_discarded || matches!(outcome, Outcome::Discard(_)) {
        tracing::error!(job = %id, job_type, queue, attempt, error, "an attempt has failed, and the job is discarded");
    } else {
        tracing::warn!(job = %id, job_type, queue, attempt, error, "an attempt has failed");
    }
}

fn too_long(timeout: Duration) -> Failure {
    Failure::new("timeout", format!("the attempt ran longer than its timeout of {timeout:?}"))
}

/// The outcome of a run that panicked.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Outcome {
    let failure = Failure::new("panic", words(&*panic));
    put_away(panic);
    Outcome::Retry(failure)
}

/// Drops a panic's payload. If that panics too, the second payload is leaked: the end of the run must still
/// be reported.
fn put_away(panic: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        let _kept = Box::leak(another);
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the handler panicked")
}

/// Drops a handler. What it holds may panic while dropped; the end of its run must still be reported.
fn let_go(job: &Delivery, handler: BoxFuture<'static, Outcome>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
        tracing::error!(job = %job.id, job_type = &*job.job_type, panic = words(&*panic), "a handler panicked while it was dropped");
        put_away(panic);
    }
}

#[cfg(test)]
mod tests;
