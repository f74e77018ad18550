//! Group commit: whatever callers offer while a commit is in flight is decided together over one snapshot, committed
//! once, and answered. One code for every store; a single decision is a group of one.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use semel_core::draft::{Draft, Group, Missing, Reads, Snapshot, Write};
use semel_core::ident::QueueName;
use semel_core::planted::{Bug, is_planted};
use semel_core::slot::Due;
use semel_core::time::Timestamp;
use tokio::sync::{RwLock, mpsc, oneshot, watch};

use crate::backend::{
    Backend, Batch, Claim, Claimed, DueIds, Filter, Found, Listing, QueueStats, Seek, Verdict,
};
use crate::error::StoreError;
use crate::hints::Hints;
use crate::log::LogPage;

/// Decisions and claims taken into one group at most.
const GROUP_MAX: usize = 1024;
/// Requests that may wait for the batcher before callers wait to offer theirs.
const WAITING_MAX: usize = 16 * 1024;
/// How often a decision is taken again because a record moved under it.
const COMMIT_ATTEMPTS_MAX: u32 = 16;
/// How often one decision may ask for more than was loaded. The end of a workflow's step is the longest way: the job, who
/// waits for it, the workflow, the next step, its key's holders, what they leave behind, and who waits for those.
const LOADS_PER_DECISION_MAX: u32 = 16;

/// A decision on its way to the store.
trait Decide: Send {
    /// What to load before the first try.
    fn reads(&self, reads: &mut Reads);
    /// Takes the decision.
    fn decide(&mut self, draft: &mut Draft) -> Result<(), Missing>;
    /// Hands the outcome to the caller, who may be gone.
    fn answer(self: Box<Self>, verdict: Result<(), StoreError>);
}

struct Decision<T, D> {
    reads: Reads,
    decide: D,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, D> Decide for Decision<T, D>
where
    T: Send,
    D: FnMut(&mut Draft) -> Result<T, Missing> + Send,
{
    fn reads(&self, reads: &mut Reads) {
        reads.heads.extend_from_slice(&self.reads.heads);
        reads.fulls.extend_from_slice(&self.reads.fulls);
        reads.keys.extend_from_slice(&self.reads.keys);
        reads.queues.extend_from_slice(&self.reads.queues);
        reads.documents.extend_from_slice(&self.reads.documents);
    }

    fn decide(&mut self, draft: &mut Draft) -> Result<(), Missing> {
        self.outcome = Some((self.decide)(draft)?);
        Ok(())
    }

    fn answer(self: Box<Self>, verdict: Result<(), StoreError>) {
        let answer = match (verdict, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Ok(()), None) => Err(StoreError::Contended),
            (Err(error), _) => Err(error),
        };
        // A caller who is gone has no use for the answer; what was committed stays.
        drop(self.reply.send(answer));
    }
}

enum Request {
    Decide(Box<dyn Decide>, u32),
    Claim(Claim, oneshot::Sender<Result<Claimed, StoreError>>),
    Due(Due, u32, oneshot::Sender<Result<DueIds, StoreError>>),
    Load(Reads, oneshot::Sender<Result<Snapshot, StoreError>>),
    List(Filter, oneshot::Sender<Result<Listing, StoreError>>),
    Documents(Seek, oneshot::Sender<Result<Found, StoreError>>),
    Queues(oneshot::Sender<Result<Vec<QueueStats>, StoreError>>),
    Events(u64, u32, oneshot::Sender<Result<LogPage, StoreError>>),
    Maintain(oneshot::Sender<Result<bool, StoreError>>),
    Clear(oneshot::Sender<Result<(), StoreError>>),
    Close,
}

/// A handle on a store behind its batcher. Cheap to clone. The batcher ends with [`Store::close`], or when the last
/// handle is dropped; the backend is given up with it.
#[derive(Clone)]
pub struct Store {
    requests: mpsc::Sender<Request>,
    /// Only the batcher keeps it, so that the store is closed when the batcher has ended.
    backend: Weak<dyn Backend>,
    /// Held shared by what goes past the batcher: upkeep and backups.
    busy: Arc<RwLock<()>>,
    /// Nothing is ever sent: it ends when the batcher has given up the backend.
    alive: watch::Receiver<()>,
    hints: Arc<Hints>,
    facts: Arc<crate::backend::Facts>,
    secret: [u8; 16],
}

