//! Who holds which key. The key itself is read from a holder's head, so an entry is a version and a place.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use semel_core::unique::UniqueKey;

use crate::heads::{Heads, Place};

/// The holders of one key.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The key's version.
    pub(crate) version: u64,
    first: Place,
    rest: Vec<Place>,
}

impl Entry {
    /// The holders, in no order.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + Clone + '_ {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// How many holders there are.
    pub(crate) fn len(&self) -> usize {
        1 + self.rest.len()
    }
}

/// Entries by key. Every entry has a holder whose head is in [`Heads`] and carries the key.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    table: HashTable<Entry>,
    hasher: RandomState,
}

impl Holders {
    /// The entry of a key.
    pub(crate) fn get(&self, heads: &Heads, key: &UniqueKey) -> Option<&Entry> {
        self.table.find(self.hasher.hash_one(key), |entry| holds(heads, entry, key))
    }

    /// Moves a key's version for a write of a head at version `written`. Says whether there is such an entry.
    pub(crate) fn touch(&mut self, heads: &Heads, key: &UniqueKey, written: u64) -> bool {
        let found = self.table.find_mut(self.hasher.hash_one(key), |entry| holds(heads, entry, key));
        found.map(|entry| entry.version = (entry.version + 1).max(written)).is_some()
    }

    /// Adds a holder. `absent` is the version of a key without an entry.
    pub(crate) fn add(&mut self, heads: &Heads, key: &UniqueKey, place: Place, absent: u64) {
        let hash = self.hasher.hash_one(key);
        match self.table.find_mut(hash, |entry| holds(heads, entry, key)) {
            Some(entry) => {
                if entry.places().all(|known| known != place) {
                    entry.rest.push(place);
                }
            }
            None => {
                let entry = Entry { version: absent, first: place, rest: Vec::new() };
                let hasher = &self.hasher;
                self.table.insert_unique(hash, entry, |entry| {
                    heads.at(entry.first).and_then(|head| head.key).map_or(0, |key| hasher.hash_one(key))
                });
            }
        }
    }

    /// Keeps only the holders that `wanted` wants; forgets the key with its last holder. Must be called while the
    /// heads still carry the key.
    pub(crate) fn retain(&mut self, heads: &Heads, key: &UniqueKey, wanted: impl Fn(Place) -> bool) {
        let Ok(mut found) = self.table.find_entry(self.hasher.hash_one(key), |entry| holds(heads, entry, key)) else {
            return;
        };
        let entry = found.get_mut();
        entry.rest.retain(|place| wanted(*place));
        if !wanted(entry.first) {
            match entry.rest.pop() {
                Some(other) => entry.first = other,
                None => drop(found.remove()),
            }
        }
    }
}

fn holds(heads: &Heads, entry: &Entry, key: &UniqueKey) -> bool {
    heads.at(entry.first).is_some_and(|head| head.key.as_ref() == Some(key))
}
