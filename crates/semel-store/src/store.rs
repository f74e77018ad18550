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

/// Requests that may wait for the batcher before callers wait to offer theirs.
const WAITING_MAX: usize = 16 * 1024;

/// The backend past the batcher. Given up in this order, so that who waits for the store's end finds nobody with it.
struct Aside {
    backend: Arc<dyn Backend>,
    _busy: OwnedRwLockReadGuard<()>,
}

/// A handle on a store behind its batcher. Cheap to clone. The batcher ends with [`Store::close`], or when the last
/// handle is dropped; the backend is given up with it.
#[derive(Clone)]
pub struct Store {
    requests: mpsc::Sender<Request>,
    left: mpsc::UnboundedSender<Box<dyn Decide>>,
    /// Only the batcher keeps it, so that the store is closed when the batcher has ended.
    backend: Weak<dyn Backend>,
    /// Held shared by what goes past the batcher: reads for people, upkeep and backups.
    busy: Arc<RwLock<()>>,
    /// Nothing is ever sent: it ends when the batcher has given up the backend.
    alive: watch::Receiver<()>,
    hints: Arc<Hints>,
    /// As they were when it was opened: how its work is done does not change.
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

    /// The same, where what ends is kept by these rules.
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

    /// A store and its batcher, for a caller who runs the batcher himself: it does nothing unless it is polled, and
    /// dropping it is what a crash does to it. What ends is kept by these rules; `entropy` seeds ids and jitter.
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

    /// What the store is and promises: as it is now, for a server that it is on may be set otherwise or be another one. What was
    /// said when it was opened, once it is closed.
    pub fn facts(&self) -> Facts {
        // Whoever waits for the store's end finds nobody with it.
        let busy = self.busy.try_read();
        let backend = if busy.is_ok() { self.backend.upgrade() } else { None };
        backend.map(|backend| backend.facts()).unwrap_or_else(|| Facts::clone(&self.facts))
    }

    /// By which rules is kept what is ended through this store: also by who decides past its batcher, in a transaction.
    pub fn retention(&self) -> &Arc<Retention> {
        &self.retention
    }

    /// What callers are woken by.
    pub fn hints(&self) -> &Arc<Hints> {
        &self.hints
    }

    /// Failures that the log is told of now and then, however often they come.
    pub fn repeated_failures(&self) -> &RepeatedFailures {
        &self.repeated_failures
    }

    /// Has a decision taken and committed, and gives back its outcome. `reads` is what it will surely need; what else
    /// it asks for is loaded then. Dropping the future does not take the decision back.
    ///
    /// # Errors
    /// When the store cannot commit it. Then nothing was written, unless the error is [in doubt](StoreError::is_in_doubt),
    /// [`StoreError::Poisoned`] or [`StoreError::Closed`]: then it may have been.
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

    /// The same, for who would rather do something else than wait for somebody else's transaction, or for a part of the store that is
    /// away: where a transaction holds a record of it for longer than `patience` the answer is [`StoreError::Contended`], and where some of
    /// it is away, or behind a commit that does not end, [`StoreError::Stalled`]; nothing was written then.
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

    /// Has a decision taken for somebody who is gone: it waits for nothing, so it may be asked for where things are dropped, and
    /// nobody hears of its outcome. It is taken also where the store is being [closed](Self::close), as long as anything that was
    /// asked before is under way.
    pub fn leave<D>(&self, reads: Reads, decide: D)
    where
        D: FnMut(&mut Draft) -> Result<(), Missing> + Send + 'static,
    {
        if let Err(mpsc::error::SendError(decision)) = self.left.send(Box::new(Left { reads, decide })) {
            decision.answer(Err(StoreError::Closed));
        }
    }

    /// The outcome of a decision that writes nothing, without a wait: where the store can [say](Peek) what `reads` names,
    /// and that is all that the decision asks for. Otherwise nothing, and nothing has happened: the same decision is for
    /// [`decide`](Self::decide) then.
    pub fn decide_silently<T>(
        &self,
        reads: &Reads,
        decide: impl FnOnce(&mut Draft) -> Result<T, Missing>,
    ) -> Option<T> {
        let peek = self.peek.as_ref().filter(|_| !self.requests.is_closed())?;
        let seen = peek.peek(reads)?;
        // Whoever mints an id makes more than an answer; nothing is drawn from the store's own numbers meanwhile.
        let minted = Arc::new(AtomicU64::new(0));
        let mut draft = Draft::new(seen, 0, Arc::clone(&minted));
        let outcome = decide(&mut draft).ok()?;
        let is_silent = !draft.finish().is_checked() && minted.load(Ordering::Relaxed) == 0;
        is_silent.then_some(outcome)
    }

