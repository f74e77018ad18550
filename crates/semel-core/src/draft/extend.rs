//! Merging a later load into a group's snapshot: where earlier decisions of the group have written, what the
//! store returned is older.

use std::collections::hash_map::Entry;

use bytes::Bytes;

use crate::ident::JobId;
use crate::job::Head;
use crate::unique::UniqueKey;

use super::snapshot::Snapshot;

impl Snapshot {
    /// Adds what was loaded since. Records that this group has already written keep their values.
    pub(super) fn extend(&mut self, more: Snapshot) {
        let reloaded =
            |(id, (key, ..)): (&JobId, &(UniqueKey, Bytes, u32))| more.keys.contains_key(key).then_some(*id);
        let folded: Vec<JobId> = self.fresh.iter().filter_map(reloaded).collect();
        folded.into_iter().for_each(|id| self.unfold(id));
        for (id, row) in more.jobs {
            match self.jobs.entry(id) {
                Entry::Vacant(vacant) => drop(vacant.insert(row)),
                Entry::Occupied(mut occupied) => {
                    let known = occupied.get_mut();
                    if let (None, Some(head)) = (&known.full, &mut known.head) {
                        known.full = row.full;
                        // The writer of the head may have seen no more of the job than its key's memory.
                        if let Some(stored) =
                            row.head.as_ref().filter(|stored| known.dirty && stored.state.is_finished())
                        {
                            *head = stored.with_ended_change(head);
                        }
                    }
                    if !known.dirty && known.command == 0 {
                        known.head = row.head;
                    }
                    // A head written by this group may belong to a job that is only remembered.
                    if known.spent.is_none() && (!known.dirty || known.head.is_some() && known.full.is_none())
                    {
                        known.spent = row.spent;
                    }
                }
            }
        }
        for (key, mut view) in more.keys {
            let holders = view.holders.len();
            view.holders.retain(|holder| !self.jobs.get(&holder.id).is_some_and(|row| row.gone));
            view.is_touched = view.holders.len() < holders;
            let mut dirty: Vec<&Head> = self
                .jobs
                .values()
                .filter(|row| row.dirty)
                .filter_map(|row| row.head.as_ref())
                .filter(|head| {
                    head.key == Some(key) || view.holders.iter().any(|holder| holder.id == head.id)
                })
                .collect();
            dirty.sort_by_key(|head| head.version);
            if let Some(known) = self.keys.get(&key) {
                (view.version, view.loaded) = (known.version, known.loaded);
                view.is_mixed = known.is_mixed;
                view.is_touched |= known.is_touched;
            }
            // The decisions that wrote these may have done so before the key was loaded.
            view.is_mixed |= !dirty.is_empty();
            view.is_touched |= !dirty.is_empty();
            let known = self.keys.contains_key(&key);
            for head in dirty {
                let version = view.version;
                if head.key == Some(key) {
                    // Written by finished decisions: this one relies on the versions they made.
                    view.apply(head, true, 0);
                } else {
                    view.holders.retain(|holder| holder.id != head.id);
                }
                if known {
                    view.version = version;
                }
            }
            self.keys.insert(key, view);
        }
        for (name, waiting) in more.waiting {
            self.waiting.entry(name).or_insert(waiting);
        }
        for (name, row) in more.queues {
            self.queues.entry(name).or_insert(row);
        }
        for (key, sheet) in more.documents {
            self.documents.entry(key).or_insert(sheet);
        }
    }
}
