//! A handle on a job, by its id: inspect it, wait for it, cancel it, send it back.

use std::time::Duration;

use semel_core::ident::JobId;
use semel_core::lease::Bearer;
use semel_core::life::{KeyReleased, Revived};
use semel_core::settle::{Refusal, Settled};
use semel_core::state::State;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::enqueue::SOURCE;
use crate::error::Error;
use crate::queue::Semel;
use crate::stored::Stored;

/// The longest that a waiter sleeps without reading the store: a wake-up hint may be lost.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// How long a waiter retries a store that cannot be read, before it returns the error.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Repeats a read until the store answers; a store that is unreadable now is retried for a while.
pub(crate) async fn answered<T, F>(look: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = Instant::now() + AWAY_MAX;
    loop {
        match look().await {
            Err(error) if error.is_retryable() && Instant::now() < until => {
                tracing::debug!(%error, "a waiter could not read its job; trying again");
                tokio::time::sleep(LOOK_AT_LEAST_EVERY).await;
            }
            answer => return answer,
        }
    }
}

/// A handle on a job, by its id. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    semel: Semel,
    id: JobId,
}

/// A job that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The job.
    pub job: Stored,
    /// The replaced jobs that led to it, in order; empty if it is the job that was waited for.
    pub replaced: Vec<JobId>,
}

impl Finished {
    /// How it ended.
    pub const fn state(&self) -> State {
        self.job.state()
    }

    /// Whether the job completed.
    pub fn is_completed(&self) -> bool {
        self.state() == State::Completed
    }

    /// The job's result.
    ///
    /// # Errors
    /// [`Error::NotCompleted`] if the job has not completed, [`Error::Read`] if the result is of another
    /// type.
    pub fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.job.result()
    }
}

impl Handle {
    pub(crate) fn new(semel: Semel, id: JobId) -> Self {
        Self { semel, id }
    }

    /// The job's id.
    pub const fn id(&self) -> JobId {
        self.id
    }

