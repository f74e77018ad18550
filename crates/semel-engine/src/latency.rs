//! How long jobs of each queue recently waited for a worker and ran, at this process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::tenant::Tenant;
use tokio::time::Instant;

/// The minutes covered, including the current one.
pub const MINUTES: u64 = 10;
/// Queues covered at a time. While this many had a job within those minutes, further queues are left out.
const QUEUES_MAX: usize = 500;
/// Everything shorter falls into the first bucket, in microseconds.
const SHORTEST_US: f64 = 64.0;
/// Buckets per doubling of time: a figure is at most a fifth too large.
const OF_AN_OCTAVE: f64 = 4.0;

/// The distribution of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The number of durations.
    pub count: u64,
    /// The median, as an upper bound.
    pub p50: Duration,
    /// The 99th percentile, as an upper bound.
    pub p99: Duration,
}

/// The times of a queue's jobs in the last [`MINUTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// From when a job could be claimed until it was, for each claim.
    pub wait: Spread,
    /// From start to end, for runs that completed.
    pub run: Spread,
}

/// The kind of duration counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Wait,
    Run,
}

/// Numbers of durations, by bucket.
#[derive(Clone, Debug, Default)]
struct Buckets(BTreeMap<u8, u64>);

impl Buckets {
    fn add(&mut self, took: Duration) {
        let octaves = (took.as_micros() as f64 / SHORTEST_US).log2().max(0.0);
        // The cast saturates for values that are too large.
        *self.0.entry((octaves * OF_AN_OCTAVE).ceil() as u8).or_default() += 1;
    }

    fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(bucket, count)| *self.0.entry(*bucket).or_default() += count);
    }

    fn spread(&self) -> Spread {
        let count: u64 = self.0.values().sum();
        let at = |percent: u64| {
            let (rank, mut seen) = ((count * percent).div_ceil(100).max(1), 0);
            let bucket = self.0.iter().find(|(_, of)| {
                seen += **of;
                seen >= rank
            });
            let octaves = bucket.map(|(bucket, _)| f64::from(*bucket) / OF_AN_OCTAVE);
            octaves
                .map_or(Duration::ZERO, |octaves| Duration::from_secs_f64(SHORTEST_US * octaves.exp2() / 1e6))
        };
        Spread { count, p50: at(50), p99: at(99) }
    }
}

#[derive(Debug, Default)]
struct Minute {
    number: u64,
    wait: Buckets,
    run: Buckets,
}

/// The oldest first; minutes without durations are missing.
type Minutes = VecDeque<Minute>;

/// The durations of every queue, by tenant and name.
#[derive(Debug)]
pub(crate) struct Latencies {
    began: Instant,
    queues: Mutex<BTreeMap<Tenant, BTreeMap<String, Minutes>>>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { began: Instant::now(), queues: Mutex::default() }
    }
}

impl Latencies {
    /// Counts a duration for a queue.
    pub(crate) fn count(&self, tenant: &Tenant, queue: &str, what: What, took: Duration) {
        let number = self.minute();
        let mut queues = self.queues();
        if !queues.get(tenant).is_some_and(|own| own.contains_key(queue)) {
            make_room(&mut queues, number);
            if queues.values().map(BTreeMap::len).sum::<usize>() >= QUEUES_MAX {
                return;
            }
            queues.entry(tenant.clone()).or_default().insert(queue.to_owned(), Minutes::new());
        }
        let Some(minutes) = queues.get_mut(tenant).and_then(|own| own.get_mut(queue)) else { return };
        if minutes.back().is_none_or(|last| last.number != number) {
            minutes.retain(|minute| is_late(minute.number, number));
            minutes.push_back(Minute { number, ..Minute::default() });
        }
        if let Some(last) = minutes.back_mut() {
            match what {
                What::Wait => last.wait.add(took),
                What::Run => last.run.add(took),
            }
        }
    }

    /// The durations of the tenant's queues, by name; queues without a job are missing.
    pub(crate) fn of(&self, tenant: &Tenant) -> BTreeMap<String, Latency> {
        let number = self.minute();
        let queues = self.queues();
        let told = |(name, minutes): (&String, &Minutes)| {
            let (mut wait, mut run) = (Buckets::default(), Buckets::default());
            for minute in minutes.iter().filter(|minute| is_late(minute.number, number)) {
                wait.merge(&minute.wait);
                run.merge(&minute.run);
            }
            let latency = Latency { wait: wait.spread(), run: run.spread() };
            (latency != Latency::default()).then(|| (name.clone(), latency))
        };
        queues.get(tenant).into_iter().flatten().filter_map(told).collect()
    }

    fn minute(&self) -> u64 {
        self.began.elapsed().as_secs() / 60
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<Tenant, BTreeMap<String, Minutes>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_late(minute: u64, now: u64) -> bool {
    now - minute.min(now) < MINUTES
}

/// Drops queues that had no job recently, to make room for others.
fn make_room(queues: &mut BTreeMap<Tenant, BTreeMap<String, Minutes>>, now: u64) {
    for own in queues.values_mut() {
        own.retain(|_, minutes| minutes.back().is_some_and(|last| is_late(last.number, now)));
    }
    queues.retain(|_, own| !own.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn percentiles_are_at_most_a_fifth_too_large_and_of_the_last_minutes() {
        let latencies = Latencies::default();
        let own = Tenant::default();
        for n in 1..=100 {
            latencies.count(&own, "mail", What::Wait, MS * n);
        }
        latencies.count(&own, "mail", What::Run, Duration::ZERO);
        let told = latencies.of(&own)["mail"];
        assert_eq!(told.wait.count, 100);
        assert!((50 * MS..60 * MS).contains(&told.wait.p50), "{told:?}");
        assert!((99 * MS..119 * MS).contains(&told.wait.p99), "{told:?}");
        assert_eq!(
            told.run,
            Spread { count: 1, p50: Duration::from_micros(64), p99: Duration::from_micros(64) }
        );
        tokio::time::advance(Duration::from_secs(60 * (MINUTES - 1))).await;
        assert_eq!(latencies.of(&own)["mail"].wait.count, 100);
        latencies.count(&own, "mail", What::Wait, MS);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(latencies.of(&own)["mail"].wait.count, 1, "the first minute is over");
        tokio::time::advance(Duration::from_secs(60 * MINUTES)).await;
        assert_eq!(latencies.of(&own).len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn queues_are_bounded_and_quiet_ones_make_room() {
        let latencies = Latencies::default();
        let own = Tenant::default();
        for n in 0..=QUEUES_MAX {
            latencies.count(&own, &format!("q{n}"), What::Run, Duration::MAX);
        }
        let told = latencies.of(&own);
        assert_eq!(told.len(), QUEUES_MAX);
        assert!(told["q0"].run.p99 > Duration::from_secs(1 << 30), "{:?}", told["q0"]);
        tokio::time::advance(Duration::from_secs(60 * MINUTES)).await;
        latencies.count(&own, "later", What::Run, MS);
        assert_eq!(latencies.of(&own).keys().collect::<Vec<_>>(), ["later"]);
    }
}
