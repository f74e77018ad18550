//! Who may speak for a run: leases, their tokens, and how late or foreign requests are classified.

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

/// The opaque text that stands for a lease on the wire: the fencing token of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken(pub u64);

impl LeaseToken {
    /// Parses a token.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for text that does not have the form of a token.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        let digits = text.strip_prefix("l1-").filter(|digits| digits.len() <= 16);
        match digits.map(|digits| u64::from_str_radix(digits, 16)) {
            Some(Ok(fence)) => Ok(Self(fence)),
            _ => Err(Invalid::request(pointer, "is not a lease; send the `lease` that fetch returned")),
        }
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l1-{:x}", self.0)
    }
}

/// The sender of a request about a run. Both parts are optional, because OJS clients send neither; a part that is
/// sent must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bearer {
    /// The lease token that fetch returned.
    pub lease: Option<LeaseToken>,
    /// The worker's id.
    pub worker: Option<Arc<str>>,
}

/// How a request about a run relates to the job as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It speaks for the current run.
    Current,
    /// It carries the newest lease, whose run its bearer has already settled.
    Settled,
    /// It carries an outdated lease: a later grant, its expiry, a cancellation or a replacement burned it.
    Stale,
    /// Another worker holds the lease.
    OtherWorker,
    /// Nobody runs the job.
    NotActive,
}

/// Classifies a request against the job (invariant 4 of docs/ARCHITECTURE.md).
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

/// Whether a text may be a worker's id: not too long, and without control characters.
///
/// The id is put into rows, shown to people, and sent to external databases together with other requests' values,
/// and no text there may contain a zero byte.
pub fn is_worker_id(text: &str) -> bool {
    text.len() <= WORKER_ID_BYTES_MAX && !text.contains(char::is_control)
}

/// What a claim fills in for each job it takes. It is the same for all of them, so a store needs no rule to do it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The worker's id, without control characters; empty when it gave none.
    pub worker: Arc<str>,
    /// How long a lease lasts, in milliseconds, for a job that does not say.
    pub visibility_ms: u32,
}

impl Grant {
    /// The state of a granted job.
    pub const STATE: State = State::Active;
    /// Where a granted job is filed.
    pub const SLOT: Slot = Slot::Lease;
    /// The event that a grant writes to the log.
    pub const EVENT: EventKind = EventKind::Started;
    /// How long one attempt may run, in milliseconds, for a job that does not say.
    pub const TIMEOUT_MS: u32 = EXECUTION_DEFAULT_MS;

    /// A grant for `worker`, whose leases last `visibility_ms` for jobs that do not say. Control characters in the
    /// id are replaced: callers that check ids [refuse](is_worker_id) them, and one that does not must not make the
    /// claims of others fail.
    pub fn new(worker: Arc<str>, visibility_ms: Option<u32>) -> Self {
        let worker = match worker.contains(char::is_control) {
            true => worker.replace(char::is_control, "\u{fffd}").into(),
            false => worker,
        };
        Self { worker, visibility_ms: visibility_ms.unwrap_or(VISIBILITY_DEFAULT_MS) }
    }

    /// Whether two grants are equal except for the worker.
    pub fn differs_in_worker_alone(&self, other: &Self) -> bool {
        // Destructured, so that a field added to `Grant` must be considered here.
        let Self { worker: _, visibility_ms } = self;
        *visibility_ms == other.visibility_ms
    }
}

/// A job's own value in milliseconds, or `default` where the job does not say, which is 0.
pub(crate) const fn own_or(own: u32, default: u32) -> u32 {
    if own == 0 { default } else { own }
}

/// Why a ready job is not granted. The engine settles it at once.
///
/// The scripts and statements by which stores grant report the reason by number; the numbers are frozen with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unclaimable {
    /// Its `expires_at` has passed.
    Expired = 0,
    /// It has no attempt left.
    Exhausted = 1,
    /// It is a follow-up, and another run of its key is under way.
    Overlaps = 2,
    /// It is under a limit, which a store may not check itself.
    Limited = 3,
    /// It is not filed as ready. No claim template meets such a job.
    NotReady = 4,
}

impl Unclaimable {
    /// The reason of that number, as a claim template reports it.
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
        // Whatever else may speak against it is checked together with its limit.
        Some(_) => Err(Unclaimable::Limited),
    }
}

/// Grants a lease on a ready job whose limit, if any, has been checked.
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
