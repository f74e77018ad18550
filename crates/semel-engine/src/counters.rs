//! Counters for the metrics: outcomes of admissions and ends of runs, by type and queue.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use semel_core::enqueue::Outcome;
use semel_core::ident::{JobType, QueueName};
use semel_core::unique::RejectReason;

/// Distinct (type, queue, outcome) triples counted apart; the rest are counted as type `other`, so that callers who
/// invent types cannot grow the metrics without bound.
const SERIES_MAX: usize = 2_000;

/// What is counted.
pub type Series = (JobType, QueueName, &'static str);

/// Counters since the start of the process.
#[derive(Debug, Default)]
pub struct Counters(Mutex<BTreeMap<Series, u64>>);

impl Counters {
    /// Counts one outcome.
    pub fn count(&self, job_type: &JobType, queue: &QueueName, outcome: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let series = (job_type.clone(), queue.clone(), outcome);
        if counts.len() < SERIES_MAX || counts.contains_key(&series) {
            *counts.entry(series).or_default() += 1;
        } else {
            let other = (JobType::from_stored("other"), QueueName::from_stored("other"), outcome);
            *counts.entry(other).or_default() += 1;
        }
    }

    /// All counters, in order.
    pub fn all(&self) -> Vec<(Series, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(series, count)| (series.clone(), *count)).collect()
    }
}

/// The name an outcome is counted under.
pub const fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created(_) => "created",
        Outcome::Repeated(_) => "repeated",
        Outcome::Replaced { .. } => "replaced",
        Outcome::FollowUp(_) => "follow_up",
        Outcome::Amended(_) => "amended",
        Outcome::Existing(_) => "existing",
        Outcome::Rejected { why: RejectReason::Duplicate, .. } => "rejected",
        Outcome::Rejected { why: RejectReason::FinishedHolder, .. } => "rejected_finished",
        Outcome::Rejected { why: RejectReason::Undisclosed, .. } => "rejected_undisclosed",
        Outcome::Mismatch { .. } => "mismatch",
        Outcome::IdTaken(_) => "id_taken",
        Outcome::TooManyHolders => "too_many_holders",
        Outcome::QueueFull(_) => "queue_full",
        Outcome::Corrupt(_) => "corrupt",
    }
}
