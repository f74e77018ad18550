//! A store under test: opened with a manually driven clock and, where it is durable, reopened.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::draft::{Draft, Full, Group, KeyRead, Missing, Reads, Snapshot};
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::{self, Settled};
use semel_core::slot::Due;
use semel_core::state::StateSet;
use semel_core::unique::UniqueKey;
use semel_core::{life, time::Timestamp};
use semel_store::backend::{Applied, Backend, Batch, Claim, Claimed, QueueStats, Verdict};
use semel_store::clock::{Clock, ManualClock};

use crate::transact::transact;

/// What is done to the store after each step of a case, so that one case is played in several ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// The store's housekeeping, until nothing is left to do.
    Maintain,
    /// The store is closed and opened again.
    Reopen,
}

type Open = Box<dyn Fn(&ManualClock) -> Arc<dyn Backend> + Send + Sync>;

/// A fresh store and its clock.
pub struct Fixture {
    /// The store's clock.
    pub clock: ManualClock,
    backend: Mutex<Option<Arc<dyn Backend>>>,
    open: Open,
    step: Step,
    dir: Option<TempDir>,
    /// The number of partitions of the store.
    pub partitions: u16,
}

impl Fixture {
    /// A store that `open` opens; it is called again whenever the store is reopened.
    pub fn new(step: Step, open: impl Fn(&ManualClock) -> Arc<dyn Backend> + Send + Sync + 'static) -> Self {
        crate::planted::plant_from_environment();
        let clock = ManualClock::default();
        let backend = open(&clock);
        Self {
            clock,
            backend: Mutex::new(Some(backend)),
            open: Box::new(open),
            step,
            dir: None,
            partitions: 1,
        }
    }

    /// The same fixture, for a store that is divided into this many partitions.
    #[must_use]
    pub fn divided(self, partitions: u16) -> Self {
        Self { partitions, ..self }
    }

    /// A store in a directory of its own, deleted with the fixture.
    pub fn in_dir(
        step: Step,
        open: impl Fn(&Path, &ManualClock) -> Arc<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        let dir = TempDir::new();
        let path = dir.path().to_path_buf();
        let fixture = Self::new(step, move |clock| open(&path, clock));
        Self { dir: Some(dir), ..fixture }
    }

