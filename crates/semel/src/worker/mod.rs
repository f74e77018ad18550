//! Workers, which run jobs.

mod beat;
mod execute;
mod extract;
mod handler;
mod link;
mod middleware;
mod pool;
#[cfg(feature = "remote")]
mod remote;
mod rest;
mod run;
#[cfg(test)]
mod sim;
mod stop;
mod verdict;
mod working;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use semel_core::ident::{JobType, QueueName};
use semel_core::lease::is_worker_id;
use semel_core::limits::{TIMEOUT_MS_MAX, WORKER_ID_BYTES_MAX};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::beat::Signals;
use self::execute::Shared;
use self::handler::{Erased, erase, erase_untyped};
use self::link::{Link, Local, delivery};
use self::rest::News;
use self::run::States;
use crate::error::Error;
use crate::job::Job;
use crate::queue::Semel;

pub use self::extract::{Attempt, FromRun, Lease, Needs, Progress, State};
pub use self::handler::Handler;
pub use self::middleware::{Middleware, Next};
pub use self::run::Run;
pub use self::stop::Stop;
pub use self::verdict::{Failure, IntoOutcome, Outcome, Return};
pub use self::working::Working;

/// How many jobs of one queue run at once by default.
pub const CONCURRENCY_DEFAULT: u32 = 16;
/// The most jobs of one queue that may run at once.
pub const CONCURRENCY_MAX: u32 = 100_000;
/// How long runs may go on after a shutdown begins, by default. Together with the grace time, and the 5 s for
/// unanswered reports, it stays well within the 30 s after which Kubernetes kills by default: a killed
/// process gives nothing back, and its attempts are spent.
const DRAIN_DEFAULT: Duration = Duration::from_secs(15);
/// How long a run may go on after its token has fired, by default.
const GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// Numbers the workers of one process.
static WORKERS: AtomicU64 = AtomicU64::new(1);

/// Tells this process from others with the same process id: the first process of every container is number 1.
fn chance() -> u32 {
    static CHANCE: OnceLock<u32> = OnceLock::new();
    *CHANCE.get_or_init(|| (semel_store::random::number() >> 32) as u32)
}

/// A worker: takes jobs from queues and runs them with its handlers.
///
/// ```
/// use semel::{Attempt, Job, Return, Semel, State, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(type = "sum.add")]
/// struct Add { a: i64, b: i64 }
///
/// async fn add(job: Add, State(bonus): State<i64>, attempt: Attempt) -> Result<Return<i64>, std::io::Error> {
///     println!("attempt {} of {}", attempt.number, attempt.max);
///     Ok(Return(job.a + job.b + bonus))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), semel::Error> {
/// let semel = Semel::open("memory:").await?;
/// let working = Worker::new(&semel).state(10_i64).handle(add).start()?;
/// let sum: i64 = semel.enqueue(Add { a: 1, b: 2 }).await?.result().await?;
/// assert_eq!(sum, 13);
/// working.stop().await;
/// # Ok(())
/// # }
/// ```
///
/// While a job runs, heartbeats extend its lease. A run that panics, or lasts longer than its timeout, is a
/// failed attempt. If the job is cancelled or replaced, the run's [token](Run::token) fires.
#[must_use = "a worker runs nothing until it is started"]
pub struct Worker {
    link: Arc<dyn Link>,
    name: Arc<str>,
    handlers: HashMap<String, Arc<dyn Erased>>,
    layers: Vec<Arc<dyn Middleware>>,
    states: States,
    /// The queues that were named, each with its concurrency.
    queues: Vec<(String, u32)>,
    /// The handled types, with the queue each type declares: used when no queue is named.
    own_queues: BTreeMap<String, Own>,
    concurrency: u32,
    prefetch: u32,
    lease: Option<Duration>,
    drain: Duration,
    grace: Duration,
}

/// The queue that jobs of a type wait in by default.
enum Own {
    /// The one that the Rust type declares.
    Named(String),
    /// The Rust type declares none.
    Unnamed,
    /// There is no Rust type to declare one.
    Untyped,
}

impl Worker {
    /// A worker for the jobs of this queue.
    pub fn new(semel: &Semel) -> Self {
        Self::on(Arc::new(Local(semel.clone())))
    }

    /// A worker for the jobs of a Semel server, such as `http://127.0.0.1:8080`. It connects when it starts.
    ///
    /// It takes no jobs from other Open Job Spec servers, because it requires the `lease` that Semel sends
    /// with each job. An `https` server is verified by the system's certificates; for an authority of your
    /// own use [`remote_with`](Self::remote_with).
    ///
    /// # Errors
    /// [`Error::Remote`] if the URL cannot be used.
    #[cfg(feature = "remote")]
    pub fn remote(url: &str) -> Result<Self, Error> {
        Ok(Self::remote_with(semel_client::Client::new(url)?))
    }

