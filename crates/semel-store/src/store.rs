//! The handle on a store: each request goes to the batcher and waits for its answer.

use std::convert::identity;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use semel_core::draft::{Draft, Missing, QueueRow, Reads, Snapshot};
use semel_core::ident::QueueName;
use semel_core::retention::Retention;
use semel_core::slot::Due;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedRwLockReadGuard, RwLock, mpsc, oneshot, watch};

use crate::answers::Answers;
use crate::backend::{
    Backend, Claim, Claimed, DueIds, Facts, Filter, Found, Listing, Peek, QueueStats, Seek,
};
use crate::batcher::Batcher;
use crate::error::StoreError;
use crate::hints::Hints;
use crate::log::LogPage;
use crate::random;
use crate::repeated::RepeatedFailures;
use crate::request::{Decide, Decision, Left, Outcome, Request, Waiting};
use crate::waitlist::WAIT_MAX;

/// Capacity of the request queue: once it is full, callers wait before they can even submit a request.
const WAITING_MAX: usize = 16 * 1024;

/// The backend, used past the batcher. Fields drop in this order, so that whoever waits on `busy` for the store to
/// end finds the backend released.
struct Aside {
    backend: Arc<dyn Backend>,
    _busy: OwnedRwLockReadGuard<()>,
}

/// A cheaply cloned handle on a store behind its batcher. The batcher ends, and releases the backend, on
/// [`Store::close`] or when the last handle is dropped.
#[derive(Clone)]
pub struct Store {
    requests: mpsc::Sender<Request>,
    left: mpsc::UnboundedSender<Box<dyn Decide>>,
    /// Weak, since only the batcher owns the backend: the store is closed once the batcher has ended.
    backend: Weak<dyn Backend>,
    /// Held shared by work that goes past the batcher: reads for people, upkeep and backups.
    busy: Arc<RwLock<()>>,
    /// Nothing is ever sent on this channel: it closes once the batcher has released the backend.
    alive: watch::Receiver<()>,
    hints: Arc<Hints>,
    /// The facts when the store was opened. Whether its work blocks does not change afterwards.
    facts: Arc<Facts>,
    secret: [u8; 16],
    retention: Arc<Retention>,
    peek: Option<Arc<dyn Peek>>,
    passes_over: bool,
    repeated_failures: Arc<RepeatedFailures>,
}

impl Store {
    /// Puts a batcher in front of `backend`: on a thread of its own where commits block, else as a task of the
    /// current runtime.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the thread cannot be started.
    pub fn open(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        Self::keeping(backend, Retention::default())
    }

    /// As [`open`](Self::open), keeping ended jobs as `retention` says.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn keeping(backend: Arc<dyn Backend>, retention: Retention) -> Result<Self, StoreError> {
        let (store, batcher) = Self::answering(backend, retention, random::number(), Answers::beside());
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

    /// A store and its batcher, for a caller that runs the batcher itself: it makes progress only while polled, and
    /// dropping it acts like a crash. `retention` says how long ended jobs are kept; `entropy` seeds ids and jitter.
    pub fn with_batcher(
        backend: Arc<dyn Backend>,
        retention: Retention,
        entropy: u64,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        Self::answering(backend, retention, entropy, Answers::in_place())
    }

    fn answering(
        backend: Arc<dyn Backend>,
        retention: Retention,
        entropy: u64,
        answers: Answers<Outcome>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (requests, inbox) = mpsc::channel(WAITING_MAX);
        let (leave, left) = mpsc::unbounded_channel();
        let hints = Arc::new(Hints::default());
        backend.tell(&hints);
        let facts = Arc::new(backend.facts());
        let secret = backend.secret();
        let (ended, alive) = watch::channel(());
        let weak = Arc::downgrade(&backend);
        let hinted = Arc::clone(&hints);
        let (peek, passes_over) = (backend.peeks(), backend.passes_over());
        let retention = Arc::new(retention);
        let batcher = Batcher {
            rows: backend.rows(),
            retention: Arc::clone(&retention),
            backend,
            hints: hinted,
            inbox,
            left,
            entropy,
            answers,
        };
        let busy = Arc::default();
        let store = Self {
            requests,
            left: leave,
            backend: weak,
            busy,
            alive,
            hints,
            facts,
            secret,
            retention,
            peek,
            passes_over,
            repeated_failures: Arc::default(),
        };
        (store, batcher.run(ended))
    }

