//! Subscribers who are slow to answer have a part of the places for deliveries and no more, however many they are.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use semel_core::limit::Lane;

/// Deliveries under way at one time.
pub(super) const UNDER_WAY_MAX: usize = 64;
/// Of those, to subscribers who are slow.
const SLOW_MAX: usize = 32;
/// At least so many are taken at once: with room for fewer of the slow ones none of them is taken.
const TAKEN_MIN: usize = 8;
/// Whoever takes so long for an answer is slow, until one comes sooner.
const SLOW_AFTER: Duration = Duration::from_secs(5);
/// For so long it is remembered of one who has had no delivery since: longer than a delivery rests between two attempts.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);

/// Deliveries under way, by what each is called, and who is slow. A subscriber is known by the limit that its deliveries are under.
#[derive(Debug)]
pub(super) struct Pace<K> {
    under_way: HashMap<K, (Lane, Instant)>,
    slow: HashMap<Lane, Instant>,
}

/// What may be taken now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taking {
    /// At most so many.
    pub(super) most: usize,
    /// None of these subscribers'. In order, each once.
    pub(super) closed: Vec<Lane>,
}

impl<K> Default for Pace<K> {
    fn default() -> Self {
        Self { under_way: HashMap::new(), slow: HashMap::new() }
    }
}

impl<K: Eq + Hash> Pace<K> {
    /// A delivery is on its way.
    pub(super) fn begun(&mut self, delivery: K, of: Lane, now: Instant) {
        self.under_way.insert(delivery, (of, now));
    }

    /// It is over, after so long; none says nothing of the subscriber.
    pub(super) fn ended(&mut self, delivery: &K, took: Option<Duration>, now: Instant) {
        let Some((of, _)) = self.under_way.remove(delivery) else { return };
        match took {
            Some(took) if took < SLOW_AFTER => drop(self.slow.remove(&of)),
            Some(_) => drop(self.slow.insert(of, now)),
            None => {}
        }
    }

    /// What may be taken with so many places free: as many of slow subscribers' as they have a part of, and where they have had
    /// it all, only the others'.
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
        // One of them is quick, and one says nothing.
        pace.ended(&0, Some(Duration::ZERO), later);
        assert_eq!(pace.next(40, later), everybody(TAKEN_MIN), "24 of the slow ones are left");
        pace.ended(&1, None, later);
        assert_eq!(pace.next(41, later), everybody(TAKEN_MIN + 1));
        let much_later = later + REMEMBERED;
        assert_eq!(pace.next(41, much_later).closed, []);
    }
}
