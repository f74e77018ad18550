//! The requests of callers, workers and operators, each as one decision, and the loop that runs the duties.

mod claims;
mod inside;
mod jobs;
mod outbox;
mod queues;
mod rounds;

pub use jobs::Undecided;

use std::sync::Arc;
use std::task::Poll;

use semel_core::draft::{Draft, KeyRead, Missing, Reads};
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue, enqueue_batch};
use semel_core::explain::{Explanation, explain};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::Head;
use semel_core::planted::{Bug, is_planted};
use semel_core::retention::Retention;
use semel_core::state::StateSet;
use semel_core::tenant::{Namespace, Tenant};
use semel_core::time::Timestamp;
use semel_core::trail::{Sender, traceparent};
use semel_core::unique::UniqueKey;
use semel_store::backend::{Backend, Facts, Filter, Listing};
use semel_store::clock::{Clock as _, Offset, SystemClock};
use semel_store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::counters::Counters;
use crate::crons::Tallies;
use crate::duplicates::DuplicateLog;
use crate::held::LastLook;
use crate::hottest::Hottest;
use crate::job::Job;
use crate::latency::Latencies;
use crate::policies::{InUse, Label, Policies};
use crate::queues::Bounded;
use crate::samples::Samples;
use crate::throughput::Throughput;
use crate::workers::Workers;

/// A running engine. Cheap to clone; the duties stop with [`Engine::stop`], [`Engine::close`] or the last handle.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// The tenant whose ids, keys and queues this handle uses.
    space: Arc<Namespace>,
}

/// The holders of a key.
#[derive(Clone, Debug)]
pub struct Holders {
    /// Their heads, oldest first.
    pub heads: Vec<Head>,
    /// Whether these are all holders: if there are very many, only those that matter to a decision are read.
    pub are_all: bool,
    /// The store's time when they were read.
    pub now: Timestamp,
}

struct Shared {
    store: Store,
    duplicates: DuplicateLog,
    counters: Counters,
    hottest: Hottest,
    policies: Policies,
    held: LastLook,
    bounded: Bounded,
    workers: Workers,
    throughput: Throughput,
    latencies: Latencies,
    samples: Samples,
    cron_tallies: Tallies,
    stop: watch::Sender<bool>,
    duties: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    /// Counts a run that ended without a report from its worker.
    fn count_lost(&self, job_type: &JobType, queue: &QueueName) {
        self.counters.count(job_type, queue, "failed");
        self.throughput.count(&Tenant::from_stored(queue.tenant()), false);
    }
}

impl Drop for Shared {
    /// The last handle is gone. Whoever shuts down the runtime waits for the duties' blocking work, and no
    /// caller is left that wants that work to wait for other processes.
    fn drop(&mut self) {
        self.store.closing();
    }
}

impl Engine {
    /// Starts an engine on a store. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the store's thread cannot be started.
    pub fn start(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        Self::keeping(backend, Retention::default())
    }