    /// What the store is and promises right now: the server behind it may be reconfigured or replaced. Once the store
    /// is closed, the facts as they were when it was opened.
    pub fn facts(&self) -> Facts {
        // A caller of `close` that waits for `busy` must find no backend held.
        let busy = self.busy.try_read();
        let backend = if busy.is_ok() { self.backend.upgrade() } else { None };
        backend.map(|backend| backend.facts()).unwrap_or_else(|| Facts::clone(&self.facts))
    }

    /// The retention rules for jobs that end through this store. Decisions past the batcher, inside a transaction,
    /// use them too.
    pub fn retention(&self) -> &Arc<Retention> {
        &self.retention
    }

    /// The wake-ups that callers wait on.
    pub fn hints(&self) -> &Arc<Hints> {
        &self.hints
    }

    /// Failures that are logged at intervals, however often they occur.
    pub fn repeated_failures(&self) -> &RepeatedFailures {
        &self.repeated_failures
    }

    /// Takes a decision, commits it and returns its outcome. `reads` lists what the decision is sure to need;
    /// whatever else it asks for is loaded on demand. Dropping the future does not revoke the decision.
    ///
    /// # Errors
    /// When the store cannot commit the decision. Nothing was written then, except that after an error that is [in
    /// doubt](StoreError::is_in_doubt), [`StoreError::Poisoned`] or [`StoreError::Closed`] it may have been.
    pub fn decide<T, D>(
        &self,
        reads: Reads,
        decide: D,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, D>
    where
        T: Send + 'static,
        D: FnMut(&mut Draft) -> Result<T, Missing> + Send + 'static,
    {
        self.decide_within(WAIT_MAX, reads, decide)
    }

    /// As [`decide`](Self::decide), for a caller that limits its wait for another transaction or an unreachable part
    /// of the store. If a transaction locks one of the records for longer than `patience`, the answer is
    /// [`StoreError::Contended`]; if a record is unreachable, or behind a commit that does not end, it is
    /// [`StoreError::Stalled`]. Nothing was written in either case.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    pub fn decide_within<T, D>(
        &self,
        patience: Duration,
        reads: Reads,
        decide: D,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, D>
    where
        T: Send + 'static,
        D: FnMut(&mut Draft) -> Result<T, Missing> + Send + 'static,
    {
        self.decide_keeping(patience, reads, decide, identity)
    }

    /// Like [`decide_within`](Self::decide_within), but runs `keep` on the outcome as soon as it is committed (or, if it wrote nothing,
    /// confirmed), even if the caller has dropped its future. The value `keep` returns is then dropped in the caller's stead. Use it for
    /// a guard whose `Drop` undoes what nobody was told, such as giving a lease back.
    ///
    /// # Errors
    /// As [`decide_within`](Self::decide_within).
    pub fn decide_keeping<T, U, D, K>(
        &self,
        patience: Duration,
        reads: Reads,
        decide: D,
        keep: K,
    ) -> impl Future<Output = Result<U, StoreError>> + Send + use<'_, T, U, D, K>
    where
        T: Send + 'static,
        U: Send + 'static,
        D: FnMut(&mut Draft) -> Result<T, Missing> + Send + 'static,
        K: FnOnce(T) -> U + Send + 'static,
    {
        let patience = patience.min(WAIT_MAX);
        self.ask(move |reply| {
            let waiting = Waiting { keep, reply };
            Request::Decide(Box::new(Decision { reads, decide, patience, outcome: None, waiting }))
        })
    }

    /// Submits a decision on behalf of a caller that is gone. It never waits, so a `Drop` may call it, and the
    /// outcome is reported to nobody. The decision is taken even while the store is being [closed](Self::close), as
    /// long as an earlier request is still in progress.
    pub fn leave<D>(&self, reads: Reads, decide: D)
    where
        D: FnMut(&mut Draft) -> Result<(), Missing> + Send + 'static,
    {
        if let Err(mpsc::error::SendError(decision)) = self.left.send(Box::new(Left { reads, decide })) {
            decision.answer(Err(StoreError::Closed));
        }
    }

    /// The outcome, without waiting, of a decision that writes nothing: possible if the store can [tell](Peek) what
    /// `reads` names and the decision needs nothing else. Otherwise `None`, and nothing has happened: pass the same
    /// decision to [`decide`](Self::decide).
    pub fn decide_silently<T>(
        &self,
        reads: &Reads,
        decide: impl FnOnce(&mut Draft) -> Result<T, Missing>,
    ) -> Option<T> {
        let peek = self.peek.as_ref().filter(|_| !self.requests.is_closed())?;
        let seen = peek.peek(reads)?;
        // A decision that mints an id does more than answer. It draws on a counter of its own here, not on the store's.
        let minted = Arc::new(AtomicU64::new(0));
        let mut draft = Draft::new(seen, 0, Arc::clone(&minted));
        let outcome = decide(&mut draft).ok()?;
        let is_silent = !draft.finish().is_checked() && minted.load(Ordering::Relaxed) == 0;
        is_silent.then_some(outcome)
    }

    /// Claims up to `claim.limit` ready jobs. If the future is dropped before the store is asked, none are claimed.
    ///
    /// # Errors
    /// When the store cannot commit it.
    pub fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send + use<'_> {
        self.claim_keeping(claim, identity)
    }

