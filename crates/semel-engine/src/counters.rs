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
pub struct Counters(Mutex<Counts>);

/// By type, by queue: a series that is there is found without naming it anew.
#[derive(Debug, Default)]
struct Counts {
    by_type: BTreeMap<JobType, BTreeMap<QueueName, BTreeMap<&'static str, u64>>>,
    series: usize,
}

impl Counts {
    fn known(&mut self, job_type: &JobType, queue: &QueueName, outcome: &str) -> Option<&mut u64> {
        self.by_type.get_mut(job_type)?.get_mut(queue)?.get_mut(outcome)
    }
}

impl Counters {
    /// Counts one outcome.
    pub fn count(&self, job_type: &JobType, queue: &QueueName, outcome: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.known(job_type, queue, outcome) {
            *count += 1;
            return;
        }
        let (job_type, queue) = if counts.series < SERIES_MAX {
            counts.series += 1;
            (job_type.clone(), queue.clone())
        } else {
            (JobType::from_stored("other"), QueueName::from_stored("other"))
        };
        *counts.by_type.entry(job_type).or_default().entry(queue).or_default().entry(outcome).or_default() +=
            1;
    }

    /// All counters, in order.
    pub fn all(&self) -> Vec<(Series, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::with_capacity(counts.series);
        for (job_type, queues) in &counts.by_type {
            for (queue, outcomes) in queues {
                let named = |(outcome, count): (&&'static str, &u64)| {
                    ((job_type.clone(), queue.clone(), *outcome), *count)
                };
                all.extend(outcomes.iter().map(named));
            }
        }
        all
    }
}

/// Whether an outcome counted under this name kept a job from being one of its own.
pub fn is_suppressed(outcome: &str) -> bool {
    matches!(
        outcome,
        "amended"
            | "existing"
            | "rejected"
            | "rejected_finished"
            | "rejected_undisclosed"
            | "mismatch"
            | "key_reused"
    )
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
        Outcome::KeyReused(_) => "key_reused",
        Outcome::IdTaken(_) => "id_taken",
        Outcome::TooManyHolders => "too_many_holders",
        Outcome::QueueFull(_) => "queue_full",
        Outcome::Corrupt(_) => "corrupt",
    }
}
