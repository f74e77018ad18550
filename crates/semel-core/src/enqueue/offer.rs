//! An offered job: what its caller wants, and what its admission needs to know.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::once::Once;
use crate::draft::{Draft, KeyRead, Missing, Reads};
use crate::ident::{JobId, JobType, QueueName};
use crate::limit::Limit;
use crate::sight::{Queues, Sight};
use crate::time::Timestamp;
use crate::unique::{OnConflict, UniqueKey, UniquePolicy};

/// A job as it is offered. Everything that can be computed without the store has been computed.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The caller's own id for the job, if it chose one.
    pub id: Option<JobId>,
    /// The job's type.
    pub job_type: JobType,
    /// The queue it is to wait in.
    pub queue: QueueName,
    /// Its priority, -100..=100.
    pub priority: i8,
    /// When it may start.
    pub start: Start,
    /// When the job expires if it has not started.
    pub expires: Option<When>,
    /// How long a lease on the job lasts, in milliseconds; 0 when the caller does not say.
    pub visibility_ms: u32,
    /// How long one attempt may run, in milliseconds; 0 when the caller does not say.
    pub timeout_ms: u32,
    /// Number of runs allowed.
    pub max_attempts: u32,
    /// The job's identity, if it has a unique policy.
    pub unique: Option<Identity>,
    /// The encoded [`Body`](crate::body::Body).
    pub body: Bytes,
    /// Whether the caller may see other people's jobs.
    pub inspect: bool,
    /// The queues that the caller may see jobs in.
    pub queues: Queues,
    /// The limit under which the job is started.
    pub limit: Option<Limit>,
    /// Whether the job's queue may have a bound, which the admission must then check.
    pub bounded: bool,
    /// Whether another record waits for the job's end, and will register as a waiter in this same decision.
    pub awaited: bool,
    /// The `Idempotency-Key` under which the caller may send the request again, if any.
    pub once: Option<Once>,
}

/// The identity of an offered job.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The effective policy.
    pub policy: Arc<UniquePolicy>,
    /// The key that the policy computes for this job.
    pub key: UniqueKey,
}

/// A time as a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// An absolute time.
    At(Timestamp),
    /// This long after the admission.
    In(Duration),
}

impl When {
    /// The absolute time that it names at `now`.
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::In(after) => now.saturating_add(after),
        }
    }
}

/// When an offered job may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// Not before that time.
    Later(When),
    /// When it is activated.
    OnActivation,
    /// When it is activated, but not before that time.
    Held(When),
}

impl Offer {
    /// What its caller may see of other people's jobs.
    pub const fn sight(&self) -> Sight<'_> {
        Sight { inspect: self.inspect, queues: &self.queues }
    }

    /// Whether a duplicate of the key's holder may change nothing except its count.
    pub fn may_be_silent(&self) -> bool {
        let conflict = self.unique.as_ref().map(|identity| identity.policy.on_conflict());
        self.once.is_none() && matches!(conflict, Some(OnConflict::Reject | OnConflict::Ignore))
    }

    /// Adds the records that admitting this job is certain to need.
    pub fn reads(&self, reads: &mut Reads) {
        if let Some(id) = self.id {
            reads.fulls.push(id);
        }
        reads.documents.extend(self.once.as_ref().map(Once::document));
        if let Some(identity) = &self.unique {
            reads.keys.push(identity.read());
        }
        if let Some(limit) = &self.limit {
            reads.queues.push(limit.lane().row());
        }
        if self.bounded {
            reads.queues.extend([self.queue.clone(), self.queue.bound_row()]);
        }
    }
}

impl Identity {
    /// Whether more jobs hold the key than one commit may touch.
    ///
    /// # Errors
    /// [`Missing`] when the snapshot lacks the key.
    pub(crate) fn is_held_by_too_many(&self, draft: &mut Draft) -> Result<bool, Missing> {
        Ok(draft.key(&self.read())?.too_many)
    }

    pub(super) fn read(&self) -> KeyRead {
        KeyRead { key: self.key, states: self.policy.states(), all: self.policy.needs_all_holders() }
    }
}
