//! What callers, workers and operators ask, each as one decision, and the loop that runs the duties.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::{Draft, Full, KeyRead, Missing, QueueRow, Reads};
use semel_core::enqueue::{Batch, Mode, Offer, Outcome, enqueue, enqueue_batch};
use semel_core::explain::{Explanation, explain};
use semel_core::follow_up::hold_again;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Bearer, Grant, Unclaimable};
use semel_core::life::{self, KeyReleased, Revived};
use semel_core::limit::{self, Gate, Turn};
use semel_core::planted::{Bug, is_planted};
use semel_core::settings::{Backpressure, Directive, QueueSettings};
use semel_core::settle::{self, Refusal, Report, Settled};
use semel_core::state::StateSet;
use semel_core::tenant::{Namespace, Tenant};
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::backend::{Backend, Claim, Facts, Filter, Listing, QueueStats};
use semel_store::{Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::counters::{Counters, outcome_name};
use crate::duplicates::{DuplicateLog, Reason};
use crate::duty::{Expire, Promote, Purge, Ran, Reap};
use crate::job::Job;
use crate::limits::LimitSeen;
use crate::queues::Bounded;
use crate::throughput::{LastMinute, Throughput};
use crate::workers::Workers;

/// The longest the duties sleep without looking, for whatever a hint failed to say.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// How often finished jobs are looked over and the store keeps house.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(500);
/// How often absorbed duplicates are written to their holders: within a second, and hot holders no more often.
const DUPLICATES_EVERY: Duration = Duration::from_millis(900);
/// How long the duties rest after the store failed them.
const REST_AFTER_FAILURE: Duration = Duration::from_millis(250);

/// A running engine. Cheap to clone; the duties stop with [`Engine::stop`], [`Engine::close`] or with the
/// last handle.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Whose ids, keys and queues are spoken of.
    space: Arc<Namespace>,
}

struct Shared {
    store: Store,
    duplicates: DuplicateLog,
    counters: Counters,
    bounded: Bounded,
    workers: Workers,
    throughput: Throughput,
    stop: watch::Sender<bool>,
    duties: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts an engine on a store. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the store's thread cannot be started.
    pub fn start(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        let engine = Self::without_duties(backend)?;
        let duties = tokio::spawn(engine.duties());
        if let Ok(mut slot) = engine.shared.duties.try_lock() {
            *slot = Some(duties);
        }
        Ok(engine)
    }