    /// As [`claim`](Self::claim), but runs `keep` on the claimed jobs, even if the caller has dropped its future; the
    /// value `keep` returns is then dropped in the caller's stead.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_keeping<U, K>(
        &self,
        claim: Claim,
        keep: K,
    ) -> impl Future<Output = Result<U, StoreError>> + Send + use<'_, U, K>
    where
        U: Send + 'static,
        K: FnOnce(Claimed) -> U + Send + 'static,
    {
        self.ask(|reply| Request::Claim(claim, Box::new(Waiting { keep, reply })))
    }

    /// Ids of jobs that are due, at most `limit`.
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
        if let Some(aside) = self.aside().await? {
            return aside.backend.list(filter).await;
        }
        self.ask(|reply| Request::List(filter, reply)).await
    }

    /// The store's [secret](crate::Backend::secret).
    pub fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Checks whether the store would accept a write now ([`Backend::takes_writes`](crate::Backend::takes_writes)).
    ///
    /// # Errors
    /// The error that a write would get.
    pub async fn takes_writes(&self) -> Result<(), StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.takes_writes().await;
        }
        self.ask(Request::TakesWrites).await
    }

    /// Whether claims skip jobs that another transaction has locked ([`Backend::passes_over`](crate::Backend::passes_over)).
    pub fn passes_over(&self) -> bool {
        self.passes_over
    }

    /// Whether any of these queues has jobs that a claim may have skipped. Queues go by the names the store has for them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn overlooked(&self, queues: Vec<QueueName>) -> Result<bool, StoreError> {
        match self.aside().await? {
            Some(aside) => aside.backend.overlooked(queues).await,
            None => Ok(false),
        }
    }

    /// All queues.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn queues(&self) -> Result<Vec<QueueStats>, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.queues().await;
        }
        self.ask(Request::Queues).await
    }

    /// The rows of those queues that have settings.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn settings(&self) -> Result<Vec<QueueRow>, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.settings().await;
        }
        self.ask(Request::Settings).await
    }

    /// Documents that are due, or all of one kind, as `seek` says.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn documents(&self, seek: Seek) -> Result<Found, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.documents(seek).await;
        }
        self.ask(|reply| Request::Documents(seek, reply)).await
    }

    /// A page of the event log after `cursor`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn events(&self, cursor: u64, limit: u32) -> Result<LogPage, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.events(cursor, limit).await;
        }
        self.ask(|reply| Request::Events(cursor, limit, reply)).await
    }

    /// Does a bounded piece of housekeeping; returns whether more is waiting.
    ///
    /// # Errors
    /// When the store cannot do it.
    pub async fn maintain(&self) -> Result<bool, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.maintain().await;
        }
        // If the store's work blocks, housekeeping runs beside the commits instead of between them.
        self.beside(|backend| async move { backend.maintain().await }).await
    }

    /// Deletes everything.
    ///
    /// # Errors
    /// When the store cannot do it.
    pub async fn clear(&self) -> Result<(), StoreError> {
        self.ask(Request::Clear).await
    }

    /// Copies the store to a new file. Commits go on meanwhile, since a backup does not pass through the batcher.
    ///
    /// # Errors
    /// When the store or the file does not allow it.
    pub async fn backup(&self, path: std::path::PathBuf) -> Result<(), StoreError> {
        self.beside(|backend| async move { backend.backup(path).await }).await
    }

    /// The backend, for work that neither decides nor takes part in a decision: it may take long, and would delay every
    /// decision if it went through the batcher. `None` if the store's work blocks: the batcher's thread then does it in turn.
    async fn aside(&self) -> Result<Option<Aside>, StoreError> {
        if self.facts.blocks {
            return Ok(None);
        }
        let busy = Arc::clone(&self.busy).read_owned().await;
        let open = self.backend.upgrade().filter(|_| !self.requests.is_closed());
        Ok(Some(Aside { backend: open.ok_or(StoreError::Closed)?, _busy: busy }))
    }

    /// Runs blocking work on a thread of its own, beside the commits.
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
            // Both are dropped in this order, and not before the work is done, even if the caller is gone.
            let _busy = busy;
            runtime.block_on(work(backend))
        })
        .await;
        done.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    /// Announces that the store is about to be closed: its [housekeeping](Self::maintain) no longer waits for other
    /// processes. For a caller that has something left to do before [`close`](Self::close).
    pub fn closing(&self) {
        // A caller that waits in `close` must find no backend held, and has called this itself.
        let busy = self.busy.try_read();
        let backend = if busy.is_ok() { self.backend.upgrade() } else { None };
        if let Some(backend) = backend {
            backend.closing();
        }
    }

    /// Closes the store for all handles: requests made before are answered; later ones get [`StoreError::Closed`].
    ///
    /// When this returns, the batcher has ended and the backend is released: a file can be reopened at once, unless
    /// the caller kept the backend itself. Closing twice does no harm.
    pub async fn close(&self) {
        self.closing();
        // A failed send means that the batcher is ending already.
        drop(self.requests.send(Request::Close).await);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
        drop(self.busy.write().await);
    }

    /// Sends a request and waits for its answer. The request is built outside the future, which then holds
    /// only that and the answer's channel: every layer of futures would copy whatever else it captured.
    fn ask<T: Send + 'static, F: FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Request>(
        &self,
        request: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F> {
        let (reply, answer) = oneshot::channel();
        // Nothing is sent until the future is polled.
        let request = request(reply);
        async move {
            // The queue nearly always has room.
            match self.requests.try_send(request) {
                Ok(()) => {}
                Err(TrySendError::Full(request)) => {
                    Box::pin(self.requests.send(request)).await.map_err(|_| StoreError::Closed)?;
                }
                Err(TrySendError::Closed(_)) => return Err(StoreError::Closed),
            }
            answer.await.map_err(|_| StoreError::Closed)?
        }
    }
}
