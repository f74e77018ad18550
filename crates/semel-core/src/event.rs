//! Events: what happened to jobs, crons and workflows. Each commit writes one record of its events to the log.

use crate::ident::{CronName, JobId, JobType, QueueName};
use crate::job::Head;
use crate::state::State;
use crate::unique::UniqueKey;

/// The kind of an event. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A job was admitted. It may wait for an activation or another job's end, but not yet for a time.
    Enqueued = 0,
    /// The job became available by its time or an activation.
    Available = 1,
    /// A worker was granted a lease.
    Started = 2,
    /// The job ended well.
    Completed = 3,
    /// A run failed and will be tried again.
    Retrying = 4,
    /// The job ended badly.
    Discarded = 5,
    /// The job ended because it was still waiting when its `expires_at` passed.
    Expired = 6,
    /// The job was cancelled: by a caller, an operator, a cron or its workflow.
    Cancelled = 7,
    /// The job ended because a newer job with its key took its place.
    Replaced = 8,
    /// A worker gave it back, or lost its lease.
    Requeued = 9,
    /// A later request with the same key overwrote this job's args and meta.
    Amended = 10,
    /// An operator released the job's unique key.
    KeyReleased = 11,
    /// Requests were answered with this job as its duplicates; the amount is their number.
    Deduplicated = 12,
    /// A run failed; the next event says what becomes of the job.
    Failed = 13,
    /// A job was admitted to run at a later time.
    Scheduled = 14,
    /// Requests were refused as duplicates of this job; the amount is their number.
    DuplicateRejected = 15,
    /// Requests were refused because they had this job's key and another payload; the amount is their number.
    PayloadMismatched = 16,
    /// A cron's tick admitted a job. The amount is 1 if the tick was triggered by hand.
    CronTriggered = 17,
    /// A cron's tick admitted no job. The amount is the number of the [`Skip`].
    CronSkipped = 18,
    /// A workflow was created.
    WorkflowStarted = 19,
    /// A step of a workflow ended well. The amount is the step's number.
    WorkflowStepCompleted = 20,
    /// Every step of a workflow ended well. The amount is its duration in milliseconds, as for the next two.
    WorkflowCompleted = 21,
    /// Every step of a workflow has ended, and some badly.
    WorkflowFailed = 22,
    /// A workflow was cancelled.
    WorkflowCancelled = 23,
}

impl EventKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 24] = [
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
        Self::Failed,
        Self::Scheduled,
        Self::DuplicateRejected,
        Self::PayloadMismatched,
        Self::CronTriggered,
        Self::CronSkipped,
        Self::WorkflowStarted,
        Self::WorkflowStepCompleted,
        Self::WorkflowCompleted,
        Self::WorkflowFailed,
        Self::WorkflowCancelled,
    ];

    /// Whether the event is a job's admission.
    pub const fn is_admission(self) -> bool {
        matches!(self, Self::Enqueued | Self::Scheduled)
    }

    /// Whether the event is a job's end.
    pub const fn is_end(self) -> bool {
        matches!(self.has_ended(), Some(true))
    }

    /// Whether the job has ended once this event has happened; `None` where it may or may not have. A dead letter
    /// may be sent back later.
    pub const fn has_ended(self) -> Option<bool> {
        match self {
            Self::Completed | Self::Discarded | Self::Expired | Self::Cancelled | Self::Replaced => {
                Some(true)
            }
            Self::Enqueued
            | Self::Available
            | Self::Started
            | Self::Retrying
            | Self::Requeued
            | Self::Amended
            | Self::Failed
            | Self::Scheduled => Some(false),
            Self::KeyReleased
            | Self::Deduplicated
            | Self::DuplicateRejected
            | Self::PayloadMismatched
            | Self::CronTriggered
            | Self::CronSkipped
            | Self::WorkflowStarted
            | Self::WorkflowStepCompleted
            | Self::WorkflowCompleted
            | Self::WorkflowFailed
            | Self::WorkflowCancelled => None,
        }
    }

    /// The kinds that report duplicates of a holder.
    pub const DUPLICATES: [Self; 3] = [Self::Deduplicated, Self::DuplicateRejected, Self::PayloadMismatched];

    /// Whether the event is about a workflow; the workflow's id then stands in place of a job's.
    pub const fn is_of_workflow(self) -> bool {
        matches!(
            self,
            Self::WorkflowStarted
                | Self::WorkflowStepCompleted
                | Self::WorkflowCompleted
                | Self::WorkflowFailed
                | Self::WorkflowCancelled
        )
    }

    /// The kind of that number, as stored.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The kind's number, as stored.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Why a cron's tick admitted no job. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Skip {
    /// The job of an earlier tick has not ended.
    Overlap = 0,
    /// The job was a duplicate: its unique policy answered with an existing job.
    Duplicate = 1,
    /// The job was refused.
    Rejected = 2,
}

impl Skip {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Overlap, Self::Duplicate, Self::Rejected];
}

/// Separates a cron's name from a job type; neither can contain it.
const BETWEEN: char = '/';

