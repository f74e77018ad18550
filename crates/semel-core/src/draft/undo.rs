//! Undoing a decision that stopped, or was refused as a whole.

use crate::ident::{JobId, QueueName};
use crate::job::Head;
use crate::unique::UniqueKey;

use super::Draft;
use super::document::{DocumentKey, Sheet};
use super::holders::Before;
use super::snapshot::{QueueRow, Row, Snapshot};

/// What the overlay held before a change. Large values are boxed: most decisions are never undone.
pub(super) enum Undo {
    Row(JobId, Option<Box<Row>>),
    Head(JobId, Option<Box<Head>>, bool),
    Holder(UniqueKey, Box<Before>),
    Pushed(UniqueKey, u64),
    Fresh(JobId),
    Queue(QueueName, Option<(QueueRow, u32)>),
    Document(DocumentKey, Option<Box<Sheet>>),
}

/// A point within a decision that it can go back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    undo: usize,
    writes: usize,
    events: usize,
    offered: usize,
    depths: usize,
    met: usize,
}

impl Draft {
    /// Marks the present point of the decision.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            undo: self.undo.len(),
            writes: self.group.writes.len(),
            events: self.group.events.len(),
            offered: self.group.offered.len(),
            depths: self.depths.len(),
            met: self.met.len(),
        }
    }

    /// Undoes what the decision has written since the mark. It still relies on what it has read since.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        while self.undo.len() > mark.undo
            && let Some(undo) = self.undo.pop()
        {
            undo.take_back(&mut self.snapshot);
        }
        self.group.writes.truncate(mark.writes);
        self.group.events.truncate(mark.events);
        self.group.offered.truncate(mark.offered);
        self.depths.truncate(mark.depths);
        self.met.truncate(mark.met);
        self.went_back = true;
    }
}

impl Undo {
    /// Restores the overlay to what it was before the change, provided that every later one has been undone.
    pub(super) fn take_back(self, snapshot: &mut Snapshot) {
        match self {
            Self::Row(id, Some(row)) => drop(snapshot.jobs.insert(id, *row)),
            Self::Row(id, None) => drop(snapshot.jobs.remove(&id)),
            Self::Head(id, head, dirty) => {
                if let Some(row) = snapshot.jobs.get_mut(&id) {
                    row.head = head.map(|head| *head);
                    row.dirty = dirty;
                }
            }
            Self::Holder(key, before) => {
                if let Some(view) = snapshot.keys.get_mut(&key) {
                    view.take_back(*before);
                }
            }
            Self::Fresh(id) => {
                snapshot.fresh.remove(&id);
                snapshot.jobs.remove(&id);
            }
            Self::Pushed(key, version) => {
                if let Some(view) = snapshot.keys.get_mut(&key) {
                    view.holders.pop();
                    view.version = version;
                }
            }
            Self::Queue(name, Some(row)) => drop(snapshot.queues.insert(name, row)),
            Self::Queue(name, None) => drop(snapshot.queues.remove(&name)),
            Self::Document(key, Some(sheet)) => drop(snapshot.documents.insert(key, *sheet)),
            Self::Document(key, None) => drop(snapshot.documents.remove(&key)),
        }
    }
}
