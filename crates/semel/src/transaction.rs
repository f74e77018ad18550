//! Jobs inside the program's own PostgreSQL transaction: they exist once it commits, or not at all.

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

/// A transaction of the program on the queue's database; see [`Semel::in_transaction`].
///
/// - Enqueued jobs exist once the transaction commits; on rollback their keys are free at once. Another
///   caller that enqueues the same key meanwhile waits, and then is a duplicate or goes ahead.
/// - A duplicate changes nothing and holds nothing. In READ COMMITTED it never undoes the transaction.
/// - [`Error::Store`] with [`Undone`](crate::Undone) means that the transaction is undone: roll it back and
///   run it again from its first statement, unless it was aborted by an error of its own. Expect this in
///   REPEATABLE READ and SERIALIZABLE. In READ COMMITTED it happens only if one transaction enqueues several
///   times and two of them meet in opposite orders: enqueue all jobs in one call.
/// - Other errors leave the transaction as it was. Dropping a future before it is ready does not: roll back
///   then.
/// - Send nothing else on the transaction until a call has returned: a call may undo its own statements, back
///   to a savepoint, and with them whatever was sent in between.
/// - Enqueue late and commit soon: others wait for the keys. A queue's bound is not enforced here.
pub struct InTransaction<'a> {
    semel: Semel,
    /// One call at a time: each sends several statements that belong together.
    session: Mutex<Box<dyn Session + 'a>>,
}

impl fmt::Debug for InTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").field("semel", &self.semel).finish_non_exhaustive()
    }
}

impl Semel {
    /// The queue inside a transaction of the program, on the same database: a `&tokio_postgres::Transaction`,
    /// or a client after `BEGIN`. For other drivers wrap theirs in the type that their crate provides:
    /// `semel_sqlx::Sqlx(&mut tx)`, `semel_diesel::Diesel(conn)`.
    ///
    /// Send nothing else on the transaction until a call has returned: a concurrent statement, as with
    /// `join!` on a shared `&Transaction`, may be undone together with the call's own, although it was
    /// reported as done.
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
    /// Enqueues a job: a typed one, an [`Envelope`], or an [`Enqueue`](crate::Enqueue) with options set for
    /// this job.
    ///
    /// # Errors
    /// As for [`Semel::enqueue`]; [`Error::Closed`]; [`Error::Url`] if the queue is not in PostgreSQL.
    pub async fn enqueue(&self, job: impl IntoEnvelope) -> Result<Enqueued, Error> {
        let many = self.offer(vec![job.into_envelope()], Mode::Each).await?;
        many.outcomes.into_iter().next().unwrap_or(Err(Error::Closed))
    }

    /// Enqueues many jobs, at most 10,000, in one decision: two such calls cannot deadlock. A refused job
    /// does not stop the others: check the outcomes before you commit, or use
    /// [`enqueue_all`](Self::enqueue_all).
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue). What is wrong with a single job is reported in that job's outcome.
    /// [`Error::Invalid`] for more than 10,000 jobs.
    pub async fn enqueue_many<J: IntoEnvelope>(
        &self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Result<Many, Error> {
        self.offer(jobs.into_iter().map(IntoEnvelope::into_envelope).collect(), Mode::Each).await
    }

    /// Enqueues many jobs together, at most 10,000, as [`all_or_nothing`](crate::EnqueueMany::all_or_nothing)
    /// does: if one is invalid or refused, none is enqueued, and the transaction is as it was.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue); [`Error::Batch`] names the job that was refused. [`Error::Invalid`]
    /// for more than 10,000 jobs.
    pub async fn enqueue_all<J: IntoEnvelope>(
        &self,
        jobs: impl IntoIterator<Item = J>,
    ) -> Result<Vec<Enqueued>, Error> {
        let envelopes = jobs.into_iter().map(IntoEnvelope::into_envelope).collect();
        self.offer(envelopes, Mode::AllOrNothing).await?.outcomes.into_iter().collect()
    }

    /// Completes a run together with what the transaction writes. The completion is fenced: a run that has
    /// lost its lease cannot complete. After the commit the handler returns as usual; its return value no
    /// longer counts.
    ///
    /// # Errors
    /// [`Error::LeaseLost`]: roll back, because another run may be under way. [`Error::RunEnded`]: roll back,
    /// because an earlier transaction has completed this very run and its effect is in the database; this
    /// happens if the answer to its COMMIT was lost although it was carried out. [`Error::Gone`] if there is
    /// no such job.
    pub async fn complete(&self, run: &Run) -> Result<(), Error> {
        self.end(run, None).await
    }

    /// The same as [`complete`](Self::complete), with a result: anything serde can write.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete); [`Error::Write`] if serde cannot write the result.
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
            // Outside a transaction a repeated completion counts once. Inside one it would commit a second
            // effect.
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
                message: format!("more than {BATCH_JOBS_MAX} jobs in one call; send fewer at a time"),
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
