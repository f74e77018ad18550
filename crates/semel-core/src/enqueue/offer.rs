//! What is offered: a job as its caller wants it, and what admitting it needs to know.

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

/// A job as it is offered. Whatever could be computed without the store has been.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The caller's own id.
    pub id: Option<JobId>,
    /// The job's type.
    pub job_type: JobType,
    /// The queue it is to wait in.
    pub queue: QueueName,
    /// Its priority, -100..=100.
    pub priority: i8,
    /// When it may start.
    pub start: Start,
    /// When it ends unstarted.
    pub expires: Option<When>,
    /// How long a lease on it lasts, in milliseconds; 0 when it does not say.
    pub visibility_ms: u32,
    /// How long one attempt may run, in milliseconds; 0 when it does not say.
    pub timeout_ms: u32,
    /// Runs allowed.
    pub max_attempts: u32,
    /// Its identity, if it has a policy.
    pub unique: Option<Identity>,
    /// The encoded [`Body`](crate::body::Body).
    pub body: Bytes,
    /// Whether the caller may see other people's jobs.
    pub inspect: bool,
    /// In which queues there are jobs for the caller.
    pub queues: Queues,
    /// The limit it is to be started under.
    pub limit: Option<Limit>,
    /// Whether its queue may have a bound: then admission looks.
    pub bounded: bool,
    /// Whether somebody is to be told of its end, and will say so in this very decision.
    pub awaited: bool,
    /// Whether and how its caller may send it again.
    pub once: Option<Once>,
}

/// The identity of an offered job.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The effective policy.
    pub policy: Arc<UniquePolicy>,
    /// The key it makes of this job.
    pub key: UniqueKey,
}

/// A point in time as a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// A point in time.
    At(Timestamp),
    /// So long after the admission.
    In(Duration),
}

impl When {
    /// The point in time it names at `now`.
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
    /// Not before then.
    Later(When),
    /// When it is activated.
    OnActivation,
    /// When it is activated, and not before then.
    Held(When),
}

impl Offer {
    /// What its caller may see of other people's jobs.
    pub const fn sight(&self) -> Sight<'_> {
        Sight { inspect: self.inspect, queues: &self.queues }
    }

    /// Whether a duplicate of what holds its key may well leave everything as it is, but for the count of it.
    pub fn may_be_silent(&self) -> bool {
        let conflict = self.unique.as_ref().map(|identity| identity.policy.on_conflict());
        self.once.is_none() && matches!(conflict, Some(OnConflict::Reject | OnConflict::Ignore))
    }

    /// What admitting this job will surely need to know.
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
