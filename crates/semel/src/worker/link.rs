//! Where a worker's jobs come from and where their ends are reported: the queue of this process, or a server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::Reads;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Ending;
use semel_core::lease::{Bearer, Grant, LeaseToken, Standing, standing};
use semel_core::settings::Directive;
use semel_core::settle::{Refusal, Settled};
use semel_core::sight::Queues;
use semel_core::state::State;
use semel_engine::engine::Undecided;
use semel_engine::workers::SaidOfItself;
use semel_engine::{Engine, Job};
use semel_store::backend::{BoxFuture, Claim};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::run::Delivery;
use super::stop::Stop;
use super::verdict::Outcome;
use crate::error::Error;
use crate::queue::Semel;

/// The longest that a worker sleeps without reading the store: a wake-up hint may be lost.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// How long after its grant a run is first checked, for what was written before anybody listened. Most runs
/// are over by then and need no read.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// A request for jobs.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) queue: QueueName,
    pub(crate) limit: u32,
    pub(crate) worker: Arc<str>,
    pub(crate) lease: Option<Duration>,
}

/// The worker that sends heartbeats, and what it says about itself in each.
#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    pub(crate) worker: Arc<str>,
    /// The queues that it takes jobs from.
    pub(crate) queues: Vec<QueueName>,
    /// How long its leases last, for jobs that do not set it.
    pub(crate) lease: Option<Duration>,
}

/// A job whose lease a heartbeat extends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: JobId,
    pub(crate) fence: u64,
    pub(crate) has_own_lease: bool,
}

/// A part of the answer to a heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beaten {
    /// Jobs whose leases were extended.
    pub(crate) extended: Vec<Held>,
    /// Jobs that their own runs have already completed, so that no lease is left to extend and no other
    /// worker has them.
    pub(crate) completed: Vec<Held>,
    /// Jobs that no longer belong to the worker.
    pub(crate) lost: Vec<Held>,
    /// Jobs that no longer belong to the worker because they were cancelled or replaced.
    pub(crate) cancelled: Vec<Held>,
    /// Jobs that could not be extended but that nobody can have taken: an open transaction holds them, such
    /// as their own handler's, or they cannot be read. To be tried again soon.
    pub(crate) busy: Vec<Held>,
    /// Jobs about which nothing is known. To be tried again soon.
    pub(crate) unheard: Vec<Held>,
    /// The operator's directive, if this part has it.
    pub(crate) directive: Option<Directive>,
}

/// Receives each part of the answer to a heartbeat as soon as it arrives: an extended lease counts, whatever
/// becomes of the rest.
pub(crate) type Hears<'a> = &'a (dyn Fn(Beaten) + Send + Sync);

/// The answer to the report of a run's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It counts.
    Counted,
    /// It counts, and the job is now discarded.
    Discarded,
    /// It does not count, because the lease was lost before.
    Late,
}

/// The source of a worker's jobs.
pub(crate) trait Link: Send + Sync {
    /// Whether the jobs come from this very queue.
    fn is_on(&self, _semel: &Semel) -> bool {
        false
    }

    /// The queues that jobs of a type are put into if the caller names none, as far as this process knows.
    fn queues_of(&self, _job_type: &str) -> Vec<QueueName> {
        vec![QueueName::default()]
    }

    /// Takes jobs; waits for some until `stop` fires. A fetch that has begun is not broken off, so that no
    /// granted job is lost, unless it stays unanswered long after `stop`.
    fn fetch<'a>(
        &'a self,
        ask: &'a Ask,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>>;

    /// Reports how a run ended.
    fn settle<'a>(
        &'a self,
        run: &'a Delivery,
        outcome: &'a Outcome,
    ) -> BoxFuture<'a, Result<Reported, Error>>;

    /// Sends a heartbeat for some of the `holds` jobs that the worker holds. A job that no part of the answer
    /// has mentioned when this returns, or is given up, is unanswered: its lease may be extended or not.
    fn beat<'a>(
        &'a self,
        speaker: &'a Speaker,
        jobs: &'a [Held],
        holds: usize,
        hears: Hears<'a>,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Completes when the run is known to have lost its lease, even if it was lost before the call, and says
    /// why; may never complete.
    fn lost<'a>(&'a self, run: &'a Delivery) -> BoxFuture<'a, Stop>;

    /// Reports a run's progress, as JSON text.
    fn progress<'a>(&'a self, run: &'a Delivery, value: Bytes) -> BoxFuture<'a, Result<(), Error>>;
}

/// The link to the queue of this process.
pub(crate) struct Local(pub(crate) Semel);

impl Local {
    fn engine(&self) -> Result<Engine, Error> {
        self.0.engine()
    }
}

pub(crate) fn millis(length: Duration) -> u32 {
    u32::try_from(crate::codec::millis(length)).unwrap_or(u32::MAX)
}

