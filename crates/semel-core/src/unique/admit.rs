//! The whole of deduplication: what happens to an offered job, given the holders of its key (SEMANTICS 3, 4).

use std::cmp::Reverse;

use super::choice::{Disclose, OnConflict, OnMismatch, PeriodFrom, WhenActive};
use super::hold::{Hold, anchor};
use super::outlive::outlives;
use super::policy::UniquePolicy;
use crate::ident::{JobId, JobType};
use crate::job::{Ending, Head, Role};
use crate::planted::{Bug, is_planted};
use crate::sight::Sight;
use crate::state::State;
use crate::time::Timestamp;

/// The decision on an offered job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// No holder blocks the job: it is created.
    Create,
    /// The existing job is the answer.
    Existing {
        /// The existing job.
        holder: JobId,
        /// The holders whose sliding windows the duplicate renews: every one that blocks by such a window,
        /// except those that another holder outlives. The renewal is committed before the answer is given.
        renew: Vec<JobId>,
    },
    /// The job is refused.
    Reject {
        /// The job that it duplicates. Must not leave the server when `disclose` is never.
        holder: JobId,
        /// The reason. When `disclose` is never, the answer must not depend on it either.
        why: RejectReason,
        /// Whether the answer may show the holder.
        disclose: Disclose,
        /// The holders whose windows the duplicate renews, as for `Existing`.
        renew: Vec<JobId>,
    },
    /// Every blocking holder is cancelled and the new job is created, in one commit.
    Replace {
        /// The holders to cancel, none of them finished; the one an answer names comes first.
        holders: Vec<JobId>,
        /// The start time it takes over instead of its own (`replace_except_schedule`).
        scheduled_at: Option<Timestamp>,
        /// The time before which it may not run: the end of the leases that it replaces, and of those that
        /// its holders replaced (`when_active: wait`).
        wait_until: Option<Timestamp>,
        /// Whether the answer may show the holders.
        disclose: Disclose,
    },
    /// The pending follow-up takes over the offered args and meta.
    AmendFollowUp {
        /// The follow-up.
        follow_up: JobId,
    },
    /// The job is created in `pending`, as the follow-up of runs that were started.
    CreateFollowUp {
        /// Every live holder that was ever started; the one an answer names comes first.
        after: Vec<JobId>,
    },
    /// The holder, which is waiting and was never started, takes over the offered args and meta.
    AmendWaiting {
        /// The holder.
        holder: JobId,
    },
}

impl Admission {
    /// The job that an answer names. `on_mismatch` compares the offer with its content, in addition to the
    /// holders that the admission [ends](Self::ends). `None` after `Create`.
    pub fn holder(&self) -> Option<JobId> {
        match self {
            Self::Create => None,
            Self::Existing { holder, .. } | Self::Reject { holder, .. } | Self::AmendWaiting { holder } => {
                Some(*holder)
            }
            Self::Replace { holders, .. } => holders.first().copied(),
            Self::AmendFollowUp { follow_up } => Some(*follow_up),
            Self::CreateFollowUp { after } => after.first().copied(),
        }
    }

    /// The holders that the admission cancels; the one an answer names comes first.
    pub fn ends(&self) -> &[JobId] {
        match self {
            Self::Replace { holders, .. } => holders,
            Self::Create
            | Self::Existing { .. }
            | Self::Reject { .. }
            | Self::AmendFollowUp { .. }
            | Self::CreateFollowUp { .. }
            | Self::AmendWaiting { .. } => &[],
        }
    }

    /// The holders whose windows are renewed when the offer does not become a job of its own. `policy` is the
    /// one that the offer was decided under. None of the holders to be replaced is finished, so none outlives
    /// another.
    pub fn renews(&self, policy: &UniquePolicy) -> &[JobId] {
        match self {
            Self::Existing { renew, .. } | Self::Reject { renew, .. } => renew,
            Self::Replace { holders, .. } if policy.slides() => holders,
            Self::Create
            | Self::Replace { .. }
            | Self::AmendFollowUp { .. }
            | Self::CreateFollowUp { .. }
            | Self::AmendWaiting { .. } => &[],
        }
    }

