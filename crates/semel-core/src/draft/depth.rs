//! How many jobs wait in queues with a bound, as the decisions of one group change it.

use std::sync::Arc;

use crate::ident::QueueName;
use crate::job::Head;
use crate::settings::waits;
use crate::state::State;

use super::{Draft, Missing};

impl Draft {
    /// How many jobs wait in a queue.
    ///
    /// Includes what decisions of this group have added, but removals only by the present decision: another
    /// decision's removal may not be applied, and a decision that relied on it would not notice.
    /// [`queue`](Self::queue) must have been called for the queue first.
    pub fn waiting(&self, name: &QueueName) -> u64 {
        let loaded = self.snapshot.waiting.get(name).copied().unwrap_or(0);
        let of_queue = self.depths.iter().filter(|(_, queue, _)| queue == name);
        let counted = of_queue.filter(|(command, _, by)| *by > 0 || *command == self.command);
        loaded.saturating_add_signed(counted.map(|(_, _, by)| by).sum())
    }

    /// Moves the record that serializes all decisions adding to a bounded queue; once in a decision.
    ///
    /// # Errors
    /// [`Missing`] when the record was not loaded.
    pub(crate) fn meet_at_bound(&mut self, queue: &QueueName) -> Result<(), Missing> {
        let mut row = self.queue(&queue.bound_row())?;
        let mut met = self.met.iter().rev().take_while(|(command, _)| *command == self.command);
        if !met.any(|(_, name)| name == queue) {
            row.settings = Some(Arc::from("{}"));
            self.set_queue(row);
            self.met.push((self.command, queue.clone()));
        }
        Ok(())
    }

    pub(super) fn move_depth(&mut self, name: &QueueName, by: i64) {
        if by != 0 && !self.snapshot.waiting.is_empty() && self.snapshot.waiting.contains_key(name) {
            self.depths.push((self.command, name.clone(), by));
        }
    }

    /// Counts a job that moves out of the state `before`; without that, out of the state that its key's
    /// holders show.
    pub(super) fn note_depth(&mut self, head: &Head, before: Option<State>) {
        if let Some(before) = before.or_else(|| self.state_of_holder(head)) {
            self.move_depth(&head.queue, i64::from(waits(head.state)) - i64::from(waits(before)));
        }
    }

    /// The state of a job that is known only as a holder of its key.
    fn state_of_holder(&self, head: &Head) -> Option<State> {
        let view = self.snapshot.keys.get(head.key.as_ref()?)?;
        view.holders.iter().rfind(|holder| holder.id == head.id).map(|holder| holder.state)
    }
}
