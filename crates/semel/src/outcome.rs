//! The outcome of enqueueing a job.

use std::fmt;

use semel_core::enqueue::{Holder, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::state::State;
use semel_core::unique::{Disclose, Frees, RejectReason, frees};
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::handle::{Finished, Handle};
use crate::queue::Semel;

/// The outcome of enqueueing a job. A duplicate is an outcome, not an error.
#[derive(Clone, Debug)]
pub enum Enqueued {
    /// The job was created, now or by an earlier call with the same id and content.
    Created(Admitted),
    /// The job was not created, because this one exists already.
    Existing(Admitted),
    /// The job was created, and the jobs it replaces were cancelled in the same commit.
    Replaced(Admitted),
    /// The job was created, and runs after the run now under way.
    FollowUp(Admitted),
    /// The job was refused as a duplicate.
    Rejected(Refused),
    /// The job was refused because its key stands for other work.
    Mismatch(Refused),
}

/// The job that answers an enqueue.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// A handle on the job.
    pub job: Handle,
    /// The job's state at the time of the decision.
    pub state: State,
    /// Why this job is the answer.
    pub reason: Reason,
    /// When the next job like it would be admitted, as of the decision; `None` without a unique policy.
    pub frees: Option<Frees>,
    /// The jobs that it replaced, as far as they may be shown.
    pub replaced: Vec<JobId>,
}

/// Why a job was refused.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The job that exists instead; `None` if it may not be shown.
    pub existing: Option<Handle>,
    /// The state of the existing job.
    pub state: Option<State>,
    /// Why the job was refused.
    pub reason: Reason,
    /// When a job like it would be admitted; `None` if the existing job may not be shown.
    pub frees: Option<Frees>,
    /// After a mismatch, JSON pointers of the places that differ.
    pub differs_at: Vec<String>,
}

/// Why an enqueue had the outcome it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No job blocked it.
    New,
    /// The same request, by id and content, was admitted before.
    SameRequest,
    /// Another job with the same key blocks it.
    Duplicate,
    /// The existing job took over the newer args and meta.
    Amended,
    /// It replaced the jobs that blocked it.
    TookPlace,
    /// A run with the same key is under way.
    RunUnderWay,
    /// The job that blocks it has ended, and an ended job cannot be replaced.
    FinishedHolder,
    /// The job that blocks it may not be shown.
    Undisclosed,
    /// The job with the same key has another type or other args.
    OtherContent,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::New => "created",
            Self::SameRequest => "the same request was already accepted",
            Self::Duplicate => "another job has its key",
            Self::Amended => "the waiting job took over its args",
            Self::TookPlace => "it took the place of the jobs that held its key",
            Self::RunUnderWay => "it runs after the current run",
            Self::FinishedHolder => "the job that has its key has ended and cannot be replaced",
            Self::Undisclosed => "another job has its key and may not be shown",
            Self::OtherContent => "its key is already used for different work",
        })
    }
}

impl Enqueued {
    /// Converts the engine's outcome.
    pub(crate) fn of(semel: &Semel, offer: &Unoffered, outcome: Outcome) -> Result<Self, Error> {
        let admitted = |head: &Head, reason| Admitted {
            job: semel.job(head.id),
            state: head.state,
            reason,
            frees: offer.frees(head),
            replaced: Vec::new(),
        };
        let refused = |holder: &Holder, reason, differs_at| {
            let head = holder.named();
            Refused {
                existing: head.map(|head| semel.job(head.id)),
                state: head.map(|head| head.state),
                reason,
                frees: head.and_then(|head| offer.frees(head)),
                differs_at,
            }
        };
        Ok(match outcome {
            Outcome::Created(head) => Self::Created(admitted(&head, Reason::New)),
            Outcome::Repeated(head) => Self::Created(admitted(&head, Reason::SameRequest)),
            Outcome::Replaced { head, cancelled, disclose } => {
                let replaced = if disclose == Disclose::Always { cancelled } else { Vec::new() };
                Self::Replaced(Admitted { replaced, ..admitted(&head, Reason::TookPlace) })
            }
            Outcome::FollowUp(head) => Self::FollowUp(admitted(&head, Reason::RunUnderWay)),
            Outcome::Amended(head) => Self::Existing(admitted(&head, Reason::Amended)),
            Outcome::Existing(head) => Self::Existing(admitted(&head, Reason::Duplicate)),
            Outcome::Rejected { holder, why } => {
                let reason = match (holder.named(), why) {
                    // Whether a job that may not be shown has ended must not be visible either.
                    (None, _) | (_, RejectReason::Undisclosed) => Reason::Undisclosed,
                    (Some(_), RejectReason::Duplicate) => Reason::Duplicate,
                    (Some(_), RejectReason::FinishedHolder) => Reason::FinishedHolder,
                };
                Self::Rejected(refused(&holder, reason, Vec::new()))
            }
            Outcome::Mismatch { holder, pointers } => {
                Self::Mismatch(refused(&holder, Reason::OtherContent, pointers))
            }
            // The library sends no Idempotency-Key; if one is involved, it is reported like any other
            // mismatch.
            Outcome::KeyReused(holder) => Self::Mismatch(refused(&holder, Reason::OtherContent, Vec::new())),
            Outcome::KeySpent => Self::Rejected(Refused {
                existing: None,
                state: None,
                reason: Reason::Duplicate,
                frees: None,
                differs_at: Vec::new(),
            }),
            Outcome::IdTaken(id) => return Err(Error::IdTaken(id)),
            Outcome::TooManyHolders => return Err(Error::TooManyHolders),
            Outcome::QueueFull(depth) => return Err(Error::QueueFull { bound: depth.bound }),
            Outcome::Corrupt(corrupt) => return Err(corrupt.into()),
        })
    }

