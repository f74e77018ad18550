//! Enqueueing jobs: one, or many.

use std::future::IntoFuture;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Batch, Counts, Mode, Offer, Outcome};
use semel_core::error::Invalid;
use semel_core::ident::JobId;
use semel_core::limits::BATCH_JOBS_MAX;
use semel_ojs::explain::Account;
use semel_ojs::{Problem, Templates, Terms};
use semel_store::backend::BoxFuture;
use semel_store::bounds::GROUP_BYTES_MAX;
use serde::Serialize;

use crate::envelope::{At, Envelope, IntoEnvelope};
use crate::error::Error;
use crate::explain::Explained;
use crate::options::Retry;
use crate::outcome::{Enqueued, Unoffered};
use crate::queue::Semel;
use crate::rate_limit::RateLimit;
use crate::unique::Unique;

/// The source that the record of duplicates names for callers of this library.
pub(crate) const SOURCE: &str = "library";

/// A job to be enqueued: set its options, then `.await` it.
///
/// Dropping it before the `.await` enqueues nothing. Dropping the future while it waits does not undo the
/// request.
#[must_use = "a job is enqueued by `.await`"]
#[derive(Debug)]
pub struct Enqueue {
    semel: Semel,
    envelope: Envelope,
}

macro_rules! the_envelopes {
    ($($(#[$doc:meta])* fn $name:ident $(<$($generic:ident : $bound:path),*>)? ($($arg:ident : $type:ty),*);)+) => {
        impl Enqueue {
            $(
                $(#[$doc])*
                pub fn $name $(<$($generic: $bound),*>)? (mut self, $($arg: $type),*) -> Self {
                    self.envelope = self.envelope.$name($($arg),*);
                    self
                }
            )+
        }
    };
}

the_envelopes! {
    /// Does not run the job before this time, to the millisecond.
    fn at(at: impl Into<At>);
    /// Delays the job by this long after its admission, by the store's clock; rounded up to the microsecond.
    fn after(wait: Duration);
    /// Holds the job back until it is [activated](crate::Handle::activate).
    fn pending();
    /// The priority, -100 to 100; higher runs first.
    fn priority(priority: i8);
    /// The queue that the job waits in.
    fn queue(name: impl Into<String>);
    /// An id of your own, a UUIDv7: sending the same job again with it gets the same answer as the first
    /// time.
    fn id(id: JobId);
    /// Identifies the work by a key of your own, in place of what the type's unique policy compares. How long
    /// the key holds and what happens to a duplicate stay as in that policy, or as in
    /// [`unique`](Self::unique), whether it is called before this or after.
    fn key(key: impl Into<String>);
    /// Sets the unique policy, in place of the type's. A [`key`](Self::key) set earlier stays, unless this
    /// policy names one.
    fn unique(unique: Unique);
    /// Switches uniqueness off: the job is never a duplicate, and no job is a duplicate of it.
    fn no_unique();
    /// Labels, in place of the type's.
    fn tags<T: Into<String>>(tags: impl IntoIterator<Item = T>);
    /// Adds a member to the job's meta.
    fn meta(name: impl Into<String>, value: impl Serialize);
    /// Marks a value that is shown only to the worker, by a JSON pointer such as `/meta/email`.
    fn sensitive(pointer: impl Into<String>);
    /// The number of runs allowed, including the first.
    fn max_attempts(attempts: u32);
    /// The longest that one attempt may run: 1 ms to 30 days.
    fn timeout(timeout: Duration);
    /// How long a lease on the job lasts without a heartbeat: 1 ms to 30 days.
    fn lease(lease: Duration);
    /// Discards the job if it has not started within this time after its admission.
    fn expires_after(wait: Duration);
    /// Limits how many jobs like it run at once and start within a period, in place of the type's limit.
    fn rate_limit(limit: RateLimit);
    /// Whether and when a failed attempt is followed by another. Replaces the type's policy as a whole.
    fn retry(retry: Retry);
}

impl Enqueue {
    pub(crate) fn new(semel: Semel, envelope: Envelope) -> Self {
        Self { semel, envelope }
    }

    /// Says what would become of the job if it were enqueued now, and why. Writes nothing, and is not counted
    /// anywhere.
    ///
    /// ```
    /// # use semel::{Job, Semel, Would};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize, Job)]
    /// #[job(type = "invoice.pay", unique(args("invoice"), on_conflict = "ignore"))]
    /// struct Pay {
    ///     invoice: u64,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), semel::Error> {
    /// # let semel = Semel::open("memory:").await?;
    /// let first = semel.enqueue(Pay { invoice: 17 }).await?;
    /// let why = semel.enqueue(Pay { invoice: 17 }).explain().await?;
    /// assert_eq!(why.would, Would::Existing);
    /// assert_eq!(why.existing.as_ref().map(|job| job.id()), first.id());
    /// println!("{why}"); // Two jobs are the same when they agree in type and the args invoice. …
    /// # assert!(why.to_string().starts_with("Two jobs are the same when they agree in type and the args invoice. "));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if enqueueing the job would be refused as invalid; other errors when the store
    /// cannot be read.
    pub async fn explain(self) -> Result<Explained, Error> {
        let engine = self.semel.engine()?;
        let read = |text: &str, terms: Terms<'_>| semel_ojs::Enqueue::parse_to_explain(text, terms);
        let request = request(&self.semel, self.envelope, read)?;
        let explained = engine.explain(request.offer.clone()).await?;
        Ok(Explained::of(&self.semel, Account::of(&request, &explained)?))
    }

    async fn offer(self) -> Result<Enqueued, Error> {
        let engine = self.semel.engine()?;
        let (offer, unoffered) = read(&self.semel, self.envelope)?;
        let outcome = engine.enqueue(offer, SOURCE).await?;
        Enqueued::of(&self.semel, &unoffered, outcome)
    }
}

impl IntoEnvelope for Enqueue {
    /// The envelope alone, to be enqueued in another way: inside a transaction.
    fn into_envelope(self) -> Envelope {
        self.envelope
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<Enqueued, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.offer())
    }
}

/// Reads an envelope through the OJS request reader, as every job is.
fn read(semel: &Semel, envelope: Envelope) -> Result<(Offer, Unoffered), Error> {
    let read = |text: &str, terms: Terms<'_>| semel_ojs::Enqueue::parse(text, terms);
    let (offer, _) = request(semel, envelope, read)?.into_parts();
    let unoffered = Unoffered::of(&offer);
    Ok((offer, unoffered))
}

/// Reads an envelope with `read`, under this program's terms.
fn request(
    semel: &Semel,
    envelope: Envelope,
    read: impl FnOnce(&str, Terms<'_>) -> Result<semel_ojs::Enqueue, Invalid>,
) -> Result<semel_ojs::Enqueue, Error> {
    let text = envelope.into_json()?;
    let templates = semel.templates();
    let mut request = read(&text, terms(&templates))?;
    if !semel.keeps_unique() {
        forget_policy(&mut request.offer)?;
    }
    Ok(request)
}

/// The terms under which this program's requests are read: trusted, with its templates.
pub(crate) fn terms(templates: &Templates) -> Terms<'_> {
    Terms { templates: Some(templates), ..Terms::trusted() }
}

/// Removes the unique policy, for tests that switch uniqueness off.
pub(crate) fn forget_policy(offer: &mut Offer) -> Result<(), Error> {
    if offer.unique.take().is_some() {
        let mut body = Body::decode(&offer.body)?;
        body.unique = None;
        offer.body = body.encode()?;
    }
    Ok(())
}

/// Many jobs to be enqueued.
#[must_use = "jobs are enqueued by `.await`"]
#[derive(Debug)]
pub struct EnqueueMany {
    semel: Semel,
    envelopes: Vec<Envelope>,
    mode: Mode,
}

/// What became of many jobs.
#[must_use = "only this says which jobs were refused or could not be sent"]
#[derive(Debug)]
pub struct Many {
    /// One outcome per job, in order. An error concerns that job alone.
    pub outcomes: Vec<Result<Enqueued, Error>>,
    /// How many jobs were inserted, skipped, replaced and rejected. Invalid jobs count as rejected. So do
    /// jobs left undecided because the store failed part-way through a call of more than one commit (10,000
    /// jobs or 64 MiB).
    pub counts: Counts,
}

impl EnqueueMany {
    pub(crate) fn new(semel: Semel, envelopes: Vec<Envelope>) -> Self {
        Self { semel, envelopes, mode: Mode::Each }
    }

    /// Stores all jobs or none: if one is invalid or refused, the call returns [`Error::Batch`]. At most
    /// 10,000 jobs and 64 MiB, which is what one commit takes; more is [`Error::Invalid`].
    pub fn all_or_nothing(mut self) -> Self {
        self.mode = Mode::AllOrNothing;
        self
    }

    async fn offer(self) -> Result<Many, Error> {
        let engine = self.semel.engine()?;
        let whole = self.mode == Mode::AllOrNothing;
        if whole && self.envelopes.len() > BATCH_JOBS_MAX {
            return Err(beyond(&format!("{BATCH_JOBS_MAX} jobs")));
        }
        // Other callers share the commit, and would fail with this batch if the store cannot take that much.
        let bytes_max = if whole { GROUP_BYTES_MAX } else { usize::MAX };
        let (given, mut offers) = Given::read(&self.semel, self.envelopes, self.mode, bytes_max)?;
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(offers.len());
        let mut broken = None;
        while !offers.is_empty() {
            let rest = offers.split_off(piece(&offers, self.mode));
            let batch = engine.enqueue_batch(std::mem::replace(&mut offers, rest), self.mode, SOURCE);
            match batch.await {
                Ok(Batch::Done(done)) => outcomes.extend(done),
                Err(error) if outcomes.is_empty() => return Err(error.into()),
                // What earlier commits stored stays stored: the caller has to know which jobs that is.
                Err(error) => {
                    broken = Some(error);
                    break;
                }
                Ok(Batch::Refused { index, outcome }) => {
                    return Err(given.refused(&self.semel, index, outcome));
                }
            }
        }
        let unheard = || broken.clone().map_or(Error::Closed, Error::from);
        Ok(given.told(&self.semel, outcomes, unheard))
    }
}

/// The envelopes of one call after reading: the answers for those that are not valid, and what the answers
/// for the others need.
pub(crate) struct Given {
    /// One per envelope; `None` for a job that is sent to the store.
    answers: Vec<Option<Result<Enqueued, Error>>>,
    unoffered: Vec<Unoffered>,
}

impl Given {
    /// Reads the envelopes, and returns the offers for the store.
    ///
    /// # Errors
    /// In all-or-nothing mode, [`Error::Batch`] for the first envelope that is not valid. [`Error::Invalid`]
    /// if the bodies together exceed `bytes_max`.
    pub(crate) fn read(
        semel: &Semel,
        envelopes: Vec<Envelope>,
        mode: Mode,
        bytes_max: usize,
    ) -> Result<(Self, Vec<Offer>), Error> {
        let mut given = Self { answers: Vec::with_capacity(envelopes.len()), unoffered: Vec::new() };
        let (mut offers, mut bytes) = (Vec::with_capacity(envelopes.len()), 0);
        for (index, envelope) in envelopes.into_iter().enumerate() {
            match read(semel, envelope) {
                Ok((offer, rest)) => {
                    bytes += offer.body.len();
                    if bytes > bytes_max {
                        return Err(beyond(&format!("{} MiB of jobs", bytes_max >> 20)));
                    }
                    given.answers.push(None);
                    given.unoffered.push(rest);
                    offers.push(offer);
                }
                Err(error) if mode == Mode::AllOrNothing => {
                    let reason = error.to_string();
                    return Err(Error::Batch { index, reason, outcome: Box::new(Err(error)) });
                }
                Err(error) => given.answers.push(Some(Err(error))),
            }
        }
        Ok((given, offers))
    }

    /// The error for a batch that was refused because of the offer at `index`.
    pub(crate) fn refused(&self, semel: &Semel, index: usize, outcome: Outcome) -> Error {
        let reason =
            Problem::of_outcome(&outcome).map(|problem| problem.message().to_owned()).unwrap_or_default();
        let told = self.unoffered.get(index).map(|offer| Enqueued::of(semel, offer, outcome));
        Error::Batch { index, reason, outcome: Box::new(told.unwrap_or(Err(Error::Closed))) }
    }

    /// Combines the answers of all envelopes. `outcomes` are those of the first offers, in order; offers the
    /// store has not decided get the error from `unheard`.
    pub(crate) fn told(self, semel: &Semel, outcomes: Vec<Outcome>, unheard: impl Fn() -> Error) -> Many {
        let mut counts = Counts::of(&outcomes);
        counts.rejected += u64::try_from(self.answers.len() - outcomes.len()).unwrap_or_default();
        let mut decided = outcomes.into_iter().zip(&self.unoffered);
        let mut answer_next = || match decided.next() {
            Some((outcome, rest)) => Enqueued::of(semel, rest, outcome),
            None => Err(unheard()),
        };
        let answers = self.answers.into_iter();
        let outcomes = answers.map(|answer| answer.unwrap_or_else(&mut answer_next)).collect();
        Many { outcomes, counts }
    }
}

impl IntoFuture for EnqueueMany {
    type Output = Result<Many, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.offer())
    }
}

