//! Remembers what was seen of keys when the store was last asked about them, so that it can be asked for
//! less. A memory is never an answer: the store is asked each time.

use std::sync::{Mutex, PoisonError};

use semel_core::draft::Map;
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;

/// The holder that each key was last seen with, for a bounded number of keys. Those not asked about for
/// longest are forgotten first, about half of all at a time.
#[derive(Debug)]
pub struct Recall {
    seen: Mutex<Seen>,
    /// How many keys `young` holds at most.
    young_max: usize,
}

#[derive(Debug, Default)]
struct Seen {
    young: Map<UniqueKey, JobId>,
    /// The previous generation: a key that is not asked about until `young` is full again is then forgotten.
    old: Map<UniqueKey, JobId>,
}

impl Recall {
    /// A memory of at most `keys_max` keys.
    pub fn of(keys_max: usize) -> Self {
        Self { seen: Mutex::default(), young_max: keys_max / 2 }
    }

    /// The remembered holder of each key.
    pub fn recall(&self, keys: impl Iterator<Item = UniqueKey>) -> Vec<Option<JobId>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        keys.map(|key| seen.get(&key, self.young_max)).collect()
    }

    /// Remembers these holders, replacing earlier ones.
    pub fn keep(&self, keys: impl Iterator<Item = (UniqueKey, JobId)>) {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, holder) in keys {
            seen.put(key, holder, self.young_max);
        }
    }
}

impl Seen {
    fn get(&mut self, key: &UniqueKey, young_max: usize) -> Option<JobId> {
        if let Some(holder) = self.young.get(key) {
            return Some(*holder);
        }
        let holder = self.old.remove(key)?;
        self.put(*key, holder, young_max);
        Some(holder)
    }

    fn put(&mut self, key: UniqueKey, holder: JobId, young_max: usize) {
        self.young.insert(key, holder);
        if self.young.len() > young_max {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> UniqueKey {
        UniqueKey::from_bytes([number; 32])
    }

    fn job(number: u8) -> JobId {
        JobId::from_bytes([number; 16])
    }

    fn known(recall: &Recall) -> Vec<JobId> {
        let mut known: Vec<JobId> = recall.recall((0..=u8::MAX).map(key)).into_iter().flatten().collect();
        known.sort_unstable();
        known
    }

    #[test]
    fn what_is_asked_about_stays_and_the_rest_is_forgotten() {
        let recall = Recall::of(8);
        for number in 0..100 {
            recall.keep(std::iter::once((key(number), job(number))));
            assert_eq!(recall.recall([key(0), key(number)].into_iter()), [Some(job(0)), Some(job(number))]);
        }
        let there = known(&recall);
        assert!(
            there.contains(&job(0)) && there.contains(&job(99)) && !there.contains(&job(50)),
            "{there:?}"
        );
    }

    /// However it is used: a look-up also moves old entries back to the young ones.
    #[test]
    fn it_never_grows_beyond_its_bound() {
        let recall = Recall::of(8);
        for round in 0..50_u8 {
            recall.keep((0..7).map(|more| (key(round.wrapping_mul(7).wrapping_add(more)), job(more))));
            for _ in 0..3 {
                drop(recall.recall((0..=u8::MAX).rev().map(key)));
                let seen = recall.seen.lock().unwrap();
                assert!(seen.young.len() + seen.old.len() <= 9, "{} {}", seen.young.len(), seen.old.len());
            }
        }
    }

    #[test]
    fn the_newest_counts() {
        let recall = Recall::of(8);
        recall.keep([(key(1), job(1)), (key(1), job(2))].into_iter());
        assert_eq!(recall.recall(std::iter::once(key(1))), [Some(job(2))]);
    }
}
