//! A job by its id: look at it, wait for it, cancel it, run it again.

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

/// The longest a waiter sleeps without looking, for whatever a hint failed to say.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// For so long a waiter looks again at a store that cannot be read, before it tells its caller.
const AWAY_MAX: Duration = Duration::from_secs(30);

/// Looks until there is an answer: a store that cannot be read now is looked at again, for a while.
pub(crate) async fn answered<T, F>(look: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = Instant::now() + AWAY_MAX;
    loop {
        match look().await {
            Err(error) if error.is_retryable() && Instant::now() < until => {
                tracing::debug!(%error, "a waiter cannot look; it looks again");
                tokio::time::sleep(LOOK_AT_LEAST_EVERY).await;
            }
            answer => return answer,
        }
    }
}

/// A job by its id. Cheap to clone.
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
    /// The replaced jobs that led to it, in order; empty when it is the one that was waited for.
    pub replaced: Vec<JobId>,
}

impl Finished {
    /// How it ended.
    pub const fn state(&self) -> State {
        self.job.state()
    }

    /// Whether it ended well.
    pub fn is_completed(&self) -> bool {
        self.state() == State::Completed
    }

    /// What it returned.
    ///
    /// # Errors
    /// [`Error::NotCompleted`] when it has not ended well, [`Error::Read`] when the result is of another type.
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

    /// The job as it is now; none when there is none, or none any more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn load(&self) -> Result<Option<Stored>, Error> {
        Ok(self.semel.engine()?.job(self.id).await?.map(Stored))
    }

    /// Waits until the work has ended. When the job is replaced meanwhile, the wait goes on with the job that took
    /// its place, also under a policy that tells duplicates nothing (`disclose: never`): who holds this handle is told what became of its
    /// job. A follow-up is waited for like any other job. Woken by the commit that ends it. A store that cannot be read is
    /// looked at again for 30 seconds.
    ///
    /// # Errors
    /// [`Error::Gone`] when there is no such job, or it has been deleted after its retention; [`Error::Closed`] when
    /// the queue is closed meanwhile; [`Error::Store`] when the store is away for longer.
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
            // Registered before looking, so that an end between look and wait is not slept through.
            let mut news = std::pin::pin!(watch.news());
            news.as_mut().enable();
            let Stored(job) = answered(|| waited_for.load()).await?.ok_or(Error::Gone(id))?;
            if job.head.state.is_finished() {
                let successor = job.replaced_by;
                return Ok((Stored(job), successor));
            }
            // A hint may be lost; then this look finds out.
            drop(tokio::time::timeout(LOOK_AT_LEAST_EVERY, news).await);
        }
    }

    /// Waits until the work has ended and reads what it returned.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`Error::NotCompleted`] when it has not ended well.
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.wait().await?.result()
    }

    /// Ends the job, whatever it is doing: a run under way is told, and what it still reports is refused. A job that
    /// has been cancelled already is left as it is.
    ///
    /// # Errors
    /// [`Error::Gone`], or [`Error::WrongState`] when it has ended in another way.
    pub async fn cancel(&self) -> Result<(), Error> {
        match self.semel.engine()?.cancel(self.id, Bearer::default()).await? {
            Settled::Refused(Refusal::WrongState(State::Cancelled)) => Ok(()),
            other => self.done(other),
        }
    }

    /// A job that was enqueued as `pending` becomes available.
    ///
    /// # Errors
    /// [`Error::Gone`], or [`Error::WrongState`] when it is not pending or waits for a run.
    pub async fn activate(&self) -> Result<(), Error> {
        let settled = self.semel.engine()?.activate(self.id).await?;
        self.done(settled)
    }

    /// Sends a dead letter back: what has failed for good is admitted again, under its own policy and its id, with all its attempts
    /// before it.
    ///
    /// # Errors
    /// [`Error::NoDeadLetter`] when it is none, [`Error::KeyHeld`] when another job holds its key, [`Error::KeyTaken`] when its own was
    /// taken from it; [`Error::Gone`].
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

    /// Deletes a dead letter, with what is stored of it. If its id was chosen by whoever enqueued it, it stays a
    /// discarded job until 24 hours after its end, so that the same request is still answered as the first time.
    ///
    /// # Errors
    /// [`Error::NoDeadLetter`] when it is none; [`Error::Gone`].
    pub async fn delete_dead_letter(&self) -> Result<(), Error> {
        let settled = self.semel.engine()?.delete_dead_letter(self.id).await?;
        self.done(settled)
    }

    /// Takes the job's key from it and from every other job that holds it, so that the next one like it is admitted at once: for when a
    /// key is held that should not be. No job's state changes; one that waits or runs goes on, beside whatever is admitted then.
    /// Says how many jobs held it: 0 where the job has none, or none any more.
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
