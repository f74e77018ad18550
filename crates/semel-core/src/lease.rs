//! Who may speak for a run: leases, their tokens, and what a late or foreign request is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::draft::next_version;
use crate::error::Invalid;
use crate::event::EventKind;
use crate::job::{Head, Lease, Role};
use crate::limits::{EXECUTION_DEFAULT_MS, VISIBILITY_DEFAULT_MS, WORKER_ID_BYTES_MAX};
use crate::planted::{Bug, is_planted};
use crate::slot::Slot;
use crate::state::{Event, State, next};
use crate::time::Timestamp;

/// The opaque text that stands for a lease on the wire: the grant's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub u64);

impl LeaseToken {
    /// Parses a token.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for a text no claim has answered.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        let digits = text.strip_prefix("l1-").filter(|digits| digits.len() <= 16);
        match digits.map(|digits| u64::from_str_radix(digits, 16)) {
            Some(Ok(fence)) => Ok(Self(fence)),
            _ => {
                Err(Invalid::request(pointer, "is not a lease; send the text that fetch answered as `lease`"))
            }
        }
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l1-{:x}", self.0)
    }
}

/// Who sends a request about a run. Both parts are optional, because OJS's clients send neither; what is sent must
/// match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bearer {
    /// The lease that fetch answered.
    pub lease: Option<LeaseToken>,
    /// The worker's id.
    pub worker: Option<Arc<str>>,
}

/// How a request about a run stands to the job as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It speaks for the current run.
    Current,
    /// It carries the lease whose run has already been settled, by the same bearer.
    Settled,
    /// It carries a lease that is not the newest: a later grant, a cancellation or a replacement burned it.
    Stale,
    /// Another worker holds the lease.
    OtherWorker,
    /// Nobody runs the job.
    NotActive,
}

/// Decides how a request stands (invariant 4 of docs/ARCHITECTURE.md).
pub fn standing(head: &Head, bearer: &Bearer) -> Standing {
    if let Some(LeaseToken(fence)) = bearer.lease {
        let is_taken_for_it = is_planted(Bug::LeaseNotChecked)
            || (is_planted(Bug::LeaseByWorkerOnly)
                && head.lease.as_ref().is_some_and(|lease| bearer.worker.as_ref() == Some(&lease.worker)));
        if fence != head.fence && !is_taken_for_it {
            return Standing::Stale;
        }
        if head.state != State::Active {
            return Standing::Settled;
        }
    }
    match &head.lease {
        None => Standing::NotActive,
        Some(lease) => match &bearer.worker {
            Some(worker) if !lease.worker.is_empty() && *worker != lease.worker => Standing::OtherWorker,
            _ => Standing::Current,
        },
    }
}

/// Whether a text may be the id of a worker. It is put into rows, shown to people and sent to strangers' databases beside what
/// others ask for, and no text of those may have a zero byte in it.
pub fn is_worker_id(text: &str) -> bool {
    text.len() <= WORKER_ID_BYTES_MAX && !text.contains(char::is_control)
}

/// What a claim fills in for each job it takes. The same for all of them, so that a store can do it without a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The worker's id, without control characters; empty when it gave none.
    pub worker: Arc<str>,
    /// How long the lease lasts for a job that does not say, in milliseconds.
    pub visibility_ms: u32,
}

impl Grant {
    /// The state of a job that was granted.
    pub const STATE: State = State::Active;
    /// Where it is filed.
    pub const SLOT: Slot = Slot::Lease;
    /// What the log tells of it.
    pub const EVENT: EventKind = EventKind::Started;
    /// How long one attempt may run of a job that does not say, in milliseconds.
    pub const TIMEOUT_MS: u32 = EXECUTION_DEFAULT_MS;

    /// A grant for `worker`, whose leases last `visibility_ms` for jobs that do not say. Control characters of its id are
    /// replaced: who checks ids [refuses](is_worker_id) them, and whoever does not must not fail the claims of others.
    pub fn new(worker: Arc<str>, visibility_ms: Option<u32>) -> Self {
        let worker = match worker.contains(char::is_control) {
            true => worker.replace(char::is_control, "\u{fffd}").into(),
            false => worker,
        };
        Self { worker, visibility_ms: visibility_ms.unwrap_or(VISIBILITY_DEFAULT_MS) }
    }

