//! Which of a key's holders a decision sees, how it changes them in the overlay, and how that is undone.

use crate::ident::JobId;
use crate::job::Head;
use crate::limits::HOLDERS_PER_KEY_MAX;
use crate::planted::{Bug, is_planted};
use crate::state::StateSet;
use crate::time::Timestamp;
use crate::unique::{UniqueKey, deciding, is_kept, leave_out_outlived};

use super::snapshot::{KeyRead, KeyView};
use super::undo::Undo;
use super::{Draft, push_one};

/// What one change of a view replaced: at most one holder. A decision may change as many holders as a key
/// has, so no change may keep a copy of all of them.
pub(super) struct Before {
    place: usize,
    /// How many holders the change left at that place: zero or one.
    left: usize,
    /// The holder that was there before.
    head: Option<Head>,
    version: u64,
    written: (u32, u64),
    is_mixed: bool,
}

impl KeyView {
    /// Builds a view at `now` of what a store found: every holder in the states that `covered` names. Each
    /// comes with the time until which it is kept only for its key, if any. Holders whose time is over are
    /// dropped, and the rest is [reduced](Self::reduce).
    pub fn of(
        version: u64,
        found: impl IntoIterator<Item = (Head, Option<Timestamp>)>,
        covered: &KeyRead,
        now: Timestamp,
    ) -> Self {
        let is_there = |until: Option<Timestamp>| until.is_none_or(|until| is_kept(until, now));
        let holders = found.into_iter().filter_map(|(head, until)| is_there(until).then_some(head)).collect();
        let mut view = Self::new(version, holders, covered, false);
        view.reduce();
        view
    }

    /// Drops the holders that another [outlives](crate::unique::outlives), if the view covers finished ones.
    /// If more than [`HOLDERS_PER_KEY_MAX`] remain, also drops those that [cannot change an
    /// admission](deciding()); the view then counts as having too many, however few are left.
    pub fn reduce(&mut self) {
        if self.states.intersects(StateSet::FINISHED) {
            leave_out_outlived(&mut self.holders);
        }
        if self.holders.len() > HOLDERS_PER_KEY_MAX {
            self.holders = deciding(self.holders.iter()).into_iter().cloned().collect();
            self.too_many = true;
        }
    }

    /// Updates a holder or adds one. Returns what was there before.
    pub(super) fn apply(&mut self, head: &Head, held_before: bool, command: u32) -> Before {
        let mut before = self.as_it_is();
        if self.written.0 != command {
            self.written = (command, self.version);
        }
        self.is_touched = true;
        self.is_mixed |= self.command != command;
        self.version = (self.version + 1).max(head.version);
        // The newest holders come last, and they are usually the ones that change.
        let place =
            if held_before { self.holders.iter().rposition(|holder| holder.id == head.id) } else { None };
        match place {
            Some(place) => {
                before.place = place;
                before.head = Some(std::mem::replace(&mut self.holders[place], head.clone()));
            }
            None => push_one(&mut self.holders, head.clone()),
        }
        before.left = 1;
        before
    }

    /// Removes a holder, if present. Returns what was there before.
    fn drop_holder(&mut self, id: JobId, command: u32) -> Before {
        let mut before = self.as_it_is();
        self.is_touched = true;
        self.is_mixed |= self.command != command;
        if let Some(place) = self.holders.iter().rposition(|holder| holder.id == id) {
            before.place = place;
            before.head = Some(self.holders.remove(place));
        }
        before
    }

    /// Undoes a change, provided that every later one has been undone.
    pub(super) fn take_back(&mut self, before: Before) {
        let Before { place, left, head, version, written, is_mixed } = before;
        drop(self.holders.splice(place..place + left, head));
        (self.version, self.written, self.is_mixed) = (version, written, is_mixed);
    }

    /// The `Before` of a change that has changed nothing yet, at the place where new holders are added.
    fn as_it_is(&self) -> Before {
        Before {
            place: self.holders.len(),
            left: 0,
            head: None,
            version: self.version,
            written: self.written,
            is_mixed: self.is_mixed,
        }
    }
}

impl Draft {
    pub(super) fn apply_to_key(&mut self, head: &Head, held_before: bool) {
        if let Some(key) = &head.key
            && let Some(view) = self.snapshot.keys.get_mut(key)
            && (held_before || !is_planted(Bug::BatchBlind))
        {
            let before = view.apply(head, held_before, self.command);
            self.undo.push(if held_before {
                Undo::Holder(*key, Box::new(before))
            } else {
                Undo::Pushed(*key, before.version)
            });
        }
    }

    /// Removes a job from a key's holders in the overlay.
    pub(crate) fn drop_from_key(&mut self, key: &UniqueKey, id: JobId) {
        if let Some(view) = self.snapshot.keys.get_mut(key) {
            let before = view.drop_holder(id, self.command);
            self.undo.push(Undo::Holder(*key, Box::new(before)));
        }
    }
}
