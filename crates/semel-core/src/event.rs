//! What happened to jobs, as the log tells it. One record per commit, written in that commit.

use crate::ident::{JobId, JobType, QueueName};

/// What happened. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Admitted; it may be waiting for a time or an activation.
    Enqueued = 0,
    /// Became available by its time or an activation.
    Available = 1,
    /// A worker was granted a lease.
    Started = 2,
    /// Ended well.
    Completed = 3,
    /// A run failed and will be tried again.
    Retrying = 4,
    /// Ended badly.
    Discarded = 5,
    /// Ended unstarted because its time was over.
    Expired = 6,
    /// Ended by a caller or operator.
    Cancelled = 7,
    /// Ended because a newer job with its key took its place.
    Replaced = 8,
    /// A worker gave it back, or lost its lease.
    Requeued = 9,
    /// A later request of the same key put its payload in this job.
    Amended = 10,
    /// An operator took the key from it.
    KeyReleased = 11,
    /// Duplicates were absorbed by this job; `count` says how many.
    Deduplicated = 12,
}

impl EventKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::Enqueued,
        Self::Available,
        Self::Started,
        Self::Completed,
        Self::Retrying,
        Self::Discarded,
        Self::Expired,
        Self::Cancelled,
        Self::Replaced,
        Self::Requeued,
        Self::Amended,
        Self::KeyReleased,
        Self::Deduplicated,
    ];

    /// The kind of that number, as stored.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The kind's number, as stored.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// One thing that happened to one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// To which job.
    pub job: JobId,
    /// The job's type.
    pub job_type: JobType,
    /// The job's queue.
    pub queue: QueueName,
    /// The attempt it happened in; 0 before the first.
    pub attempt: u32,
    /// How long the run took in milliseconds, or how many duplicates; 0 where neither applies.
    pub amount: u32,
}