/// The error for a batch larger than one commit takes.
fn beyond(bound: &str) -> Error {
    Error::Invalid {
        pointer: String::new(),
        message: format!("the batch exceeds {bound}, the limit for one batch; send less at a time"),
    }
}

/// How many of the offers go into the next commit. All-or-nothing offers go together.
fn piece(offers: &[Offer], mode: Mode) -> usize {
    if mode == Mode::AllOrNothing {
        return offers.len();
    }
    let mut bytes = 0;
    let fits = |offer: &&Offer| {
        bytes += offer.body.len();
        bytes <= GROUP_BYTES_MAX
    };
    offers.iter().take(BATCH_JOBS_MAX).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use semel_core::enqueue::Start;
    use semel_ojs::Enqueue;

    use super::*;

    fn offer(bytes: usize) -> Offer {
        let text = format!(r#"{{"type":"a.b","args":["{}"]}}"#, "x".repeat(bytes));
        let (offer, _) = Enqueue::parse(&text, Terms::trusted()).unwrap().into_parts();
        assert_eq!(offer.start, Start::Now);
        offer
    }

    #[test]
    fn a_piece_is_bounded_by_jobs_and_by_bytes() {
        let small = vec![offer(1); BATCH_JOBS_MAX + 1];
        assert_eq!(piece(&small, Mode::Each), BATCH_JOBS_MAX);
        let large = vec![offer(1_000_000); 70];
        assert_eq!(piece(&large, Mode::Each), 67, "of a little more than a million bytes each, in 64 MiB");
        assert_eq!(piece(&large, Mode::AllOrNothing), 70);
        assert_eq!(piece(&large[..1], Mode::Each), 1);
    }
}
