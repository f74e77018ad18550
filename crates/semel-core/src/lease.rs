//! Who may speak for a run: leases, their tokens, and what a late or foreign request is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::draft::next_version;
use crate::error::Invalid;
use crate::job::{Head, Lease, Role};
use crate::limits::{EXECUTION_DEFAULT_MS, VISIBILITY_DEFAULT_MS, WORKER_ID_BYTES_MAX};
use crate::planted::{Bug, is_planted};
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
    /// A grant for `worker`, whose leases last `visibility_ms` for jobs that do not say. Control characters of its id are
    /// replaced: who checks ids [refuses](is_worker_id) them, and whoever does not must not fail the claims of others.
    pub fn new(worker: Arc<str>, visibility_ms: Option<u32>) -> Self {
        let worker = match worker.contains(char::is_control) {
            true => worker.replace(char::is_control, "\u{fffd}").into(),
            false => worker,
        };
        Self { worker, visibility_ms: visibility_ms.unwrap_or(VISIBILITY_DEFAULT_MS) }
    }
}

/// Why a ready job is not granted; the engine settles it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unclaimable {
    /// Its `expires_at` has passed.
    Expired,
    /// It has no attempt left.
    Exhausted,
    /// It is a follow-up, and another run of its key is under way.
    Overlaps,
    /// It is not filed as ready.
    NotReady,
    /// It is under a limit, which is not the store's to look at.
    Limited,
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
    let ms = |own: u32, default: u32| Duration::from_millis(u64::from(if own == 0 { default } else { own }));
    Ok(Head {
        state,
        attempt: head.attempt + u32::from(!is_planted(Bug::AttemptNotCounted)),
        key: head.key.filter(|_| !is_planted(Bug::KeyFreedAtStart)),
        version: next_version(head.version, now),
        fence: next_version(head.fence, now),
        started_at: Some(now),
        lease: Some(Box::new(Lease {
            worker: grant.worker.clone(),
            visible_until: now.saturating_add(ms(head.visibility_ms, grant.visibility_ms)),
            run_until: now.saturating_add(ms(head.timeout_ms, EXECUTION_DEFAULT_MS)),
        })),
        ..head.clone()
    })
}
