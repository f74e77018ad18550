//! What became of an offered job.

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

/// What became of an offered job: one of six things, and a duplicate is none of the errors.
#[derive(Clone, Debug)]
pub enum Enqueued {
    /// It was created, now or by an earlier call with the same id and content.
    Created(Admitted),
    /// It was not created: this job is there already.
    Existing(Admitted),
    /// It was created, and the jobs it replaced were cancelled in the same commit.
    Replaced(Admitted),
    /// It was created, and runs after the run that is under way.
    FollowUp(Admitted),
    /// It was refused as a duplicate.
    Rejected(Refused),
    /// It was refused: its key stands for other work.
    Mismatch(Refused),
}

/// The job that answers an enqueue.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// The job.
    pub job: Handle,
    /// Its state at the decision.
    pub state: State,
    /// Why it is the answer.
    pub reason: Reason,
    /// When the next job like it would be admitted, as things were at the decision; none without a unique policy.
    pub frees: Option<Frees>,
    /// The jobs it replaced, as far as they may be shown.
    pub replaced: Vec<JobId>,
}

/// Why a job was not taken.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The job that is there instead, unless it may not be shown.
    pub existing: Option<Handle>,
    /// Its state.
    pub state: Option<State>,
    /// Why.
    pub reason: Reason,
    /// When a job like it would be admitted; none when the existing job may not be shown.
    pub frees: Option<Frees>,
    /// JSON pointers of the places that differ, after a mismatch.
    pub differs_at: Vec<String>,
}

/// Why an enqueue was answered as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody blocked it.
    New,
    /// The same request, by its id and content, was admitted before.
    SameRequest,
    /// Another job with its key blocks it.
    Duplicate,
    /// The existing job took over the newer args and meta.
    Amended,
    /// It took the place of the jobs that blocked it.
    TookPlace,
    /// A run of its key is under way.
    RunUnderWay,
    /// The job that blocks it has ended, and nothing can replace it.
    FinishedHolder,
    /// The job that blocks it may not be shown.
    Undisclosed,
    /// The job with its key has another type or other args.
    OtherContent,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::New => "created",
            Self::SameRequest => "the same request was admitted before",
            Self::Duplicate => "another job with its key is there",
            Self::Amended => "the waiting job took over its args",
            Self::TookPlace => "it took the place of the jobs that held its key",
            Self::RunUnderWay => "it runs after the run that is under way",
            Self::FinishedHolder => "the job with its key has ended and cannot be replaced",
            Self::Undisclosed => "another job with its key is there and may not be shown",
            Self::OtherContent => "its key stands for other work",
        })
    }
}

impl Enqueued {
    /// Translates the engine's outcome.
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
                    // Whether the job that may not be shown has ended is not to be seen either.
                    (None, _) | (_, RejectReason::Undisclosed) => Reason::Undisclosed,
                    (Some(_), RejectReason::Duplicate) => Reason::Duplicate,
                    (Some(_), RejectReason::FinishedHolder) => Reason::FinishedHolder,
                };
                Self::Rejected(refused(&holder, reason, Vec::new()))
            }
            Outcome::Mismatch { holder, pointers } => {
                Self::Mismatch(refused(&holder, Reason::OtherContent, pointers))
            }
            // The library sends no Idempotency-Key; whoever does is told as of any other mismatch.
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

    /// The job that answers, whether created by this call or not; none when it may not be shown.
    pub const fn job(&self) -> Option<&Handle> {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => Some(&it.job),
            Self::Rejected(it) | Self::Mismatch(it) => it.existing.as_ref(),
        }
    }

    /// Its id.
    pub fn id(&self) -> Option<JobId> {
        self.job().map(Handle::id)
    }

    /// Its state at the decision.
    pub const fn state(&self) -> Option<State> {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => {
                Some(it.state)
            }
            Self::Rejected(it) | Self::Mismatch(it) => it.state,
        }
    }

    /// Why it was answered so.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => it.reason,
            Self::Rejected(it) | Self::Mismatch(it) => it.reason,
        }
    }

    /// When a job like it would be admitted. A time that is past, under a policy that says `while_active`, is the end of the period:
    /// the job blocks until it ends.
    pub const fn frees(&self) -> Option<Frees> {
        match self {
            Self::Created(it) | Self::Existing(it) | Self::Replaced(it) | Self::FollowUp(it) => it.frees,
            Self::Rejected(it) | Self::Mismatch(it) => it.frees,
        }
    }

    /// Whether this very call created a job.
    pub const fn is_inserted(&self) -> bool {
        match self {
            Self::Created(it) => matches!(it.reason, Reason::New),
            Self::Replaced(_) | Self::FollowUp(_) => true,
            Self::Existing(_) | Self::Rejected(_) | Self::Mismatch(_) => false,
        }
    }

    /// Waits for the end of the work, whoever asked for it first; see [`Handle::wait`].
    ///
    /// # Errors
    /// [`Error::OtherWork`] after a [mismatch](Self::Mismatch): what the existing job comes to is not what was asked for, though
    /// [`job`](Self::job) may be waited for. [`Error::Undisclosed`] when the existing job may not be shown, else as
    /// [`Handle::wait`].
    pub async fn wait(&self) -> Result<Finished, Error> {
        let job = self.job().ok_or(Error::Undisclosed)?;
        if let Self::Mismatch(Refused { differs_at, .. }) = self {
            return Err(Error::OtherWork { existing: job.id(), differs_at: differs_at.clone() });
        }
        job.wait().await
    }

    /// Waits for the end of the work and reads its result; see [`Handle::result`].
    ///
    /// # Errors
    /// As [`wait`](Self::wait) and [`Handle::result`].
    pub async fn result<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.wait().await?.result()
    }
}

/// What of an offer is needed to tell its outcome.
pub(crate) struct Unoffered(Option<std::sync::Arc<semel_core::unique::UniquePolicy>>);

impl Unoffered {
    pub(crate) fn of(offer: &Offer) -> Self {
        Self(offer.unique.as_ref().map(|identity| std::sync::Arc::clone(&identity.policy)))
    }

    /// As of the decision: a holder that blocked then was in its window at its own creation too.
    fn frees(&self, head: &Head) -> Option<Frees> {
        self.0.as_ref().map(|policy| frees(policy, head, head.created_at))
    }
}