impl Store {
    /// Puts a batcher in front of `backend`: on a thread of its own where commits block, else as a task of the
    /// current runtime.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the thread cannot be started.
    pub fn open(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        let (store, batcher) = Self::with_batcher(backend, seed());
        if store.facts.blocks {
            std::thread::Builder::new()
                .name("semel-store".to_owned())
                .spawn(move || match tokio::runtime::Builder::new_current_thread().build() {
                    Ok(runtime) => runtime.block_on(batcher),
                    Err(error) => tracing::error!(%error, "the store's thread cannot run"),
                })
                .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        } else {
            tokio::spawn(batcher);
        }
        Ok(store)
    }

    /// A store and its batcher, for a caller who runs the batcher himself: it does nothing unless it is polled, and
    /// dropping it is what a crash does to it. `entropy` seeds ids and jitter.
    pub fn with_batcher(
        backend: Arc<dyn Backend>,
        entropy: u64,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (requests, inbox) = mpsc::channel(WAITING_MAX);
        let hints = Arc::new(Hints::default());
        let facts = Arc::new(backend.facts());
        let secret = backend.secret();
        let (ended, alive) = watch::channel(());
        let weak = Arc::downgrade(&backend);
        let batcher = Batcher { rows: backend.rows(), backend, hints: Arc::clone(&hints), inbox, entropy };
        let store = Self { requests, backend: weak, busy: Arc::default(), alive, hints, facts, secret };
        (store, batcher.run(ended))
    }

    /// What the store is and promises.
    pub fn facts(&self) -> &crate::backend::Facts {
        &self.facts
    }

    /// What callers are woken by.
    pub fn hints(&self) -> &Arc<Hints> {
        &self.hints
    }

    /// Has a decision taken and committed, and gives back its outcome. `reads` is what it will surely need; what else
    /// it asks for is loaded then. Dropping the future does not take the decision back.
    ///
    /// # Errors
    /// When the store cannot commit it. Then nothing was written, unless the error is [`StoreError::Closed`]: then it
    /// is unknown.
    pub async fn decide<T, D>(&self, reads: Reads, decide: D) -> Result<T, StoreError>
    where
        T: Send + 'static,
        D: FnMut(&mut Draft) -> Result<T, Missing> + Send + 'static,
    {
        self.ask(|reply| Request::Decide(Box::new(Decision { reads, decide, outcome: None, reply }), 0)).await
    }