fn bearer(run: &Delivery) -> Bearer {
    Bearer { lease: Some(LeaseToken(run.fence)), worker: None }
}

/// A job of a request made at `asked`: it was granted no earlier.
pub(crate) fn delivery(job: Job, asked: Instant) -> Delivery {
    let Job { head, body, parent_results, .. } = job;
    let began = head.started_at.unwrap_or(head.created_at);
    let (lease, timeout) = head.lease.as_ref().map_or((Duration::ZERO, Duration::ZERO), |lease| {
        (lease.visible_until.since(began), lease.run_until.since(began))
    });
    Delivery {
        id: head.id,
        job_type: head.job_type.as_str().into(),
        queue: head.queue.as_str().into(),
        attempt: head.attempt,
        max_attempts: head.max_attempts.max(1),
        args: body.args,
        meta: body.meta,
        has_sensitive: !body.sensitive.is_empty(),
        tags: body.tags,
        created_at: head.created_at,
        fence: head.fence,
        has_own_lease: head.visibility_ms > 0,
        lease,
        granted: Instant::now(),
        asked,
        timeout,
        parent_results: parent_results.and_then(text),
    }
}

/// Extends the leases of these jobs, by `lease` if the jobs do not set it.
async fn extend(
    engine: &Engine,
    jobs: Vec<Held>,
    lease: Option<Duration>,
    hears: Hears<'_>,
) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    let bearer = |held: &Held| Bearer { lease: Some(LeaseToken(held.fence)), worker: None };
    let named = jobs.iter().map(|held| (held.id, bearer(held))).collect();
    let answers = engine.extend(named, lease.map(millis), &Queues::All).await?;
    let mut beaten = Beaten::default();
    for (held, answered) in jobs.into_iter().zip(answers) {
        let such = match answered {
            Ok(Settled::Done(_) | Settled::Repeated(_)) => &mut beaten.extended,
            Ok(Settled::Refused(refusal)) if refusal.is_ended_by_itself() => &mut beaten.completed,
            Ok(Settled::Refused(refusal)) if refusal.is_cancelled() => &mut beaten.cancelled,
            Ok(Settled::Refused(_)) => &mut beaten.lost,
            Err(Undecided::Held) => &mut beaten.busy,
            Err(Undecided::Unheard) => &mut beaten.unheard,
        };
        such.push(held);
    }
    hears(beaten);
    Ok(())
}

/// Announces the worker, and receives the operator's directive.
async fn be_told(engine: &Engine, speaker: &Speaker, holds: usize, hears: Hears<'_>) -> Result<(), Error> {
    // Noted for operators, as a server does for its remote workers.
    let said =
        SaidOfItself { queues: &speaker.queues, active_jobs: Some(holds as u64), ..SaidOfItself::default() };
    engine.workers().heard(engine.tenant(), &speaker.worker, engine.now().await?, &said);
    let directive = Some(engine.directive(&speaker.worker).await?);
    hears(Beaten { directive, ..Beaten::default() });
    Ok(())
}

fn text(json: Bytes) -> Option<Box<str>> {
    String::from_utf8(json.into()).ok().map(String::into_boxed_str)
}

impl Link for Local {
    fn is_on(&self, semel: &Semel) -> bool {
        self.0.is(semel)
    }

    fn queues_of(&self, job_type: &str) -> Vec<QueueName> {
        self.0.templates().queues_of(job_type)
    }