    /// An engine whose duties nobody runs, for tests that run them by hand.
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
            bounded: Bounded::default(),
            workers: Workers::default(),
            throughput: Throughput::default(),
            stop: watch::Sender::new(false),
            duties: tokio::sync::Mutex::new(None),
        };
        Self { shared: Arc::new(shared), space: Arc::default() }
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
        run_duties(self.shared.store.clone(), Arc::downgrade(&self.shared), self.shared.stop.subscribe())
    }

    /// The store behind its batcher.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What the store is and promises.
    pub fn facts(&self) -> &Facts {
        self.shared.store.facts()
    }

    /// Stops the duties and writes what they still hold. Requests go on being served.
    pub async fn stop(&self) {
        self.shared.stop.send_replace(true);
        if let Some(duties) = self.shared.duties.lock().await.take() {
            drop(duties.await);
        }
        while matches!(self.shared.duplicates.flush(&self.shared.store).await, Ok(true)) {}
    }

    /// Stops the duties, as [`stop`](Self::stop) does, and closes the store: what was asked before is answered, what is
    /// asked afterwards, through whatever handle, is answered with [`StoreError::Closed`]. When this returns the store's
    /// file can be opened again at once.
    pub async fn close(&self) {
        self.stop().await;
        self.shared.store.close().await;
    }

    /// Admits one job. `source` says who offers it, for the duplicates record.
    ///
    /// # Errors
    /// When the store cannot commit; the job was not admitted then.
    pub async fn enqueue(&self, offer: Offer, source: &str) -> Result<Outcome, StoreError> {
        let mut offer = self.space.stored_offer(offer);
        offer.bounded = self.shared.bounded.may_be(&self.shared.store, &offer.queue).await?;
        let mut reads = Reads::default();
        offer.reads(&mut reads);
        let labels = (offer.job_type.clone(), offer.queue.clone());
        let keyless = is_planted(Bug::FailOpen).then(|| Offer { unique: None, ..offer.clone() });
        let decided =
            self.shared.store.decide(reads, move |draft| Ok((enqueue(draft, &offer)?, draft.now()))).await;
        let (outcome, now) = match (decided, keyless) {
            (Err(StoreError::Unavailable(_)), Some(offer)) => {
                let reads = Reads::default();
                self.shared
                    .store
                    .decide(reads, move |draft| Ok((enqueue(draft, &offer)?, draft.now())))
                    .await?
            }
            (decided, _) => decided?,
        };
        self.shared.counters.count(&labels.0, &labels.1, outcome_name(&outcome));
        self.note(&outcome, now, source);
        Ok(self.space.shown(outcome))
    }

    /// Admits a batch.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was admitted then.
    pub async fn enqueue_batch(
        &self,
        offers: Vec<Offer>,
        mode: Mode,
        source: &str,
    ) -> Result<Batch, StoreError> {
        let mut offers: Vec<Offer> = offers.into_iter().map(|offer| self.space.stored_offer(offer)).collect();
        for offer in &mut offers {
            offer.bounded = self.shared.bounded.may_be(&self.shared.store, &offer.queue).await?;
        }
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let labels: Vec<_> =
            offers.iter().map(|offer| (offer.job_type.clone(), offer.queue.clone())).collect();
        let (batch, now) = self
            .shared
            .store
            .decide(reads, move |draft| Ok((enqueue_batch(draft, &offers, mode)?, draft.now())))
            .await?;
        let outcomes: Vec<(usize, &Outcome)> = match &batch {
            Batch::Done(outcomes) => outcomes.iter().enumerate().collect(),
            Batch::Refused { index, outcome } => vec![(*index, outcome)],
        };
        for (index, outcome) in outcomes {
            if let Some((job_type, queue)) = labels.get(index) {
                self.shared.counters.count(job_type, queue, outcome_name(outcome));
            }
            self.note(outcome, now, source);
        }
        Ok(self.space.shown(batch))
    }

    fn note(&self, outcome: &Outcome, now: Timestamp, source: &str) {
        if let (Some(holder), Some(reason)) = (outcome.absorbed_by(), Reason::of(outcome)) {
            self.shared.duplicates.note(holder, reason, now, source);
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

    /// What would happen to a job if it were offered now: the decision of [`enqueue`](Self::enqueue), not written.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn explain(&self, offer: Offer) -> Result<Explanation, StoreError> {
        let offer = self.space.stored_offer(offer);
        let mut reads = Reads::default();
        offer.reads(&mut reads);
        let explained = self.shared.store.decide(reads, move |draft| explain(draft, &offer)).await?;
        Ok(self.space.shown(explained))
    }

    /// The holders of a key, and the store's time.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn holders(&self, key: UniqueKey) -> Result<(Vec<Head>, Timestamp), StoreError> {
        let key = self.space.other_key(key);
        let read = KeyRead { key, states: StateSet::ALL, all: true };
        let snapshot = self.shared.store.load(Reads { keys: vec![read], ..Reads::default() }).await?;
        let holders = snapshot.peek_key(&key).map(|view| view.holders.clone()).unwrap_or_default();
        let mut holders = self.space.shown(holders);
        holders.retain(|head| self.space.owns(&head.queue));
        Ok((holders, snapshot.now))
    }

    /// The store's time; a sign that the store answers.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shared.store.load(Reads::default()).await?.now)
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

    /// Takes up to `claim.limit` ready jobs for a worker.
    ///
    /// # Errors
    /// When the store cannot commit; nothing was taken then.
    pub async fn claim(&self, mut claim: Claim) -> Result<Vec<Job>, StoreError> {
        for queue in &mut claim.queues {
            *queue = self.space.stored_queue(queue);
        }
        let limit = claim.limit as usize;
        loop {
            let (closed, _) = self.shared.store.hints().closed_lanes().now();
            let mut claimed = self.shared.store.claim(Claim { closed, ..claim.clone() }).await?;
            let (limited, unclaimable): (Vec<_>, Vec<_>) =
                claimed.unclaimable.into_iter().partition(|(_, reason)| *reason == Unclaimable::Limited);
            let mut settled =
                if unclaimable.is_empty() { 0 } else { self.settle_unclaimable(unclaimable).await? };
            let room = limit.saturating_sub(claimed.jobs.len());
            if !limited.is_empty() && room > 0 {
                let ids = limited.into_iter().take(room).map(|(id, _)| id).collect();
                let (granted, moved) = self.claim_limited(ids, claim.grant.clone()).await?;
                claimed.jobs.extend(granted);
                settled += moved;
            }
            let jobs: Vec<Job> = claimed
                .jobs
                .into_iter()
                .map(|(head, full)| Ok::<_, StoreError>(self.space.shown(Job::decode(head, &full)?)))
                .collect::<Result<_, _>>()?;
            // Behind jobs that could not be granted there may be some that can.
            if !jobs.is_empty() || settled == 0 || limit == 0 {
                return Ok(jobs);
            }
        }
    }

    /// As [`claim`](Self::claim), but when there is nothing waits up to `patience` for something.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn claim_or_wait(&self, claim: Claim, patience: Duration) -> Result<Vec<Job>, StoreError> {
        self.claim_or_wait_until(claim, patience, std::future::pending()).await
    }

    /// The same, but waits no longer once `stop` is done. A claim that has begun is finished: its jobs are leased.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn claim_or_wait_until(
        &self,
        claim: Claim,
        patience: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Job>, StoreError> {
        let mut stop = std::pin::pin!(stop);
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            // Registered before looking, so that nothing that becomes ready in between is slept through.
            let mut ready = std::pin::pin!(self.shared.store.hints().ready());
            ready.as_mut().enable();
            let jobs = self.claim(claim.clone()).await?;
            if !jobs.is_empty() {
                return Ok(jobs);
            }
            let (_, opens) = self.shared.store.hints().closed_lanes().now();
            tokio::select! {
                () = ready => {}
                () = tokio::time::sleep_until(deadline) => return Ok(jobs),
                // A limit that held jobs back may open by itself.
                () = tokio::time::sleep_until(opens.unwrap_or(deadline)), if opens.is_some() => {}
                () = &mut stop => return Ok(jobs),
            }
        }
    }

    /// Has the core decide about jobs under a limit. Besides those it grants, says how many others make way: settled, or
    /// passed over from now on because their limit is closed.
    async fn claim_limited(
        &self,
        ids: Vec<JobId>,
        grant: Grant,
    ) -> Result<(Vec<(Head, Full)>, usize), StoreError> {
        let reads = Reads { fulls: ids.clone(), ..Reads::default() };
        let (turns, now) = self
            .shared
            .store
            .decide(reads, move |draft| Ok((limit::claim(draft, &ids, &grant)?, draft.now())))
            .await?;
        let (mut granted, mut unclaimable, mut moved) = (Vec::new(), Vec::new(), 0);
        for (id, turn) in turns {
            match turn {
                Turn::Granted(job) => granted.push(*job),
                Turn::HeldBack(lane, gate) => {
                    let wait = match gate {
                        Gate::Open => Duration::ZERO,
                        Gate::Until(at) => at.since(now),
                        Gate::Full(soonest) => soonest.map_or(Duration::MAX, |at| at.since(now)),
                    };
                    self.shared.store.hints().closed_lanes().close(lane, wait);
                    moved += 1;
                }
                Turn::Unclaimable(reason) => unclaimable.push((id, reason)),
                Turn::Gone => {}
            }
        }
        if !unclaimable.is_empty() {
            moved += self.settle_unclaimable(unclaimable).await?;
        }
        Ok((granted, moved))
    }

    /// A limit by its key: what holds, and how much of it is used.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn limit(&self, key: &str) -> Result<Option<LimitSeen>, StoreError> {
        let seen = LimitSeen::load(&self.shared.store, &self.space.stored_name(key)).await?;
        Ok(seen.map(|mut seen| {
            seen.usage.limit.key = key.into();
            seen
        }))
    }

    async fn settle_unclaimable(&self, jobs: Vec<(JobId, Unclaimable)>) -> Result<usize, StoreError> {
        let reads = Reads { fulls: jobs.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
        self.shared
            .store
            .decide(reads, move |draft| {
                let mut settled = 0;
                for (id, reason) in &jobs {
                    match reason {
                        Unclaimable::Expired => settled += usize::from(life::expire(draft, *id)?),
                        Unclaimable::Exhausted => settled += usize::from(life::exhaust(draft, *id)?),
                        Unclaimable::Overlaps => settled += usize::from(hold_again(draft, *id)?),
                        Unclaimable::NotReady | Unclaimable::Limited => {}
                    }
                }
                Ok(settled)
            })
            .await
    }

    /// ACK. `result` is a JSON value.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn complete(
        &self,
        id: JobId,
        bearer: Bearer,
        result: Option<Bytes>,
    ) -> Result<Settled, StoreError> {
        let settled = self
            .settle(head_of(self.space.stored_id(id)), id, move |draft, id| {
                settle::complete(draft, id, &bearer, result.as_ref())
            })
            .await?;
        self.count_settled(&settled, "completed");
        Ok(settled)
    }

    /// FAIL.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn fail(&self, id: JobId, bearer: Bearer, report: Report) -> Result<Settled, StoreError> {
        let reads = Reads { fulls: vec![self.space.stored_id(id)], ..Reads::default() };
        let settled =
            self.settle(reads, id, move |draft, id| settle::fail(draft, id, &bearer, &report)).await?;
        self.count_settled(&settled, "failed");
        Ok(settled)
    }

    /// A worker gives a job back unfinished.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn give_back(&self, id: JobId, bearer: Bearer) -> Result<Settled, StoreError> {
        self.settle(head_of(self.space.stored_id(id)), id, move |draft, id| {
            settle::give_back(draft, id, &bearer)
        })
        .await
    }

    /// A worker puts a job off by `wait`, and gets its attempt back.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn snooze(&self, id: JobId, bearer: Bearer, wait: Duration) -> Result<Settled, StoreError> {
        self.settle(head_of(self.space.stored_id(id)), id, move |draft, id| {
            settle::snooze(draft, id, &bearer, wait)
        })
        .await
    }

    /// A worker says how far a run has come: a JSON value.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn progress(&self, id: JobId, bearer: Bearer, value: Bytes) -> Result<Settled, StoreError> {
        self.settle(head_of(self.space.stored_id(id)), id, move |draft, id| {
            settle::progress(draft, id, &bearer, &value)
        })
        .await
    }

    /// A heartbeat for these jobs: one answer per job, in order.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn extend(
        &self,
        mut jobs: Vec<(JobId, Bearer)>,
        visibility_ms: Option<u32>,
    ) -> Result<Vec<Settled>, StoreError> {
        jobs.iter_mut().for_each(|(id, _)| *id = self.space.stored_id(*id));
        let space = Arc::clone(&self.space);
        let reads = Reads { heads: jobs.iter().map(|(id, _)| *id).collect(), ..Reads::default() };
        let extended: Vec<Settled> = self
            .shared
            .store
            .decide(reads, move |draft| {
                let extend = |(id, bearer): &(JobId, Bearer)| {
                    if draft.is_elsewhere(*id, &space) {
                        return Ok(Settled::Refused(Refusal::NotFound));
                    }
                    settle::extend(draft, *id, bearer, visibility_ms)
                };
                jobs.iter().map(extend).collect()
            })
            .await?;
        Ok(self.space.shown(extended))
    }

    /// CANCEL.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel(&self, id: JobId, bearer: Bearer) -> Result<Settled, StoreError> {
        let settled = self
            .settle(head_of(self.space.stored_id(id)), id, move |draft, id| life::cancel(draft, id, &bearer))
            .await?;
        self.count_settled(&settled, "cancelled");
        Ok(settled)
    }

    /// Cancels a job unless it runs.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn cancel_waiting(&self, id: JobId, bearer: &Bearer) -> Result<Settled, StoreError> {
        let bearer = bearer.clone();
        let settled = self
            .settle(head_of(self.space.stored_id(id)), id, move |draft, id| {
                life::cancel_waiting(draft, id, &bearer)
            })
            .await?;
        self.count_settled(&settled, "cancelled");
        Ok(settled)
    }

    /// ACTIVATE.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn activate(&self, id: JobId) -> Result<Settled, StoreError> {
        self.settle(head_of(self.space.stored_id(id)), id, life::activate).await
    }

    /// Sends a dead letter back.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn revive(&self, id: JobId) -> Result<Revived, StoreError> {
        let id = self.space.stored_id(id);
        let reads = Reads { fulls: vec![id], ..Reads::default() };
        let space = Arc::clone(&self.space);
        let revived = self
            .shared
            .store
            .decide(reads, move |draft| {
                if draft.is_elsewhere(id, &space) {
                    return Ok(Revived::Refused(Refusal::NotFound));
                }
                life::revive(draft, id)
            })
            .await?;
        Ok(self.space.shown(revived))
    }

    /// Deletes a dead letter.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn delete_dead_letter(&self, id: JobId) -> Result<Settled, StoreError> {
        self.settle(head_of(self.space.stored_id(id)), id, move |draft, id| {
            life::delete_dead_letter(draft, id)
        })
        .await
    }

    /// Takes a key from its holders.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn release_key(&self, key: UniqueKey) -> Result<KeyReleased, StoreError> {
        let key = self.space.other_key(key);
        let released =
            self.shared.store.decide(Reads::default(), move |draft| life::release_key(draft, key)).await?;
        Ok(self.space.shown(released))
    }

    /// Pauses or resumes a queue.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn set_paused(&self, name: QueueName, paused: bool) -> Result<QueueRow, StoreError> {
        let name = self.space.stored_queue(&name);
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let row =
            self.shared.store.decide(reads, move |draft| life::set_paused(draft, &name, paused)).await?;
        self.shared.store.hints().wake_all();
        Ok(row)
    }

    /// All queues.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, StoreError> {
        let mut queues = self.shared.store.queues().await?;
        queues.retain(|stats| stats.row.name.is_queue() && self.space.owns(&stats.row.name));
        Ok(queues)
    }

    /// What an operator has set for a queue, and how full it is.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queue_settings(&self, name: &QueueName) -> Result<(QueueSettings, u64), StoreError> {
        let name = self.space.stored_queue(name);
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let snapshot = self.shared.store.load(reads).await?;
        let found = snapshot.peek_queue(&name);
        Ok(found.map_or_else(Default::default, |(row, waiting)| {
            (QueueSettings::decode(row.settings.as_deref()), waiting)
        }))
    }

    /// How full a queue is, if it may have a bound.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn pressure(&self, name: &QueueName) -> Result<Option<(Backpressure, u64)>, StoreError> {
        let stored = self.space.stored_queue(name);
        if !self.shared.bounded.may_be(&self.shared.store, &stored).await? {
            return Ok(None);
        }
        let (settings, waiting) = self.queue_settings(name).await?;
        Ok(settings.backpressure.map(|bound| (bound, waiting)))
    }

    /// Sets what holds for a queue. Other servers on the same store follow within a second.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn set_queue(&self, name: QueueName, settings: QueueSettings) -> Result<QueueRow, StoreError> {
        let name = self.space.stored_queue(&name);
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let row =
            self.shared.store.decide(reads, move |draft| life::set_queue(draft, &name, &settings)).await?;
        self.shared.bounded.forget();
        Ok(row)
    }

    /// Runs that ended in the last minute at this process.
    pub fn throughput(&self) -> LastMinute {
        self.shared.throughput.last_minute()
    }

    /// Drops what is kept in memory about the store and its workers, after the store was emptied.
    pub fn forget_what_was_seen(&self) {
        self.shared.bounded.forget();
        self.shared.workers.clear();
        self.shared.store.hints().closed_lanes().clear();
    }

    /// The workers that this server has heard of.
    pub fn workers(&self) -> &Workers {
        &self.shared.workers
    }

    /// What a worker is told.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn directive(&self, worker: &str) -> Result<Directive, StoreError> {
        let name = Directive::row_of(&self.space.stored_name(worker));
        let reads = Reads { queues: vec![name.clone()], ..Reads::default() };
        let snapshot = self.shared.store.load(reads).await?;
        let text = snapshot.peek_queue(&name).and_then(|(row, _)| row.settings.as_deref());
        Ok(Directive::decode(text))
    }

    /// Sets what a worker is told at its next heartbeat, to whichever server it sends that.
    ///
    /// # Errors
    /// When the store cannot commit.
    pub async fn direct(&self, worker: &str, directive: Directive) -> Result<(), StoreError> {
        let worker = self.space.stored_name(worker);
        let reads = Reads { queues: vec![Directive::row_of(&worker)], ..Reads::default() };
        self.shared.store.decide(reads, move |draft| life::direct(draft, &worker, directive)).await
    }

    /// One queue; none when it has neither jobs nor settings.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queue(&self, name: &QueueName) -> Result<Option<QueueStats>, StoreError> {
        let name = self.space.stored_queue(name);
        Ok(self.shared.store.queues().await?.into_iter().find(|stats| stats.row.name == name))
    }

    /// The queues of all tenants: for who runs the server.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues_of_all(&self) -> Result<Vec<QueueStats>, StoreError> {
        self.shared.store.queues().await
    }

    /// Takes one decision about one job of this tenant's. `id` is the job's as the tenant sees it.
    async fn settle(
        &self,
        reads: Reads,
        id: JobId,
        mut decide: impl FnMut(&mut Draft, JobId) -> Result<Settled, Missing> + Send + 'static,
    ) -> Result<Settled, StoreError> {
        let (id, space) = (self.space.stored_id(id), Arc::clone(&self.space));
        let settled = self
            .shared
            .store
            .decide(reads, move |draft| {
                if draft.is_elsewhere(id, &space) {
                    return Ok(Settled::Refused(Refusal::NotFound));
                }
                decide(draft, id)
            })
            .await?;
        Ok(self.space.shown(settled))
    }

    fn count_settled(&self, settled: &Settled, name: &'static str) {
        if let Settled::Done(head) = settled {
            self.shared.counters.count(&head.job_type, &head.queue, name);
            if matches!(name, "completed" | "failed") {
                self.shared.throughput.count(name == "completed");
            }
        }
    }
}

