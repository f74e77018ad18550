//! The decision about an offered job, implemented a second time from the contract without the core's `admit`:
//! the checker must not share the mistakes of what it checks. Plain and slow on purpose.

use std::collections::BTreeSet;

use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, Role};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Disclose, OnConflict, PeriodFrom, RejectReason, UniquePolicy, WhenActive};

/// What the contract says should happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No holder blocks.
    Create,
    /// The existing job is the answer.
    Existing(JobId),
    /// The offer is refused.
    Reject(JobId, RejectReason),
    /// The new job replaces these.
    Replace {
        /// Every blocking holder.
        cancelled: BTreeSet<JobId>,
        /// The holder that the answer names.
        named: JobId,
        /// The schedule that the new job takes over.
        scheduled_at: Option<Timestamp>,
        /// The new job must not start before this.
        wait_until: Option<Timestamp>,
    },
    /// The new job is created to follow these runs.
    FollowUp {
        /// Every live holder that was started.
        after: BTreeSet<JobId>,
        /// The holder whose content is compared: the active one, else the newest.
        named: JobId,
    },
    /// This waiting job takes over the offer's args and meta.
    Amend(JobId),
}

impl Expected {
    /// The jobs whose content `on_mismatch` compares: the one that the answer names, or all that are
    /// replaced.
    pub fn compared(&self) -> BTreeSet<JobId> {
        match self {
            Self::Create => BTreeSet::new(),
            Self::Existing(id) | Self::Reject(id, _) | Self::Amend(id) => BTreeSet::from([*id]),
            Self::Replace { cancelled, .. } => cancelled.clone(),
            Self::FollowUp { named, .. } => BTreeSet::from([*named]),
        }
    }
}

/// Whether a stored holder of the key blocks a new job.
pub fn blocks(policy: &UniquePolicy, holder: &Head, now: Timestamp) -> bool {
    if !policy.states().contains(holder.state) {
        return false;
    }
    let is_waiting = holder.state.is_live() && holder.state != State::Active;
    let has_expired = is_waiting && holder.expires_at.is_some_and(|at| now >= at);
    // A started job may have done its work, so it counts as discarded after its expiry, swept or not.
    let blocks_when_discarded = holder.attempt > 0 && policy.states().contains(State::Discarded);
    if (has_expired && !blocks_when_discarded) || holder.ending == Some(Ending::Expired) {
        return false;
    }
    let Some(period) = policy.period() else { return true };
    if policy.while_active() && !holder.state.is_finished() && !has_expired {
        return true;
    }
    match policy.period_from() {
        PeriodFrom::Created => now < period.after(holder.created_at),
        PeriodFrom::Finished => holder.finished_at.is_none_or(|end| now < period.after(end)),
        PeriodFrom::LastDuplicate => {
            now < period.after(holder.renewed_at.unwrap_or(holder.created_at).max(holder.created_at))
        }
    }
}

/// What should happen to a job offered under `policy`, given all other jobs with its key.
pub fn decide(policy: &UniquePolicy, holders: &[Head], now: Timestamp, inspect: bool) -> Expected {
    let blocking: Vec<&Head> = holders.iter().filter(|holder| blocks(policy, holder, now)).collect();
    let newest = |of: &[&Head]| of.iter().max_by_key(|head| (head.created_at, head.id)).map(|head| head.id);
    let active: Vec<&Head> = blocking.iter().copied().filter(|head| head.state == State::Active).collect();
    let Some(named) = newest(&active).or_else(|| newest(&blocking)) else { return Expected::Create };
    let is_hidden = !inspect
        || policy.disclose() == Disclose::Never
        || blocking.iter().any(|holder| holder.hold.disclose == Disclose::Never);
    let has_expired =
        |head: &Head| head.state != State::Active && head.expires_at.is_some_and(|at| now >= at);
    let live: Vec<&Head> =
        blocking.iter().copied().filter(|head| head.state.is_live() && !has_expired(head)).collect();
    match policy.on_conflict() {
        OnConflict::Reject => Expected::Reject(named, RejectReason::Duplicate),
        OnConflict::Ignore | OnConflict::FollowUp if is_hidden => {
            Expected::Reject(named, RejectReason::Undisclosed)
        }
        OnConflict::Ignore => Expected::Existing(named),
        OnConflict::FollowUp => follow_up(&live, named),
        OnConflict::Replace | OnConflict::ReplaceExceptSchedule => {
            if live.len() < blocking.len() {
                return Expected::Reject(named, RejectReason::FinishedHolder);
            }
            let scheduled = live.iter().filter(|head| head.state == State::Scheduled);
            let kept = scheduled.map(|head| head.available_at).min();
            let leases = live.iter().filter_map(|head| head.lease.as_ref());
            let ends = leases.map(|lease| lease.visible_until.min(lease.run_until)).max();
            Expected::Replace {
                cancelled: live.iter().map(|head| head.id).collect(),
                named,
                scheduled_at: kept.filter(|_| policy.on_conflict() == OnConflict::ReplaceExceptSchedule),
                wait_until: ends.filter(|_| policy.when_active() == WhenActive::Wait),
            }
        }
    }
}

fn follow_up(live: &[&Head], named: JobId) -> Expected {
    let newest = |of: &[&Head]| of.iter().max_by_key(|head| (head.created_at, head.id)).map(|head| head.id);
    let (started, unstarted): (Vec<&Head>, Vec<&Head>) =
        live.iter().copied().partition(|head| head.attempt > 0 || head.state == State::Active);
    let waiting: Vec<&Head> = unstarted.iter().copied().filter(|head| head.role == Role::FollowUp).collect();
    if let Some(follow_up) = newest(&waiting) {
        return Expected::Amend(follow_up);
    }
    if !started.is_empty() {
        let running: Vec<&Head> =
            started.iter().copied().filter(|head| head.state == State::Active).collect();
        let named = newest(&running).or_else(|| newest(&started)).unwrap_or(named);
        return Expected::FollowUp { after: started.iter().map(|head| head.id).collect(), named };
    }
    newest(&unstarted).map_or(Expected::Existing(named), Expected::Amend)
}