    /// The same as [`remote`](Self::remote), with a bearer token.
    ///
    /// # Errors
    /// [`Error::Remote`] if the URL or the token cannot be used.
    #[cfg(feature = "remote")]
    pub fn remote_with_token(url: &str, token: &str) -> Result<Self, Error> {
        Ok(Self::remote_with(semel_client::Client::new(url)?.with_token(token)?))
    }

    /// The same as [`remote`](Self::remote), with a client of the crate `semel-client`. That client sets
    /// which authority to trust, which token to send and how long to wait:
    /// `Client::new(url)?.with_ca(&std::fs::read("ca.pem")?)?.with_token(token)?`. A fetch waits at the
    /// server for up to a second, so a client with a timeout of less than a few seconds gets no jobs.
    #[cfg(feature = "remote")]
    pub fn remote_with(client: semel_client::Client) -> Self {
        Self::on(Arc::new(remote::Remote::new(client)))
    }

    fn on(link: Arc<dyn Link>) -> Self {
        let number = WORKERS.fetch_add(1, Ordering::Relaxed);
        Self {
            link,
            name: format!("semel-{}-{number}-{:08x}", std::process::id(), chance()).into(),
            handlers: HashMap::new(),
            layers: Vec::new(),
            states: States::default(),
            queues: Vec::new(),
            own_queues: BTreeMap::new(),
            concurrency: CONCURRENCY_DEFAULT,
            prefetch: 0,
            lease: None,
            drain: DRAIN_DEFAULT,
            grace: GRACE_DEFAULT,
        }
    }

