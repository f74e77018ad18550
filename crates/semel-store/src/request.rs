//! Requests to the batcher, and the callers that await the answers.

use std::time::Duration;

use semel_core::draft::{Draft, Missing, QueueRow, Reads, Snapshot};
use semel_core::slot::Due;
use tokio::sync::oneshot;

use crate::answers::Answer;
use crate::backend::{Backend, Claim, Claimed, DueIds, Filter, Found, Listing, QueueStats, Seek};
use crate::error::StoreError;
use crate::log::LogPage;
use crate::waitlist::WAIT_MAX;

/// A caller that waits for the jobs of a claim.
pub(crate) trait Claimant: Send {
    /// Whether the caller is gone.
    fn is_gone(&self) -> bool;
    /// Delivers the jobs.
    fn answer(self: Box<Self>, claimed: Result<Claimed, StoreError>);
}

/// A boxed [`Claimant`].
pub(crate) type ClaimReply = Box<dyn Claimant>;

/// A caller that waits for an answer, and `keep`, which runs on the answer even if the caller has dropped its
/// future. The value it returns is then dropped in the caller's stead.
pub(crate) struct Waiting<U, K> {
    pub(crate) keep: K,
    pub(crate) reply: oneshot::Sender<Result<U, StoreError>>,
}

impl<U, K> Waiting<U, K> {
    fn tell<T>(self, answer: Result<T, StoreError>)
    where
        K: FnOnce(T) -> U,
    {
        drop(self.reply.send(answer.map(self.keep)));
    }
}

impl<U: Send, K: FnOnce(Claimed) -> U + Send> Claimant for Waiting<U, K> {
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    fn answer(self: Box<Self>, claimed: Result<Claimed, StoreError>) {
        self.tell(claimed);
    }
}

/// A decision on its way to the store.
pub(crate) trait Decide: Send {
    /// Adds what to load before the first try.
    fn reads(&self, reads: &mut Reads);
    /// How many records that is.
    fn size(&self) -> usize;
    /// How long it waits for another transaction before its caller is told that a record is busy.
    fn patience(&self) -> Duration;
    /// Takes the decision.
    fn decide(&mut self, draft: &mut Draft) -> Result<(), Missing>;
    /// Whether no caller waits for the outcome.
    fn is_for_nobody(&self) -> bool;
    /// Delivers the outcome to the caller, which may be gone.
    fn answer(self: Box<Self>, verdict: Result<(), StoreError>);
}

/// A decision with the caller that waits for its outcome.
pub(crate) struct Decision<T, D, U, K> {
    pub(crate) reads: Reads,
    pub(crate) decide: D,
    pub(crate) patience: Duration,
    pub(crate) outcome: Option<T>,
    pub(crate) waiting: Waiting<U, K>,
}

