//! The keys and holders that absorbed most duplicates at this process since its start: keys for the metrics,
//! holders for the page of the hottest. In memory, bounded, and counted in one place.
//!
//! Both use the space-saving algorithm: when all places are taken, a newcomer takes over a place with the lowest
//! count, and that count. So a count is never too low, and too high by at most what was taken over, which is known
//! for each; less that, it is never too high. Anything that exceeds the lowest count is certain to be present.

use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use semel_core::draft::Map;
use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::tenant::Namespace;
use semel_core::unique::UniqueKey;

/// Keys counted at a time.
const KEYS_MAX: usize = 128;
/// Holders counted at a time.
pub const HOLDERS_MAX: usize = 1_000;

/// The duplicates that a key has absorbed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The key, as its tenant sees it.
    pub key: UniqueKey,
    /// Type and queue of the first job turned away since the key has been counted.
    pub job_type: JobType,
    /// See `job_type`.
    pub queue: QueueName,
    /// The number of duplicates, as an upper bound.
    pub count: u64,
}

/// Duplicates, by key and by holder.
#[derive(Debug, Default)]
pub(crate) struct Hottest(Mutex<Summaries>);

#[derive(Debug)]
struct Summaries {
    /// By stored key, so that the keys of two tenants are counted apart. The count of a `Hot` is not maintained here.
    keys: Summary<UniqueKey, Hot>,
    /// By the holder's stored id.
    holders: Summary<JobId, ()>,
}

impl Default for Summaries {
    fn default() -> Self {
        Self { keys: Summary::of(KEYS_MAX), holders: Summary::of(HOLDERS_MAX) }
    }
}

impl Hottest {
    /// Counts an outcome, as stored, if it is a duplicate: always for its holder, and for the key only if the
    /// holder may be shown.
    pub(crate) fn count(&self, outcome: &Outcome, job_type: &JobType, queue: &QueueName, space: &Namespace) {
        let Some(holder) = outcome.absorbed_by() else { return };
        let mut summaries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        summaries.holders.count(holder, || ());
        if let Some(key) = outcome.shown_key() {
            summaries.keys.count(key, || Hot {
                key: space.other_key(key),
                job_type: job_type.clone(),
                queue: queue.clone(),
                count: 0,
            });
        }
    }

    /// The keys with the highest counts, at most this many, hottest first.
    pub(crate) fn keys(&self, most: usize) -> Vec<Hot> {
        let summaries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |place: &Place<Hot>| Hot { count: place.count, ..place.label.clone() };
        let mut all: Vec<Hot> = summaries.keys.places.values().map(of).collect();
        drop(summaries);
        all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.key.cmp(&other.key)));
        all.truncate(most);
        all
    }

    /// All counted holders, highest first, with a lower bound of what each absorbed; and by how much that may
    /// be too low, which is also the most that an uncounted holder can have absorbed.
    pub(crate) fn holders(&self) -> (Vec<(JobId, u64)>, u64) {
        let summaries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let holders = &summaries.holders;
        let mut all: Vec<(JobId, u64)> =
            holders.places.iter().map(|(id, place)| (*id, place.count - place.taken_over)).collect();
        let may_lack = holders.least;
        drop(summaries);
        all.sort_unstable_by_key(|(id, count)| (std::cmp::Reverse(*count), std::cmp::Reverse(*id)));
        (all, may_lack)
    }

    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Summaries::default();
    }
}

/// A bounded set of counters.
#[derive(Debug)]
struct Summary<K, L> {
    most: usize,
    places: Map<K, Place<L>>,
    /// The highest count that was ever taken over: the lowest of all when last computed. It never falls.
    least: u64,
    /// The entries that had the count `least` then, and may still have it.
    coldest: Vec<K>,
}

#[derive(Debug)]
struct Place<L> {
    /// An upper bound of the true count.
    count: u64,
    /// By how much `count` may be too high.
    taken_over: u64,
    label: L,
}

impl<K: Copy + Eq + Hash, L> Summary<K, L> {
    fn of(most: usize) -> Self {
        Self { most, places: Map::default(), least: 0, coldest: Vec::new() }
    }

    fn count(&mut self, key: K, label: impl FnOnce() -> L) {
        if let Some(place) = self.places.get_mut(&key) {
            place.count += 1;
            return;
        }
        let taken_over = if self.places.len() < self.most { 0 } else { self.make_room() };
        self.places.insert(key, Place { count: taken_over + 1, taken_over, label: label() });
    }

