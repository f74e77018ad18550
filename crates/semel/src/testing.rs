//! Support for tests of your program: a queue whose clock stands still, jobs run inline, and assertions that
//! report what they found.
//!
//! ```
//! use std::time::Duration;
//! use semel::{Job, Worker, testing::TestQueue};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(type = "email.remind")]
//! struct Remind { user_id: u64 }
//!
//! async fn sign_up(semel: &semel::Semel) -> Result<(), semel::Error> {
//!     semel.enqueue(Remind { user_id: 42 }).after(Duration::from_secs(86_400)).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), semel::Error> {
//! let queue = TestQueue::new();
//! sign_up(&queue).await?;
//! assert_eq!(queue.assert_enqueued::<Remind>().await[0].user_id, 42);
//!
//! let worker = Worker::new(&queue).handle(async |_: Remind| {});
//! assert_eq!(queue.drain(&worker).await.len(), 0);
//! queue.advance(Duration::from_secs(86_400)).await;
//! assert_eq!(queue.drain(&worker).await.len(), 1);
//! queue.assert_not_enqueued::<Remind>().await;
//! # Ok(())
//! # }
//! ```

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use semel_core::ident::{JobId, JobType};
use semel_core::lease::Grant;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Purge, Reap, Tend};
use semel_store::backend::{Claim, Filter};
use semel_store::clock::{Clock, ManualClock};
use semel_store::memory::Memory;

use crate::error::Error;
use crate::job::Job;
use crate::open::Opened;
use crate::queue::Semel;
use crate::stored::Stored;
use crate::worker::{Outcome, Worker};

/// How many runs a drain makes before it is taken to be endless: a handler may snooze for no time, or enqueue
/// its own job.
const DRAIN_RUNS_MAX: usize = 10_000;
/// How many jobs an assertion looks at.
const LOOK_JOBS_MAX: u32 = 10_000;
/// How many moments time stops at while it advances. A cron that ticks every minute has fewer in three days.
/// Less than [`DRAIN_RUNS_MAX`], so that a drain can run what each of them brings.
const STOPS_MAX: usize = 5_000;

/// A queue in memory whose clock stands still until the test advances it, and whose background duties run
/// only then. It derefs to [`Semel`]: hand out clones of that.
#[derive(Debug)]
pub struct TestQueue {
    semel: Semel,
    clock: ManualClock,
}

/// A job that was run by [`TestQueue::drain`].
#[derive(Debug)]
pub struct Ran {
    /// The job's id.
    pub id: JobId,
    /// The job's type.
    pub job_type: String,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// How the run ended; `None` if the job was cancelled or replaced meanwhile.
    pub outcome: Option<Outcome>,
}

impl Deref for TestQueue {
    type Target = Semel;

    fn deref(&self) -> &Semel {
        &self.semel
    }
}