    fn fetch<'a>(
        &'a self,
        ask: &'a Ask,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Vec<Delivery>, Error>> {
        Box::pin(async move {
            let claim = Claim {
                queues: vec![ask.queue.clone()],
                limit: ask.limit,
                grant: Grant::new(Arc::clone(&ask.worker), ask.lease.map(millis)),
                closed: Vec::new(),
            };
            let hints = Arc::clone(self.engine()?.store().hints());
            let _waiting = hints.wait();
            let mut rest = Duration::ZERO;
            loop {
                // Taken before the claim, so that a job that becomes ready in between is not missed.
                let mark = self.engine()?.mark(&claim.queues);
                let looked = Instant::now();
                let engine = self.engine()?;
                let jobs = engine.claim(claim.clone()).await?;
                if !jobs.is_empty() {
                    return Ok(jobs.into_iter().map(|job| delivery(job, looked)).collect());
                }
                // A rate limit that held jobs back may open by itself.
                let opens = hints.closed_lanes().opens(looked);
                let look = Instant::now() + LOOK_AT_LEAST_EVERY;
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(Vec::new()),
                    () = hints.ready_since(&mark) => rest = Duration::ZERO,
                    () = engine.overlooked(&claim.queues, &mut rest) => {}
                    () = tokio::time::sleep_until(opens.map_or(look, |opens| opens.min(look))) => {}
                }
            }
        })
    }

    fn settle<'a>(
        &'a self,
        run: &'a Delivery,
        outcome: &'a Outcome,
    ) -> BoxFuture<'a, Result<Reported, Error>> {
        Box::pin(async move {
            let engine = self.engine()?;
            let (id, bearer) = (run.id, bearer(run));
            let settled = match outcome {
                Outcome::Done => engine.complete(id, bearer, None).await?,
                Outcome::Returned(value) => {
                    engine.complete(id, bearer, Some(Bytes::copy_from_slice(value.get().as_bytes()))).await?
                }
                Outcome::Retry(failure) => engine.fail(id, bearer, failure.clone().report(None)).await?,
                Outcome::Discard(failure) => {
                    engine.fail(id, bearer, failure.clone().report(Some(false))).await?
                }
                Outcome::Snooze(wait) => engine.snooze(id, bearer, *wait).await?,
                Outcome::Cancel => engine.cancel(id, bearer).await?,
                Outcome::GiveBack => engine.give_back(id, bearer).await?,
            };
            match settled {
                Settled::Done(head) | Settled::Repeated(head) if head.state == State::Discarded => {
                    Ok(Reported::Discarded)
                }
                Settled::Done(_) | Settled::Repeated(_) => Ok(Reported::Counted),
                Settled::Refused(Refusal::Corrupt(corrupt)) => Err(corrupt.into()),
                Settled::Refused(_) => Ok(Reported::Late),
            }
        })
    }

    fn beat<'a>(
        &'a self,
        speaker: &'a Speaker,
        jobs: &'a [Held],
        holds: usize,
        hears: Hears<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let engine = self.engine()?;
            // A job that sets its lease is extended by that, the others by what the worker asks for.
            let (own, others) = jobs.iter().copied().partition(|held| held.has_own_lease);
            // Concurrently, so that no lease waits for the other requests.
            let (own, others, told) = tokio::join!(
                extend(&engine, own, None, hears),
                extend(&engine, others, speaker.lease, hears),
                be_told(&engine, speaker, holds, hears),
            );
            own.and(others).and(told)
        })
    }

    fn lost<'a>(&'a self, run: &'a Delivery) -> BoxFuture<'a, Stop> {
        Box::pin(async move {
            let Ok(engine) = self.engine() else { return Stop::LeaseLost };
            let hints = Arc::clone(engine.store().hints());
            drop(engine);
            let watch = hints.watch(run.id);
            drop(tokio::time::timeout_at(run.granted + LOOK_AFTER, watch.news()).await);
            loop {
                // Registered before the read, so that a write in between is not missed.
                let mut news = std::pin::pin!(watch.news());
                news.as_mut().enable();
                let Ok(engine) = self.engine() else { return Stop::LeaseLost };
                let reads = Reads { heads: vec![run.id], ..Reads::default() };
                // A store that cannot be read says nothing about the lease; the next heartbeat will.
                if let Ok(snapshot) = engine.store().load(reads).await {
                    let now = snapshot
                        .peek(run.id)
                        .map(|(head, _)| (standing(head, &bearer(run)), head.ending, head.state));
                    match now {
                        Some((Standing::Current, ..)) => {}
                        // Its own handler has completed it inside a transaction, and may have more to do: no
                        // other worker runs the job.
                        Some((Standing::Settled, Some(Ending::Completed), _)) => {
                            return std::future::pending().await;
                        }
                        Some((_, _, State::Cancelled)) => return Stop::Cancelled,
                        _ => return Stop::LeaseLost,
                    }
                }
                drop(engine);
                news.await;
            }
        })
    }

    fn progress<'a>(&'a self, run: &'a Delivery, value: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match self.engine()?.progress(run.id, bearer(run), value, run.asked_lease()).await? {
                Settled::Done(_) | Settled::Repeated(_) => Ok(()),
                Settled::Refused(_) => Err(Error::LeaseLost(run.id)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Envelope;

    /// Otherwise the run would learn of it only from a heartbeat.
    #[tokio::test(start_paused = true)]
    async fn a_loss_from_before_anybody_listened_is_heard_of() {
        let semel = Semel::open("memory:").await.unwrap();
        let job = semel.enqueue(Envelope::new("a.b")).await.unwrap();
        let link = Local(semel);
        let ask = Ask { queue: QueueName::default(), limit: 1, worker: "w".into(), lease: None };
        let run = link.fetch(&ask, &CancellationToken::new()).await.unwrap().remove(0);
        job.job().unwrap().cancel().await.unwrap();
        let heard = tokio::time::timeout(2 * LOOK_AFTER, link.lost(&run)).await;
        assert_eq!(heard, Ok(Stop::Cancelled), "a heartbeat is {:?} away", run.lease / 3);
    }
}
