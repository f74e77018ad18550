//! The keys with the most duplicates, for the metrics: in memory, bounded, since the start of the process.

use std::sync::{Mutex, PoisonError};

use semel_core::draft::Map;
use semel_core::ident::{JobType, QueueName};
use semel_core::unique::UniqueKey;

/// Keys that are counted at one time. One more takes the place of the one with the fewest, and its count, so that a key
/// which is hot from now on is found; a count may be too high by as much, never too low.
const KEYS_MAX: usize = 128;

/// What a key has absorbed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The key, as its tenant sees it.
    pub key: UniqueKey,
    /// Type and queue of the job that was turned away last.
    pub job_type: JobType,
    /// See `job_type`.
    pub queue: QueueName,
    /// Duplicates, at most.
    pub count: u64,
}

/// Duplicates by key.
#[derive(Debug, Default)]
pub struct Hottest(Mutex<Map<UniqueKey, Hot>>);

impl Hottest {
    /// Counts one duplicate.
    pub fn count(&self, key: UniqueKey, job_type: &JobType, queue: &QueueName) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hot) = keys.get_mut(&key) {
            hot.count += 1;
            return;
        }
        let mut count = 1;
        if keys.len() >= KEYS_MAX
            && let Some((coldest, least)) =
                keys.iter().map(|(key, hot)| (*key, hot.count)).min_by_key(|(_, count)| *count)
        {
            keys.remove(&coldest);
            count += least;
        }
        keys.insert(key, Hot { key, job_type: job_type.clone(), queue: queue.clone(), count });
    }

    /// The hottest, at most so many, the hottest first.
    pub fn top(&self, most: usize) -> Vec<Hot> {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Hot> = keys.values().cloned().collect();
        all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.key.cmp(&other.key)));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> UniqueKey {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        UniqueKey::from_bytes(bytes)
    }

    #[test]
    fn a_hot_key_is_found_among_any_number_of_cold_ones() {
        let (hottest, job_type, queue) =
            (Hottest::default(), JobType::from_stored("a.b"), QueueName::default());
        for round in 0..2_000 {
            hottest.count(key(1_000_000 + round), &job_type, &queue);
            hottest.count(key(7), &job_type, &queue);
            if round % 2 == 0 {
                hottest.count(key(8), &job_type, &queue);
            }
        }
        let top = hottest.top(2);
        assert_eq!(top.iter().map(|hot| hot.key).collect::<Vec<_>>(), [key(7), key(8)]);
        assert!(top[0].count >= 2_000 && top[1].count >= 1_000, "{top:?}");
        assert_eq!(hottest.top(1_000).len(), KEYS_MAX);
    }
}