    /// The store's directory, if it has one.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_ref().map(TempDir::path)
    }

    /// The store. Do not keep the handle over a step, which may close the store.
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.lock().unwrap().clone().unwrap()
    }

    /// Runs the store's housekeeping until nothing is left to do.
    pub async fn maintain(&self) {
        while self.backend().maintain().await.unwrap() {}
    }

    /// Closes the store and opens it again.
    pub fn reopen(&self) {
        let mut backend = self.backend.lock().unwrap();
        let closed = backend.take().unwrap();
        assert_eq!(Arc::strong_count(&closed), 1, "somebody still uses the store");
        drop(closed);
        *backend = Some((self.open)(&self.clock));
    }

    async fn step(&self) {
        match self.step {
            Step::Nothing => {}
            Step::Maintain => self.maintain().await,
            Step::Reopen => self.reopen(),
        }
    }

    /// Moves the clock to `by` past the store's present time, which may be a little ahead of the clock.
    pub async fn advance(&self, by: Duration) {
        let now = self.now().await;
        if now > Clock::now(&self.clock) {
            self.clock.set(now);
        }
        self.clock.advance(by);
    }

    /// Loads a snapshot of what `reads` names.
    pub async fn load(&self, reads: &Reads) -> Snapshot {
        self.backend().load(reads).await.unwrap()
    }

    /// The store's present time.
    pub async fn now(&self) -> Timestamp {
        self.load(&Reads::default()).await.now
    }

    /// A draft over what `reads` names.
    pub async fn draft(&self, reads: &Reads) -> Draft {
        let backend = self.backend();
        Draft::new(backend.load(reads).await.unwrap(), 7, backend.rows())
    }

    /// Takes a decision without committing it: the first half of an interleaving.
    pub async fn decided<T>(
        &self,
        reads: &Reads,
        mut decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
    ) -> (T, Group) {
        let mut draft = self.draft(reads).await;
        loop {
            if let Ok(outcome) = decide(&mut draft) {
                return (outcome, draft.finish());
            }
            draft.roll_back();
            let missing = draft.take_missing();
            draft.extend(self.load(&missing).await);
        }
    }

    /// Commits groups: the second half of an interleaving. No step follows.
    pub async fn commit(&self, groups: Vec<Group>) -> Vec<Verdict> {
        self.commit_all(groups, Vec::new()).await.groups
    }

    /// Commits groups and claims. No step follows.
    pub async fn commit_all(&self, groups: Vec<Group>, claims: Vec<Claim>) -> Applied {
        self.backend().commit(Batch { groups, claims }).await.unwrap()
    }

    /// Takes a decision and commits it.
    pub async fn decide<T>(&self, decide: impl FnMut(&mut Draft) -> Result<T, Missing>) -> T {
        self.decide_on(&Reads::default(), decide).await
    }

    /// Takes a decision over what `reads` names and commits it.
    pub async fn decide_on<T>(
        &self,
        reads: &Reads,
        decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
    ) -> T {
        let backend = self.backend();
        let outcome = transact(&*backend, reads, decide).await.unwrap();
        drop(backend);
        self.step().await;
        outcome
    }

    /// Offers a job, and commits the decision.
    pub async fn enqueue(&self, offer: &Offer) -> Outcome {
        let mut reads = Reads::default();
        offer.reads(&mut reads);
        self.decide_on(&reads, |draft| enqueue(draft, offer)).await
    }

    /// Offers a job, and asserts that it is created.
    pub async fn create(&self, offer: &Offer) -> Head {
        match self.enqueue(offer).await {
            Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head) => *head,
            other => panic!("not created: {other:?}"),
        }
    }

    /// Claims up to `limit` jobs of `queue`.
    pub async fn claim(&self, queue: &str, limit: u32) -> Claimed {
        let mut applied = self.commit_all(Vec::new(), vec![claim(&[queue], limit)]).await;
        self.step().await;
        applied.claims.remove(0)
    }

    /// Claims the one next job of the default queue.
    pub async fn claim_one(&self) -> (Head, Full) {
        let mut claimed = self.claim("default", 1).await;
        assert_eq!(claimed.jobs.len(), 1, "{claimed:?}");
        claimed.jobs.remove(0)
    }

    /// Acknowledges the run (ACK) with the lease of `head`.
    pub async fn complete(&self, head: &Head) -> Settled {
        let bearer = bearer(head);
        self.decide(|draft| settle::complete(draft, head.id, &bearer, None)).await
    }

    /// Reports the run as failed (FAIL) with the lease of `head`.
    pub async fn fail(&self, head: &Head) -> Settled {
        let bearer = bearer(head);
        let report = settle::Report { code: "boom".to_owned(), ..settle::Report::default() };
        self.decide(|draft| settle::fail(draft, head.id, &bearer, &report)).await
    }

    /// Cancels the job (CANCEL), without a lease.
    pub async fn cancel(&self, id: JobId) -> Settled {
        self.decide(|draft| life::cancel(draft, id, &Bearer::default())).await
    }

    /// Creates a job, claims it and completes it.
    pub async fn finished(&self, offer: &Offer) -> Head {
        let head = self.create(offer).await;
        let mut claimed = self.claim(offer.queue.as_str(), 100).await;
        claimed.jobs.retain(|(claimed, _)| claimed.id == head.id);
        done(self.complete(&claimed.jobs[0].0).await)
    }

    /// The head of a job.
    pub async fn head(&self, id: JobId) -> Option<Head> {
        let snapshot = self.load(&Reads { heads: vec![id], ..Reads::default() }).await;
        snapshot.peek(id).map(|(head, _)| head.clone())
    }

    /// A whole job, its notes in the order of their kinds.
    pub async fn full(&self, id: JobId) -> Option<(Head, Full)> {
        let snapshot = self.load(&Reads { fulls: vec![id], ..Reads::default() }).await;
        snapshot.peek(id).map(|(head, full)| {
            let mut full = full.unwrap().clone();
            full.notes.sort_by_key(|(kind, _)| *kind);
            (head.clone(), full)
        })
    }

    /// All holders of a key.
    pub async fn holders(&self, key: UniqueKey) -> Vec<Head> {
        let read = KeyRead { key, states: StateSet::ALL, all: true };
        let snapshot = self.load(&Reads { keys: vec![read], ..Reads::default() }).await;
        let mut holders = snapshot.peek_key(&key).unwrap().holders.clone();
        holders.sort_by_key(|holder| holder.id);
        holders
    }

    /// The jobs that have become due for a duty, at most `limit`.
    pub async fn due(&self, due: Due, limit: u32) -> Vec<JobId> {
        self.backend().due(due, limit).await.unwrap().ids
    }

    /// Runs the timer, lease and expiry duties on everything that is due.
    pub async fn run_duties(&self) {
        for id in self.due(Due::Timer, 1_000).await {
            self.decide(|draft| life::promote(draft, id)).await;
        }
        for id in self.due(Due::Lease, 1_000).await {
            self.decide(|draft| settle::reap(draft, id)).await;
        }
        for id in self.due(Due::Expiry, 1_000).await {
            self.decide(|draft| life::expire(draft, id)).await;
        }
    }

    /// Purges everything that is due, with the store's housekeeping before and after. Returns how many jobs
    /// were purged.
    pub async fn purge(&self) -> usize {
        self.maintain().await;
        let mut purged = 0;
        loop {
            let ids = self.due(Due::Purge, 100).await;
            let before = purged;
            for id in ids {
                purged += usize::from(self.decide(|draft| life::purge(draft, id)).await);
            }
            if purged == before {
                break;
            }
        }
        self.maintain().await;
        // A store may forget in pieces; a small store needs two passes.
        self.maintain().await;
        purged
    }

    /// A queue's statistics.
    pub async fn queue(&self, name: &str) -> Option<QueueStats> {
        let queues = self.backend().queues().await.unwrap();
        queues.into_iter().find(|queue| queue.row.name.as_str() == name)
    }
}

