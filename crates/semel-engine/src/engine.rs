//! What callers, workers and operators ask, each as one decision, and the loop that runs the duties.

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

/// A running engine. Cheap to clone; the duties stop with [`Engine::stop`], [`Engine::close`] or with the
/// last handle.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Whose ids, keys and queues are spoken of.
    space: Arc<Namespace>,
}

/// Who holds a key.
#[derive(Clone, Debug)]
pub struct Holders {
    /// Their heads, in the order in which they came.
    pub heads: Vec<Head>,
    /// Whether there are no others: of very many those alone are looked at that decide.
    pub are_all: bool,
    /// The store's time at the look.
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
    /// Counts a run that ended without its worker's word.
    fn count_lost(&self, job_type: &JobType, queue: &QueueName) {
        self.counters.count(job_type, queue, "failed");
        self.throughput.count(&Tenant::from_stored(queue.tenant()), false);
    }
}

impl Drop for Shared {
    /// The last handle is gone. Whoever ends a runtime waits for what its duties do on threads of their own, and nobody is left
    /// who wanted them to wait for others.
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

    /// The same, where what ends is kept by these rules: what this engine ends, whoever else is on the store.
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

    /// An engine whose duties nobody runs but by hand, as tests do, and that keeps what ends by the default rules. Who only looks at a
    /// store, by rules of his own, is [on](Self::on) one.
    ///
    /// # Errors
    /// When the store's thread cannot be started.
    pub fn without_duties(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        Ok(Self::on(Store::open(backend)?))
    }

    /// An engine on a store that is open already. Nobody runs its [duties](Self::duties).
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

    /// The engine as a tenant sees it. Ids, keys and queues in what is asked are the tenant's, and so are those in
    /// what is answered; what is another's is answered like what is not there. This is the one place where tenants are
    /// kept apart: whoever holds only this handle cannot reach beyond it, but for the [store](Self::store), the
    /// [counters](Self::counters) and the duties, which are everybody's.
    #[must_use]
    pub fn within(&self, tenant: &Tenant) -> Self {
        let space = Namespace::new(tenant.clone(), &self.shared.store.secret());
        Self { shared: Arc::clone(&self.shared), space: Arc::new(space) }
    }

    /// Whose engine this is.
    pub fn tenant(&self) -> &Tenant {
        self.space.tenant()
    }

    pub(crate) fn space(&self) -> &Namespace {
        &self.space
    }

    /// The loop of the duties, for a caller who runs it himself. It ends with [`stop`](Self::stop), with the store, or
    /// with the last handle on this engine. Needs tokio's clock.
    pub fn duties(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = &self.shared;
        rounds::run_duties(shared.store.clone(), Arc::downgrade(shared), shared.stop.subscribe())
    }

    /// The store behind its batcher.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    pub(crate) fn cron_tallies(&self) -> &Tallies {
        &self.shared.cron_tallies
    }

    pub(crate) fn samples(&self) -> &Samples {
        &self.shared.samples
    }

    /// The tenant's policies in use since this process began, by type; and how many requests, of whomever, had one that is
    /// not among those that are counted.
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

    /// Stops the duties and writes what they still hold. Requests go on being served.
    pub async fn stop(&self) {
        self.shared.stop.send_replace(true);
        if let Some(duties) = self.shared.duties.lock().await.take() {
            drop(duties.await);
        }
        self.shared.duplicates.flush_all(&self.shared.store).await;
    }

    /// Stops the duties, as [`stop`](Self::stop) does, and closes the store: what was asked before is answered, what is
    /// asked afterwards, through whatever handle, is answered with [`StoreError::Closed`]. When this returns the store's
    /// file can be opened again at once.
    pub async fn close(&self) {
        self.shared.store.closing();
        self.stop().await;
        self.shared.store.close().await;
    }

    /// Admits one job. `source` says who offers it, for the duplicates record.
    ///
    /// # Errors
    /// When the store cannot commit; the job was not admitted then, as far as is [known](Store::decide).
    pub fn enqueue<'a>(
        &'a self,
        offer: Offer,
        source: &'a str,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send + use<'a> {
        // Its own before the future is made, so that it is in there once and not twice.
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

    /// The decision on what is offered, at once, where all of it are duplicates of what is there and durable: else it is to be taken
    /// with others'. Who gets it so has waited for nobody: a caller with many duplicates is to let others go on before he has his
    /// answer.
    fn decide_at_once<T>(
        &self,
        reads: &Reads,
        may_be_silent: bool,
        decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
    ) -> Option<T> {
        if may_be_silent { self.shared.store.decide_silently(reads, decide) } else { None }
    }

    /// Admits a batch.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was admitted then, as far as is [known](Store::decide).
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

    /// Counts what became of one offer, and records a duplicate with its holder.
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
    /// When the store cannot be read, or what is stored of the job cannot.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.jobs(vec![id]).await?.pop())
    }

    /// Those of these jobs that are there, in order.
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

    /// The heads of those of these jobs that are there, in order: for who wants nothing else of them, whatever they carry.
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

    /// What would happen to a job if it were offered now: the decision of [`enqueue`](Self::enqueue), not written.
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

    /// The holders of a key; of more than [`HOLDERS_PER_KEY_MAX`](semel_core::limits::HOLDERS_PER_KEY_MAX) those that decide.
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

    /// The store's time; a sign that the store answers.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shared.store.load(Reads::default()).await?.now)
    }

    /// How far the store's time is from this machine's clock: a store's never goes back, so one whose clock was ahead for a while stays
    /// ahead while it is used.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn time_offset(&self) -> Result<Offset, StoreError> {
        let time = self.now().await?;
        Ok(Offset::between(time, SystemClock.now()))
    }

    /// Whether the store would take a write now; a sign that it is well.
    ///
    /// # Errors
    /// What a write would be told.
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

/// Once round for whoever else is ready to run.
async fn let_others_go_on() {
    let mut is_later = false;
    // tokio's own wakes the task when its runtime looks round, which an executor inside of it does not see.
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_later, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