impl Default for TestQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl TestQueue {
    /// An empty queue at 2026-01-01T00:00:00Z.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        let clock = ManualClock::default();
        let backend = Arc::new(Memory::new(clock.clone()));
        let engine = ok(Engine::without_duties(Arc::clone(&backend) as Arc<dyn semel_store::Backend>));
        Self { semel: Semel::of(engine, Opened::on(backend)), clock }
    }

    /// Applies the job templates in this directory.
    ///
    /// # Errors
    /// [`Error::Templates`] with everything that is wrong.
    #[cfg(feature = "templates")]
    pub fn templates(self, folder: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        self.semel.template_set().replace(crate::folder::read_now(folder.as_ref())?);
        Ok(self)
    }

    /// Switches unique policies off, so that no job is a duplicate of another: for tests that enqueue the
    /// same job many times.
    #[must_use]
    pub fn without_uniqueness(self) -> Self {
        self.semel.keep_unique(false);
        self
    }

    /// The queue's current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the queue's clock, and does what becomes due on the way, each at its moment: scheduled jobs
    /// become available, a cron ticks as often as it would have, leases end, jobs expire. It runs no job; see
    /// [`drain`](Self::drain). After 5,000 moments everything left is done at the end, as after an outage.
    ///
    /// Leases end here even for runs under way, because heartbeats go by the machine's clock: a handler whose
    /// queue is advanced by more than its lease has lost it.
    ///
    /// # Panics
    /// When the queue was closed.
    pub async fn advance(&self, by: Duration) {
        let until = self.clock.now().saturating_add(by);
        // Added step by step, so that a concurrent advance is not undone.
        for _ in 0..STOPS_MAX {
            let Some(next) = ok(self.do_duties().await).filter(|next| *next < until) else { break };
            let step = next.since(self.clock.now());
            if step.is_zero() {
                break;
            }
            self.clock.advance(step);
        }
        self.clock.advance(until.since(self.clock.now()));
        ok(self.do_duties().await);
    }

    /// Runs all duties until none has work left. Returns when one of them is due next.
    async fn do_duties(&self) -> Result<Option<Timestamp>, Error> {
        let engine = self.semel.engine()?;
        let store = engine.store();
        // How long a closed rate limit stays closed is measured by the machine's clock, but this queue has
        // its own.
        store.hints().closed_lanes().clear();
        loop {
            let all = [
                Promote.run_once(store).await?,
                Reap.run_once(store).await?,
                Expire.run_once(store).await?,
                Tend.run_once(store).await?,
                Purge.run_once(store).await?,
            ];
            if all.iter().all(|ran| ran.moved == 0) {
                return Ok(all.iter().filter_map(|ran| ran.next).min());
            }
        }
    }

    /// Runs everything that is due for this worker, inline and one job after the other, until nothing is due,
    /// including jobs that handlers enqueue meanwhile. Jobs for later wait for [`advance`](Self::advance). A
    /// handler that waits for another job of this queue waits for ever, because that job's turn comes after
    /// it: [start](Worker::start) the worker instead.
    ///
    /// # Panics
    /// If the worker cannot start or belongs to another queue, the queue was closed, or 10,000 jobs were run
    /// and more may be due.
    pub async fn drain(&self, worker: &Worker) -> Vec<Ran> {
        let mut ran = Vec::new();
        while let Some(one) = self.run_next(worker).await {
            ran.push(one);
            if ran.len() >= DRAIN_RUNS_MAX {
                fail(&format!(
                    "{DRAIN_RUNS_MAX} jobs were run and more are due; does a handler enqueue itself?"
                ));
            }
        }
        ran
    }

    /// Runs the next job that is due for this worker; `None` if none is.
    ///
    /// # Panics
    /// As [`drain`](Self::drain).
    pub async fn run_next(&self, worker: &Worker) -> Option<Ran> {
        ok(self.try_run_next(worker).await)
    }

    async fn try_run_next(&self, worker: &Worker) -> Result<Option<Ran>, Error> {
        if !worker.is_on(&self.semel) {
            // The worker would report the end to its own queue, and the job here would be due for ever.
            let advice = "it belongs to another queue; make it with Worker::new(&queue), from the queue that is drained";
            return Err(Error::Worker(advice.to_owned()));
        }
        self.do_duties().await?;
        let queues = worker.queues()?.into_iter().map(|(queue, _)| queue).collect();
        let claim = Claim { queues, limit: 1, grant: Grant::new("test".into(), None), closed: Vec::new() };
        let Some(job) = self.semel.engine()?.claim(claim).await?.pop() else { return Ok(None) };
        let (id, job_type, attempt) = (job.head.id, job.head.job_type.to_string(), job.head.attempt);
        let outcome = worker.run_one(job).await?;
        Ok(Some(Ran { id, job_type, attempt, outcome }))
    }

    /// The jobs of this type that have not ended, oldest first.
    ///
    /// # Panics
    /// If a job cannot be read as its type, or the queue was closed.
    pub async fn enqueued<J: Job>(&self) -> Vec<J> {
        let jobs = ok(self.live(Some(J::TYPE)).await);
        jobs.iter().map(|job| ok(job.payload())).collect()
    }

    async fn live(&self, job_type: Option<&str>) -> Result<Vec<Stored>, Error> {
        let job_type = job_type.map(|name| JobType::parse(name, "/type")).transpose()?;
        let filter = Filter { states: StateSet::LIVE, job_type, limit: LOOK_JOBS_MAX, ..Filter::default() };
        let engine = self.semel.engine()?;
        let mut ids: Vec<JobId> = engine.list(filter).await?.heads.iter().map(|head| head.id).collect();
        ids.reverse();
        Ok(engine.jobs(ids).await?.into_iter().map(Stored).collect())
    }

    /// Asserts that at least one job of this type has not ended, and returns all that have not.
    ///
    /// # Panics
    /// If there is none; the message lists the jobs there are.
    pub async fn assert_enqueued<J: Job>(&self) -> Vec<J> {
        let jobs = self.enqueued::<J>().await;
        if jobs.is_empty() {
            fail(&format!("no {} is enqueued; {}", J::TYPE, self.inventory().await));
        }
        jobs
    }

    /// Asserts that at least one job of this type has not ended and satisfies `wanted`, and returns all of
    /// those.
    ///
    /// # Panics
    /// If there is none; the message lists the jobs there are.
    pub async fn assert_enqueued_with<J: Job>(&self, wanted: impl Fn(&J) -> bool) -> Vec<J> {
        let mut jobs = self.enqueued::<J>().await;
        let number = jobs.len();
        jobs.retain(wanted);
        if jobs.is_empty() {
            let what = format!("none of {number} enqueued {} is as expected", J::TYPE);
            fail(&format!("{what}; {}", self.inventory().await));
        }
        jobs
    }

    /// Asserts that no job of this type waits or runs.
    ///
    /// # Panics
    /// If there is one; the message lists the jobs there are.
    pub async fn assert_not_enqueued<J: Job>(&self) {
        if !self.enqueued::<J>().await.is_empty() {
            fail(&format!("{} is enqueued; {}", J::TYPE, self.inventory().await));
        }
    }

    /// A list of the jobs that wait or run, for messages; sensitive args are hidden.
    async fn inventory(&self) -> String {
        let jobs = ok(self.live(None).await);
        if jobs.is_empty() {
            return "nothing is".to_owned();
        }
        let mut text = "these are:".to_owned();
        for job in &jobs {
            let args = semel_ojs::sensitive::hidden_args(&job.0.body);
            let args = args.as_deref().unwrap_or_else(|| job.args());
            text.push_str(&format!("\n  {} {} {args}", job.job_type(), job.state()));
        }
        text
    }
}

fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| fail(&error.to_string()))
}

#[expect(clippy::panic, reason = "an assertion of a test fails by panicking")]
#[track_caller]
fn fail(message: &str) -> ! {
    panic!("{message}")
}