fn head_of(id: JobId) -> Reads {
    Reads { heads: vec![id], ..Reads::default() }
}

/// Runs the duties until told to stop or until nobody holds the engine any more: what is due at once, then what falls
/// due at the next known time or hint.
async fn run_duties(store: Store, engine: std::sync::Weak<Shared>, mut stop: watch::Receiver<bool>) {
    let mut housekeeping = tokio::time::Instant::now();
    let mut duplicates = housekeeping;
    loop {
        let rest = match time_duties(&store).await {
            Ok(rest) => rest,
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "the duties could not use the store; they try again");
                REST_AFTER_FAILURE
            }
        };
        if housekeeping.elapsed() >= HOUSEKEEPING_EVERY {
            let Some(shared) = engine.upgrade() else { return };
            let due = duplicates.elapsed() >= DUPLICATES_EVERY;
            if let Err(error) = keep_house(&shared, due).await {
                tracing::warn!(%error, "housekeeping failed; it is tried again");
            }
            housekeeping = tokio::time::Instant::now();
            if due {
                duplicates = housekeeping;
            }
        }
        tokio::select! {
            // In a fixed order, so that a run that is played again is the same run.
            biased;
            changed = stop.changed() => if changed.is_err() || *stop.borrow() { return },
            () = store.hints().sooner() => {}
            () = tokio::time::sleep(rest.min(HOUSEKEEPING_EVERY)) => {}
        }
    }
}

/// Runs the duties that hang on a time, until nothing is due. Says how long nothing will be.
async fn time_duties(store: &Store) -> Result<Duration, StoreError> {
    loop {
        let runs: [Ran; 3] =
            [Promote.run_once(store).await?, Reap.run_once(store).await?, Expire.run_once(store).await?];
        let now = runs.iter().map(|ran| ran.now).max().unwrap_or_default();
        let next = runs.iter().filter_map(|ran| ran.next).min();
        match next {
            Some(at) if at <= now => {}
            Some(at) => {
                let rest = at.since(now).min(LOOK_AT_LEAST_EVERY);
                store.hints().looks_at(now.saturating_add(rest));
                return Ok(rest);
            }
            None => {
                store.hints().looks_at(now.saturating_add(LOOK_AT_LEAST_EVERY));
                return Ok(LOOK_AT_LEAST_EVERY);
            }
        }
    }
}

async fn keep_house(shared: &Shared, duplicates: bool) -> Result<(), StoreError> {
    while duplicates && shared.duplicates.flush(&shared.store).await? {}
    while Purge.run_once(&shared.store).await?.moved > 0 {}
    while shared.store.maintain().await? {}
    Ok(())
}
