//! A stored job: the head that decisions read, and the vocabulary around it.

mod ended;

use std::sync::Arc;

use crate::ident::{JobId, JobType, QueueName};
use crate::limit::Lane;
use crate::planted::{Bug, is_planted};
use crate::retention::purge_at;
use crate::state::State;
use crate::time::Timestamp;
use crate::unique::{Hold, UniqueKey, must_remember};

pub use self::ended::KeyMemory;

/// The hot part of a stored job: what admission, claim and settling look at. The immutable rest is the
/// [`Body`](crate::body::Body), what grows later are its [notes](NoteKind).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The job's id.
    pub id: JobId,
    /// The unique key, unless the job has no policy or an operator released it.
    pub key: Option<UniqueKey>,
    /// What this job's own policy asks to be remembered and disclosed of it.
    pub hold: Hold,
    /// The job's type.
    pub job_type: JobType,
    /// The queue it waits in.
    pub queue: QueueName,
    /// Which limit it is under, if any.
    pub lane: Option<Lane>,
    /// Higher runs first: -100..=100.
    pub priority: i8,
    /// Where the job is in its life.
    pub state: State,
    /// What the job is besides itself.
    pub role: Role,
    /// Runs started so far; a run that was given back does not count (SEMANTICS 3).
    pub attempt: u32,
    /// Runs allowed; 0 and 1 both mean one (OJS retry 2.2).
    pub max_attempts: u32,
    /// How long a lease on this job lasts, in milliseconds; 0 when the job does not say.
    pub visibility_ms: u32,
    /// How long one attempt may run, in milliseconds; 0 when the job does not say.
    pub timeout_ms: u32,
    /// Moves on every write, never repeats (SEMANTICS 1).
    pub version: u64,
    /// The newest grant's number; moves at claim and where a lease is burned, nowhere else (SEMANTICS 1).
    pub fence: u64,
    /// When the job was admitted.
    pub created_at: Timestamp,
    /// When the job may run: its place in the queue, or what its timer waits for.
    pub available_at: Timestamp,
    /// When the job ends, if it waits then.
    pub expires_at: Option<Timestamp>,
    /// When the present or last run began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When the last duplicate renewed a sliding window (`period_from: last_duplicate`).
    pub renewed_at: Option<Timestamp>,
    /// Of a live job until when it is to mind a [burned lease](Self::burned_until), of an ended one until when it is
    /// [kept](Self::kept_until); those two say which it is. Whoever ends a job, or has it live again, sets it anew.
    pub until: Option<Timestamp>,
    /// The present lease; only an active job has one. Apart, so that a job that waits does not make room for it.
    pub lease: Option<Box<Lease>>,
    /// The follow-up that waits for this run's end, or waited for it.
    pub follow_up: Option<JobId>,
    /// How the job ended; only a finished job has one.
    pub ending: Option<Ending>,
    /// Whether somebody is to be told of its end: its [note](NoteKind::Waiters) says who. Only a live job has it.
    pub awaited: bool,
}

impl Head {
    /// Whether a run of this job has ever been started and not given back.
    pub const fn was_started(&self) -> bool {
        self.attempt > 0
    }

    /// Whether its work may be under way or half done: a run of it was started, or it is a task, whose steps run without a run of
    /// its own.
    pub fn has_begun(&self) -> bool {
        self.was_started() || self.state == State::Active
    }

    /// Whether another run is allowed.
    pub fn has_attempts_left(&self) -> bool {
        let allowed = if self.max_attempts == 0 { 1 } else { self.max_attempts };
        self.attempt < allowed || (self.attempt == allowed && is_planted(Bug::RetryBeyondMax))
    }

    /// Until when a run whose place this job took, itself or through others, may still go on: when the lease that was
    /// burned then would have ended. Only a live job has it.
    pub fn burned_until(&self) -> Option<Timestamp> {
        self.until.filter(|_| self.state.is_live())
    }

    /// Until when the job's body is kept, as it was decided at its end; nothing where that was the default. Only a finished job
    /// has it.
    pub fn kept_until(&self) -> Option<Timestamp> {
        self.until.filter(|_| self.state.is_finished())
    }

    /// Until when a run of this job, or one whose place it took, may go on although its lease is burned now.
    pub fn run_may_last_until(&self) -> Option<Timestamp> {
        self.lease.as_deref().map(Lease::ends_at).max(self.burned_until())
    }