    /// Whether an answer may show the holders that it names.
    pub const fn disclose(&self) -> Disclose {
        match self {
            Self::Reject { disclose, .. } | Self::Replace { disclose, .. } => *disclose,
            // Where a holder may not be shown, the offer is rejected instead.
            Self::Create
            | Self::Existing { .. }
            | Self::AmendFollowUp { .. }
            | Self::CreateFollowUp { .. }
            | Self::AmendWaiting { .. } => Disclose::Always,
        }
    }

    /// Whether the offer becomes a job of its own.
    pub const fn inserts(&self) -> bool {
        match self {
            Self::Create | Self::Replace { .. } | Self::CreateFollowUp { .. } => true,
            Self::Existing { .. }
            | Self::Reject { .. }
            | Self::AmendFollowUp { .. }
            | Self::AmendWaiting { .. } => false,
        }
    }
}

/// Why a duplicate is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The policy says `reject`.
    Duplicate,
    /// `replace*` met a finished holder, which cannot be cancelled. Nothing was cancelled.
    FinishedHolder,
    /// `ignore` or `follow_up` would have to show a job that may not be shown, or `replace*` would have to
    /// end one that the caller may not know of.
    Undisclosed,
}

/// Whether one holder blocks a new job, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// Blocks while its state is one of the policy's: there is no window.
    InState,
    /// Blocks until its window ends, or until it leaves the policy's states before that.
    InWindow {
        /// The window's end.
        until: Timestamp,
    },
    /// Blocks because it is unfinished: its window starts only when it ends.
    Unfinished,
    /// Blocks because it is unfinished, whatever its window (`while_active`).
    WhileActive,
    /// Does not block: its state is not one of the policy's.
    OtherState,
    /// Does not block: it was still waiting at its `expires_at`, and either it was never started or it would
    /// not block as a discarded job.
    Expired,
    /// Does not block: its window is over.
    WindowOver {
        /// The window's end.
        since: Timestamp,
    },
}

impl Blocking {
    /// Whether the holder blocks.
    pub const fn is_blocking(self) -> bool {
        matches!(self, Self::InState | Self::InWindow { .. } | Self::Unfinished | Self::WhileActive)
    }

    /// When the holder stops blocking at the latest, if time alone decides that.
    pub const fn until(self) -> Option<Timestamp> {
        if let Self::InWindow { until } = self { Some(until) } else { None }
    }

    /// Stable name of the reason.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::InState => "in_state",
            Self::InWindow { .. } => "in_window",
            Self::Unfinished => "unfinished",
            Self::WhileActive => "while_active",
            Self::OtherState => "other_state",
            Self::Expired => "expired",
            Self::WindowOver { .. } => "window_over",
        }
    }
}

impl UniquePolicy {
    /// Whether [`admit`] must be given every holder, because the decision affects each of them.
    ///
    /// For other policies it is enough to give every live holder and, for each finished state and each
    /// [disclosure](super::Hold::disclose), the newest holder by each time that a window can start from.
    pub const fn needs_all_holders(&self) -> bool {
        match self.on_conflict() {
            OnConflict::Reject | OnConflict::Ignore => false,
            OnConflict::Replace | OnConflict::ReplaceExceptSchedule | OnConflict::FollowUp => true,
        }
    }

    /// Whether a duplicate renews the windows of its holders.
    pub fn slides(&self) -> bool {
        self.period().is_some() && self.period_from() == PeriodFrom::LastDuplicate
    }
}

/// Whether `holder`, which carries the new job's key, blocks it at `now`. `policy` is the new job's.
pub fn blocks(policy: &UniquePolicy, holder: &Head, now: Timestamp) -> Blocking {
    blocks_by(&policy.hold(), policy.while_active(), holder, now)
}

