//! Who holds which key, as decisions see it.

use semel_core::draft::{KeyRead, KeyView};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::state::StateSet;
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, deciding, is_kept, outlives};

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

    /// The holders of a key that are here, as a decision at `now` may see them. Not by [`KeyView::of`]: those that another outlives were
    /// left out as they ended, heads are copied only of holders that are in the view, and a key is known to have too many by all
    /// that are filed under it, those included whose time is over.
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