    /// Whether two grants differ in nothing but whom they are for.
    pub fn differs_in_worker_alone(&self, other: &Self) -> bool {
        // Taken apart, so that what is added to a grant is thought of here.
        let Self { worker: _, visibility_ms } = self;
        *visibility_ms == other.visibility_ms
    }
}

/// What a job says of itself in milliseconds, or `default` where it does not say: where that is 0.
pub(crate) const fn own_or(own: u32, default: u32) -> u32 {
    if own == 0 { default } else { own }
}

/// Why a ready job is not granted; the engine settles it at once. The scripts and statements by which stores grant tell it by
/// number; frozen with those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unclaimable {
    /// Its `expires_at` has passed.
    Expired = 0,
    /// It has no attempt left.
    Exhausted = 1,
    /// It is a follow-up, and another run of its key is under way.
    Overlaps = 2,
    /// It is under a limit, which is not the store's to look at.
    Limited = 3,
    /// It is not filed as ready. No template meets one.
    NotReady = 4,
}

impl Unclaimable {
    /// The reason of that number, as a template tells it.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Expired),
            1 => Some(Self::Exhausted),
            2 => Some(Self::Overlaps),
            3 => Some(Self::Limited),
            _ => None,
        }
    }

    /// The reason's number.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Grants a lease on a ready job that is under no limit. `runs_of_key` says whether another holder of its key has a
/// lease.
///
/// # Errors
/// Why it may not be granted.
pub fn grant(head: &Head, grant: &Grant, now: Timestamp, runs_of_key: bool) -> Result<Head, Unclaimable> {
    match head.lane {
        None => grant_limited(head, grant, now, runs_of_key),
        Some(_) if is_planted(Bug::LimitedGranted) => grant_limited(head, grant, now, runs_of_key),
        // What else may speak against it is looked at where its limit is.
        Some(_) => Err(Unclaimable::Limited),
    }
}

/// Grants a lease on a ready job, whose limit, if it is under one, has been looked at.
///
/// # Errors
/// Why it may not be granted.
pub fn grant_limited(
    head: &Head,
    grant: &Grant,
    now: Timestamp,
    runs_of_key: bool,
) -> Result<Head, Unclaimable> {
    let Ok(state) = next(head.state, Event::Claim) else {
        return Err(Unclaimable::NotReady);
    };
    if head.is_expired(now) && !is_planted(Bug::ExpiredClaimed) {
        return Err(Unclaimable::Expired);
    }
    if !head.has_attempts_left() {
        return Err(Unclaimable::Exhausted);
    }
    if head.role == Role::FollowUp && runs_of_key && !is_planted(Bug::FollowUpOverlaps) {
        return Err(Unclaimable::Overlaps);
    }
    let until =
        |own: u32, default: u32| now.saturating_add(Duration::from_millis(u64::from(own_or(own, default))));
    Ok(Head {
        state,
        attempt: head.attempt + u32::from(!is_planted(Bug::AttemptNotCounted)),
        key: head.key.filter(|_| !is_planted(Bug::KeyFreedAtStart)),
        version: next_version(head.version, now),
        fence: next_version(head.fence, now),
        started_at: Some(now),
        lease: Some(Box::new(Lease {
            worker: grant.worker.clone(),
            visible_until: until(head.visibility_ms, grant.visibility_ms),
            run_until: until(head.timeout_ms, Grant::TIMEOUT_MS),
        })),
        ..head.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_id_has_a_bound_and_no_control_characters() {
        let of = |bytes: usize| is_worker_id(&"w".repeat(bytes));
        assert!(of(WORKER_ID_BYTES_MAX) && !of(WORKER_ID_BYTES_MAX + 1));
        assert!(is_worker_id("") && !is_worker_id("a\0b"));
    }
}
