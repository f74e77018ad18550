//! Closed-loop load: each caller offers its next job as soon as its last one is answered.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use semel_core::body::Body;
use semel_core::canon::Json;
use semel_core::enqueue::{Batch, Identity, Mode, Offer, Outcome, Start};
use semel_core::ident::{JobType, QueueName};
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::Settled;
use semel_core::sight::Queues;
use semel_core::unique::{KeyInput, PolicySpec, UniquePolicy};
use semel_engine::Engine;
use semel_store::backend::Claim;

use crate::report::{BenchError, Figure};

/// Jobs one claim takes.
const CLAIM_JOBS: u32 = 50;

/// The jobs that a run uses.
#[derive(Clone)]
pub struct Work {
    policy: Arc<UniquePolicy>,
    job_type: JobType,
    queue: QueueName,
    padding: Arc<str>,
    keyed: bool,
}

impl Work {
    /// Jobs with about `args_bytes` of args. `keyed` says whether they carry a unique policy over their args.
    ///
    /// # Errors
    /// Never in practice: the names and the policy are constants.
    pub fn new(args_bytes: usize, keyed: bool) -> Result<Self, BenchError> {
        let keys = Some(vec!["type".to_owned(), "args".to_owned()]);
        let on_conflict = Some("ignore".to_owned());
        let spec = PolicySpec { keys, on_conflict, ..PolicySpec::default() };
        Ok(Self {
            policy: Arc::new(
                UniquePolicy::build(&spec, "/unique").map_err(|invalid| BenchError::invalid(&invalid))?,
            ),
            job_type: JobType::parse("bench.work", "/type")
                .map_err(|invalid| BenchError::invalid(&invalid))?,
            queue: queue("bench")?,
            padding: "x".repeat(args_bytes.saturating_sub(60)).into(),
            keyed,
        })
    }

    /// The job with this number, as a caller that has its args as text would offer it.
    ///
    /// # Errors
    /// Never in practice: the args are well formed.
    pub fn offer(&self, number: u64) -> Result<Offer, BenchError> {
        let mut args = String::with_capacity(self.padding.len() + 64);
        // Writing to a `String` cannot fail.
        let _ = write!(
            args,
            "[{{\"order\":{number},\"user\":\"u-{}\",\"note\":\"{}\"}}]",
            number % 9973,
            self.padding
        );
        let mut body = Body { args: args.into(), ..Body::default() };
        let mut unique = None;
        if self.keyed {
            let json = Json::parse(&body.args, "/args").map_err(|invalid| BenchError::invalid(&invalid))?;
            let (job_type, queue) = (self.job_type.as_str(), self.queue.as_str());
            let input = KeyInput { job_type, queue, version: None, args: &json, meta: &Json::Null };
            let key = self.policy.key(&input).map_err(|invalid| BenchError::invalid(&invalid))?;
            body.unique = Some((*self.policy).clone());
            unique = Some(Identity { policy: Arc::clone(&self.policy), key });
        }
        Ok(Offer {
            id: None,
            job_type: self.job_type.clone(),
            queue: self.queue.clone(),
            priority: 0,
            start: Start::Now,
            expires: None,
            visibility_ms: 0,
            timeout_ms: 0,
            max_attempts: 3,
            unique,
            body: body.encode().map_err(|error| BenchError::Invalid(error.to_string()))?,
            inspect: true,
            queues: Queues::All,
            limit: None,
            bounded: false,
            awaited: false,
            once: None,
        })
    }
}

/// The queue with that name.
///
/// # Errors
/// When the name is not valid for a queue.
pub fn queue(name: &str) -> Result<QueueName, BenchError> {
    QueueName::parse(name, "/queue").map_err(|invalid| BenchError::invalid(&invalid))
}

