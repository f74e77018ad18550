//! Judges whether the contract allows a write of a job's head.

use std::time::Duration;

use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, Lease, Role};
use semel_core::lease::Unclaimable;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_store::backend::Claim;

use super::Checked;

fn require(holds: bool, what: &str) -> Checked {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Judges a job that a decision committed at `now` stores as new.
pub fn check_new(head: &Head, now: Timestamp) -> Checked {
    require(head.created_at <= now, "it was created later than the store's time")?;
    require(head.attempt == 0 && head.lease.is_none() && head.ending.is_none(), "it is not new")?;
    require(head.finished_at.is_none() && head.renewed_at.is_none(), "it is not new")?;
    match head.state {
        State::Scheduled => require(head.available_at > head.created_at, "it is scheduled for the past"),
        State::Available => require(head.available_at <= now, "it is available before its time"),
        State::Pending => Ok(()),
        _ => Err(format!("a new job is {}", head.state)),
    }
}

/// Judges whether `after` may follow `before` in one decision that was committed at `now`.
pub fn check_update(before: &Head, after: &Head, now: Timestamp) -> Checked {
    require(after.version > before.version, "its version did not move")?;
    require(after.fence >= before.fence, "its fence went back")?;
    let fixed = |head: &Head| {
        (head.id, head.created_at, head.job_type.clone(), head.queue.clone(), head.role, head.lane)
    };
    require(fixed(before) == fixed(after), "what never changes was changed")?;
    require(after.key == before.key || after.key.is_none(), "its key was changed")?;
    require(
        after.key == before.key || after.state == before.state,
        "a release of its key touched its state",
    )?;
    require(
        after.lease.is_some() == (after.state == State::Active),
        "a lease without a run, or a run without",
    )?;
    require(after.finished_at.is_some() == after.state.is_finished(), "an end without its time")?;
    require(after.ending.is_some() == after.state.is_finished(), "an end without its kind")?;
    require(after.finished_at.is_none_or(|at| at <= now), "it ended in the future")?;
    require(after.renewed_at >= before.renewed_at, "its window went back")?;
    let expires = |head: &Head| head.expires_at.unwrap_or(Timestamp::MAX);
    require(expires(after) >= expires(before), "it expires sooner than was said")?;
    let is_burned = after.fence != before.fence;
    if before.state == after.state {
        require(!is_burned, "its fence moved without a grant, a burn or an end")?;
        return require(after.attempt == before.attempt, "its attempts changed without a run");
    }
    let is_put_off = (before.state, after.state) == (State::Active, State::Scheduled);
    if after.state != State::Available && !is_put_off {
        require(after.attempt == before.attempt, "its attempts changed without a run")?;
    }
    check_move(before, after, is_burned, now)
}

fn check_move(before: &Head, after: &Head, is_burned: bool, now: Timestamp) -> Checked {
    let lease_is_over = before.lease.as_ref().is_some_and(|lease| lease.ends_at() <= now);
    let run_is_over = before.lease.as_ref().is_some_and(|lease| lease.run_until <= now);
    let may_run_again = after.attempt < after.max_attempts.max(1);
    match (before.state, after.state) {
        (State::Scheduled | State::Retryable, State::Available) => {
            require(before.available_at <= now, "it was made available before its time")?;
            require(!is_burned && after.attempt == before.attempt, "a timer does not touch a run")
        }
        (State::Pending, State::Available) => {
            require(before.available_at <= now, "it was let go before its time")?;
            require(!is_burned, "an activation burned its fence")
        }
        (State::Pending, State::Scheduled) => {
            let until = after.available_at;
            // The decision may be older than its commit, so the wait may be over by now.
            let waits = until == before.available_at || Some(until) == before.burned_until();
            require(waits && !is_burned, "it was activated later for nothing")
        }
        (State::Available, State::Pending) => {
            require(after.role == Role::FollowUp && !is_burned, "only a follow-up waits again")
        }
        (State::Active, State::Completed) => {
            require(!is_burned && after.ending == Some(Ending::Completed), "it did not complete by its lease")
        }
        (State::Active, State::Retryable) => {
            require(may_run_again, "it is tried beyond its attempts")?;
            require(!is_burned || run_is_over, "its run was ended before its time")
        }
        (State::Active, State::Available) if is_burned => {
            require(lease_is_over, "its lease was taken before its end")?;
            require(may_run_again, "it is tried beyond its attempts")?;
            require(after.attempt == before.attempt, "a lost lease does not give the attempt back")
        }
        (State::Active, State::Available) => {
            require(after.attempt + 1 == before.attempt, "a job given back has its attempt back")
        }
        (State::Active, State::Scheduled) => {
            require(!is_burned, "a job that was put off burned its fence")?;
            require(after.attempt + 1 == before.attempt, "a job that was put off has its attempt back")
        }
        (State::Active, State::Discarded) => {
            let ending = matches!(after.ending, Some(Ending::Failed | Ending::DeadLetter));
            require(ending && (!is_burned || lease_is_over), "its run was ended before its time")
        }
        (from, State::Cancelled) if from.is_live() => {
            let ending = matches!(after.ending, Some(Ending::Cancelled | Ending::Replaced));
            require(ending && is_burned, "a cancellation did not burn its fence")
        }
        (State::Scheduled | State::Available | State::Pending | State::Retryable, State::Discarded) => {
            require(before.is_expired(now) && !is_burned, "it was discarded before its time")?;
            let ending = if before.attempt > 0 { Ending::Failed } else { Ending::Expired };
            require(after.ending == Some(ending), "only what was never started frees its key as it expires")
        }
        (State::Discarded, State::Available) => {
            require(before.ending == Some(Ending::DeadLetter), "only a dead letter is sent back")?;
            // Its fence is the highest of its key's holders at its admission.
            require(after.attempt == 0, "a job sent back begins anew")
        }
        (from, to) => Err(format!("there is no way from {from} to {to}")),
    }
}

/// Judges whether a claim may grant this run. `others_run` says that another job of its key has a lease.
pub fn check_grant(before: &Head, after: &Head, claim: &Claim, others_run: bool, now: Timestamp) -> Checked {
    require(before.lane.is_none(), "a job under a limit was granted by the store")?;
    check_run(before, after, others_run, now)?;
    require(claim.queues.contains(&after.queue), "a job of another queue was granted")?;
    let Some(lease) = &after.lease else { return Err("a grant without a lease".to_owned()) };
    let own = u64::from(after.visibility_ms);
    let lasts = if own == 0 { u64::from(claim.grant.visibility_ms) } else { own };
    let until = now.saturating_add(Duration::from_millis(lasts));
    require(lease.worker == claim.grant.worker && lease.visible_until == until, "a lease of other terms")
}

/// Judges whether a run may begin like this, by a claim or a decision of `now`, whatever worker gets it.
pub fn check_run(before: &Head, after: &Head, others_run: bool, now: Timestamp) -> Checked {
    require(before.state == State::Available, "a job that is not available was granted")?;
    require(before.available_at <= now, "it was granted before its time")?;
    require(!before.is_expired(now), "an expired job was granted")?;
    require(
        after.state == State::Active && after.attempt == before.attempt + 1,
        "a run counts as an attempt",
    )?;
    require(after.attempt <= after.max_attempts.max(1), "it runs beyond its attempts")?;
    require(after.version > before.version && after.fence > before.fence, "a grant without a new fence")?;
    require(after.role == Role::Plain || !others_run, "a follow-up overlaps a run of its key")?;
    let fixed = |head: &Head| (head.key, head.created_at, head.queue.clone(), head.lane);
    require(fixed(after) == fixed(before), "what never changes was changed")?;
    let own = Duration::from_millis(u64::from(after.visibility_ms));
    let lasts = |lease: &Lease| own.is_zero() || lease.visible_until == now.saturating_add(own);
    require(after.lease.as_deref().is_some_and(lasts), "a grant without a lease, or with one of other terms")
}

/// Judges whether a claim was right not to grant this ready job.
pub fn check_unclaimable(job: Option<&Head>, id: JobId, why: Unclaimable, now: Timestamp) -> Checked {
    let Some(head) = job else { return Err(format!("{id} is ready and does not exist")) };
    let holds = match why {
        Unclaimable::Expired => head.is_expired(now),
        Unclaimable::Overlaps => head.role == Role::FollowUp,
        Unclaimable::Limited => head.state == State::Available && head.lane.is_some(),
        Unclaimable::Exhausted | Unclaimable::NotReady => false,
    };
    require(holds, &format!("{id} was not granted: {why:?}"))
}