    /// Takes up to `claim.limit` ready jobs.
    ///
    /// # Errors
    /// When the store cannot commit it.
    pub async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.ask(|reply| Request::Claim(claim, reply)).await
    }

    /// Ids that are due, at most `limit`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn due(&self, due: Due, limit: u32) -> Result<DueIds, StoreError> {
        self.ask(|reply| Request::Due(due, limit, reply)).await
    }

    /// Everything `reads` names.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self, reads: Reads) -> Result<Snapshot, StoreError> {
        self.ask(|reply| Request::Load(reads, reply)).await
    }

    /// A page of jobs.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list(&self, filter: Filter) -> Result<Listing, StoreError> {
        self.ask(|reply| Request::List(filter, reply)).await
    }

    /// The store's [secret](Backend::secret).
    pub fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// All queues.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, StoreError> {
        self.ask(Request::Queues).await
    }

    /// Documents that are due, or of a kind.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn documents(&self, seek: Seek) -> Result<Found, StoreError> {
        self.ask(|reply| Request::Documents(seek, reply)).await
    }

    /// The log after `cursor`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn events(&self, cursor: u64, limit: u32) -> Result<LogPage, StoreError> {
        self.ask(|reply| Request::Events(cursor, limit, reply)).await
    }

    /// A bounded piece of housekeeping; says whether more is waiting.
    ///
    /// # Errors
    /// When the store cannot do it.
    pub async fn maintain(&self) -> Result<bool, StoreError> {
        if !self.facts.blocks {
            return self.ask(Request::Maintain).await;
        }
        // Where work blocks, it goes on beside the commits instead of between them.
        self.beside(|backend| async move { backend.maintain().await }).await
    }

    /// Deletes everything.
    ///
    /// # Errors
    /// When the store cannot do it.
    pub async fn clear(&self) -> Result<(), StoreError> {
        self.ask(Request::Clear).await
    }

    /// Copies the store to a new file. Commits go on meanwhile, for this does not go through the batcher.
    ///
    /// # Errors
    /// When the store or the file does not allow it.
    pub async fn backup(&self, path: std::path::PathBuf) -> Result<(), StoreError> {
        self.beside(|backend| async move { backend.backup(path).await }).await
    }

    /// Does what blocks beside the commits, on a thread of its own.
    async fn beside<T, F>(
        &self,
        work: impl FnOnce(Arc<dyn Backend>) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>>,
    {
        let busy = Arc::clone(&self.busy).read_owned().await;
        let backend = self.backend.upgrade().ok_or(StoreError::Closed)?;
        let runtime = tokio::runtime::Handle::current();
        let done = tokio::task::spawn_blocking(move || {
            // Given up in this order, and not before the work is done, whoever waits for it.
            let _busy = busy;
            runtime.block_on(work(backend))
        })
        .await;
        done.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    /// Closes the store, for all handles: what was asked before is answered, what is asked afterwards is answered with
    /// [`StoreError::Closed`]. When this returns the batcher has ended and the backend has been given up: a file can be
    /// opened again at once, unless the caller kept the backend itself. Closing twice does no harm.
    pub async fn close(&self) {
        // Where nobody takes it, the batcher is ending already.
        drop(self.requests.send(Request::Close).await);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
        drop(self.busy.write().await);
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Request,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

struct Batcher {
    backend: Arc<dyn Backend>,
    hints: Arc<Hints>,
    inbox: mpsc::Receiver<Request>,
    rows: Arc<AtomicU64>,
    entropy: u64,
}

type ClaimReply = oneshot::Sender<Result<Claimed, StoreError>>;

impl Batcher {
    /// Serves until the store is closed. `ended` is dropped after the backend.
    async fn run(mut self, ended: watch::Sender<()>) {
        self.serve().await;
        drop(self);
        drop(ended);
    }

    async fn serve(&mut self) {
        let mut requests = Vec::with_capacity(GROUP_MAX);
        let mut again: Vec<(Box<dyn Decide>, u32)> = Vec::new();
        loop {
            if again.is_empty() && self.inbox.recv_many(&mut requests, GROUP_MAX).await == 0 {
                return;
            }
            while requests.len() < GROUP_MAX
                && let Ok(request) = self.inbox.try_recv()
            {
                requests.push(request);
            }
            let mut decisions = std::mem::take(&mut again);
            let mut claims = Vec::new();
            for request in requests.drain(..) {
                match request {
                    Request::Decide(decision, tries) => decisions.push((decision, tries)),
                    Request::Claim(claim, reply) => claims.push((claim, reply)),
                    // What is in the inbox already is still served.
                    Request::Close => self.inbox.close(),
                    other => self.read(other).await,
                }
            }
            if !decisions.is_empty() || !claims.is_empty() {
                again = self.group(decisions, claims).await;
            }
        }
    }

    /// Decides, commits and answers one group; gives back the decisions that have to be taken again.
    async fn group(
        &mut self,
        decisions: Vec<(Box<dyn Decide>, u32)>,
        claims: Vec<(Claim, ClaimReply)>,
    ) -> Vec<(Box<dyn Decide>, u32)> {
        // Where nothing could be loaded all decisions have been answered; the claims are still to be served.
        let (decided, groups) = self.decide(decisions).await.unwrap_or_default();
        let (claims, replies): (Vec<Claim>, Vec<ClaimReply>) = claims.into_iter().unzip();
        let mut ready = self.hints.gather(&groups);
        if groups.iter().all(Group::is_empty) && claims.is_empty() {
            for (decision, _) in decided {
                decision.answer(Ok(()));
            }
            return Vec::new();
        }
        let (decided, groups) = answer_too_soon(decided, groups);
        let groups = self.replace_in_two_steps(groups).await;
        // Decisions that wrote nothing are answered with the rest: what they name may be in this very commit.
        let written: Vec<bool> = groups.iter().map(|group| !group.is_empty()).collect();
        let groups = groups.into_iter().filter(|group| !group.is_empty()).collect();
        let applied = match self.backend.commit(Batch { groups, claims }).await {
            Ok(applied) => applied,
            Err(error) => {
                for (decision, _) in decided {
                    decision.answer(Err(error.clone()));
                }
                for reply in replies {
                    drop(reply.send(Err(error.clone())));
                }
                return Vec::new();
            }
        };
        let mut again = Vec::new();
        let mut verdicts = applied.groups.into_iter();
        let mut any_stale = false;
        for ((decision, tries), written) in decided.into_iter().zip(written) {
            let verdict = if written { verdicts.next().unwrap_or(Verdict::Stale) } else { Verdict::Applied };
            // What a silent decision saw may have been overlaid by a group that did not hold.
            if (verdict == Verdict::Stale || (any_stale && !written)) && !is_planted(Bug::StaleAnswered) {
                any_stale = true;
                if tries + 1 >= COMMIT_ATTEMPTS_MAX {
                    decision.answer(Err(StoreError::Contended));
                } else {
                    again.push((decision, tries + 1));
                }
            } else {
                decision.answer(Ok(()));
            }
        }
        for (claimed, reply) in applied.claims.into_iter().zip(replies) {
            Hints::add_leases(&mut ready, &claimed);
            drop(reply.send(Ok(claimed)));
        }
        self.hints.give(&ready);
        again
    }

    /// With the bug of that name: what a group cancels is committed before what it creates.
    async fn replace_in_two_steps(&self, groups: Vec<Group>) -> Vec<Group> {
        if !is_planted(Bug::ReplaceInTwoSteps) {
            return groups;
        }
        let is_insert = |write: &Write| matches!(write, Write::Insert { .. });
        let mut second = Vec::new();
        for mut group in groups {
            let replaces = group.writes.iter().any(is_insert) && !group.writes.iter().all(is_insert);
            if replaces {
                let writes = group.writes.extract_if(.., |write| !is_insert(write)).collect();
                let first = Group { expect: std::mem::take(&mut group.expect), writes, events: Vec::new() };
                drop(self.backend.commit(Batch { groups: vec![first], claims: Vec::new() }).await);
            }
            second.push(group);
        }
        second
    }

    async fn decide(
        &mut self,
        decisions: Vec<(Box<dyn Decide>, u32)>,
    ) -> Option<(Vec<(Box<dyn Decide>, u32)>, Vec<Group>)> {
        if decisions.is_empty() {
            return Some((decisions, Vec::new()));
        }
        let mut reads = Reads::default();
        for (decision, _) in &decisions {
            decision.reads(&mut reads);
        }
        let snapshot = match self.backend.load(&reads).await {
            Ok(mut snapshot) => {
                if is_planted(Bug::ServerClock) {
                    snapshot.now =
                        snapshot.now.saturating_add(Duration::from_millis(50 + self.entropy % 2_000));
                }
                snapshot
            }
            Err(error) => {
                for (decision, _) in decisions {
                    decision.answer(Err(error.clone()));
                }
                return None;
            }
        };
        self.entropy = self.entropy.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mut draft = Draft::new(snapshot, self.entropy, Arc::clone(&self.rows));
        let mut decided = Vec::with_capacity(decisions.len());
        let mut groups = Vec::with_capacity(decisions.len());
        for (mut decision, tries) in decisions {
            match decide_one(&*self.backend, &mut draft, &mut *decision).await {
                Ok(group) => {
                    groups.push(group);
                    decided.push((decision, tries));
                }
                Err(error) => decision.answer(Err(error)),
            }
        }
        Some((decided, groups))
    }

    async fn read(&self, request: Request) {
        let backend = &*self.backend;
        match request {
            Request::Close => {}
            Request::Decide(decision, _) => decision.answer(Err(StoreError::Closed)),
            Request::Claim(_, reply) => drop(reply.send(Err(StoreError::Closed))),
            Request::Due(due, limit, reply) => drop(reply.send(backend.due(due, limit).await)),
            Request::Load(reads, reply) => drop(reply.send(backend.load(&reads).await)),
            Request::List(filter, reply) => drop(reply.send(backend.list(filter).await)),
            Request::Queues(reply) => drop(reply.send(backend.queues().await)),
            Request::Documents(seek, reply) => drop(reply.send(backend.documents(seek).await)),
            Request::Events(cursor, limit, reply) => drop(reply.send(backend.events(cursor, limit).await)),
            Request::Maintain(reply) => drop(reply.send(backend.maintain().await)),
            Request::Clear(reply) => drop(reply.send(backend.clear().await)),
        }
    }
}

type Decisions = Vec<(Box<dyn Decide>, u32)>;

/// With the bugs of that kind: answers before the commit, all or those that wrote nothing.
fn answer_too_soon(decided: Decisions, groups: Vec<Group>) -> (Decisions, Vec<Group>) {
    let all = is_planted(Bug::AnswerBeforeCommit);
    if !all && !is_planted(Bug::DuplicateBeforeDurable) {
        return (decided, groups);
    }
    let mut waiting = (Vec::new(), Vec::new());
    for ((decision, tries), group) in decided.into_iter().zip(groups) {
        if group.is_empty() || all {
            decision.answer(Ok(()));
        } else {
            waiting.0.push((decision, tries));
        }
        if !group.is_empty() {
            waiting.1.push(group);
        }
    }
    waiting
}

/// Takes one decision over the draft, loading what it asks for.
async fn decide_one(
    backend: &dyn Backend,
    draft: &mut Draft,
    decision: &mut dyn Decide,
) -> Result<Group, StoreError> {
    for _ in 0..LOADS_PER_DECISION_MAX {
        match decision.decide(draft) {
            Ok(()) => return Ok(draft.finish()),
            Err(Missing) => {
                draft.roll_back();
                let missing = draft.take_missing();
                draft.extend(backend.load(&missing).await?);
            }
        }
    }
    Err(StoreError::Contended)
}

/// Load, decide, commit, without a batcher: for tests and tools that drive a backend step by step.
///
/// # Errors
/// When the store cannot commit, or the records keep moving.
pub async fn transact<T>(
    backend: &dyn Backend,
    reads: &Reads,
    mut decide: impl FnMut(&mut Draft) -> Result<T, Missing>,
) -> Result<T, StoreError> {
    for attempt in 0..COMMIT_ATTEMPTS_MAX {
        let snapshot = backend.load(reads).await?;
        let seed = snapshot.now.as_micros() as u64 ^ u64::from(attempt);
        let mut draft = Draft::new(snapshot, seed, backend.rows());
        let mut loads = 0;
        let outcome = loop {
            match decide(&mut draft) {
                Ok(outcome) => break outcome,
                Err(Missing) if loads < LOADS_PER_DECISION_MAX => {
                    loads += 1;
                    draft.roll_back();
                    let missing = draft.take_missing();
                    draft.extend(backend.load(&missing).await?);
                }
                Err(Missing) => return Err(StoreError::Contended),
            }
        };
        let group = draft.finish();
        if group.is_empty() {
            return Ok(outcome);
        }
        let applied = backend.commit(Batch { groups: vec![group], claims: Vec::new() }).await?;
        if applied.groups.first() == Some(&Verdict::Applied) {
            return Ok(outcome);
        }
    }
    Err(StoreError::Contended)
}

/// A number that differs from process to process and from batcher to batcher.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// The queues that new ready jobs were written to, and the soonest time something new falls due.
#[derive(Debug, Default)]
pub struct Ready {
    /// Queues with new ready jobs.
    pub queues: Vec<QueueName>,
    /// The soonest new due time.
    pub due: Option<Timestamp>,
    /// Those who wait for jobs that were written.
    pub news: Vec<Arc<tokio::sync::Notify>>,
    /// Whether the log has grown.
    pub told: bool,
}
