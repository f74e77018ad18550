//! Who holds which key, as decisions see it.

use semel_core::draft::{KeyRead, KeyView};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head};
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, is_kept, outlives};

use super::Model;
use crate::heads::Place;

impl Model {
    /// The version of a key.
    pub fn key_version(&self, key: &UniqueKey) -> u64 {
        self.keys.get(&self.heads, key).map_or(self.absent_version, |entry| entry.version)
    }

    /// Moves the version of all keys that nobody here holds: heads with keys were moved elsewhere, so a decision taken
    /// on what was there before must be taken again.
    pub fn move_absent_version(&mut self, version: u64) {
        self.absent_version = (self.absent_version + 1).max(version);
    }

    /// In which states all holders of a key are here. Ended ones may be kept elsewhere: then a view of what is here must not
    /// pass for a view of them.
    pub(super) fn covered(&self) -> StateSet {
        if self.files_done { StateSet::ALL } else { StateSet::LIVE }
    }

    /// The holders of a key that are here, as a decision at `now` may see them.
    pub fn key_view(&self, read: &KeyRead, now: Timestamp) -> KeyView {
        let covered = KeyRead { states: self.covered(), all: true, ..*read };
        let Some(entry) = self.keys.get(&self.heads, &read.key) else {
            return KeyView::new(self.absent_version, Vec::new(), &covered, false);
        };
        let is_over = |head: &Head| self.remembered.get(&head.id).is_some_and(|until| !is_kept(*until, now));
        let heads =
            entry.places().filter_map(|place| self.heads.at(place)).filter(move |head| !is_over(head));
        if entry.len() > HOLDERS_PER_KEY_MAX && StateSet::LIVE.contains_all(read.states) {
            // Ended ones, of which there may be many, do not matter to who looks at live ones alone.
            let live: Vec<Head> = heads.clone().filter(|head| head.state.is_live()).cloned().collect();
            if live.len() <= HOLDERS_PER_KEY_MAX {
                let covered = KeyRead { states: StateSet::LIVE, ..covered };
                return KeyView::new(entry.version, live, &covered, false);
            }
        }
        let too_many = entry.len() > HOLDERS_PER_KEY_MAX;
        let holders: Vec<Head> =
            if too_many { deciding(heads).into_iter().cloned().collect() } else { heads.cloned().collect() };
        KeyView::new(entry.version, holders, &covered, too_many)
    }

    /// Whether the head of this job is one of its key's holders: an ended one that another outlives is not.
    pub fn holds(&self, id: JobId) -> bool {
        self.heads.place(id).is_some_and(|place| self.is_holder(place))
    }

    pub(super) fn is_holder(&self, place: Place) -> bool {
        let key = self.heads.at(place).and_then(|head| head.key);
        key.and_then(|key| self.keys.get(&self.heads, &key))
            .is_some_and(|entry| entry.places().any(|holder| holder == place))
    }

    /// Moves a key's version for a holder that is kept elsewhere.
    pub fn touch_key(&mut self, key: &UniqueKey, version: u64) {
        if !self.keys.touch(&self.heads, key, version) {
            self.absent_version = (self.absent_version + 1).max(version);
        }
    }

    /// Of a key's ended holders, those that the newly ended one outlives say nothing any more; nor does the newly ended
    /// one when another outlives it.
    pub(super) fn leave_out_outlived(&mut self, id: JobId, key: &UniqueKey) {
        let heads = &self.heads;
        let (Some(head), Some(entry)) = (heads.get(id), self.keys.get(heads, key)) else { return };
        let outlived = entry.places().filter_map(|place| heads.at(place)).any(|other| outlives(other, head));
        self.keys.retain(heads, key, |place| {
            let holder = heads.at(place);
            holder.is_some_and(|holder| !(outlives(head, holder) || outlived && holder.id == id))
        });
    }

    pub(super) fn drop_holder(&mut self, id: JobId) {
        let place = self.heads.place(id);
        if let Some(key) = self.heads.get(id).and_then(|head| head.key) {
            self.keys.retain(&self.heads, &key, |holder| Some(holder) != place);
        }
    }
}

/// What a view carries of a key's holders: all, or of too many those that decide. Says whether they are too many.
pub fn bounded(holders: Vec<Head>) -> (Vec<Head>, bool) {
    if holders.len() <= HOLDERS_PER_KEY_MAX {
        return (holders, false);
    }
    (deciding(holders.iter()).into_iter().cloned().collect(), true)
}

/// The holders that decide whether any blocks: one is left out only for another in its state that was created,
/// finished and renewed no earlier, expires no earlier, and hides at least as much. One that expired unstarted blocks nobody, so it
/// stands in for no other than such; nor does one that may come to that for one that has begun, which blocks when it has expired.
pub fn deciding<'a>(heads: impl Iterator<Item = &'a Head>) -> Vec<&'a Head> {
    let rank = |head: &Head| {
        (
            head.expires_at.unwrap_or(Timestamp::MAX),
            head.finished_at,
            head.renewed_at.unwrap_or(head.created_at),
            head.hold.disclose,
            head.ending != Some(Ending::Expired),
            head.expires_at.is_none() || head.has_begun(),
        )
    };
    let mut heads: Vec<&Head> = heads.collect();
    heads.sort_unstable_by_key(|head| std::cmp::Reverse((head.created_at, head.id)));
    let mut kept: Vec<&Head> = Vec::new();
    for head in heads {
        let (expires, finished, renewed, disclose, blocks, stays) = rank(head);
        let covered = kept.iter().filter(|other| other.state == head.state).any(|other| {
            let other = rank(other);
            other.0 >= expires
                && other.1 >= finished
                && other.2 >= renewed
                && other.3 >= disclose
                && other.4 >= blocks
                && other.5 >= stays
        });
        if !covered {
            kept.push(head);
        }
    }
    kept
}