/// Like [`blocks`], given only the parts of a policy that matter here.
pub(super) fn blocks_by(hold: &Hold, while_active: bool, holder: &Head, now: Timestamp) -> Blocking {
    if !hold.states.contains(holder.state) {
        return Blocking::OtherState;
    }
    if holder.state == State::Retryable && is_planted(Bug::RetryFreesKey) {
        return Blocking::OtherState;
    }
    // Whether the sweep has reached an expired holder makes no difference (SEMANTICS 3). One that was never
    // started counts as absent. One that has begun may have done its work, and blocks the offers that it will
    // block once discarded.
    let is_expired = holder.is_expired(now);
    let stays = holder.has_begun() && hold.states.contains(State::Discarded);
    if (is_expired && !stays && !is_planted(Bug::ExpiredBlocks)) || holder.ending == Some(Ending::Expired) {
        return Blocking::Expired;
    }
    let Some(period) = hold.period() else { return Blocking::InState };
    if while_active && holder.state.is_live() && !is_expired {
        return Blocking::WhileActive;
    }
    let Some(anchor) = anchor(hold.from, holder) else { return Blocking::Unfinished };
    let end = period.after(anchor);
    if now < end || (now == end && is_planted(Bug::WindowOffByOne)) {
        Blocking::InWindow { until: end }
    } else {
        Blocking::WindowOver { since: end }
    }
}

/// Decides what happens to a job offered under `policy` at `now`, given the holders of its key in any order
/// (see [`UniquePolicy::needs_all_holders`]).
///
/// `sight` is what the caller may see of other people's jobs. Allocates nothing unless holders must be listed.
pub fn admit<'h>(
    policy: &UniquePolicy,
    holders: impl IntoIterator<Item = &'h Head>,
    now: Timestamp,
    sight: Sight<'_>,
) -> Admission {
    let mut named: Option<&Head> = None;
    let mut disclose = policy.disclose();
    // Whether the decision would have to change a job that the caller may not know of.
    let mut beyond = false;
    let slides = policy.slides();
    let mut blocking = Vec::new();
    for holder in holders {
        let is_blocking = blocks(policy, holder, now).is_blocking();
        if policy.needs_all_holders() && (is_blocking || may_be_let_go(holder)) {
            beyond |= !sight.sees(&holder.queue);
        }
        if !is_blocking {
            continue;
        }
        disclose = strictest(disclose, sight.inspect, holder);
        if named.is_none_or(|best| rank(best) < rank(holder)) {
            named = Some(holder);
        }
        if slides || policy.needs_all_holders() {
            blocking.push(holder);
        }
    }
    let Some(named) = named else { return Admission::Create };
    // Where the answer is one holder, the queues of the others do not matter, and not all of them need be
    // given.
    if beyond || !sight.sees(&named.queue) {
        disclose = Disclose::Never;
    }
    blocking.sort_unstable_by_key(|holder| Reverse(rank(holder)));

    let holder = named.id;
    let renew = if slides { renewed(&blocking) } else { Vec::new() };
    let reject = |why, renew| Admission::Reject { holder, why, disclose, renew };
    match policy.on_conflict() {
        OnConflict::Reject => reject(RejectReason::Duplicate, renew),
        OnConflict::Ignore | OnConflict::FollowUp if disclose == Disclose::Never => {
            reject(RejectReason::Undisclosed, renew)
        }
        OnConflict::Ignore => Admission::Existing { holder, renew },
        OnConflict::FollowUp => follow_up(&blocking, now).unwrap_or(Admission::Existing { holder, renew }),
        OnConflict::Replace | OnConflict::ReplaceExceptSchedule => {
            if beyond {
                return reject(RejectReason::Undisclosed, renew);
            }
            if !blocking.iter().all(|holder| goes_on(holder, now)) {
                if is_planted(Bug::ReplaceFinished) {
                    return Admission::Create;
                }
                return reject(RejectReason::FinishedHolder, renew);
            }
            Admission::Replace {
                holders: blocking.iter().map(|holder| holder.id).collect(),
                scheduled_at: schedule_kept(policy, &blocking),
                wait_until: lease_waited_for(policy, &blocking),
                disclose,
            }
        }
    }
}

