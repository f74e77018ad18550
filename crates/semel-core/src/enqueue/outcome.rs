//! The outcomes of offered jobs and batches.

use super::kind::OutcomeKind;
use crate::body::Corrupt;
use crate::event::EventKind;
use crate::ident::{JobId, JobType, QueueName};
use crate::job::Head;
use crate::planted::{Bug, is_planted};
use crate::settings::Depth;
use crate::unique::{Disclose, RejectReason, UniqueKey};

/// A job that an answer may be allowed to name.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    pub(crate) head: Box<Head>,
    pub(crate) disclose: Disclose,
}

impl Holder {
    /// The holder, if the answer may show it (SEMANTICS 4, `disclose`).
    pub fn named(&self) -> Option<&Head> {
        match self.disclose {
            Disclose::Always => Some(&self.head),
            Disclose::Never => is_planted(Bug::DuplicateShown).then_some(&*self.head),
        }
    }

    pub(crate) fn head_mut(&mut self) -> &mut Head {
        &mut self.head
    }

    /// The job that absorbed the duplicate: for the record, never for the answer.
    pub fn absorbed_by(&self) -> JobId {
        self.head.id
    }

    /// Type and queue of the job that absorbed the duplicate: for counters, never for the answer.
    pub fn labels(&self) -> (&JobType, &QueueName) {
        (&self.head.job_type, &self.head.queue)
    }
}

/// The outcome of one offered job.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The job was created.
    Created(Box<Head>),
    /// The same request had created the job before, under the caller's own id; this is the job now.
    Repeated(Box<Head>),
    /// The job was created in place of others, which were cancelled in the same commit.
    Replaced {
        /// The new job.
        head: Box<Head>,
        /// The cancelled jobs.
        cancelled: Vec<JobId>,
        /// Whether the answer may name the cancelled jobs.
        disclose: Disclose,
    },
    /// The job was created as the follow-up of a run.
    FollowUp(Box<Head>),
    /// No job was created: the existing job, which took over the offered args and meta, is the answer.
    Amended(Box<Head>),
    /// No job was created: the existing job is the answer.
    Existing(Box<Head>),
    /// Refused as a duplicate.
    Rejected {
        /// The job that it duplicates.
        holder: Holder,
        /// The reason.
        why: RejectReason,
    },
    /// Refused: its key stands for other work.
    Mismatch {
        /// The job that holds the key.
        holder: Holder,
        /// JSON pointers of the places that differ; empty when the holder may not be shown.
        pointers: Vec<String>,
    },
    /// Refused: its `Idempotency-Key` stands for another request, which created or amended this job.
    KeyReused(Holder),
    /// Refused: its `Idempotency-Key` was used within the day, and what was created under it has been
    /// deleted.
    KeySpent,
    /// Refused: another request has used its id.
    IdTaken(JobId),
    /// Refused: more jobs hold its key than one commit may touch, or more wait for the jobs it would replace
    /// than may wait for one job.
    TooManyHolders,
    /// Refused: its queue holds as many waiting jobs as it may.
    QueueFull(Depth),
    /// Refused: the stored record of a job it meets cannot be read.
    Corrupt(Corrupt),
}

impl Outcome {
    /// The outcome without the details.
    pub const fn kind(&self) -> OutcomeKind {
        match self {
            Self::Created(_) => OutcomeKind::Created,
            Self::Repeated(_) => OutcomeKind::Repeated,
            Self::Replaced { .. } => OutcomeKind::Replaced,
            Self::FollowUp(_) => OutcomeKind::FollowUp,
            Self::Amended(_) => OutcomeKind::Amended,
            Self::Existing(_) => OutcomeKind::Existing,
            Self::Rejected { why: RejectReason::Duplicate, .. } => OutcomeKind::Rejected,
            Self::Rejected { why: RejectReason::FinishedHolder, .. } => OutcomeKind::RejectedFinished,
            Self::Rejected { why: RejectReason::Undisclosed, .. } => OutcomeKind::RejectedUndisclosed,
            Self::Mismatch { .. } => OutcomeKind::Mismatch,
            Self::KeyReused(_) => OutcomeKind::KeyReused,
            Self::KeySpent => OutcomeKind::KeySpent,
            Self::IdTaken(_) => OutcomeKind::IdTaken,
            Self::TooManyHolders => OutcomeKind::TooManyHolders,
            Self::QueueFull(_) => OutcomeKind::QueueFull,
            Self::Corrupt(_) => OutcomeKind::Corrupt,
        }
    }