    /// Takes up to `claim.limit` ready jobs. Where the future is dropped before the store is asked, none are taken.
    ///
    /// # Errors
    /// When the store cannot commit it.
    pub fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send + use<'_> {
        self.claim_keeping(claim, identity)
    }

    /// The same, with what `keep` makes of them once they are taken: also where the caller is gone by then, so that what it makes
    /// is dropped.
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
        if let Some(aside) = self.aside().await? {
            return aside.backend.list(filter).await;
        }
        self.ask(|reply| Request::List(filter, reply)).await
    }

    /// The store's [secret](crate::Backend::secret).
    pub fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Whether it would take a write now ([`Backend::takes_writes`](crate::Backend::takes_writes)).
    ///
    /// # Errors
    /// What a write would be told.
    pub async fn takes_writes(&self) -> Result<(), StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.takes_writes().await;
        }
        self.ask(Request::TakesWrites).await
    }

    /// Whether claims pass over what somebody else has locked for the moment ([`Backend::passes_over`](crate::Backend::passes_over)).
    pub fn passes_over(&self) -> bool {
        self.passes_over
    }

    /// Whether one of these queues, by the names that the store has for them, has jobs that may have been passed over.
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

    /// The rows of queues that have settings.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn settings(&self) -> Result<Vec<QueueRow>, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.settings().await;
        }
        self.ask(Request::Settings).await
    }

    /// Documents that are due, or of a kind.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn documents(&self, seek: Seek) -> Result<Found, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.documents(seek).await;
        }
        self.ask(|reply| Request::Documents(seek, reply)).await
    }

    /// The log after `cursor`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn events(&self, cursor: u64, limit: u32) -> Result<LogPage, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.events(cursor, limit).await;
        }
        self.ask(|reply| Request::Events(cursor, limit, reply)).await
    }

    /// A bounded piece of housekeeping; says whether more is waiting.
    ///
    /// # Errors
    /// When the store cannot do it.
    pub async fn maintain(&self) -> Result<bool, StoreError> {
        if let Some(aside) = self.aside().await? {
            return aside.backend.maintain().await;
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

    /// The backend, for what neither decides nor takes part in a decision: it may take long, and would hold up all who
    /// decide. Nothing where work blocks: there the batcher's thread does it in turn.
    async fn aside(&self) -> Result<Option<Aside>, StoreError> {
        if self.facts.blocks {
            return Ok(None);
        }
        let busy = Arc::clone(&self.busy).read_owned().await;
        let open = self.backend.upgrade().filter(|_| !self.requests.is_closed());
        Ok(Some(Aside { backend: open.ok_or(StoreError::Closed)?, _busy: busy }))
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

    /// Says that the store is about to be closed: from now on its [housekeeping](Self::maintain) waits for nobody else. For who has
    /// something left to do before he closes it.
    pub fn closing(&self) {
        // Whoever waits for the store's end finds nobody with it, and has said so before.
        let busy = self.busy.try_read();
        let backend = if busy.is_ok() { self.backend.upgrade() } else { None };
        if let Some(backend) = backend {
            backend.closing();
        }
    }

    /// Closes the store, for all handles: what was asked before is answered, what is asked afterwards is answered with
    /// [`StoreError::Closed`]. When this returns the batcher has ended and the backend has been given up: a file can be
    /// opened again at once, unless the caller kept the backend itself. Closing twice does no harm.
    pub async fn close(&self) {
        self.closing();
        // Where nobody takes it, the batcher is ending already.
        drop(self.requests.send(Request::Close).await);
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
        drop(self.busy.write().await);
    }

    /// The request is made before the future is, which then has no more in it than where to send it and where its answer comes:
    /// what each layer of futures were to carry through it would be copied at each.
    fn ask<T: Send + 'static, F: FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Request>(
        &self,
        request: F,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + use<'_, T, F> {
        let (reply, answer) = oneshot::channel();
        // Nothing is sent unless somebody polls.
        let request = request(reply);
        async move {
            // Nearly always there is room.
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