    /// Handles jobs of the handler's type; a later handler of the same type replaces the earlier one.
    pub fn handle<J: Job, A: 'static>(mut self, handler: impl Handler<J, A>) -> Self {
        self.own_queues.insert(J::TYPE.to_owned(), J::defaults().queue.map_or(Own::Unnamed, Own::Named));
        self.handlers.insert(J::TYPE.to_owned(), erase(handler));
        self
    }

    /// Handles jobs of a type that has no Rust type: `|run: Run| async move { … }`. Name their
    /// [queue](Self::queue) if it is neither `default` nor that of their template.
    pub fn handle_type<F, Fut, R>(mut self, job_type: &str, handler: F) -> Self
    where
        F: Fn(Run) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome + 'static,
    {
        self.own_queues.insert(job_type.to_owned(), Own::Untyped);
        self.handlers.insert(job_type.to_owned(), erase_untyped(handler));
        self
    }

    /// Takes jobs from this queue, with this many slots of its own. Naming a queue again replaces the number.
    ///
    /// Once a queue is named, the worker takes jobs from named queues only. Otherwise it takes them from the
    /// queues that its job types declare, and for a type that declares none, from those of its templates as
    /// of the worker's start. A remote worker knows no templates.
    pub fn queue(mut self, name: impl Into<String>, concurrency: u32) -> Self {
        let name = name.into();
        match self.queues.iter_mut().find(|(said, _)| *said == name) {
            Some((_, said)) => *said = concurrency,
            None => self.queues.push((name, concurrency)),
        }
        self
    }

    /// How many jobs of each queue run at once if no queue is [named](Self::queue). Default: 16. A named
    /// queue has the number given there, and once one is named no other is served.
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = jobs;
        self
    }

    /// How many jobs of each queue wait in the worker for a slot, beyond those that run. Default: 0. Worth it
    /// for short jobs. A waiting job is given back when the worker stops, and when half of its timeout has
    /// passed.
    pub fn prefetch(mut self, jobs: u32) -> Self {
        self.prefetch = jobs;
        self
    }

    /// Adds a value for handlers that take [`State`] of its type. Only one value per type:
    /// [`start`](Self::start) refuses a second one, so wrap it in a type of its own (a newtype).
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.put(value);
        self
    }

    /// Adds a middleware around every run. The first one added is the outermost.
    pub fn layer(mut self, layer: impl Middleware) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// The worker's name, for operators: at most 255 bytes, without control characters. Generated by default.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// How long a lease lasts without a heartbeat, for jobs that do not set it: the longest that a dead
    /// worker delays its jobs. 1 ms to 30 days. Default: 2 minutes. Heartbeats are sent at a third of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long runs may go on after the shutdown begins, before their tokens fire. Default: 15 s.
    ///
    /// A shutdown takes at most this, then the [grace time](Self::grace), then 5 s for reports that nobody
    /// answers: 25 s by default. Whatever kills the process must wait longer (`terminationGracePeriodSeconds`
    /// in Kubernetes, 30 s by default; `TimeoutStopSec` in systemd): a killed worker gives nothing back.
    pub fn drain(mut self, wait: Duration) -> Self {
        self.drain = wait;
        self
    }

    /// How long a run may go on after its token has fired, before it is dropped. Default: 5 s. In a shutdown
    /// it follows the [drain time](Self::drain). A run that exceeds its timeout gets none, because its next
    /// attempt may begin.
    pub fn grace(mut self, wait: Duration) -> Self {
        self.grace = wait;
        self
    }

    pub(crate) fn shared(&self) -> Result<Shared, Error> {
        if !is_worker_id(&self.name) {
            return Err(Error::Worker(format!(
                "its name {:?} is longer than {WORKER_ID_BYTES_MAX} bytes or has control characters",
                self.name
            )));
        }
        if let Some(lease) = self.lease
            && !(1..=TIMEOUT_MS_MAX).contains(&crate::codec::millis(lease))
        {
            return Err(Error::Worker(format!("its lease of {lease:?} is not between 1 ms and 30 days")));
        }
        if let Some(ambiguous) = self.states.ambiguous() {
            return Err(Error::Worker(format!(
                "it was given State<{ambiguous}> twice, and a handler would get only the later one; use a newtype for one of them"
            )));
        }
        let needs = Needs(&self.states);
        for (job_type, handler) in &self.handlers {
            JobType::parse(job_type, "")
                .map_err(|refused| Error::Worker(format!("{job_type:?} {}", refused.message)))?;
            if let Some(missing) = handler.missing(&needs) {
                return Err(Error::Worker(format!(
                    "the handler of {job_type} takes State<{missing}>, which the worker does not have; add .state(value)"
                )));
            }
        }
        Ok(Shared {
            link: Arc::clone(&self.link),
            handlers: self.handlers.clone(),
            layers: self.layers.clone().into(),
            states: Arc::new(self.states.clone()),
            beats: Arc::default(),
            worker: Arc::clone(&self.name),
            lease: self.lease,
            grace: self.grace,
            unhandled: Mutex::default(),
            unheard: News::default(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            give_up: CancellationToken::new(),
        })
    }

    /// Whether the worker's jobs come from this very queue.
    pub(crate) fn is_on(&self, semel: &Semel) -> bool {
        self.link.is_on(semel)
    }

    /// Runs one job that was granted to this worker, inline.
    pub(crate) async fn run_one(&self, job: semel_engine::Job) -> Result<Option<Outcome>, Error> {
        let shared = self.shared()?;
        let (job, signals) = (delivery(job, Instant::now()), Signals::default());
        let loss = shared.hears_of_loss(&job, &signals);
        Ok(shared.execute(&job, loss, &signals).await)
    }

    fn queues_of(&self, job_type: &str, own: &Own) -> Vec<String> {
        match own {
            Own::Named(name) => vec![name.clone()],
            Own::Unnamed | Own::Untyped => {
                self.link.queues_of(job_type).iter().map(QueueName::to_string).collect()
            }
        }
    }

    /// The handled types whose own queue is not served because other queues were named, each with that queue.
    /// Their jobs run here only if the caller that enqueues them names a served queue.
    pub(crate) fn unserved(&self) -> Vec<(&str, String)> {
        let is_served =
            |name: &String| self.queues.is_empty() || self.queues.iter().any(|(said, _)| said == name);
        let mut unserved = Vec::new();
        for (job_type, own) in &self.own_queues {
            for queue in self.queues_of(job_type, own).into_iter().filter(|name| !is_served(name)) {
                // Without a Rust type only the program that names the queues can know where jobs wait.
                if !matches!(own, Own::Untyped) || queue != QueueName::default().as_str() {
                    unserved.push((job_type.as_str(), queue));
                }
            }
        }
        unserved
    }

    /// The queues to take jobs from, each with its concurrency.
    pub(crate) fn queues(&self) -> Result<Vec<(QueueName, u32)>, Error> {
        let mut queues: Vec<(String, u32)> = self.queues.clone();
        if queues.is_empty() {
            let mut names = BTreeSet::new();
            for (job_type, own) in &self.own_queues {
                names.extend(self.queues_of(job_type, own));
            }
            queues = names.into_iter().map(|name| (name, self.concurrency)).collect();
        }
        if queues.is_empty() {
            return Err(Error::Worker("it has no handler; add .handle(async_fn)".to_owned()));
        }
        let mut parsed = Vec::with_capacity(queues.len());
        for (name, concurrency) in queues {
            let queue = QueueName::parse(&name, "")
                .map_err(|refused| Error::Worker(format!("{name:?} {}", refused.message)))?;
            if concurrency == 0 || concurrency > CONCURRENCY_MAX {
                return Err(Error::Worker(format!(
                    "queue {name} has {concurrency} places; give it 1 to {CONCURRENCY_MAX}"
                )));
            }
            parsed.push((queue, concurrency));
        }
        Ok(parsed)
    }

    /// Starts taking jobs, on the tokio runtime in which it is called.
    ///
    /// # Errors
    /// [`Error::Worker`] if a handler takes a state that is missing, two states have one type, a name, lease
    /// or concurrency is not valid, there is no handler, or there is no tokio runtime.
    pub fn start(self) -> Result<Working, Error> {
        Working::start(&self)
    }

    /// Works until `shutdown` completes, such as [`shutdown_signal`](crate::shutdown_signal), an operator
    /// tells the worker to end, or its store is gone for good; then stops like [`Working::stop`].
    ///
    /// Let this future complete: dropping it earlier, as a `select!` does whose other branch finishes first,
    /// is like dropping a [`Working`]. To do other things at the same time, `join!` them.
    ///
    /// # Errors
    /// As for [`start`](Self::start); [`Error::Closed`] if the queue was closed, and [`Error::Store`] if the
    /// store has failed so that it must be opened again. A store that is only unreachable is waited for.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let working = self.start()?;
        let ended = tokio::select! {
            biased;
            () = shutdown => Ok(()),
            () = working.told_to_end() => Ok(()),
            gone = working.store_gone() => Err(gone),
        };
        working.stop().await;
        ended
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let types: Vec<&String> = self.handlers.keys().collect();
        f.debug_struct("Worker").field("name", &self.name).field("types", &types).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_queue_that_is_named_twice_has_the_places_that_were_said_last() {
        let semel = Semel::open("memory:").await.unwrap();
        let worker = Worker::new(&semel).queue("mail", 1).queue("default", 2).queue("mail", 3);
        let queues = worker.queues().unwrap();
        let places: Vec<(&str, u32)> = queues.iter().map(|(name, places)| (name.as_str(), *places)).collect();
        assert_eq!(places, [("mail", 3), ("default", 2)]);
    }

    #[tokio::test]
    async fn a_type_whose_own_queue_is_not_among_the_named_ones_is_told() {
        let semel = Semel::open("memory:").await.unwrap();
        let worker = || {
            let mut worker = Worker::new(&semel).handle_type("a.untyped", async |_: Run| {});
            worker.own_queues.insert("a.mail".to_owned(), Own::Named("mail".to_owned()));
            worker.own_queues.insert("a.plain".to_owned(), Own::Unnamed);
            worker
        };
        assert_eq!(worker().unserved(), [], "where none is named, all are served");
        assert_eq!(worker().queue("default", 1).unserved(), [("a.mail", "mail".to_owned())]);
        assert_eq!(worker().queue("mail", 1).unserved(), [("a.plain", "default".to_owned())]);
        assert_eq!(worker().queue("mail", 1).queue("default", 1).unserved(), []);
    }

    /// Kubernetes kills after 30 s by default, and a process needs some of that for other things.
    #[test]
    fn a_shutdown_is_over_before_anybody_kills() {
        let longest = DRAIN_DEFAULT + GRACE_DEFAULT + execute::OVERDUE_AFTER;
        assert!(longest <= Duration::from_secs(25), "{longest:?}");
    }

    #[tokio::test]
    async fn a_second_value_of_one_type_is_refused_at_the_start() {
        let semel = Semel::open("memory:").await.unwrap();
        let worker = || Worker::new(&semel).handle_type("a.b", async |_: Run| {}).state(1_u8).state(1_u16);
        worker().shared().map(drop).unwrap();
        let refused = worker().state(2_u8).start().unwrap_err().to_string();
        assert!(refused.contains("State<u8>") && refused.contains("newtype"), "{refused}");
    }

    #[test]
    fn the_page_says_how_long_runs_may_take_to_end() {
        let page = include_str!("../../../../docs/guide/library.md");
        for (what, time) in [("the drain time", DRAIN_DEFAULT), ("the grace time", GRACE_DEFAULT)] {
            let said = format!("{what} ({} s)", time.as_secs());
            assert!(page.contains(&said), "{said}");
        }
    }
}