    /// The job as it is now; `None` if there is no such job, or it has been deleted.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<Stored>, Error> {
        Ok(self.semel.engine()?.job(self.id).await?.map(Stored))
    }

    /// Waits until the work has ended; the commit that ends it wakes the caller.
    ///
    /// If the job is replaced meanwhile, the wait continues with the job that replaced it. That also holds
    /// under a policy that tells duplicates nothing (`disclose: never`): the holder of this handle learns
    /// what became of its job. A follow-up is waited for like any other job. A store that cannot be read is
    /// retried for 30 seconds.
    ///
    /// # Errors
    /// [`Error::Gone`] if there is no such job, or it was deleted after its retention; [`Error::Closed`] if
    /// the queue is closed meanwhile; [`Error::Store`] if the store stays unreadable for longer.
    pub async fn wait(&self) -> Result<Finished, Error> {
        let mut id = self.id;
        let mut replaced = Vec::new();
        loop {
            let (job, successor) = self.end_of(id).await?;
            match successor {
                Some(next) => {
                    replaced.push(id);
                    id = next;
                }
                None => return Ok(Finished { job, replaced }),
            }
        }
    }

    async fn end_of(&self, id: JobId) -> Result<(Stored, Option<JobId>), Error> {
        let hints = std::sync::Arc::clone(self.semel.engine()?.store().hints());
        let watch = hints.watch(id);
        let waited_for = self.semel.job(id);
        loop {
            // Registered before the read, so that an end between the read and the wait is not missed.
            let mut news = std::pin::pin!(watch.news());
            news.as_mut().enable();
            let Stored(job) = answered(|| waited_for.load()).await?.ok_or(Error::Gone(id))?;
            if job.head.state.is_finished() {
                let successor = job.replaced_by;
                return Ok((Stored(job), successor));
            }
            // A hint may be lost; the next read finds out.
            drop(tokio::time::timeout(LOOK_AT_LEAST_EVERY, news).await);
        }
    }

    /// Waits until the work has ended and reads its result.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait); [`Error::NotCompleted`] if it has not completed.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.wait().await?.result()
    }

    /// Cancels the job, whatever its state: a run under way is told to stop, and what it still reports is
    /// refused. A job that has already been cancelled stays as it is.
    ///
    /// # Errors
    /// [`Error::Gone`], or [`Error::WrongState`] if the job has ended in another way.
    pub async fn cancel(&self) -> Result<(), Error> {
        match self.semel.engine()?.cancel(self.id, Bearer::default()).await? {
            Settled::Refused(Refusal::WrongState(State::Cancelled)) => Ok(()),
            other => self.done(other),
        }
    }

    /// Makes a job that was enqueued as `pending` available.
    ///
    /// # Errors
    /// [`Error::Gone`], or [`Error::WrongState`] if the job is not pending, or waits for a run to end.
    pub async fn activate(&self) -> Result<(), Error> {
        let settled = self.semel.engine()?.activate(self.id).await?;
        self.done(settled)
    }

    /// Sends a dead letter back: the failed job is admitted again, under its own policy and id, with all its
    /// attempts available again.
    ///
    /// # Errors
    /// [`Error::NoDeadLetter`] if it is not a dead letter, [`Error::KeyHeld`] if another job holds its key,
    /// [`Error::KeyTaken`] if its key was released; [`Error::Gone`].
    pub async fn retry(&self) -> Result<(), Error> {
        let id = self.id;
        match self.semel.engine()?.revive(id, SOURCE).await? {
            Revived::Done(_) => Ok(()),
            Revived::Blocked { holder } => {
                Err(Error::KeyHeld { id, existing: holder.named().map(|head| head.id) })
            }
            Revived::Refused(refusal) => self.done(Settled::Refused(refusal)),
        }
    }

    /// Deletes a dead letter and what is stored of it. If its id was chosen by the caller that enqueued it,
    /// it stays as a discarded job until 24 hours after its end, so that a repeated request still gets the
    /// first answer.
    ///
    /// # Errors
    /// [`Error::NoDeadLetter`] if it is not a dead letter; [`Error::Gone`].
    pub async fn delete_dead_letter(&self) -> Result<(), Error> {
        let settled = self.semel.engine()?.delete_dead_letter(self.id).await?;
        self.done(settled)
    }

    /// Releases the job's unique key, for this job and every other that holds it, so that the next job like
    /// it is admitted at once: for a key that should not be held. No job's state changes; one that waits or
    /// runs goes on, beside whatever is admitted then.
    ///
    /// Returns how many jobs held the key: 0 if the job has no key, or has lost it.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::TooManyHolders`].
    pub async fn release_key(&self) -> Result<usize, Error> {
        let engine = self.semel.engine()?;
        let heads = engine.heads(vec![self.id]).await?;
        let Some(key) = heads.first().ok_or(Error::Gone(self.id))?.key else { return Ok(0) };
        match engine.release_key(key).await? {
            KeyReleased::Done(released) => Ok(released.len()),
            KeyReleased::NobodyHolds => Ok(0),
            KeyReleased::TooMany => Err(Error::TooManyHolders),
        }
    }

    fn done(&self, settled: Settled) -> Result<(), Error> {
        let id = self.id;
        match settled {
            Settled::Done(_) | Settled::Repeated(_) => Ok(()),
            Settled::Refused(Refusal::NotFound) => Err(Error::Gone(id)),
            Settled::Refused(Refusal::NoDeadLetter(state)) => Err(Error::NoDeadLetter { id, state }),
            Settled::Refused(Refusal::WrongState(state) | Refusal::StaleLease(state)) => {
                Err(Error::WrongState { id, state })
            }
            Settled::Refused(Refusal::AwaitsRun) => Err(Error::WrongState { id, state: State::Pending }),
            Settled::Refused(Refusal::KeyReleased) => Err(Error::KeyTaken(id)),
            Settled::Refused(Refusal::TooManyHolders) => Err(Error::TooManyHolders),
            Settled::Refused(Refusal::OtherWorker) => Err(Error::WrongState { id, state: State::Active }),
            Settled::Refused(Refusal::Corrupt(corrupt)) => Err(corrupt.into()),
        }
    }
}