/// Runs `callers` loops until `duration` is over. Each turn does some work and answers how many jobs it was.
pub(crate) async fn drive<F, Fut>(
    name: &str,
    callers: usize,
    duration: Duration,
    turn: F,
) -> Result<Figure, BenchError>
where
    F: Fn(u64) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<u64, BenchError>> + Send,
{
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut loops = Vec::with_capacity(callers);
    for _ in 0..callers {
        let (turn, next) = (turn.clone(), Arc::clone(&next));
        loops.push(tokio::spawn(async move {
            // A histogram for each caller would be tens of megabytes, more than any cache holds.
            let mut latencies = Vec::with_capacity(1024);
            let mut jobs = 0;
            let mut began = Instant::now();
            while began.duration_since(started) < duration {
                jobs += turn(next.fetch_add(1, Ordering::Relaxed)).await?;
                let ended = Instant::now();
                latencies.push(u32::try_from(ended.duration_since(began).as_micros()).unwrap_or(u32::MAX));
                began = ended;
            }
            Ok::<_, BenchError>((jobs, latencies))
        }));
    }
    let (mut jobs, mut turns) = (0, Vec::with_capacity(callers));
    for caller in loops {
        let (done, latencies) = caller.await.map_err(|error| BenchError::Invalid(error.to_string()))??;
        jobs += done;
        turns.push(latencies);
    }
    let took = started.elapsed();
    let mut latencies = histogram()?;
    for micros in turns.into_iter().flatten() {
        latencies.saturating_record(u64::from(micros));
    }
    Ok(Figure::new(name, jobs, took, &latencies))
}

pub(crate) fn histogram() -> Result<Histogram<u64>, BenchError> {
    Histogram::new_with_bounds(1, 60_000_000, 3).map_err(|error| BenchError::Invalid(error.to_string()))
}

/// Single enqueues. One in `fresh_every` is new (1: all are); the others are duplicates of earlier ones.
///
/// # Errors
/// When the store fails, or a job was admitted twice.
pub async fn enqueue(
    name: &str,
    engine: &Engine,
    work: &Work,
    callers: usize,
    duration: Duration,
    from: u64,
    fresh_every: u64,
) -> Result<Figure, BenchError> {
    let created = Arc::new(AtomicU64::new(0));
    // One reference count for everything a turn needs: counters shared by many callers are expensive, and not
    // the engine's cost.
    let shared = Arc::new((engine.clone(), work.clone(), Arc::clone(&created)));
    let figure = drive(name, callers, duration, move |turn| {
        let shared = Arc::clone(&shared);
        async move {
            let (engine, work, created) = &*shared;
            let offer = work.offer(from + number_of(turn, fresh_every))?;
            if engine.enqueue(offer, "bench").await?.is_inserted() {
                created.fetch_add(1, Ordering::Relaxed);
            }
            Ok(1)
        }
    })
    .await?;
    // Exactly one job per distinct offer may have been created.
    let (offered, created) = (figure.jobs, created.load(Ordering::Relaxed));
    if created == offered.div_ceil(fresh_every) {
        Ok(figure)
    } else {
        Err(BenchError::Twice { offered, created })
    }
}

/// The number of the job offered in this turn: a new one, or that of an earlier new one.
const fn number_of(turn: u64, fresh_every: u64) -> u64 {
    let fresh = turn / fresh_every;
    if turn.is_multiple_of(fresh_every) {
        return fresh;
    }
    // The newest of them may still be under way.
    let known = if fresh == 0 { 1 } else { fresh };
    (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17) % known
}

/// Claims `CLAIM_JOBS` jobs at a time and completes each by a request of its own, all of one claim
/// concurrently.
///
/// # Errors
/// When the store fails, or a claimed job cannot be completed.
pub async fn process(
    name: &str,
    engine: &Engine,
    work: &Work,
    callers: usize,
    duration: Duration,
) -> Result<Figure, BenchError> {
    let workers = callers.div_ceil(CLAIM_JOBS as usize).max(1);
    let (engine, queue) = (engine.clone(), work.queue.clone());
    drive(name, workers, duration, move |turn| {
        let (engine, queue) = (engine.clone(), queue.clone());
        async move {
            let grant = Grant::new(format!("worker-{}", turn % 16).into(), None);
            let jobs = engine
                .claim(Claim { queues: vec![queue], limit: CLAIM_JOBS, grant, closed: Vec::new() })
                .await?;
            if jobs.is_empty() {
                tokio::task::yield_now().await;
            }
            complete_all(&engine, &jobs).await
        }
    })
    .await
}

