//! Why a job is, or would be, a duplicate: sentences for people, without the values that keys are computed
//! from.

use super::admit::{Blocking, blocks};
use super::choice::{Dimension, Disclose, OnConflict, OnMismatch, PeriodFrom, Scope, WhenActive};
use super::frees::{Frees, frees};
use super::policy::{MetaPart, UniquePolicy, listed};
use crate::job::Head;
use crate::state::{State, StateSet};
use crate::time::Timestamp;

/// Describes which jobs a policy treats as the same, for how long, and how a duplicate is handled. It names
/// members but never values, and does not show the caller's own key.
pub fn policy_sentence(policy: &UniquePolicy) -> String {
    let mut text = format!(
        "Two jobs are the same when they agree in {}. {} {}",
        identity(policy),
        duration(policy),
        consequence(policy.on_conflict()),
    );
    if policy.when_active() == WhenActive::Wait && is_replacing(policy.on_conflict()) {
        text.push_str(" It does not start before the lease of a run that it replaces has ended.");
    }
    if policy.on_mismatch() == OnMismatch::Reject {
        text.push_str(
            " The same key with a different type or different args is refused as payload_mismatch.",
        );
        if policy.states().intersects(StateSet::FINISHED) {
            text.push_str(" If retention has deleted a job's args, only its type is compared.");
        }
    }
    if policy.disclose() == Disclose::Never {
        text.push_str(" The answer does not show the existing job.");
    }
    if policy.states().intersects(StateSet::FINISHED) {
        text.push_str(" It sees only those finished jobs that their own policies and retention have kept.");
    }
    text
}

fn identity(policy: &UniquePolicy) -> String {
    let mut parts: Vec<String> = Vec::new();
    for dimension in policy.dimensions().iter() {
        parts.push(match dimension {
            Dimension::Type => "type".to_owned(),
            Dimension::Queue => "queue".to_owned(),
            Dimension::Args if policy.args_keys().is_empty() => "all args".to_owned(),
            Dimension::Args => format!("the args {}", listed(policy.args_keys())),
            Dimension::Version => "the template's version".to_owned(),
            Dimension::Meta => match policy.meta_part() {
                MetaPart::Only(names) => format!("the meta {}", listed(names)),
                MetaPart::Except(names) if names.is_empty() => "all user meta".to_owned(),
                MetaPart::Except(names) => format!("all user meta except {}", listed(names)),
            },
        });
    }
    if policy.key_text().is_some() {
        parts.push("the caller's own key".to_owned());
    }
    let last = parts.pop().unwrap_or_default();
    let text = if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) };
    if policy.scope() == Scope::Global { format!("{text}, whatever their type") } else { text }
}

fn duration(policy: &UniquePolicy) -> String {
    let states = if policy.states() == StateSet::LIVE {
        "until it ends".to_owned()
    } else if policy.states() == StateSet::ALL {
        "whatever becomes of it".to_owned()
    } else {
        format!("while it is {}", listed_or(policy.states()))
    };
    let Some(period) = policy.period() else { return format!("A job holds its key {states}.") };
    let from = match policy.period_from() {
        PeriodFrom::Created => "its creation",
        PeriodFrom::Finished => "its end",
        PeriodFrom::LastDuplicate => "its last duplicate",
    };
    let past = if policy.while_active() { ", and in any case while it is unfinished" } else { "" };
    format!("A job holds its key {states}, for {period} from {from}{past}.")
}

const fn consequence(on_conflict: OnConflict) -> &'static str {
    match on_conflict {
        OnConflict::Reject => "A duplicate is rejected.",
        OnConflict::Ignore => "A duplicate is answered with the existing job.",
        OnConflict::Replace => "A duplicate cancels the jobs that hold the key and takes their place.",
        OnConflict::ReplaceExceptSchedule => {
            "A duplicate cancels the jobs that hold the key and takes their place, keeping the start time of a scheduled one."
        }
        OnConflict::FollowUp => {
            "A duplicate of a started job runs once more after it; a duplicate of a waiting job replaces its args and meta."
        }
    }
}

const fn is_replacing(on_conflict: OnConflict) -> bool {
    matches!(on_conflict, OnConflict::Replace | OnConflict::ReplaceExceptSchedule)
}

/// Describes whether one holder of a key blocks a new job under `policy` at `now`, since when, and what frees
/// it. The text shows the holder: the caller must check its disclosure first.
pub fn blocking_sentence(policy: &UniquePolicy, holder: &Head, now: Timestamp) -> String {
    let Head { id, state, created_at, .. } = holder;
    let job = match (state, holder.finished_at) {
        (State::Completed | State::Cancelled | State::Discarded, Some(end)) => {
            format!("Job {id} ({state}, created {created_at}, ended {end})")
        }
        _ => format!("Job {id} ({state}, created {created_at})"),
    };
    match blocks(policy, holder, now) {
        Blocking::InState if state.is_finished() => {
            format!("{job} blocks until its key is released or its record is purged.")
        }
        Blocking::InState => format!("{job} blocks until {}.", leaving(policy)),
        Blocking::InWindow { until } if state.is_finished() => format!("{job} blocks until {until}."),
        Blocking::InWindow { until } => {
            format!("{job} blocks until {until}, or until {} if that is sooner.", leaving(policy))
        }
        Blocking::Unfinished => format!("{job} blocks; {}.", window_to_come(policy)),
        Blocking::WhileActive => {
            let end = if policy.states().contains_all(StateSet::LIVE) {
                "it ends".to_owned()
            } else {
                leaving(policy)
            };
            // The part of its window that may be left then.
            let rest = match frees(policy, holder, now) {
                Frees::At(until) => format!("; if it ends before {until}, possibly until then"),
                Frees::AfterEnd => format!("; {}", window_to_come(policy)),
                _ => String::new(),
            };
            format!("{job} blocks until {end}, regardless of its window{rest}.")
        }
        Blocking::OtherState => {
            format!(
                "{job} does not block: the policy only covers jobs that are {}.",
                listed_or(policy.states())
            )
        }
        Blocking::Expired => format!("{job} does not block: it expired while it waited."),
        Blocking::WindowOver { since } => format!("{job} does not block: its window ended {since}."),
    }
}

/// The clause about a window that starts when the job ends.
fn window_to_come(policy: &UniquePolicy) -> String {
    let period = policy.period().map_or_else(String::new, |period| format!(" {period}"));
    format!("its window of{period} starts when it ends")
}

/// The event that ends the hold of an unfinished job.
fn leaving(policy: &UniquePolicy) -> String {
    if policy.states() == StateSet::LIVE {
        "it ends".to_owned()
    } else if policy.states() == StateSet::ALL {
        "its key is released".to_owned()
    } else {
        format!("it is no longer {}", listed_or(policy.states()))
    }
}

fn listed_or(states: StateSet) -> String {
    let names: Vec<_> = states.iter().map(State::name).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => "in no state".to_owned(),
    }
}
