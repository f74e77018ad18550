//! How a decision that stopped, or was refused as a whole, is taken back.

use crate::ident::{JobId, QueueName};
use crate::job::Head;
use crate::unique::UniqueKey;

use super::document::{DocumentKey, Sheet};
use super::snapshot::{KeyView, QueueRow, Row, Snapshot};

/// What a change of the overlay was before. Boxed where large: most decisions are never taken back.
pub(super) enum Undo {
    Row(JobId, Option<Box<Row>>),
    Head(JobId, Option<Box<Head>>, bool),
    Key(UniqueKey, Box<KeyView>),
    Pushed(UniqueKey, u64),
    Fresh(JobId),
    Queue(QueueName, Option<(QueueRow, u32)>),
    Document(DocumentKey, Option<Box<Sheet>>),
}

impl Undo {
    /// Makes the overlay what it was before the change, if every later one has been taken back.
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
            Self::Key(key, view) => drop(snapshot.keys.insert(key, *view)),
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