    /// Whether the job is in the dead letter list (OJS retry 2.2: `on_exhaustion: dead_letter`).
    pub const fn is_dead_letter(&self) -> bool {
        matches!(self.ending, Some(Ending::DeadLetter))
    }

    /// When the job's body may be deleted; only a finished job has such a time.
    pub fn purge_at(&self) -> Option<Timestamp> {
        self.finished_at.and_then(|at| purge_at(self.state, at, self.kept_until()))
    }

    /// Until when the head must be kept for its key's sake, by what it says now, whether or not that is over; nothing where it blocks
    /// nobody with its own policy, and [`Timestamp::MAX`] where there is no end to it.
    pub fn remembered_until(&self) -> Option<Timestamp> {
        must_remember(self, Timestamp::EPOCH).until()
    }

    /// When the job is tried again; only one that failed and waits for that has such a time.
    pub fn next_attempt(&self) -> Option<Timestamp> {
        (self.state == State::Retryable).then_some(self.available_at)
    }

    /// Whether the job ends at `now` without another run: a waiting job past its `expires_at` (SEMANTICS 3).
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.state.is_live() && self.state != State::Active && self.expires_at.is_some_and(|at| at <= now)
    }
}

/// What a job is besides itself. Stored by number; frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// An ordinary job.
    #[default]
    Plain = 0,
    /// A follow-up: waits in `pending` for the end of the run it follows, and never overlaps a run of its key.
    FollowUp = 1,
}

impl Role {
    /// The role of that number, as stored.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Plain),
            1 => Some(Self::FollowUp),
            _ => None,
        }
    }
}

/// How a job ended. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ending {
    /// The worker reported success.
    Completed = 1,
    /// A caller or operator cancelled it.
    Cancelled = 2,
    /// A newer job with its key took its place.
    Replaced = 3,
    /// It failed for good.
    Failed = 4,
    /// It failed for good and waits in the dead letter list.
    DeadLetter = 5,
    /// Its `expires_at` passed before it was started.
    Expired = 6,
}

impl Ending {
    /// The ending of that number, as stored; 0 is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Completed),
            2 => Some(Self::Cancelled),
            3 => Some(Self::Replaced),
            4 => Some(Self::Failed),
            5 => Some(Self::DeadLetter),
            6 => Some(Self::Expired),
            _ => None,
        }
    }
}

/// The right of one worker to run one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it; empty when the worker gave no name.
    pub worker: Arc<str>,
    /// When the job becomes visible to others again unless a heartbeat extends it.
    pub visible_until: Timestamp,
    /// When the attempt has run too long; no heartbeat moves this.
    pub run_until: Timestamp,
}

impl Lease {
    /// When the lease ends, for whichever reason comes first.
    pub fn ends_at(&self) -> Timestamp {
        self.visible_until.min(self.run_until)
    }
}

/// The parts of a job that grow after its admission. Each is one small document; stored by number, frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NoteKind {
    /// The failures of past attempts.
    Failures = 0,
    /// What the job returned.
    Result = 1,
    /// Newer args and meta that a later request put in place of the body's (follow-up).
    Payload = 2,
    /// The duplicates this job has absorbed.
    Duplicates = 3,
    /// How far the present run has come.
    Progress = 4,
    /// When the job was cancelled, activated or released, and by what.
    Marks = 5,
    /// Who waits for the job's end, or has waited for it.
    Waiters = 6,
    /// What the jobs of the earlier steps of its workflow returned.
    ParentResults = 7,
    /// The job for whose end this one was held back: who waits for the end of this one goes on to wait for that.
    Ahead = 8,
}

impl NoteKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Failures,
        Self::Result,
        Self::Payload,
        Self::Duplicates,
        Self::Progress,
        Self::Marks,
        Self::Waiters,
        Self::ParentResults,
        Self::Ahead,
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

#[cfg(test)]
mod tests {
    use super::Head;

    /// Stores keep one of each waiting job in memory; all else that they keep of one takes some 110 bytes.
    #[test]
    fn a_head_takes_at_most_224_bytes() {
        assert!(size_of::<Option<Head>>() <= 224, "{}", size_of::<Option<Head>>());
    }
}
