//! Holders of uniqueness keys, as decisions see them.

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

    /// Moves the version of every key without a holder here. Heads with keys were moved elsewhere, so
    /// decisions taken on the earlier view must be taken again.
    pub fn move_absent_version(&mut self, version: u64) {
        self.absent_version = (self.absent_version + 1).max(version);
    }

    /// The states whose holders of a key are all here. Ended holders may be kept elsewhere: a view of what is
    /// here must then not pass for a complete one.
    pub(super) fn covered(&self) -> StateSet {
        if self.files_done { StateSet::ALL } else { StateSet::LIVE }
    }

    /// The holders of a key that are here, as a decision at `now` may see them. It does not use
    /// [`KeyView::of`]: outlived holders were left out when they ended, only heads in the view are copied, and
    /// "too many holders" counts all that are filed under the key, expired ones included.
    pub fn key_view(&self, read: &KeyRead, now: Timestamp) -> KeyView {
        let covered = KeyRead { states: self.covered(), all: true, ..*read };
        let Some(entry) = self.keys.get(&self.heads, &read.key) else {
            return KeyView::new(self.absent_version, Vec::new(), &covered, false);
        };
        let is_over = |head: &Head| self.remembered.get(&head.id).is_some_and(|until| !is_kept(*until, now));
        let heads =
            entry.places().filter_map(|place| self.heads.at(place)).filter(move |head| !is_over(head));
        if entry.len() > HOLDERS_PER_KEY_MAX && StateSet::LIVE.contains_all(read.states) {
            // Ended holders, possibly many, do not matter to a decision that looks at live ones alone.
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

    /// Whether this job's head is among its key's holders. An ended head that another outlives is not.
    pub fn holds(&self, id: JobId) -> bool {
        self.heads.place(id).is_some_and(|place| self.is_holder(place))
    }

    pub(super) fn is_holder(&self, place: Place) -> bool {
        let key = self.heads.at(place).and_then(|head| head.key);
        key.and_then(|key| self.keys.get(&self.heads, &key))
            .is_some_and(|entry| entry.places().any(|holder| holder == place))
    }

    /// Moves a key's version on behalf of a holder that is kept elsewhere.
    pub fn touch_key(&mut self, key: &UniqueKey, version: u64) {
        if !self.keys.touch(&self.heads, key, version) {
            self.absent_version = (self.absent_version + 1).max(version);
        }
    }

    /// Drops from a key's ended holders those that the newly ended one outlives, or the newly ended one itself
    /// if another outlives it: they no longer affect any decision.
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
