//! Limits slow subscribers, however many, to a part of the places for deliveries.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use semel_core::limit::Lane;

/// Deliveries in progress at one time, at most.
pub(super) const UNDER_WAY_MAX: usize = 64;
/// Of those, deliveries to slow subscribers, at most.
const SLOW_MAX: usize = 32;
/// The fewest that are claimed at once: with less room for slow subscribers, none of theirs are claimed.
const TAKEN_MIN: usize = 8;
/// A subscriber that takes this long to answer is slow, until it answers sooner.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// How long a slow subscriber without deliveries is remembered: longer than the pause between two attempts of a delivery.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);

/// Deliveries in progress, by task, and the subscribers that are slow. A subscriber is identified by the lane
/// of its concurrency limit.
#[derive(Debug)]
pub(super) struct Pace<K> {
    under_way: HashMap<K, (Lane, Instant)>,
    slow: HashMap<Lane, Instant>,
}

/// What may be claimed now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taking {
    /// The number of deliveries, at most.
    pub(super) most: usize,
    /// Subscribers whose deliveries may not be claimed; sorted, without duplicates.
    pub(super) closed: Vec<Lane>,
}

impl<K> Default for Pace<K> {
    fn default() -> Self {
        Self { under_way: HashMap::new(), slow: HashMap::new() }
    }
}

impl<K: Eq + Hash> Pace<K> {
    /// Records that a delivery has begun.
    pub(super) fn begun(&mut self, delivery: K, of: Lane, now: Instant) {
        self.under_way.insert(delivery, (of, now));
    }

    /// Records that a delivery is over, after `took`; `None` says nothing about the subscriber.
    pub(super) fn ended(&mut self, delivery: &K, took: Option<Duration>, now: Instant) {
        let Some((of, _)) = self.under_way.remove(delivery) else { return };
        match took {
            Some(took) if took < SLOW_AFTER => drop(self.slow.remove(&of)),
            Some(_) => drop(self.slow.insert(of, now)),
            None => {}
        }
    }

    /// What may be claimed with `free` places: while slow subscribers have enough of their part left, at most
    /// that many deliveries in all, to any subscribers; otherwise only deliveries to those that are not slow.
    pub(super) fn next(&mut self, free: usize, now: Instant) -> Taking {
        self.slow.retain(|_, at| now.duration_since(*at) < REMEMBERED);
        for (of, began) in self.under_way.values() {
            if now.duration_since(*began) >= SLOW_AFTER {
                self.slow.insert(*of, now);
            }
        }
        let slow = self.under_way.values().filter(|(of, _)| self.slow.contains_key(of)).count();
        let left = SLOW_MAX.saturating_sub(slow);
        if left >= TAKEN_MIN {
            return Taking { most: free.min(left), closed: Vec::new() };
        }
        let mut closed: Vec<Lane> = self.slow.keys().copied().collect();
        closed.sort_unstable();
        Taking { most: free, closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: usize) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = (0..count).map(|number| Lane::of(&format!("webhook:{number}"))).collect();
        lanes.sort_unstable();
        lanes
    }

    #[test]
    fn who_took_long_is_slow_until_he_does_not() {
        let (mut pace, now, slow) = (Pace::default(), Instant::now(), lanes(40));
        let everybody = |most| Taking { most, closed: Vec::new() };
        assert_eq!(pace.next(UNDER_WAY_MAX, now), everybody(SLOW_MAX), "anybody may turn out to be");
        for (delivery, of) in slow.iter().enumerate() {
            pace.begun(delivery, *of, now);
        }
        assert_eq!(pace.next(24, now), everybody(24), "nobody is yet");
        let later = now + SLOW_AFTER;
        let others = Taking { most: 24, closed: slow.clone() };
        assert_eq!(pace.next(24, later), others, "while they are under way");
        for delivery in 0..slow.len() {
            pace.ended(&delivery, Some(SLOW_AFTER), later);
        }
        assert_eq!(
            pace.next(UNDER_WAY_MAX, later),
            everybody(SLOW_MAX),
            "and afterwards they have their part"
        );
        for (delivery, of) in slow.iter().take(24).enumerate() {
            pace.begun(delivery, *of, later);
        }
        assert_eq!(pace.next(40, later), everybody(TAKEN_MIN));
        pace.begun(24, slow[24], later);
        assert_eq!(pace.next(39, later), Taking { most: 39, closed: slow });
        // One delivery ends quickly, and one without a measurement.
        pace.ended(&0, Some(Duration::ZERO), later);
        assert_eq!(pace.next(40, later), everybody(TAKEN_MIN), "24 of the slow ones are left");
        pace.ended(&1, None, later);
        assert_eq!(pace.next(41, later), everybody(TAKEN_MIN + 1));
        let much_later = later + REMEMBERED;
        assert_eq!(pace.next(41, much_later).closed, []);
    }
}
