//! A stored job: the head that decisions read, and the types around it.

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

/// The hot part of a stored job: what admission, claim and settling read. The immutable rest is the
/// [`Body`](crate::body::Body); what is added later are its [notes](NoteKind).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The job's id.
    pub id: JobId,
    /// The unique key, unless the job has no policy or an operator released it.
    pub key: Option<UniqueKey>,
    /// What the job's own policy says about remembering and disclosing it.
    pub hold: Hold,
    /// The job's type.
    pub job_type: JobType,
    /// The queue it waits in.
    pub queue: QueueName,
    /// The limit the job is under, if any.
    pub lane: Option<Lane>,
    /// Higher runs first: -100..=100.
    pub priority: i8,
    /// Where the job is in its life.
    pub state: State,
    /// Whether the job is an ordinary one or a follow-up.
    pub role: Role,
    /// Runs started so far; a run that was given back does not count (SEMANTICS 3).
    pub attempt: u32,
    /// Runs allowed; 0 and 1 both mean one (OJS retry 2.2).
    pub max_attempts: u32,
    /// How long a lease on this job lasts, in milliseconds; 0 when the job does not say.
    pub visibility_ms: u32,
    /// How long one attempt may run, in milliseconds; 0 when the job does not say.
    pub timeout_ms: u32,
    /// The record's version: moves on every write, never repeats (SEMANTICS 1).
    pub version: u64,
    /// The fencing token of the newest grant; moves at claim and when a lease is burned, nowhere else (SEMANTICS 1).
    pub fence: u64,
    /// When the job was admitted.
    pub created_at: Timestamp,
    /// When the job may run: its place in the queue, or the time its timer waits for.
    pub available_at: Timestamp,
    /// When the job expires if it is still waiting then.
    pub expires_at: Option<Timestamp>,
    /// When the present or last run began.
    pub started_at: Option<Timestamp>,
    /// When the job ended.
    pub finished_at: Option<Timestamp>,
    /// When the last duplicate renewed a sliding window (`period_from: last_duplicate`).
    pub renewed_at: Option<Timestamp>,
    /// For a live job, until when it must mind a [burned lease](Self::burned_until); for an ended one, until when
    /// it is [kept](Self::kept_until). Those two methods tell which it is. Whatever ends or revives a job sets it anew.
    pub until: Option<Timestamp>,
    /// The present lease; only an active job has one. Boxed, so that a waiting job keeps no room for it.
    pub lease: Option<Box<Lease>>,
    /// The follow-up that waits, or waited, for the end of this run.
    pub follow_up: Option<JobId>,
    /// How the job ended; only a finished job has one.
    pub ending: Option<Ending>,
    /// Whether anything is to be told of the job's end: its [note](NoteKind::Waiters) says what. Set only on a live job.
    pub awaited: bool,
}

impl Head {
    /// Whether a run of this job was ever started and not given back.
    pub const fn was_started(&self) -> bool {
        self.attempt > 0
    }

    /// Whether the job's work may be under way or half done: a run of it was started, or it is a task, whose steps
    /// run without a run of its own.
    pub fn has_begun(&self) -> bool {
        self.was_started() || self.state == State::Active
    }

    /// Whether another run is allowed.
    pub fn has_attempts_left(&self) -> bool {
        let allowed = if self.max_attempts == 0 { 1 } else { self.max_attempts };
        self.attempt < allowed || (self.attempt == allowed && is_planted(Bug::RetryBeyondMax))
    }

    /// Until when a run of a job that this one replaced, directly or through others, may still go on: the end of
    /// the lease that was burned then. `None` unless the job is live.
    pub fn burned_until(&self) -> Option<Timestamp> {
        self.until.filter(|_| self.state.is_live())
    }

    /// Until when the job's body is kept, as decided at its end; `None` where the default applies, and for a live job.
    pub fn kept_until(&self) -> Option<Timestamp> {
        self.until.filter(|_| self.state.is_finished())
    }

    /// Until when a run of this job, or of one it replaced, may go on if its lease is burned now.
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

    /// Until when the head must be kept for its key's sake, judged by the head alone, whether or not that time has
    /// passed. `None` when its own policy blocks nobody, [`Timestamp::MAX`] when there is no end.
    pub fn remembered_until(&self) -> Option<Timestamp> {
        must_remember(self, Timestamp::EPOCH).until()
    }

    /// When the job is retried; `None` unless it failed and waits for its retry.
    pub fn next_attempt(&self) -> Option<Timestamp> {
        (self.state == State::Retryable).then_some(self.available_at)
    }

    /// Whether the job ends at `now` without another run: it is still waiting and its `expires_at` has passed
    /// (SEMANTICS 3).
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.state.is_live() && self.state != State::Active && self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Whether a job is an ordinary one or a follow-up. Stored by number; frozen.
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

/// A lease: the right of one worker to run one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The worker that holds it; empty when the worker gave no name.
    pub worker: Arc<str>,
    /// End of the visibility timeout: the job is available to others from then on, unless a heartbeat extends it.
    pub visible_until: Timestamp,
    /// End of the execution timeout; no heartbeat moves it.
    pub run_until: Timestamp,
}

impl Lease {
    /// When the lease ends: at the earlier of the two.
    pub fn ends_at(&self) -> Timestamp {
        self.visible_until.min(self.run_until)
    }
}

/// The kinds of notes: the parts of a job that grow after its admission. Each is one small document; stored by
/// number, frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NoteKind {
    /// The failures of past attempts.
    Failures = 0,
    /// What the job returned.
    Result = 1,
    /// Newer args and meta with which a later request overwrote the body's (follow-up).
    Payload = 2,
    /// The duplicates this job has absorbed.
    Duplicates = 3,
    /// The progress of the present run.
    Progress = 4,
    /// Which job replaced this one: [`Marks`](crate::trail::Marks).
    Marks = 5,
    /// What waits, or has waited, for the job's end.
    Waiters = 6,
    /// What the jobs of its workflow's earlier steps returned.
    ParentResults = 7,
    /// The jobs for whose end this one was held back: what waits for the end of this one goes on to wait for those.
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

    /// Stores keep a head in memory for each waiting job; everything else they keep of it takes about 110 bytes.
    #[test]
    fn a_head_takes_at_most_224_bytes() {
        assert!(size_of::<Option<Head>>() <= 224, "{}", size_of::<Option<Head>>());
    }
}