/// One thing that happened to one job, cron or workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The job it happened to. For a cron's tick: the job that the tick admitted, or would have. For a workflow:
    /// the workflow's id, which has the form of a job's.
    pub job: JobId,
    /// The job's type. For a cron's tick it is prefixed with the [cron's name](Self::cron), because all records of
    /// the log have one shape and this is its only free text. For a workflow as a whole: the workflow's form.
    pub job_type: JobType,
    /// The job's queue; for a workflow as a whole, the queue of the step named first.
    pub queue: QueueName,
    /// The attempt in which it happened; 0 before the first. For an admission: half of its key's mark
    /// ([`Self::admits_with`]).
    pub attempt: u32,
    /// The milliseconds that the run took or that the next run waits, the number of duplicates, or what the kind
    /// says; 0 where none applies. For an admission: the other half of the mark.
    pub amount: u32,
}

/// The mark of a key in the log: its first 64 bits. An admission has no attempt and no amount, so their fields hold
/// the mark; a reader of the log finds the jobs that carried a key by it when nothing else remembers them.
fn mark(key: &UniqueKey) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

impl Event {
    /// The event of a cron's tick, whose job has that type and queue.
    pub fn of_tick(
        kind: EventKind,
        cron: &CronName,
        job: JobId,
        job_type: &JobType,
        queue: &QueueName,
        amount: u32,
    ) -> Self {
        let job_type = JobType::from_stored(&format!("{cron}{BETWEEN}{job_type}"));
        Self { kind, job, job_type, queue: queue.clone(), attempt: 0, amount }
    }

    /// The event of an admission. A key that the job's policy does not disclose leaves no mark.
    pub fn of_admission(head: &Head) -> Self {
        let kind = if head.state == State::Scheduled { EventKind::Scheduled } else { EventKind::Enqueued };
        let disclosed = head.key.as_ref().filter(|_| head.hold.is_disclosed());
        let [attempt, amount] = disclosed.map_or([0, 0], mark);
        let (job_type, queue) = (head.job_type.clone(), head.queue.clone());
        Self { kind, job: head.id, job_type, queue, attempt, amount }
    }

    /// The attempt in which it happened; 0 before the first.
    pub const fn attempt(&self) -> u32 {
        if self.kind.is_admission() { 0 } else { self.attempt }
    }

    /// Whether the event admitted a job that carries the key, up to a collision of the key's first 64 bits.
    pub fn admits_with(&self, key: &UniqueKey) -> bool {
        let its = [self.attempt, self.amount];
        self.kind.is_admission() && its != [0, 0] && its == mark(key)
    }

    /// The cron's name, if the event is a cron's tick.
    pub fn cron(&self) -> Option<&str> {
        self.job_type.as_str().split_once(BETWEEN).map(|(cron, _)| cron)
    }

    /// The job's type, or the workflow's form.
    pub fn type_name(&self) -> &str {
        let text = self.job_type.as_str();
        text.split_once(BETWEEN).map_or(text, |(_, job_type)| job_type)
    }
}

/// How the cursor of a reader relates to the events that the log still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Everything after the cursor is kept.
    Kept,
    /// Some events after the cursor were dropped: a reader that goes on from here misses them.
    TooOld,
    /// The log has not reached the cursor, which is from another log, or from a part that a restored copy does not have.
    Ahead,
}

/// Compares `cursor` with a log that keeps everything after `kept_after` and whose last place is `newest`. Cursor 0
/// is the beginning of whatever is kept, and never too old.
pub const fn place(cursor: u64, kept_after: u64, newest: u64) -> Place {
    if cursor > newest {
        Place::Ahead
    } else if cursor != 0 && cursor < kept_after {
        Place::TooOld
    } else {
        Place::Kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_kinds() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(EventKind::from_code(EventKind::ALL.len() as u8), None);
    }

    #[test]
    fn a_tick_carries_the_crons_name_and_its_jobs_type() {
        let cron = CronName::parse("daily.report-1", "").unwrap();
        let (job_type, queue) = (JobType::parse("report.daily", "").unwrap(), QueueName::default());
        let id = JobId::mint(crate::time::Timestamp::EPOCH, 1, 1);
        let tick = Event::of_tick(EventKind::CronTriggered, &cron, id, &job_type, &queue, 0);
        assert_eq!((tick.cron(), tick.type_name()), (Some("daily.report-1"), "report.daily"));
        let job = Event { kind: EventKind::Enqueued, job_type, ..tick };
        assert_eq!((job.cron(), job.type_name()), (None, "report.daily"));
    }

    #[test]
    fn a_cursor_is_kept_from_the_last_dropped_to_the_newest() {
        let all = [0, 4, 5, 6, 9, 10].map(|cursor| place(cursor, 5, 9));
        assert_eq!(all, [Place::Kept, Place::TooOld, Place::Kept, Place::Kept, Place::Kept, Place::Ahead]);
        assert_eq!(place(0, 0, 0), Place::Kept, "an empty log has a beginning");
    }
}