impl<T, D, U, K> Decide for Decision<T, D, U, K>
where
    T: Send,
    D: FnMut(&mut Draft) -> Result<T, Missing> + Send,
    U: Send,
    K: FnOnce(T) -> U + Send,
{
    fn reads(&self, reads: &mut Reads) {
        add(&self.reads, reads);
    }

    fn size(&self) -> usize {
        size(&self.reads)
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn decide(&mut self, draft: &mut Draft) -> Result<(), Missing> {
        self.outcome = Some((self.decide)(draft)?);
        Ok(())
    }

    fn is_for_nobody(&self) -> bool {
        self.waiting.reply.is_closed()
    }

    fn answer(self: Box<Self>, verdict: Result<(), StoreError>) {
        let answer = match (verdict, self.outcome) {
            (Ok(()), Some(outcome)) => Ok(outcome),
            (Ok(()), None) => Err(StoreError::Contended),
            (Err(error), _) => Err(error),
        };
        // A caller that is gone has no use for the answer; what was committed stays.
        self.waiting.tell(answer);
    }
}

/// A decision taken on behalf of a caller that is gone.
pub(crate) struct Left<D> {
    pub(crate) reads: Reads,
    pub(crate) decide: D,
}

impl<D: FnMut(&mut Draft) -> Result<(), Missing> + Send> Decide for Left<D> {
    fn reads(&self, reads: &mut Reads) {
        add(&self.reads, reads);
    }

    fn size(&self) -> usize {
        size(&self.reads)
    }

    fn patience(&self) -> Duration {
        WAIT_MAX
    }

    fn decide(&mut self, draft: &mut Draft) -> Result<(), Missing> {
        (self.decide)(draft)
    }

    fn is_for_nobody(&self) -> bool {
        true
    }

    fn answer(self: Box<Self>, verdict: Result<(), StoreError>) {
        if let Err(error) = verdict {
            tracing::warn!(%error, "could not clean up after a caller that is gone");
        }
    }
}

/// Adds everything that `read` names to `reads`.
pub(crate) fn add(read: &Reads, reads: &mut Reads) {
    reads.heads.extend_from_slice(&read.heads);
    reads.fulls.extend_from_slice(&read.fulls);
    reads.keys.extend_from_slice(&read.keys);
    reads.queues.extend_from_slice(&read.queues);
    reads.documents.extend_from_slice(&read.documents);
}

/// How many records `read` names, not counting queues.
pub(crate) fn size(read: &Reads) -> usize {
    let Reads { heads, fulls, keys, documents, .. } = read;
    heads.len() + fulls.len() + keys.len() + documents.len()
}

/// A request to the batcher.
pub(crate) enum Request {
    Decide(Box<dyn Decide>),
    Claim(Claim, ClaimReply),
    Due(Due, u32, oneshot::Sender<Result<DueIds, StoreError>>),
    Load(Reads, oneshot::Sender<Result<Snapshot, StoreError>>),
    List(Filter, oneshot::Sender<Result<Listing, StoreError>>),
    TakesWrites(oneshot::Sender<Result<(), StoreError>>),
    Documents(Seek, oneshot::Sender<Result<Found, StoreError>>),
    Queues(oneshot::Sender<Result<Vec<QueueStats>, StoreError>>),
    Settings(oneshot::Sender<Result<Vec<QueueRow>, StoreError>>),
    Events(u64, u32, oneshot::Sender<Result<LogPage, StoreError>>),
    Clear(oneshot::Sender<Result<(), StoreError>>),
    Close,
}

impl Request {
    /// Whether no caller waits for the answer; always `false` for what decides, claims, clears or closes.
    pub(crate) fn is_for_nobody(&self) -> bool {
        match self {
            Self::Decide(_) | Self::Claim(..) | Self::Clear(_) | Self::Close => false,
            Self::Due(.., reply) => reply.is_closed(),
            Self::Load(_, reply) => reply.is_closed(),
            Self::List(_, reply) => reply.is_closed(),
            Self::TakesWrites(reply) => reply.is_closed(),
            Self::Documents(_, reply) => reply.is_closed(),
            Self::Queues(reply) => reply.is_closed(),
            Self::Settings(reply) => reply.is_closed(),
            Self::Events(.., reply) => reply.is_closed(),
        }
    }
}

/// A committed decision or claim, with the caller to answer.
pub(crate) enum Outcome {
    Decided(Box<dyn Decide>),
    Claimed(Claimed, ClaimReply),
}

impl Answer for Outcome {
    fn is_for_nobody(&self) -> bool {
        match self {
            Self::Decided(decision) => decision.is_for_nobody(),
            Self::Claimed(_, reply) => reply.is_gone(),
        }
    }

    fn give(self) {
        match self {
            Self::Decided(decision) => decision.answer(Ok(())),
            Self::Claimed(claimed, reply) => reply.answer(Ok(claimed)),
        }
    }
}

/// Serves a request that neither decides nor claims.
pub(crate) async fn read(backend: &dyn Backend, request: Request) {
    match request {
        Request::Close => {}
        Request::Decide(decision) => decision.answer(Err(StoreError::Closed)),
        Request::Claim(_, reply) => reply.answer(Err(StoreError::Closed)),
        Request::Due(due, limit, reply) => drop(reply.send(backend.due(due, limit).await)),
        Request::Load(reads, reply) => drop(reply.send(backend.load(&reads).await)),
        Request::List(filter, reply) => drop(reply.send(backend.list(filter).await)),
        Request::TakesWrites(reply) => drop(reply.send(backend.takes_writes().await)),
        Request::Documents(seek, reply) => drop(reply.send(backend.documents(seek).await)),
        Request::Queues(reply) => drop(reply.send(backend.queues().await)),
        Request::Settings(reply) => drop(reply.send(backend.settings().await)),
        Request::Events(cursor, limit, reply) => drop(reply.send(backend.events(cursor, limit).await)),
        Request::Clear(reply) => drop(reply.send(backend.clear().await)),
    }
}
