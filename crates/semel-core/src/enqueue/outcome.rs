//! What becomes of what is offered.

use super::kind::OutcomeKind;
use crate::body::Corrupt;
use crate::event::EventKind;
use crate::ident::{JobId, JobType, QueueName};
use crate::job::Head;
use crate::planted::{Bug, is_planted};
use crate::settings::Depth;
use crate::unique::{Disclose, RejectReason, UniqueKey};

/// The job an answer may name.
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

/// What became of one offered job.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was created.
    Created(Box<Head>),
    /// It had been created before by the same request, under the caller's own id; this is the job now.
    Repeated(Box<Head>),
    /// It was created in place of these, which were cancelled in the same commit.
    Replaced {
        /// The new job.
        head: Box<Head>,
        /// The cancelled ones.
        cancelled: Vec<JobId>,
        /// Whether the answer may name them.
        disclose: Disclose,
    },
    /// It was created as the follow-up of a run.
    FollowUp(Box<Head>),
    /// It was not created: the existing job, which took over its args and meta, is the answer.
    Amended(Box<Head>),
    /// It was not created: the existing job is the answer.
    Existing(Box<Head>),
    /// It was refused as a duplicate.
    Rejected {
        /// Of which job.
        holder: Holder,
        /// Why.
        why: RejectReason,
    },
    /// It was refused: its key stands for other work.
    Mismatch {
        /// Which job has the key.
        holder: Holder,
        /// JSON pointers of the places that differ; empty when the holder may not be shown.
        pointers: Vec<String>,
    },
    /// It was refused: its `Idempotency-Key` stands for another request, which created this job.
    KeyReused(Holder),
    /// It was refused: its `Idempotency-Key` has been used within the day, and what was created under it is deleted.
    KeySpent,
    /// It was refused: another request has used its id.
    IdTaken(JobId),
    /// It was refused: more jobs hold its key than one commit may touch, or more wait for the ends of those that it would replace
    /// than may wait for one.
    TooManyHolders,
    /// It was refused: as many jobs wait in its queue as may.
    QueueFull(Depth),
    /// It was refused: what is stored of the job it meets cannot be read.
    Corrupt(Corrupt),
}

impl Outcome {
    /// What became of it, without the particulars.
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

    /// The name it is counted under.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether a job of its own was created by this very request.
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

    /// Has the answer name nobody.
    pub(super) fn hide_holder(&mut self) {
        if let Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } | Self::KeyReused(holder) = self
        {
            holder.disclose = Disclose::Never;
        }
        if let Self::Mismatch { pointers, .. } = self {
            pointers.clear();
        }
    }

    /// Has the answer show its holder as it is among these, if it is.
    pub(super) fn show_as_stored(&mut self, stored: &[Head]) {
        if let Self::Rejected { holder, .. } | Self::Mismatch { holder, .. } = self
            && let Some(head) = stored.iter().find(|head| head.id == holder.head.id)
        {
            *holder.head = head.clone();
        }
    }

    /// Whether a batch of which all or none is to be stored fails by it.
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

    /// What the log tells of the holder when this is the outcome of a duplicate: one of [`EventKind::DUPLICATES`]; of any
    /// other it is nothing.
    pub const fn duplicate_event(&self) -> Option<EventKind> {
        match self {
            Self::Amended(_) | Self::Existing(_) => Some(EventKind::Deduplicated),
            Self::Rejected { .. } => Some(EventKind::DuplicateRejected),
            Self::Mismatch { .. } | Self::KeyReused(_) => Some(EventKind::PayloadMismatched),
            _ => None,
        }
    }

    /// The key that made it a duplicate, where its answer may show who holds it.
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

/// How a batch fails.
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
    /// Jobs created by these requests, replacements included, whether now or when the same request came before.
    pub inserted: u64,
    /// Answered with an existing job.
    pub skipped: u64,
    /// Jobs created in place of others.
    pub replaced: u64,
    /// Refused.
    pub rejected: u64,
}

impl Counts {
    /// The counts of these outcomes.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            match outcome {
                // What is sent again is answered as the first time.
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

/// What became of a batch.
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
