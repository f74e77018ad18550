//! What an operator sets: how deep a queue may become, and what a worker is told.
//!
//! Both are kept as small texts in rows of the queues' table, which every store keeps by version; a name that no
//! queue can have marks a row that is not a queue's.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ident::QueueName;
use crate::state::{State, StateSet};
use crate::tenant::Tenant;

/// The first character of the names of rows that are not queues; no queue's name can start with it.
const NO_QUEUE: char = '~';

impl QueueName {
    /// The name of a row that keeps something other than a queue: its kind, and which one.
    pub(crate) fn of_row(kind: &str, which: &str) -> Self {
        Self::from_stored(&format!("{NO_QUEUE}{kind}/{which}"))
    }

    /// The row on which decisions that add to a bounded queue conflict: each moves its version, and nothing else does.
    pub(crate) fn bound_row(&self) -> Self {
        Self::of_row("bound", self.as_str())
    }

    /// Whether the row of this name is a queue that users may know of.
    pub fn is_queue(&self) -> bool {
        !self.as_str().starts_with(NO_QUEUE)
    }

    /// Whether the queue is for the server's own jobs. Its row is not a user's queue: nobody lists it, pauses it or
    /// sets a bound for it.
    pub fn is_systems(&self) -> bool {
        self.tenant() == Tenant::system().as_str()
    }
}

/// An operator's settings for a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// The bound on how many jobs may wait in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backpressure: Option<Backpressure>,
}

/// A bound on the jobs that wait in a queue. At the bound nothing more is admitted; admitted jobs are never dropped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Backpressure {
    /// The most jobs that may wait.
    pub max_depth: u64,
    /// From which part of the bound, 0 to 1, answers carry a warning.
    pub warning_threshold: f64,
}

/// How full a bounded queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// How many jobs wait.
    pub waiting: u64,
    /// How many may wait.
    pub bound: u64,
}

impl Backpressure {
    /// Where warnings begin unless an operator sets something else.
    pub const WARNING_DEFAULT: f64 = 0.8;

    /// Whether another job may wait in addition to these.
    pub const fn admits(&self, waiting: u64) -> bool {
        waiting < self.max_depth
    }

    /// Whether answers carry a warning at this depth.
    pub fn warns(&self, waiting: u64) -> bool {
        self.max_depth > 0 && waiting as f64 >= self.warning_threshold * self.max_depth as f64
    }
}

impl QueueSettings {
    /// Reads the settings from a row; `None` is the default. Text that cannot be read counts as unset: damaged
    /// settings never keep jobs from being admitted.
    pub fn decode(text: Option<&str>) -> Self {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// The text to store in the row; `None` for the default.
    pub fn encode(&self) -> Option<Arc<str>> {
        if *self == Self::default() { None } else { serde_json::to_string(self).ok().map(Arc::from) }
    }
}

/// Whether a job in that state waits in its queue.
pub fn waits(state: State) -> bool {
    state.is_live() && state != State::Active
}

/// How many jobs wait in a queue, from its number of jobs in each state: all live ones that no worker has.
pub fn waiting(counts: &[u64; State::ALL.len()]) -> u64 {
    let waiting = StateSet::LIVE.iter().filter(|state| waits(*state));
    waiting.map(|state| counts[usize::from(state.code())]).sum()
}

/// What a worker is told at its next heartbeat, until the operator withdraws it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directive {
    /// Go on.
    #[default]
    Run,
    /// Finish what you have and fetch no more.
    Quiet,
    /// Finish what you have and end.
    Terminate,
}

impl Directive {
    /// Every directive.
    pub const ALL: [Self; 3] = [Self::Run, Self::Quiet, Self::Terminate];

    /// The directive's name, as heartbeats return it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "running",
            Self::Quiet => "quiet",
            Self::Terminate => "terminate",
        }
    }

    /// The directive of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|directive| directive.name() == name)
    }

    /// The row that keeps a worker's directive.
    pub fn row_of(worker: &str) -> QueueName {
        QueueName::of_row("worker", worker)
    }

    /// Reads the directive from its row.
    pub fn decode(text: Option<&str>) -> Self {
        text.and_then(Self::from_name).unwrap_or_default()
    }

    /// The text to store in the row; `None` for [`Run`](Self::Run).
    pub fn encode(self) -> Option<Arc<str>> {
        (self != Self::Run).then(|| Arc::from(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_and_damage_bounds_nothing() {
        let set = QueueSettings { backpressure: Some(Backpressure { max_depth: 7, warning_threshold: 0.5 }) };
        assert_eq!(QueueSettings::decode(set.encode().as_deref()), set);
        assert_eq!(QueueSettings::default().encode(), None);
        for text in [None, Some(""), Some("{"), Some("[]")] {
            assert_eq!(QueueSettings::decode(text), QueueSettings::default());
        }
    }

    #[test]
    fn a_bound_is_met_and_never_passed() {
        let bound = Backpressure { max_depth: 4, warning_threshold: 0.5 };
        assert_eq!([0, 3, 4, 5].map(|waiting| bound.admits(waiting)), [true, true, false, false]);
        assert_eq!([1, 2, 4].map(|waiting| bound.warns(waiting)), [false, true, true]);
        let closed = Backpressure { max_depth: 0, warning_threshold: 0.0 };
        assert!(!closed.admits(0) && !closed.warns(0));
        assert_eq!(waiting(&[1, 2, 4, 8, 16, 32, 64, 128]), 1 + 2 + 4 + 16);
    }

    #[test]
    fn a_row_that_is_no_queue_has_no_queues_name() {
        let row = Directive::row_of("w-1");
        assert!(!row.is_queue() && QueueName::parse(row.as_str(), "").is_err());
        assert!(QueueName::default().is_queue() && !row.is_systems());
        let own = QueueName::default().within(&Tenant::system());
        assert!(own.is_systems() && !own.is_queue() && !QueueName::default().is_systems());
        // The row of its bound is no queue of the server's either.
        assert!(!own.bound_row().is_systems());
        for directive in Directive::ALL {
            assert_eq!(Directive::decode(directive.encode().as_deref()), directive);
        }
    }
}
