//! Metrics counters: outcomes of admissions and ends of runs, by type and queue, as totals and [over
//! time](crate::history).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use semel_core::ident::{JobType, QueueName};
use tokio::time::Instant;

use crate::history::{History, Step};

/// The most distinct (type, queue, outcome) triples; beyond it, type and queue are counted as `other`, so that
/// callers who invent types cannot grow the metrics without bound.
const SERIES_MAX: usize = 2_000;

/// A counted series: a type, a queue, and either the [name](semel_core::enqueue::OutcomeKind::name) of a
/// request's outcome or what became of a job later: `completed`, `failed`, `cancelled`.
pub type Series = (JobType, QueueName, &'static str);

/// Counters since the start of the process.
#[derive(Debug)]
pub struct Counters {
    began: Instant,
    counts: Mutex<Counts>,
}

/// Counts by type and queue, so that an existing series is found without cloning names.
#[derive(Debug, Default)]
struct Counts {
    by_type: BTreeMap<JobType, BTreeMap<QueueName, BTreeMap<&'static str, Count>>>,
    /// The series, by number.
    series: Vec<Series>,
    history: History,
}

/// The count of one series.
#[derive(Debug)]
struct Count {
    number: usize,
    total: u64,
}

/// What a series grew by in one slot of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// When the slot began, since the start of the process.
    pub began: Duration,
    /// Each series that grew, and by how much.
    pub moved: Vec<(Series, u64)>,
}

impl Counts {
    fn known(&mut self, job_type: &JobType, queue: &QueueName, outcome: &str) -> Option<&mut Count> {
        self.by_type.get_mut(job_type)?.get_mut(queue)?.get_mut(outcome)
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self { began: Instant::now(), counts: Mutex::default() }
    }
}

impl Counters {
    /// Counts one outcome.
    pub fn count(&self, job_type: &JobType, queue: &QueueName, outcome: &'static str) {
        let minute = self.uptime().as_secs() / Step::Minute.seconds();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = &mut *counts;
        if let Some(known) = counts.known(job_type, queue, outcome) {
            known.total += 1;
            let number = known.number;
            return counts.history.add(number, minute);
        }
        let (job_type, queue) = if counts.series.len() < SERIES_MAX {
            (job_type.clone(), queue.clone())
        } else {
            (JobType::from_stored("other"), QueueName::from_stored("other"))
        };
        let series = &mut counts.series;
        let queues = counts.by_type.entry(job_type.clone()).or_default();
        let count = queues.entry(queue.clone()).or_default().entry(outcome).or_insert_with(|| {
            series.push((job_type, queue, outcome));
            Count { number: series.len() - 1, total: 0 }
        });
        count.total += 1;
        counts.history.add(count.number, minute);
    }

    /// All counters, sorted.
    pub fn all(&self) -> Vec<(Series, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::with_capacity(counts.series.len());
        for (job_type, queues) in &counts.by_type {
            for (queue, outcomes) in queues {
                let named = |(outcome, count): (&&'static str, &Count)| {
                    ((job_type.clone(), queue.clone(), *outcome), count.total)
                };
                all.extend(outcomes.iter().map(named));
            }
        }
        all
    }

    /// The growth of the wanted series, oldest slot first; at most [`MINUTES_MAX`](crate::history::MINUTES_MAX)
    /// or [`HOURS_MAX`](crate::history::HOURS_MAX) slots. Slots without growth are left out.
    pub fn history(&self, step: Step, is_wanted: impl Fn(&Series) -> bool) -> Vec<Slot> {
        let minute = self.uptime().as_secs() / Step::Minute.seconds();
        let (slots, series) = {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            (counts.history.read(step, minute), counts.series.clone())
        };
        // Outside the lock, so that counting does not wait for this.
        let slots = slots.into_iter().map(|(number, moved)| {
            let named = |(number, count): (usize, u64)| {
                series.get(number).filter(|series| is_wanted(series)).map(|series| (series.clone(), count))
            };
            let began = Duration::from_secs(number * step.seconds());
            Slot { began, moved: moved.into_iter().filter_map(named).collect() }
        });
        slots.filter(|slot| !slot.moved.is_empty()).collect()
    }

    /// How long the counters have been running.
    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_counted_is_counted_in_its_minute_too() {
        let counters = Counters::default();
        let (job_type, queue) = (JobType::from_stored("a.b"), QueueName::from_stored("mail"));
        counters.count(&job_type, &queue, "created");
        tokio::time::advance(Duration::from_secs(120)).await;
        counters.count(&job_type, &queue, "created");
        counters.count(&job_type, &QueueName::from_stored("other"), "existing");
        assert_eq!(counters.all().iter().map(|(_, count)| count).sum::<u64>(), 3);
        let slots = counters.history(Step::Minute, |series| series.1 == queue);
        let of = |began| Slot {
            began: Duration::from_secs(began),
            moved: vec![((job_type.clone(), queue.clone(), "created"), 1)],
        };
        assert_eq!(slots, [of(0), of(120)]);
        assert_eq!(counters.history(Step::Hour, |_| true)[0].moved.len(), 2);
    }

    #[test]
    fn callers_who_invent_types_are_counted_together() {
        let counters = Counters::default();
        let queue = QueueName::from_stored("mail");
        for number in 0..SERIES_MAX + 10 {
            counters.count(&JobType::from_stored(&format!("t{number}")), &queue, "created");
        }
        let all = counters.all();
        assert_eq!(all.len(), SERIES_MAX + 1);
        assert!(all.iter().any(|((name, ..), count)| name.as_str() == "other" && *count == 10));
        assert_eq!(counters.history(Step::Minute, |_| true)[0].moved.len(), SERIES_MAX + 1);
    }
}