    /// As [`start`](Self::start), keeping jobs that this engine ends as `retention` says, whoever else uses the store.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn keeping(backend: Arc<dyn Backend>, retention: Retention) -> Result<Self, StoreError> {
        let engine = Self::on(Store::keeping(backend, retention)?);
        let duties = tokio::spawn(engine.duties());
        if let Ok(mut slot) = engine.shared.duties.try_lock() {
            *slot = Some(duties);
        }
        Ok(engine)
    }

    /// An engine whose duties run only by hand, as in tests, and that keeps ended jobs by the default
    /// retention. To look at a store with a retention of your own, use [`on`](Self::on).
    ///
    /// # Errors
    /// When the store's thread cannot be started.
    pub fn without_duties(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        Ok(Self::on(Store::open(backend)?))
    }

    /// An engine on a store that is already open. Its [duties](Self::duties) do not run by themselves.
    pub fn on(store: Store) -> Self {
        let shared = Shared {
            store,
            duplicates: DuplicateLog::default(),
            counters: Counters::default(),
            hottest: Hottest::default(),
            policies: Policies::default(),
            held: LastLook::default(),
            bounded: Bounded::default(),
            workers: Workers::default(),
            throughput: Throughput::default(),
            latencies: Latencies::default(),
            samples: Samples::default(),
            cron_tallies: Tallies::default(),
            stop: watch::Sender::new(false),
            duties: tokio::sync::Mutex::new(None),
        };
        let shared = Arc::new(shared);
        let counting = Arc::downgrade(&shared);
        shared.store.hints().count_by(move |offered| {
            if let Some(shared) = counting.upgrade() {
                shared.counters.count(&offered.job_type, &offered.queue, offered.outcome);
            }
        });
        Self { shared, space: Arc::default() }
    }

    /// The engine as a tenant sees it. Ids, keys and queues in requests and answers are the tenant's own;
    /// those of others look as if they did not exist.
    ///
    /// This is the one place where tenants are kept apart: a caller with only this handle cannot reach beyond
    /// it, except through the [store](Self::store), the [counters](Self::counters) and the duties, which all
    /// tenants share.
    #[must_use]
    pub fn within(&self, tenant: &Tenant) -> Self {
        let space = Namespace::new(tenant.clone(), &self.shared.store.secret());
        Self { shared: Arc::clone(&self.shared), space: Arc::new(space) }
    }

    /// The tenant of this handle.
    pub fn tenant(&self) -> &Tenant {
        self.space.tenant()
    }

    pub(crate) fn space(&self) -> &Namespace {
        &self.space
    }

    /// The loop that runs the duties, for a caller that polls it itself. It ends with [`stop`](Self::stop),
    /// with the store, or with the last handle on this engine. Needs tokio's clock.
    pub fn duties(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = &self.shared;
        rounds::run_duties(shared.store.clone(), Arc::downgrade(shared), shared.stop.subscribe())
    }

    /// The store, behind its batcher.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// The counters since this engine was started.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    pub(crate) fn cron_tallies(&self) -> &Tallies {
        &self.shared.cron_tallies
    }

    pub(crate) fn samples(&self) -> &Samples {
        &self.shared.samples
    }

    /// The tenant's policies used since this process began, by type; and how many requests, of any tenant, had
    /// a policy beyond those that are counted.
    pub fn policies_in_use(&self) -> (Vec<InUse>, u64) {
        self.shared.policies.of(self.tenant().as_str())
    }

    pub(crate) fn last_look(&self) -> &LastLook {
        &self.shared.held
    }

    /// What the store is and promises.
    pub fn facts(&self) -> Facts {
        self.shared.store.facts()
    }

    /// Stops the duties and writes what they still hold in memory. Requests are still served.
    pub async fn stop(&self) {
        self.shared.stop.send_replace(true);
        if let Some(duties) = self.shared.duties.lock().await.take() {
            drop(duties.await);
        }
        self.shared.duplicates.flush_all(&self.shared.store).await;
    }

    /// Stops the duties, as [`stop`](Self::stop) does, and closes the store: requests made before are
    /// answered; later ones, through any handle, get [`StoreError::Closed`]. When this returns, the store's
    /// file can be reopened at once.
    pub async fn close(&self) {
        self.shared.store.closing();
        self.stop().await;
        self.shared.store.close().await;
    }

    /// Admits one job. `source` names who offers it, for the duplicates record.
    ///
    /// # Errors
    /// When the store cannot commit; the job was then not admitted, as far as is [known](Store::decide).
    pub fn enqueue<'a>(
        &'a self,
        offer: Offer,
        source: &'a str,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send + use<'a> {
        // Bound outside the future, which then holds the offer once and not twice.
        let mut offer = self.space.stored_offer(offer);
        async move {
            offer.bounded = self.is_bounded(&offer.queue).await?;
            let mut reads = Reads::default();
            offer.reads(&mut reads);
            let label = Label::of(&offer);
            let observed = self.samples().look(&offer).map(Box::new);
            let keyless =
                is_planted(Bug::FailOpen).then(|| Box::new(Offer { unique: None, ..offer.clone() }));
            let may_be_silent = offer.may_be_silent();
            let mut decide = move |draft: &mut Draft| Ok((enqueue(draft, &offer)?, draft.now()));
            let store = &self.shared.store;
            let at_once = self.decide_at_once(&reads, may_be_silent, &mut decide);
            let is_at_once = at_once.is_some();
            let decided = match at_once {
                Some(decided) => Ok(decided),
                None => store.decide(reads, decide).await,
            };
            let (outcome, now) = match (decided, keyless) {
                (Err(StoreError::Unavailable(_) | StoreError::Behind(_)), Some(offer)) => {
                    let decide = move |draft: &mut Draft| Ok((enqueue(draft, &offer)?, draft.now()));
                    store.decide(Reads::default(), decide).await?
                }
                (decided, _) => decided?,
            };
            self.tell(&label, &outcome, now, source);
            self.samples().take(self.tenant(), &label.job_type, observed.map(|seen| *seen), &outcome);
            if is_at_once {
                let_others_go_on().await;
            }
            Ok(self.space.shown(outcome))
        }
    }

    /// The outcome at once, if every offer is a duplicate of a durable job; `None` means that it must be
    /// decided in a group. A caller that gets it this way has yielded to no other task: with many duplicates
    /// it should do so before it answers.
    fn decide_at_once<T>(
        &self,
        reads: &Reads,
        may_be_silent: bool,
        decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
    ) -> Option<T> {
        if may_be_silent { self.shared.store.decide_silently(reads, decide) } else { None }
    }

    /// Admits a batch of jobs.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was then admitted, as far as is [known](Store::decide).
    pub async fn enqueue_batch(
        &self,
        offers: Vec<Offer>,
        mode: Mode,
        source: &str,
    ) -> Result<Batch, StoreError> {
        let mut offers: Vec<Offer> = offers.into_iter().map(|offer| self.space.stored_offer(offer)).collect();
        for offer in &mut offers {
            offer.bounded = self.is_bounded(&offer.queue).await?;
        }
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let labels: Vec<_> = offers.iter().map(Label::of).collect();
        let observed = self.look_at(&offers);
        let may_be_silent = offers.iter().all(Offer::may_be_silent);
        let mut decide = move |draft: &mut Draft| Ok((enqueue_batch(draft, &offers, mode)?, draft.now()));
        let at_once = self.decide_at_once(&reads, may_be_silent, &mut decide);
        let is_at_once = at_once.is_some();
        let (batch, now) = match at_once {
            Some(decided) => decided,
            None => self.shared.store.decide(reads, decide).await?,
        };
        self.count_batch(&batch, &labels, now, source);
        self.take_batch(observed, labels.iter().map(|label| &label.job_type), &batch);
        if is_at_once {
            let_others_go_on().await;
        }
        Ok(self.space.shown(batch))
    }

    fn count_batch(&self, batch: &Batch, labels: &[Label], now: Timestamp, source: &str) {
        let outcomes: Vec<(usize, &Outcome)> = match batch {
            Batch::Done(outcomes) => outcomes.iter().enumerate().collect(),
            Batch::Refused { index, outcome } => vec![(*index, outcome)],
        };
        for (index, outcome) in outcomes {
            if let Some(label) = labels.get(index) {
                self.tell(label, outcome, now, source);
            }
        }
    }

    /// Counts the outcome of one offer, and records a duplicate with its holder.
    pub(crate) fn tell(&self, label: &Label, outcome: &Outcome, now: Timestamp, source: &str) {
        let kind = outcome.kind();
        self.shared.counters.count(&label.job_type, &label.queue, kind.name());
        self.shared.policies.count(label, kind);
        self.shared.hottest.count(outcome, &label.job_type, &label.queue, &self.space);
        self.note(label, outcome, now, source);
    }

    fn note(&self, label: &Label, outcome: &Outcome, now: Timestamp, source: &str) {
        if let (Some(holder), Some(told)) = (outcome.absorbed_by(), outcome.duplicate_event()) {
            let trace = traceparent(&label.body).unwrap_or_default();
            self.shared.duplicates.note(holder, told, now, Sender { source, traceparent: &trace });
        }
    }

    /// A whole job.
    ///
    /// # Errors
    /// When the store cannot be read, or the stored job cannot be decoded.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.jobs(vec![id]).await?.pop())
    }

    /// Those of these jobs that exist, in order.
    ///
    /// # Errors
    /// As [`job`](Self::job).
    pub async fn jobs(&self, mut ids: Vec<JobId>) -> Result<Vec<Job>, StoreError> {
        ids.iter_mut().for_each(|id| *id = self.space.stored_id(*id));
        let snapshot = self.shared.store.load(Reads { fulls: ids.clone(), ..Reads::default() }).await?;
        let mut jobs = Vec::with_capacity(ids.len());
        for id in ids {
            let Some((head, Some(full))) = snapshot.peek(id) else { continue };
            if !self.space.owns(&head.queue) {
                continue;
            }
            let mut job = Job::decode(head.clone(), full)?;
            if let Some(waiting) = self.shared.duplicates.waiting(id) {
                job.duplicates.merge(waiting);
            }
            jobs.push(self.space.shown(job));
        }
        Ok(jobs)
    }

    /// The heads of those of these jobs that exist, in order: for callers that need neither body nor notes.
    ///
    /// # Errors
    /// As [`job`](Self::job).
    pub async fn heads(&self, mut ids: Vec<JobId>) -> Result<Vec<Head>, StoreError> {
        ids.iter_mut().for_each(|id| *id = self.space.stored_id(*id));
        let snapshot = self.shared.store.load(Reads { heads: ids.clone(), ..Reads::default() }).await?;
        let found = ids.into_iter().filter_map(|id| snapshot.peek(id)).map(|(head, _)| head);
        Ok(found
            .filter(|head| self.space.owns(&head.queue))
            .map(|head| self.space.shown(head.clone()))
            .collect())
    }

    /// What would happen to a job if it were offered now: the decision of [`enqueue`](Self::enqueue), without
    /// writing it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn explain(&self, offer: Offer) -> Result<Explanation, StoreError> {
        let mut offer = self.space.stored_offer(offer);
        offer.bounded = self.is_bounded(&offer.queue).await?;
        let mut reads = Reads::default();
        offer.reads(&mut reads);
        let explained = self.shared.store.decide(reads, move |draft| explain(draft, &offer)).await?;
        Ok(self.space.shown(explained))
    }

    /// The holders of a key; if there are more than
    /// [`HOLDERS_PER_KEY_MAX`](semel_core::limits::HOLDERS_PER_KEY_MAX), only those that matter to a decision.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn holders(&self, key: UniqueKey) -> Result<Holders, StoreError> {
        let key = self.space.other_key(key);
        let read = KeyRead { key, states: StateSet::ALL, all: true };
        let snapshot = self.shared.store.load(Reads { keys: vec![read], ..Reads::default() }).await?;
        let view = snapshot.peek_key(&key);
        let holders = view.map(|view| view.holders.clone()).unwrap_or_default();
        let mut heads = self.space.shown(holders);
        heads.retain(|head| self.space.owns(&head.queue));
        Ok(Holders { heads, are_all: !view.is_some_and(|view| view.too_many), now: snapshot.now })
    }

    /// The store's time. An answer also shows that the store responds.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shared.store.load(Reads::default()).await?.now)
    }

    /// How far the store's time is from this machine's clock. A store's time never goes back, so it stays
    /// ahead if a clock it relied on was ahead for a while.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn time_offset(&self) -> Result<Offset, StoreError> {
        let time = self.now().await?;
        Ok(Offset::between(time, SystemClock.now()))
    }

    /// Checks whether the store would accept a write now.
    ///
    /// # Errors
    /// The error that a write would get.
    pub async fn takes_writes(&self) -> Result<(), StoreError> {
        self.shared.store.takes_writes().await
    }

    /// A page of heads.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list(&self, mut filter: Filter) -> Result<Listing, StoreError> {
        filter.tenant = Some(self.tenant().clone());
        filter.queue = filter.queue.map(|queue| self.space.stored_queue(&queue));
        filter.before = filter.before.map(|id| self.space.stored_id(id));
        let listing = self.shared.store.list(filter).await?;
        Ok(Listing { heads: self.space.shown(listing.heads), next: self.space.shown(listing.next) })
    }
}

/// Yields once to all other tasks that are ready.
async fn let_others_go_on() {
    let mut is_later = false;
    // `tokio::task::yield_now` wakes the task only from tokio's own scheduler, which a nested executor does not see.
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_later, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
