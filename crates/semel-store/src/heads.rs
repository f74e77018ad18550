//! The model's storage of heads: chunks that never move, found by id through a table of small numbers. Growth
//! copies no head, and every other index holds four bytes per job instead of an id.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use semel_core::ident::JobId;
use semel_core::job::Head;

/// Heads per chunk.
const CHUNK: usize = 1024;

/// The position of a head, below 2^31. It is reused once the head is taken out.
pub(crate) type Place = u32;

/// The upper half of a hash, kept in the table's entry, so that the table grows without reading heads again.
pub(crate) type Tag = u32;

/// The tag of a hash.
pub(crate) const fn tag(hash: u64) -> Tag {
    (hash >> 32) as Tag
}

/// The table hash of a tag.
pub(crate) const fn spread(tag: Tag) -> u64 {
    (tag as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// All heads, by position and by id.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    chunks: Vec<Vec<Option<Head>>>,
    free: Vec<Place>,
    by_id: HashTable<(Tag, Place)>,
    hasher: RandomState,
}

impl Heads {
    /// The number of heads.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The head of a job.
    pub(crate) fn get(&self, id: JobId) -> Option<&Head> {
        self.at(self.place(id)?)
    }

    /// The head at a position.
    pub(crate) fn at(&self, place: Place) -> Option<&Head> {
        self.chunks.get(place as usize / CHUNK)?.get(place as usize % CHUNK)?.as_ref()
    }

    /// The position of a job's head.
    pub(crate) fn place(&self, id: JobId) -> Option<Place> {
        let sought = tag(self.hasher.hash_one(id));
        let is_it =
            |entry: &(Tag, Place)| entry.0 == sought && self.at(entry.1).is_some_and(|head| head.id == id);
        self.by_id.find(spread(sought), is_it).map(|(_, place)| *place)
    }

    /// Replaces the head at a position with another of the same id. Returns the old one.
    pub(crate) fn replace(&mut self, place: Place, head: Head) -> Option<Head> {
        self.slot(place).and_then(|slot| slot.replace(head))
    }

    /// Stores a head in a free position. None with its id may be present.
    pub(crate) fn add(&mut self, head: Head) -> Place {
        let tag = tag(self.hasher.hash_one(head.id));
        let place = match self.free.pop() {
            Some(place) => {
                if let Some(slot) = self.slot(place) {
                    *slot = Some(head);
                }
                place
            }
            None => self.append(head),
        };
        self.by_id.insert_unique(spread(tag), (tag, place), |(tag, _)| spread(*tag));
        place
    }

    /// Takes a head out, and returns its former position with it.
    pub(crate) fn take(&mut self, id: JobId) -> Option<(Place, Head)> {
        let place = self.place(id)?;
        if let Ok(entry) =
            self.by_id.find_entry(spread(tag(self.hasher.hash_one(id))), |(_, found)| *found == place)
        {
            entry.remove();
        }
        let head = self.slot(place)?.take()?;
        self.free.push(place);
        Some((place, head))
    }

    /// All heads, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Head> {
        self.chunks.iter().flatten().filter_map(Option::as_ref)
    }

    fn slot(&mut self, place: Place) -> Option<&mut Option<Head>> {
        self.chunks.get_mut(place as usize / CHUNK)?.get_mut(place as usize % CHUNK)
    }

    fn append(&mut self, head: Head) -> Place {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let full = (self.chunks.len() - 1) * CHUNK;
        let Some(chunk) = self.chunks.last_mut() else { return Place::MAX };
        chunk.push(Some(head));
        Place::try_from(full + chunk.len() - 1).unwrap_or(Place::MAX)
    }
}
