//! Who holds which key. The key itself is read from a holder's head, so an entry is a version and a place.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use semel_core::unique::UniqueKey;

use crate::heads::{Heads, Place, Tag, spread, tag};

/// The holders of one key.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The key's version.
    pub(crate) version: u64,
    tag: Tag,
    first: Place,
    /// Nearly every key has one holder: the others cost a word when there are none.
    #[expect(clippy::box_collection, reason = "a vector of its own would cost three words in every entry")]
    rest: Option<Box<Vec<Place>>>,
}

impl Entry {
    /// The holders, in no order.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + Clone + '_ {
        std::iter::once(self.first).chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }

    fn holds(&self, heads: &Heads, tag: Tag, key: &UniqueKey) -> bool {
        self.tag == tag && heads.at(self.first).is_some_and(|head| head.key.as_ref() == Some(key))
    }

    /// How many holders there are.
    pub(crate) fn len(&self) -> usize {
        1 + self.rest.as_ref().map_or(0, |rest| rest.len())
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
        let tag = self.tag(key);
        self.table.find(spread(tag), |entry| entry.holds(heads, tag, key))
    }

    /// Moves a key's version for a write of a head at version `written`. Says whether there is such an entry.
    pub(crate) fn touch(&mut self, heads: &Heads, key: &UniqueKey, written: u64) -> bool {
        let tag = self.tag(key);
        let found = self.table.find_mut(spread(tag), |entry| entry.holds(heads, tag, key));
        found.map(|entry| entry.version = (entry.version + 1).max(written)).is_some()
    }

    /// Adds a holder, whose head was written at version `written`, and moves the key's version. `absent` is the version
    /// of a key without an entry.
    pub(crate) fn add(&mut self, heads: &Heads, key: &UniqueKey, place: Place, written: u64, absent: u64) {
        let tag = self.tag(key);
        match self.table.find_mut(spread(tag), |entry| entry.holds(heads, tag, key)) {
            Some(entry) => {
                entry.version = (entry.version + 1).max(written);
                if entry.places().all(|known| known != place) {
                    entry.rest.get_or_insert_default().push(place);
                }
            }
            None => {
                let entry = Entry { version: (absent + 1).max(written), tag, first: place, rest: None };
                self.table.insert_unique(spread(tag), entry, |entry| spread(entry.tag));
            }
        }
    }

    fn tag(&self, key: &UniqueKey) -> Tag {
        tag(self.hasher.hash_one(key))
    }

    /// Keeps only the holders that `wanted` wants; forgets the key with its last holder. Must be called while the
    /// heads still carry the key.
    pub(crate) fn retain(&mut self, heads: &Heads, key: &UniqueKey, wanted: impl Fn(Place) -> bool) {
        let tag = self.tag(key);
        let Ok(mut found) = self.table.find_entry(spread(tag), |entry| entry.holds(heads, tag, key)) else {
            return;
        };
        let entry = found.get_mut();
        if let Some(rest) = &mut entry.rest {
            rest.retain(|place| wanted(*place));
        }
        if !wanted(entry.first) {
            match entry.rest.as_mut().and_then(|rest| rest.pop()) {
                Some(other) => entry.first = other,
                None => drop(found.remove()),
            }
        }
    }
}