/// Whether an answer may show a holder: the strictest of the offered job's policy, of what its caller may
/// see, and of the holder's own policy. So a prober cannot choose it.
pub fn disclosed(incoming: Disclose, sight: Sight<'_>, holder: &Head) -> Disclose {
    strictest(incoming, sight.inspect && sight.sees(&holder.queue), holder)
}

fn strictest(incoming: Disclose, is_seen: bool, holder: &Head) -> Disclose {
    let seen = if is_seen { Disclose::Always } else { Disclose::Never };
    incoming.max(seen).max(holder.hold.disclose)
}

/// Whether this is a pending follow-up, which the end of a run may release: it may then block the offer that
/// ended the run.
fn may_be_let_go(holder: &Head) -> bool {
    holder.role == Role::FollowUp && holder.state == State::Pending
}

/// Whether the same key stands for other work, which `on_mismatch: reject` refuses: another type (possible
/// with global keys), or args with another canonical [digest](crate::canon::digest).
pub fn mismatch(
    policy: &UniquePolicy,
    offered_type: &JobType,
    offered_args: &[u8; 32],
    holder_type: &JobType,
    holder_args: &[u8; 32],
) -> bool {
    policy.on_mismatch() == OnMismatch::Reject && (offered_type != holder_type || offered_args != holder_args)
}

/// Rank for naming a holder in an answer: an active holder first, then the newest.
fn rank(holder: &Head) -> (bool, Timestamp, JobId) {
    (holder.state == State::Active, holder.created_at, holder.id)
}

/// Whether a blocking holder is unfinished. One past its `expires_at` counts as discarded.
fn goes_on(holder: &Head, now: Timestamp) -> bool {
    holder.state.is_live() && !holder.is_expired(now)
}

/// The admission of a follow-up. `blocking` is in order of rank, highest first. `None` when all of them have
/// ended.
fn follow_up(blocking: &[&Head], now: Timestamp) -> Option<Admission> {
    let live = || blocking.iter().filter(|holder| goes_on(holder, now));
    if let Some(waiting) = live().find(|holder| holder.role == Role::FollowUp && !holder.has_begun()) {
        return Some(Admission::AmendFollowUp { follow_up: waiting.id });
    }
    let after: Vec<JobId> = live().filter(|holder| holder.has_begun()).map(|holder| holder.id).collect();
    if !after.is_empty() {
        return Some(Admission::CreateFollowUp { after });
    }
    live().next().map(|waiting| Admission::AmendWaiting { holder: waiting.id })
}

/// The holders whose sliding window a duplicate renews: all that block by it. If only the named one were
/// renewed, the windows of the others would run out behind it. A finished holder that another outlives does
/// not count, whether or not a store still has it.
fn renewed(blocking: &[&Head]) -> Vec<JobId> {
    let outlived = |holder: &Head| blocking.iter().any(|other| outlives(other, holder));
    blocking.iter().filter(|holder| !outlived(holder)).map(|holder| holder.id).collect()
}

fn schedule_kept(policy: &UniquePolicy, blocking: &[&Head]) -> Option<Timestamp> {
    let scheduled = blocking.iter().filter(|holder| holder.state == State::Scheduled);
    match policy.on_conflict() {
        OnConflict::ReplaceExceptSchedule => scheduled.map(|holder| holder.available_at).min(),
        OnConflict::Reject | OnConflict::Ignore | OnConflict::Replace | OnConflict::FollowUp => None,
    }
}

fn lease_waited_for(policy: &UniquePolicy, blocking: &[&Head]) -> Option<Timestamp> {
    match policy.when_active() {
        WhenActive::Now => None,
        WhenActive::Wait => blocking.iter().filter_map(|holder| holder.run_may_last_until()).max(),
    }
}
