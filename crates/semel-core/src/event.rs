//! What happened to jobs, crons and workflows, as the log tells it. One record per commit, written in that commit.

use crate::ident::{CronName, JobId, JobType, QueueName};
use crate::job::Head;
use crate::state::State;
use crate::unique::UniqueKey;

/// What happened. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Admitted; it may be waiting for an activation, but not for a time.
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
    /// Requests were answered with this job because they were its duplicates; the amount says how many.
    Deduplicated = 12,
    /// A run failed; what becomes of the job is the next event.
    Failed = 13,
    /// Admitted to run at a later time.
    Scheduled = 14,
    /// Requests were refused because they were duplicates of this job; the amount says how many.
    DuplicateRejected = 15,
    /// Requests were refused because they had this job's key and another payload; the amount says how many.
    PayloadMismatched = 16,
    /// A cron's tick admitted a job. The amount is 1 where somebody asked for the tick by hand.
    CronTriggered = 17,
    /// A cron's tick admitted none. The amount is the number of the [`Skip`].
    CronSkipped = 18,
    /// A workflow was created.
    WorkflowStarted = 19,
    /// A step of a workflow ended well. The amount is its number.
    WorkflowStepCompleted = 20,
    /// Every step of a workflow ended well. The amount is how long it took in milliseconds, as for the next two.
    WorkflowCompleted = 21,
    /// Every step of a workflow has ended, and some badly.
    WorkflowFailed = 22,
    /// Somebody cancelled a workflow.
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

    /// Whether it tells that a job was admitted.
    pub const fn is_admission(self) -> bool {
        matches!(self, Self::Enqueued | Self::Scheduled)
    }

    /// Whether it tells of a job's end.
    pub const fn is_end(self) -> bool {
        matches!(self.has_ended(), Some(true))
    }

    /// Whether the job it is about has ended when it happens; none where it may have or not. One that has ended may be sent back.
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

    /// What is told of a holder whose duplicates came.
    pub const DUPLICATES: [Self; 3] = [Self::Deduplicated, Self::DuplicateRejected, Self::PayloadMismatched];

    /// Whether it is about a workflow, whose id it then has in place of a job's.
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
    /// The job's own unique policy answered with one that was there already.
    Duplicate = 1,
    /// The job was refused.
    Rejected = 2,
}

impl Skip {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Overlap, Self::Duplicate, Self::Rejected];
}

/// What stands between a cron's name and a job's type, in neither of which it can be.
const BETWEEN: char = '/';

/// One thing that happened to one job, cron or workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// To which job. Of a cron's tick: the job it admitted, or would have. Of a workflow: its id, which is one like a
    /// job's.
    pub job: JobId,
    /// The job's type, behind the [cron's name](Self::cron) if it is about a cron's tick. The log has one shape of
    /// record for all, and this is the text in it that is the teller's own. Of a workflow as a whole: its form.
    pub job_type: JobType,
    /// The job's queue; of a workflow as a whole that of the step named first.
    pub queue: QueueName,
    /// The attempt it happened in; 0 before the first. Of an admission: half of its key's mark ([`Self::admits_with`]).
    pub attempt: u32,
    /// How long the run took in milliseconds, or how long the next one is to wait, or how many duplicates, or what the
    /// kind says; 0 where nothing of it applies. Of an admission: the other half of the mark.
    pub amount: u32,
}

/// What the log knows a key by: its first 64 bits. An admission has no attempt and no amount, so they stand there, and
/// whoever reads the log finds the jobs that carried a key when nothing else remembers them.
fn mark(key: &UniqueKey) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h, ..] = *key.as_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

impl Event {
    /// What became of a tick of a cron, whose job is of that type, in that queue.
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

    /// That a job was admitted. A key that its policy does not disclose leaves no mark.
    pub fn of_admission(head: &Head) -> Self {
        let kind = if head.state == State::Scheduled { EventKind::Scheduled } else { EventKind::Enqueued };
        let disclosed = head.key.as_ref().filter(|_| head.hold.is_disclosed());
        let [attempt, amount] = disclosed.map_or([0, 0], mark);
        let (job_type, queue) = (head.job_type.clone(), head.queue.clone());
        Self { kind, job: head.id, job_type, queue, attempt, amount }
    }

    /// The attempt it happened in; 0 before the first.
    pub const fn attempt(&self) -> u32 {
        if self.kind.is_admission() { 0 } else { self.attempt }
    }

    /// Whether it admitted a job that carries the key: as sure as 64 bits of it are.
    pub fn admits_with(&self, key: &UniqueKey) -> bool {
        let its = [self.attempt, self.amount];
        self.kind.is_admission() && its != [0, 0] && its == mark(key)
    }

    /// The cron's name, if it is about a cron's tick.
    pub fn cron(&self) -> Option<&str> {
        self.job_type.as_str().split_once(BETWEEN).map(|(cron, _)| cron)
    }

    /// The job's type, or a workflow's form.
    pub fn type_name(&self) -> &str {
        let text = self.job_type.as_str();
        text.split_once(BETWEEN).map_or(text, |(_, job_type)| job_type)
    }
}

/// Where a reader of the log stands who has read up to a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Everything after it is there.
    Kept,
    /// Some of what came after it was dropped: whoever goes on from here misses events.
    TooOld,
    /// The log has not come so far: the cursor is of another log, or of what a restored copy does not have.
    Ahead,
}

/// Where `cursor` stands in a log of which everything after `kept_after` is kept and whose last place is `newest`.
/// Cursor 0 is the beginning of whatever is kept, and never too old.
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
