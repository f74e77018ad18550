//! Holders of uniqueness keys. The key itself is read from a holder's head, so an entry is only a version and a place.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use semel_core::draft::Map;
use semel_core::unique::UniqueKey;

use crate::heads::{Heads, Place, Tag, spread, tag};

/// The holders of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    /// The key's version.
    pub(crate) version: u64,
    first: Place,
    others: &'a [Place],
}

impl<'a> Held<'a> {
    /// The holders, in no order.
    pub(crate) fn places(self) -> impl Iterator<Item = Place> + Clone + 'a {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// How many holders there are.
    pub(crate) fn len(self) -> usize {
        1 + self.others.len()
    }
}

/// Set in the place of an entry with further holders: nearly every key has one holder, and pays for no more.
const SHARED: Place = 1 << 31;

#[derive(Debug)]
struct Entry {
    version: u64,
    tag: Tag,
    first: Place,
}

impl Entry {
    const fn first(&self) -> Place {
        self.first & !SHARED
    }

    const fn is_shared(&self) -> bool {
        self.first & SHARED != 0
    }

    fn holds(&self, heads: &Heads, tag: Tag, key: &UniqueKey) -> bool {
        self.tag == tag && heads.at(self.first()).is_some_and(|head| head.key.as_ref() == Some(key))
    }
}

/// Keys that moved since the last `settle`, by tag: false positives are possible, misses are not.
#[derive(Debug)]
struct Moved {
    bits: Box<[u64; Self::WORDS]>,
    tags: Vec<Tag>,
}

impl Moved {
    /// With a commit's worth of keys, about one lookup in a hundred hits another key's bit.
    const WORDS: usize = 1024;

    fn new() -> Self {
        Self { bits: Box::new([0; Self::WORDS]), tags: Vec::new() }
    }

    const fn place(tag: Tag) -> (usize, u64) {
        (tag as usize / 64 % Self::WORDS, 1 << (tag % 64))
    }

    fn note(&mut self, tag: Tag) {
        let (word, bit) = Self::place(tag);
        self.bits[word] |= bit;
        self.tags.push(tag);
    }

    fn has(&self, tag: Tag) -> bool {
        let (word, bit) = Self::place(tag);
        self.bits[word] & bit != 0
    }

    fn settle(&mut self) {
        for tag in self.tags.drain(..) {
            self.bits[Self::place(tag).0] = 0;
        }
    }
}

/// Entries by key. Every entry has a holder whose head is in [`Heads`] and carries the key.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    table: HashTable<Entry>,
    /// The holders of shared keys, except each key's first.
    others: Map<UniqueKey, Vec<Place>>,
    hasher: RandomState,
    /// Present if the store asked for it.
    moved: Option<Moved>,
}

impl Holders {
    /// The entry of a key.
    pub(crate) fn get(&self, heads: &Heads, key: &UniqueKey) -> Option<Held<'_>> {
        let tag = self.tag(key);
        let entry = self.table.find(spread(tag), |entry| entry.holds(heads, tag, key))?;
        let others = if entry.is_shared() { self.others.get(key) } else { None };
        let others = others.map_or(&[][..], Vec::as_slice);
        Some(Held { version: entry.version, first: entry.first(), others })
    }

    /// Starts recording which keys move.
    pub(crate) fn note_moves(&mut self) {
        self.moved = Some(Moved::new());
    }

    /// Whether a key may have moved since the last [`settle`](Self::settle).
    pub(crate) fn has_moved(&self, key: &UniqueKey) -> bool {
        self.moved.as_ref().is_some_and(|moved| moved.has(self.tag(key)))
    }

    /// Notes that all moves so far are final.
    pub(crate) fn settle(&mut self) {
        if let Some(moved) = &mut self.moved {
            moved.settle();
        }
    }

    /// Moves a key's version for a write of a head at version `written`. Returns whether the key has an entry.
    pub(crate) fn touch(&mut self, heads: &Heads, key: &UniqueKey, written: u64) -> bool {
        let tag = self.moving(key);
        let found = self.table.find_mut(spread(tag), |entry| entry.holds(heads, tag, key));
        found.map(|entry| entry.version = (entry.version + 1).max(written)).is_some()
    }

    /// Adds a holder whose head was written at version `written`, and moves the key's version. `absent` is the
    /// version of a key without an entry.
    pub(crate) fn add(&mut self, heads: &Heads, key: &UniqueKey, place: Place, written: u64, absent: u64) {
        let tag = self.moving(key);
        match self.table.find_mut(spread(tag), |entry| entry.holds(heads, tag, key)) {
            Some(entry) => {
                entry.version = (entry.version + 1).max(written);
                if entry.first() != place {
                    entry.first |= SHARED;
                    let others = self.others.entry(*key).or_default();
                    if !others.contains(&place) {
                        others.push(place);
                    }
                }
            }
            None => {
                let entry = Entry { version: (absent + 1).max(written), tag, first: place };
                self.table.insert_unique(spread(tag), entry, |entry| spread(entry.tag));
            }
        }
    }

    fn tag(&self, key: &UniqueKey) -> Tag {
        tag(self.hasher.hash_one(key))
    }

    /// The tag of a key that is about to move.
    fn moving(&mut self, key: &UniqueKey) -> Tag {
        let tag = self.tag(key);
        if let Some(moved) = &mut self.moved {
            moved.note(tag);
        }
        tag
    }

    /// Keeps only the holders that `wanted` accepts; drops the key with its last holder. Must be called while
    /// the heads still carry the key.
    pub(crate) fn retain(&mut self, heads: &Heads, key: &UniqueKey, wanted: impl Fn(Place) -> bool) {
        let tag = self.moving(key);
        let Ok(mut found) = self.table.find_entry(spread(tag), |entry| entry.holds(heads, tag, key)) else {
            return;
        };
        let entry = found.get_mut();
        let mut others = if entry.is_shared() { self.others.remove(key) } else { None }.unwrap_or_default();
        others.retain(|place| wanted(*place));
        let first = if wanted(entry.first()) { Some(entry.first()) } else { others.pop() };
        let Some(first) = first else {
            found.remove();
            return;
        };
        entry.first = first;
        if !others.is_empty() {
            entry.first |= SHARED;
            self.others.insert(*key, others);
        }
    }
}