/// Completes each of the jobs by a request of its own, all concurrently. Answers how many there were.
///
/// # Errors
/// When the store fails, or a job cannot be completed.
pub async fn complete_all(engine: &Engine, jobs: &[semel_engine::Job]) -> Result<u64, BenchError> {
    let mut acks = tokio::task::JoinSet::new();
    for job in jobs {
        let (engine, id, lease) = (engine.clone(), job.head.id, Some(LeaseToken(job.head.fence)));
        acks.spawn(async move { engine.complete(id, Bearer { lease, worker: None }, None).await });
    }
    let mut done = 0;
    while let Some(ack) = acks.join_next().await {
        match ack.map_err(|error| BenchError::Invalid(error.to_string()))?? {
            Settled::Done(_) => done += 1,
            other => return Err(BenchError::Invalid(format!("a claimed job was not completed: {other:?}"))),
        }
    }
    Ok(done)
}

/// Enqueues, claims and completes: each caller does the whole cycle.
///
/// # Errors
/// When the store fails.
pub async fn cycle(
    name: &str,
    engine: &Engine,
    work: &Work,
    callers: usize,
    duration: Duration,
    from: u64,
) -> Result<Figure, BenchError> {
    // Each caller runs the cycle for its own number of jobs, so that the queue's depth does not change.
    let shared = Arc::new((engine.clone(), work.clone()));
    drive(name, callers, duration, move |turn| {
        let shared = Arc::clone(&shared);
        async move {
            let (engine, work) = &*shared;
            match engine.enqueue(work.offer(from + turn)?, "bench").await? {
                Outcome::Created(_) => {}
                other => return Err(BenchError::Invalid(format!("a new job was not created: {other:?}"))),
            }
            let grant = Grant::new("worker".into(), None);
            let jobs = engine
                .claim(Claim { queues: vec![work.queue.clone()], limit: 1, grant, closed: Vec::new() })
                .await?;
            for job in &jobs {
                let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
                match engine.complete(job.head.id, bearer, None).await? {
                    Settled::Done(_) => {}
                    other => {
                        return Err(BenchError::Invalid(format!(
                            "a claimed job was not completed: {other:?}"
                        )));
                    }
                }
            }
            Ok(jobs.len() as u64)
        }
    })
    .await
}

/// Batches of `jobs` different jobs each, all new.
///
/// # Errors
/// When the store fails, or one of the jobs was not created.
pub async fn bulk(
    name: &str,
    engine: &Engine,
    work: &Work,
    callers: usize,
    duration: Duration,
    from: u64,
    jobs: u64,
) -> Result<Figure, BenchError> {
    let (engine, work) = (engine.clone(), work.clone());
    drive(name, callers, duration, move |turn| {
        let (engine, work) = (engine.clone(), work.clone());
        async move {
            let first = from + turn * jobs;
            let offers =
                (first..first + jobs).map(|number| work.offer(number)).collect::<Result<Vec<_>, _>>()?;
            match engine.enqueue_batch(offers, Mode::Each, "bench").await? {
                Batch::Done(outcomes) if outcomes.iter().all(Outcome::is_inserted) => Ok(jobs),
                _ => Err(BenchError::Invalid("a new job of a batch was not created".to_owned())),
            }
        }
    })
    .await
}

/// Fills the queue with `count` jobs in batches of 1,000.
///
/// # Errors
/// When the store fails.
pub async fn fill(engine: &Engine, work: &Work, from: u64, count: u64) -> Result<(), BenchError> {
    let mut at = from;
    while at < from + count {
        let upto = (at + 1_000).min(from + count);
        let offers = (at..upto).map(|number| work.offer(number)).collect::<Result<Vec<_>, _>>()?;
        engine.enqueue_batch(offers, Mode::Each, "bench").await?;
        at = upto;
    }
    Ok(())
}

/// Works off all waiting jobs, so that the next case starts with an empty queue.
///
/// # Errors
/// When the store fails.
pub async fn drain(engine: &Engine, work: &Work) -> Result<(), BenchError> {
    loop {
        let grant = Grant::new("worker".into(), None);
        let queues = vec![work.queue.clone()];
        let jobs = engine.claim(Claim { queues, limit: 1_000, grant, closed: Vec::new() }).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        complete_all(engine, &jobs).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::number_of;

    #[test]
    fn one_turn_of_a_hundred_is_new_and_the_others_are_not() {
        let mut seen = HashSet::new();
        let fresh = (0..10_000).filter(|turn| seen.insert(number_of(*turn, 100))).count();
        assert_eq!(fresh, 100);
        // The duplicates are spread over all earlier jobs.
        assert!((9_900..10_000).map(|turn| number_of(turn, 100)).collect::<HashSet<_>>().len() > 40);
        assert!((0..50).all(|turn| number_of(turn, 1) == turn));
    }
}