    /// The job that is the answer, whether this call created it or not; `None` if it may not be shown.
    pub const fn job(&self) -> Option<&Handle> {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => Some(&it.job),
            Self::Rejected(it) | Self::Mismatch(it) => it.existing.as_ref(),
        }
    }

    /// The id of that job.
    pub fn id(&self) -> Option<JobId> {
        self.job().map(Handle::id)
    }

    /// The state of that job at the time of the decision.
    pub const fn state(&self) -> Option<State> {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => {
                Some(it.state)
            }
            Self::Rejected(it) | Self::Mismatch(it) => it.state,
        }
    }

    /// Why the enqueue had this outcome.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => it.reason,
            Self::Rejected(it) | Self::Mismatch(it) => it.reason,
        }
    }

    /// When a job like it would be admitted. A time in the past, under a policy with `while_active`, is the
    /// end of the window: the job blocks until it ends.
    pub const fn frees(&self) -> Option<Frees> {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => it.frees,
            Self::Rejected(it) | Self::Mismatch(it) => it.frees,
        }
    }

    /// Whether this call itself created a job.
    pub const fn is_inserted(&self) -> bool {
        match self {
            Self::Created(it) => matches!(it.reason, Reason::New),
            Self::Replaced(_) | Self::FollowUp(_) => true,
            Self::Existing(_) | Self::Rejected(_) | Self::Mismatch(_) => false,
        }
    }

    /// Waits until the work has ended, whoever enqueued it first; see [`Handle::wait`].
    ///
    /// # Errors
    /// [`Error::OtherWork`] after a [mismatch](Self::Mismatch): the existing job's result is not what was
    /// asked for, although [`job`](Self::job) can be waited for. [`Error::Undisclosed`] if the existing job
    /// may not be shown. Otherwise as for [`Handle::wait`].
    pub async fn wait(&self) -> Result<Finished, Error> {
        let job = self.job().ok_or(Error::Undisclosed)?;
        if let Self::Mismatch(Refused { differs_at, .. }) = self {
            return Err(Error::OtherWork { existing: job.id(), differs_at: differs_at.clone() });
        }
        job.wait().await
    }

    /// Waits until the work has ended and reads its result; see [`Handle::result`].
    ///
    /// # Errors
    /// As for [`wait`](Self::wait) and [`Handle::result`].
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.wait().await?.result()
    }
}

/// The part of an offer that is needed to report its outcome: its unique policy.
pub(crate) struct Unoffered(Option<std::sync::Arc<semel_core::unique::UniquePolicy>>);

impl Unoffered {
    pub(crate) fn of(offer: &Offer) -> Self {
        Self(offer.unique.as_ref().map(|identity| std::sync::Arc::clone(&identity.policy)))
    }

    /// When the job frees its key. Judged at its own creation: a job that blocked at the decision was within
    /// its window then too.
    fn frees(&self, head: &Head) -> Option<Frees> {
        self.0.as_ref().map(|policy| frees(policy, head, head.created_at))
    }
}