/// The bearer of the lease that a claim granted.
pub fn bearer(head: &Head) -> Bearer {
    Bearer {
        lease: Some(LeaseToken(head.fence)),
        worker: head.lease.as_ref().map(|lease| lease.worker.clone()),
    }
}

/// A claim by worker `w`.
pub fn claim(queues: &[&str], limit: u32) -> Claim {
    let queues = queues.iter().map(|name| QueueName::from_stored(name)).collect();
    Claim { queues, limit, grant: Grant::new("w".into(), None), closed: Vec::new() }
}

/// Decides on these jobs one after the other, each of which must be created; commits nothing.
pub async fn groups_of(store: &dyn Backend, offers: &[Offer]) -> Vec<Group> {
    let mut reads = Reads::default();
    offers.iter().for_each(|offer| offer.reads(&mut reads));
    let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
    let mut groups = Vec::with_capacity(offers.len());
    for offer in offers {
        let outcome = enqueue(&mut draft, offer).unwrap();
        assert!(outcome.is_inserted(), "not created: {outcome:?}");
        groups.push(draft.finish());
    }
    groups
}

/// The job after a request that must have been carried out.
pub fn done(settled: Settled) -> Head {
    match settled {
        Settled::Done(head) => *head,
        other => panic!("not done: {other:?}"),
    }
}

/// Text as bytes.
pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A temporary directory, deleted on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A fresh temporary directory.
    pub fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("semel-test-{}-{number}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A fresh directory in memory where the system offers that: for tests that write much and sync often.
    pub fn in_memory() -> Self {
        let made = Self::new();
        let name = made.path().file_name().unwrap_or_default();
        let path = Path::new("/dev/shm").join(name);
        if std::fs::create_dir(&path).is_ok() { Self(path) } else { made }
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for TempDir {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
