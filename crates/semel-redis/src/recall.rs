//! What was seen of keys when the store was last asked about them, so that it can be asked for less. It is never an answer: the store is
//! asked each time.

use std::sync::{Mutex, PoisonError};

use semel_core::draft::Map;
use semel_core::unique::UniqueKey;

/// What is remembered of so many keys at most. Those that nobody has asked about for longest are forgotten first, about half of them at a
/// time.
#[derive(Debug)]
pub struct Recall<V> {
    seen: Mutex<Seen<V>>,
    /// So many are young at most.
    young_max: usize,
}

#[derive(Debug)]
struct Seen<V> {
    young: Map<UniqueKey, V>,
    /// Whatever is not asked about until as many are young as may be is forgotten then.
    old: Map<UniqueKey, V>,
}

impl<V: Clone> Recall<V> {
    /// Of so many keys.
    pub fn of(keys_max: usize) -> Self {
        Self { seen: Mutex::default(), young_max: keys_max / 2 }
    }

    /// What is remembered of each of these.
    pub fn recall(&self, keys: impl Iterator<Item = UniqueKey>) -> Vec<Option<V>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        keys.map(|key| seen.get(&key, self.young_max)).collect()
    }

    /// Remembers these, instead of what was known of them.
    pub fn keep(&self, keys: impl Iterator<Item = (UniqueKey, V)>) {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in keys {
            seen.put(key, value, self.young_max);
        }
    }
}

impl<V> Default for Seen<V> {
    fn default() -> Self {
        Self { young: Map::default(), old: Map::default() }
    }
}

impl<V: Clone> Seen<V> {
    fn get(&mut self, key: &UniqueKey, young_max: usize) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let value = self.old.remove(key)?;
        self.put(*key, value.clone(), young_max);
        Some(value)
    }

    fn put(&mut self, key: UniqueKey, value: V, young_max: usize) {
        self.young.insert(key, value);
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

    fn known(recall: &Recall<u8>) -> Vec<u8> {
        let mut known: Vec<u8> = recall.recall((0..=u8::MAX).map(key)).into_iter().flatten().collect();
        known.sort_unstable();
        known
    }

    #[test]
    fn what_is_asked_about_stays_and_the_rest_is_forgotten() {
        let recall = Recall::of(8);
        for number in 0..100 {
            recall.keep(std::iter::once((key(number), number)));
            assert_eq!(recall.recall([key(0), key(number)].into_iter()), [Some(0), Some(number)]);
        }
        let there = known(&recall);
        assert!(there.contains(&0) && there.contains(&99) && !there.contains(&50), "{there:?}");
    }

    /// However it is asked: looking is what makes old ones young again.
    #[test]
    fn it_never_grows_beyond_its_bound() {
        let recall = Recall::of(8);
        for round in 0..50_u8 {
            recall.keep((0..7).map(|more| (key(round.wrapping_mul(7).wrapping_add(more)), more)));
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
        recall.keep([(key(1), 1), (key(1), 2)].into_iter());
        assert_eq!(recall.recall(std::iter::once(key(1))), [Some(2)]);
    }
}
