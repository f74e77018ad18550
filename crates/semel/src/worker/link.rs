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

/// The longest a worker sleeps without looking, for whatever a hint failed to say.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// So long after its grant a run is looked at, for what was written of it before anybody listened. Most are over by then, and
/// cost no look.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// A wish for jobs.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) queue: QueueName,
    pub(crate) limit: u32,
    pub(crate) worker: Arc<str>,
    pub(crate) lease: Option<Duration>,
}

/// Whose heartbeats they are, and what of itself it says with each.
#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    pub(crate) worker: Arc<str>,
    /// From which queues it takes jobs.
    pub(crate) queues: Vec<QueueName>,
    /// How long its leases last for jobs that do not say.
    pub(crate) lease: Option<Duration>,
}

/// A job to send a heartbeat for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: JobId,
    pub(crate) fence: u64,
    pub(crate) has_own_lease: bool,
}

/// A part of the answer to a heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Beaten {
    /// Jobs whose leases last longer now.
    pub(crate) extended: Vec<Held>,
    /// Jobs that their own runs have ended already, and which are nobody else's: nothing has to be extended any more.
    pub(crate) completed: Vec<Held>,
    /// Jobs that are the worker's no more.
    pub(crate) lost: Vec<Held>,
    /// Nor are these: they were cancelled, or replaced.
    pub(crate) cancelled: Vec<Held>,
    /// Jobs that nobody can have taken, and which could not be extended: somebody's open transaction holds them, such as their handlers' own,
    /// or they cannot be read. To be spoken of again soon.
    pub(crate) busy: Vec<Held>,
    /// Jobs of which nothing is known: to be spoken of again soon.
    pub(crate) unheard: Vec<Held>,
    /// What an operator tells the worker, where this part says it.
    pub(crate) directive: Option<Directive>,
}

/// Hears the answer to a heartbeat, each part as soon as it is there: a lease that was extended is, whatever becomes of the rest.
pub(crate) type Hears<'a> = &'a (dyn Fn(Beaten) + Send + Sync);

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// It counts.
    Counted,
    /// It counts, and the job is discarded by it.
    Discarded,
    /// The lease was lost before; it does not count.
    Late,
}

/// Where jobs come from.
pub(crate) trait Link: Send + Sync {
    /// Whether they come from this very queue.
    fn is_on(&self, _semel: &Semel) -> bool {
        false
    }

    /// The queues that jobs of a type are put into when nobody names one, as far as that is known here.
    fn queues_of(&self, _job_type: &str) -> Vec<QueueName> {
        vec![QueueName::default()]
    }

    /// Takes jobs. Waits for some until `stop` fires; a fetch that has begun is not broken off, so that no granted job
    /// is lost, unless nothing is heard of it for long after that.
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

    /// Sends a heartbeat for these of the jobs that the worker holds, which are so many. Those of which no part of the answer has
    /// said anything when this ends, or is given up, have not been spoken of.
    fn beat<'a>(
        &'a self,
        speaker: &'a Speaker,
        jobs: &'a [Held],
        holds: usize,
        hears: Hears<'a>,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Ends when the run is known to have lost its lease, whenever that was, and says what for; may never end.
    fn lost<'a>(&'a self, run: &'a Delivery) -> BoxFuture<'a, Stop>;

    /// Tells how far a run has come: JSON text.
    fn progress<'a>(&'a self, run: &'a Delivery, value: Bytes) -> BoxFuture<'a, Result<(), Error>>;
}

/// The queue of this process.
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

/// A job that was asked for then: it was granted no sooner.
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

/// Extends the leases of these by so much.
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

/// Says that the worker is there, and hears what it is told.
async fn be_told(engine: &Engine, speaker: &Speaker, holds: usize, hears: Hears<'_>) -> Result<(), Error> {
    // For people, as a server notes it of workers that speak to it.
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
                // Before looking, so that nothing that becomes ready in between is slept through.
                let mark = self.engine()?.mark(&claim.queues);
                let looked = Instant::now();
                let engine = self.engine()?;
                let jobs = engine.claim(claim.clone()).await?;
                if !jobs.is_empty() {
                    return Ok(jobs.into_iter().map(|job| delivery(job, looked)).collect());
                }
                // A limit that held jobs back may open by itself.
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
            // A job that says how long its lease lasts is extended by that, the others by what the worker asked for.
            let (own, others) = jobs.iter().copied().partition(|held| held.has_own_lease);
            // Beside each other: no lease waits for what else is asked.
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
                // Registered before looking, so that nothing that is written in between is slept through.
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
                        // Its handler has said so itself, in a transaction of its own, and may have more to do: nobody else runs
                        // the job.
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

    /// Nobody would be told of it before a heartbeat is.
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