    /// Removes an entry with the lowest count, and returns that count. All are scanned only once the lowest
    /// count has risen, which takes as many duplicates as there are places: so the amortised cost is bounded.
    fn make_room(&mut self) -> u64 {
        if !self.take_coldest() {
            self.least = self.places.values().map(|place| place.count).min().unwrap_or(0);
            let is_least = |place: &Place<L>| place.count == self.least;
            self.coldest =
                self.places.iter().filter(|(_, place)| is_least(place)).map(|(key, _)| *key).collect();
            self.take_coldest();
        }
        self.least
    }

    fn take_coldest(&mut self) -> bool {
        while let Some(key) = self.coldest.pop() {
            if self.places.get(&key).is_some_and(|place| place.count == self.least) {
                self.places.remove(&key);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use semel_core::time::Timestamp;

    use super::*;

    fn summaries(hottest: &Hottest) -> std::sync::MutexGuard<'_, Summaries> {
        hottest.0.lock().unwrap()
    }

    fn holder(hottest: &Hottest, id: JobId) {
        summaries(hottest).holders.count(id, || ());
    }

    fn key(hottest: &Hottest, number: u32) {
        let (job_type, queue) = (JobType::from_stored("a.b"), QueueName::default());
        let key = key_of(number);
        summaries(hottest).keys.count(key, || Hot { key, job_type, queue, count: 0 });
    }

    fn key_of(number: u32) -> UniqueKey {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        UniqueKey::from_bytes(bytes)
    }

    fn id(row: u64) -> JobId {
        JobId::mint(Timestamp::from_micros(1_800_000_000_000_000), row, 0)
    }

    #[test]
    fn the_hottest_come_first() {
        let hottest = Hottest::default();
        for (row, count) in [(1, 2), (2, 5), (3, 2)] {
            (0..count).for_each(|_| holder(&hottest, id(row)));
        }
        assert_eq!(hottest.holders(), (vec![(id(2), 5), (id(3), 2), (id(1), 2)], 0));
        key(&hottest, 1);
        hottest.clear();
        assert_eq!((hottest.holders(), hottest.keys(9)), ((Vec::new(), 0), Vec::new()));
    }

    #[test]
    fn whoever_absorbed_much_is_found_among_any_number_of_others() {
        let hottest = Hottest::default();
        let (hot, others) = (id(0), 20 * HOLDERS_MAX as u64);
        for row in 1..=others {
            holder(&hottest, id(row));
            if row % 10 == 0 {
                holder(&hottest, hot);
            }
        }
        let (all, may_lack) = hottest.holders();
        let true_count = others / 10;
        assert_eq!(all[0].0, hot);
        assert!(all[0].1 <= true_count && true_count <= all[0].1 + may_lack, "{} and {may_lack}", all[0].1);
        // The other holders absorbed one each.
        assert!(all[1..].iter().all(|(_, count)| *count <= 1), "{all:?}");
        assert_eq!(all.len(), HOLDERS_MAX);
        assert!(may_lack > 0 && may_lack <= (others + true_count) / HOLDERS_MAX as u64, "{may_lack}");
    }

    #[test]
    fn a_hot_key_is_found_among_any_number_of_cold_ones() {
        let hottest = Hottest::default();
        for round in 0..2_000 {
            key(&hottest, 1_000_000 + round);
            key(&hottest, 7);
            if round % 2 == 0 {
                key(&hottest, 8);
            }
        }
        let top = hottest.keys(2);
        assert_eq!(top.iter().map(|hot| hot.key).collect::<Vec<_>>(), [key_of(7), key_of(8)]);
        assert!(top[0].count >= 2_000 && top[1].count >= 1_000, "{top:?}");
        assert_eq!(hottest.keys(1_000).len(), KEYS_MAX);
    }

    /// Compared with exact counts, including entries that return after they were displaced.
    #[test]
    fn counts_are_off_by_no_more_than_is_said() {
        let mut summary: Summary<u64, ()> = Summary::of(8);
        let mut real: Map<u64, u64> = Map::default();
        let mut number = 1_u64;
        for _ in 0..5_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = ((number >> 33) % 40) * ((number >> 50) % 2);
            summary.count(key, || ());
            *real.entry(key).or_default() += 1;
            for (key, real) in &real {
                match summary.places.get(key) {
                    Some(place) => {
                        assert!(place.count - place.taken_over <= *real && *real <= place.count);
                        assert!(place.taken_over <= summary.least);
                    }
                    None => assert!(*real <= summary.least, "{real} of one who is not there"),
                }
            }
        }
        assert_eq!((summary.places.len(), summary.places[&0].count >= real[&0]), (8, true));
    }
}
