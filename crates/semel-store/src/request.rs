//! What callers ask of the batcher, and whom it answers.

use std::time::Duration;

use semel_core::draft::{Draft, Missing, QueueRow, Reads, Snapshot};
use semel_core::slot::Due;
use tokio::sync::oneshot;

use crate::answers::Answer;
use crate::backend::{Backend, Claim, Claimed, DueIds, Filter, Found, Listing, QueueStats, Seek};
use crate::error::StoreError;
use crate::log::LogPage;

/// Who waits for the jobs of a claim.
pub(crate) type ClaimReply = oneshot::Sender<Result<Claimed, StoreError>>;

/// A decision on its way to the store.
pub(crate) trait Decide: Send {
    /// What to load before the first try.
    fn reads(&self, reads: &mut Reads);
    /// How many records that are.
    fn size(&self) -> usize;
    /// How long it waits for somebody else's transaction before its caller is told that a record is busy.
    fn patience(&self) -> Duration;
    /// Takes the decision.
    fn decide(&mut self, draft: &mut Draft) -> Result<(), Missing>;
    /// Hands the outcome to the caller, who may be gone.
    fn answer(self: Box<Self>, verdict: Result<(), StoreError>);
}

/// A decision and who waits for its outcome.
pub(crate) struct Decision<T, D> {
    pub(crate) reads: Reads,
    pub(crate) decide: D,
    pub(crate) patience: Duration,
    pub(crate) outcome: Option<T>,
    pub(crate) reply: oneshot::Sender<Result<T, StoreError>>,
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

    fn size(&self) -> usize {
        let Reads { heads, fulls, keys, documents, .. } = &self.reads;
        heads.len() + fulls.len() + keys.len() + documents.len()
    }

    fn patience(&self) -> Duration {
        self.patience
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

/// What is asked of the batcher.
pub(crate) enum Request {
    Decide(Box<dyn Decide>),
    Claim(Claim, oneshot::Sender<Result<Claimed, StoreError>>),
    Due(Due, u32, oneshot::Sender<Result<DueIds, StoreError>>),
    Load(Reads, oneshot::Sender<Result<Snapshot, StoreError>>),
    List(Filter, oneshot::Sender<Result<Listing, StoreError>>),
    Documents(Seek, oneshot::Sender<Result<Found, StoreError>>),
    Queues(oneshot::Sender<Result<Vec<QueueStats>, StoreError>>),
    Settings(oneshot::Sender<Result<Vec<QueueRow>, StoreError>>),
    Events(u64, u32, oneshot::Sender<Result<LogPage, StoreError>>),
    Clear(oneshot::Sender<Result<(), StoreError>>),
    Close,
}

/// What was committed.
pub(crate) enum Outcome {
    Decided(Box<dyn Decide>),
    Claimed(Claimed, ClaimReply),
}

impl Answer for Outcome {
    fn give(self) {
        match self {
            Self::Decided(decision) => decision.answer(Ok(())),
            Self::Claimed(claimed, reply) => drop(reply.send(Ok(claimed))),
        }
    }
}

/// Serves what neither decides nor claims.
pub(crate) async fn read(backend: &dyn Backend, request: Request) {
    match request {
        Request::Close => {}
        Request::Decide(decision) => decision.answer(Err(StoreError::Closed)),
        Request::Claim(_, reply) => drop(reply.send(Err(StoreError::Closed))),
        Request::Due(due, limit, reply) => drop(reply.send(backend.due(due, limit).await)),
        Request::Load(reads, reply) => drop(reply.send(backend.load(&reads).await)),
        Request::List(filter, reply) => drop(reply.send(backend.list(filter).await)),
        Request::Documents(seek, reply) => drop(reply.send(backend.documents(seek).await)),
        Request::Queues(reply) => drop(reply.send(backend.queues().await)),
        Request::Settings(reply) => drop(reply.send(backend.settings().await)),
        Request::Events(cursor, limit, reply) => drop(reply.send(backend.events(cursor, limit).await)),
        Request::Clear(reply) => drop(reply.send(backend.clear().await)),
    }
}
