//! Jobs inside a transaction of the program's own: they are there with its commit, or not at all.

use std::fmt;

use bytes::Bytes;
use semel_core::enqueue::{Batch, Mode};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::limits::BATCH_JOBS_MAX;
use semel_core::settle::{Refusal, Settled};
use semel_postgres::Session;
use serde::Serialize;
use tokio::sync::Mutex;

use crate::enqueue::{Given, Many, SOURCE};
use crate::envelope::{Envelope, IntoEnvelope};
use crate::error::Error;
use crate::outcome::Enqueued;
use crate::queue::Semel;
use crate::worker::Run;

/// A transaction of the program's own on the queue's database; see [`Semel::in_transaction`].
///
/// - What is enqueued is there with the commit, and its key is free again at once with the rollback. Whoever offers the same
///   key meanwhile waits, and then is a duplicate or goes ahead.
/// - A duplicate changes nothing and holds nothing. In READ COMMITTED it never undoes the transaction.
/// - [`Error::Store`] with [`Undone`](crate::Undone) says that the transaction is undone: roll it back, and begin it again from its
///   first statement, unless it was aborted by an error of its own. In REPEATABLE READ and SERIALIZABLE that is to be expected; in READ COMMITTED only where
///   one transaction enqueues several times and two of them meet in opposite orders: enqueue all jobs by one call.
/// - Other errors leave the transaction as it was. Dropping a future before it is ready does not: roll back then.
/// - Nothing else may be asked on the transaction until a call has answered: a call may undo its own statements, back to a
///   savepoint, and whatever came in between with them.
/// - Enqueue late and commit soon: others wait for the keys. A queue's bound does not hold here.
pub struct InTransaction<'a> {
    semel: Semel,
    /// One call at a time: each is several statements that belong together.
    session: Mutex<Box<dyn Session + 'a>>,
}

impl fmt::Debug for InTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").field("semel", &self.semel).finish_non_exhaustive()
    }
}

impl Semel {
    /// The queue inside a transaction of the program's own, on the same database: a `&tokio_postgres::Transaction`, or a
    /// client after `BEGIN`. Those of other drivers come in the type that their crate has for it: `semel_sqlx::Sqlx(&mut tx)`,
    /// `semel_diesel::Diesel(conn)`.
    ///
    /// Nothing else may be asked on the transaction until a call has answered: a statement that is sent beside it, as by `join!` on
    /// a shared `&Transaction`, may be undone with the call's own, although it was answered as done.
    ///
    /// ```no_run
    /// # #[derive(serde::Serialize, serde::Deserialize, semel::Job)]
    /// # #[job(type = "order.ship", unique(args("order")))]
    /// # struct Ship { order: i64 }
    /// # async fn example(semel: semel::Semel, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let order = client.transaction().await?;
    /// order.execute("INSERT INTO orders (id) VALUES ($1)", &[&7_i64]).await?;
    /// semel.in_transaction(&order).enqueue(Ship { order: 7 }).await?;
    /// order.commit().await?; // both, or neither
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_transaction<'a>(&self, transaction: impl Session + 'a) -> InTransaction<'a> {
        InTransaction { semel: self.clone(), session: Mutex::new(Box::new(transaction)) }
    }
}

impl InTransaction<'_> {
    /// Offers a job: a typed one, an [`Envelope`], or an [`Enqueue`](crate::Enqueue) with what is special about it.
    ///
    /// # Errors
    /// As [`Semel::enqueue`]; [`Error::Closed`]; [`Error::Url`] when the queue is not in PostgreSQL.
    pub async fn enqueue(&self, job: impl IntoEnvelope) -> Result<Enqueued, Error> {
        let many = self.offer(vec![job.into_envelope()], Mode::Each).await?;
        many.outcomes.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    /// Offers many jobs, at most 10,000, in one decision: no two such calls wait for one another forever. A refused one does not stop
    /// the others: look at the outcomes before you commit, or use [`enqueue_all`](Self::enqueue_all).
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue). What is wrong with one of them is its own outcome.
    pub async fn enqueue_many<J: IntoEnvelope>(
        &self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Result<Many, Error> {
        self.offer(jobs.into_iter().map(IntoEnvelope::into_envelope).collect(), Mode::Each).await
    }

    /// Offers many jobs that go together, at most 10,000, as [`all_or_nothing`](crate::EnqueueMany::all_or_nothing) does: where one is
    /// invalid or refused none is offered, and the transaction is as it was.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); [`Error::Batch`] names the one that was refused.
    pub async fn enqueue_all<J: IntoEnvelope>(
        &self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Result<Vec<Enqueued>, Error> {
        let envelopes = jobs.into_iter().map(IntoEnvelope::into_envelope).collect();
        self.offer(envelopes, Mode::AllOrNothing).await?.outcomes.into_iter().collect()
    }

    /// Ends a run well, together with what the transaction writes: fenced, so that a run whose lease is lost cannot. When
    /// the transaction is committed the handler returns as ever; what it returns then does not count.
    ///
    /// # Errors
    /// [`Error::LeaseLost`]: roll the transaction back, for another run may be under way. [`Error::RunEnded`]: roll it back, for an
    /// earlier transaction has ended this very run, as one has whose COMMIT was not answered and was carried out all the same: its
    /// effect is there. [`Error::Gone`].
    pub async fn complete(&self, run: &Run) -> Result<(), Error> {
        self.end(run, None).await
    }

    /// The same with a result, anything serde writes.
    ///
    /// # Errors
    /// As [`complete`](Self::complete); [`Error::Write`].
    pub async fn complete_with<T: Serialize>(&self, run: &Run, result: &T) -> Result<(), Error> {
        let text = serde_json::to_vec(result).map_err(Error::Write)?;
        self.end(run, Some(text.into())).await
    }

    async fn end(&self, run: &Run, result: Option<Bytes>) -> Result<(), Error> {
        let (engine, database) = self.semel.inside()?;
        let bearer = Bearer { lease: Some(LeaseToken(run.fence())), worker: None };
        let mut session = self.session.lock().await;
        match engine.complete_inside(&mut database.inside(&mut **session), run.id(), bearer, result).await? {
            Settled::Done(_) => Ok(()),
            // Outside it would count once. Here it would bring a second effect with it.
            Settled::Repeated(_) => Err(Error::RunEnded(run.id())),
            Settled::Refused(Refusal::NotFound) => Err(Error::Gone(run.id())),
            Settled::Refused(Refusal::Corrupt(corrupt)) => Err(corrupt.into()),
            Settled::Refused(_) => Err(Error::LeaseLost(run.id())),
        }
    }

    async fn offer(&self, envelopes: Vec<Envelope>, mode: Mode) -> Result<Many, Error> {
        let (engine, database) = self.semel.inside()?;
        if envelopes.len() > BATCH_JOBS_MAX {
            return Err(Error::Invalid {
                pointer: String::new(),
                message: format!("more than {BATCH_JOBS_MAX} jobs in one call; offer fewer at a time"),
            });
        }
        let (given, offers) = Given::read(&self.semel, envelopes, mode, usize::MAX)?;
        let mut session = self.session.lock().await;
        let mut transaction = database.inside(&mut **session);
        let outcomes = match engine.enqueue_batch_inside(&mut transaction, offers, mode, SOURCE).await? {
            Batch::Done(outcomes) => outcomes,
            Batch::Refused { index, outcome } => {
                return Err(given.refused(&self.semel, index, outcome));
            }
        };
        Ok(given.told(&self.semel, outcomes, || Error::Closed))
    }
}