    /// The name under which the outcome is counted.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether this very request created a job of its own.
    pub fn is_inserted(&self) -> bool {
        self.inserted().is_some()
    }

    /// The job that this very request created.
    pub fn inserted(&self) -> Option<JobId> {
        match self {
            Self::Created(head) | Self::Replaced { head, .. } | Self::FollowUp(head) => Some(head.id),
            _ => None,
        }
    }

    /// Removes every job from the answer.
    pub(super) fn hide_holder(&mut self) {
        if let Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } | Self::KeyReused(holder) = self
        {
            holder.disclose = Disclose::Never;
        }
        if let Self::Mismatch { pointers, .. } = self {
            pointers.clear();
        }
    }

    /// Makes the answer show its holder as it appears in `stored`, if it does.
    pub(super) fn show_as_stored(&mut self, stored: &[Head]) {
        if let Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } = self
            && let Some(head) = stored.iter().find(|head| head.id == holder.head.id)
        {
            *holder.head = head.clone();
        }
    }

    /// Whether this outcome makes an all-or-nothing batch fail.
    pub const fn is_refused(&self) -> bool {
        matches!(
            self,
            Self::Rejected { .. }
                | Self::Mismatch { .. }
                | Self::KeyReused(_)
                | Self::KeySpent
                | Self::IdTaken(_)
                | Self::TooManyHolders
                | Self::QueueFull(_)
                | Self::Corrupt(_)
        )
    }

    /// The event that is logged for the holder of a duplicate with this outcome: one of
    /// [`EventKind::DUPLICATES`]; `None` if this is not the outcome of a duplicate.
    pub const fn duplicate_event(&self) -> Option<EventKind> {
        match self {
            Self::Amended(_) | Self::Existing(_) => Some(EventKind::Deduplicated),
            Self::Rejected { .. } => Some(EventKind::DuplicateRejected),
            Self::Mismatch { .. } | Self::KeyReused(_) => Some(EventKind::PayloadMismatched),
            _ => None,
        }
    }

    /// The key that made it a duplicate, if the answer may show the key's holder.
    pub fn shown_key(&self) -> Option<UniqueKey> {
        match self {
            Self::Amended(head) | Self::Existing(head) => head.key,
            Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } => {
                holder.named().and_then(|head| head.key)
            }
            _ => None,
        }
    }

    /// The job that absorbed this duplicate.
    pub fn absorbed_by(&self) -> Option<JobId> {
        match self {
            Self::Amended(head) | Self::Existing(head) => Some(head.id),
            Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } | Self::KeyReused(holder) => {
                Some(holder.absorbed_by())
            }
            _ => None,
        }
    }
}

/// What a refused item does to its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A refused item does not stop the others.
    #[default]
    Each,
    /// One refused item, and nothing is stored.
    AllOrNothing,
}

/// Counts of a batch's outcomes (SEMANTICS 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs created by these requests, replacements included, whether now or by the same request sent before.
    pub inserted: u64,
    /// Requests answered with an existing job.
    pub skipped: u64,
    /// Jobs created in place of others.
    pub replaced: u64,
    /// Requests refused.
    pub rejected: u64,
}

impl Counts {
    /// The counts of these outcomes.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            match outcome {
                // A repeated request is answered as the first time.
                Outcome::Created(_) | Outcome::FollowUp(_) | Outcome::Repeated(_) => counts.inserted += 1,
                Outcome::Replaced { .. } => {
                    counts.inserted += 1;
                    counts.replaced += 1;
                }
                Outcome::Amended(_) | Outcome::Existing(_) => counts.skipped += 1,
                _ => counts.rejected += 1,
            }
        }
        counts
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.inserted += more.inserted;
        self.skipped += more.skipped;
        self.replaced += more.replaced;
        self.rejected += more.rejected;
    }
}

/// The outcome of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Batch {
    /// One outcome per item, in order.
    Done(Vec<Outcome>),
    /// Nothing was stored because of this item (all or nothing).
    Refused {
        /// The item's index.
        index: usize,
        /// Its outcome.
        outcome: Outcome,
    },
}
