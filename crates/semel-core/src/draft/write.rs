//! What a decision writes: the record versions it relied on, and the changes, which are applied all or none.

use std::collections::HashSet;

use bytes::Bytes;

use crate::event::Event;
use crate::ident::{JobId, JobType, QueueName};
use crate::job::{Head, NoteKind};
use crate::time::Timestamp;
use crate::unique::UniqueKey;

use super::{Document, DocumentKey, QueueRow};

/// A record whose version a decision relied on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// A job.
    Job(JobId),
    /// A unique key.
    Key(UniqueKey),
    /// A queue's settings.
    Queue(QueueName),
    /// A document.
    Document(DocumentKey),
}

/// The version of a record that a decision saw; 0 means that the record did not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Which record.
    pub record: Record,
    /// Its version.
    pub version: u64,
}

/// One change to the store.
///
/// The store moves a key's version itself, on every write of a head that holds the key, to
/// `max(version + 1, head.version)`. The version is forgotten with the last holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A new job.
    Insert {
        /// Its head.
        head: Head,
        /// Its encoded body.
        body: Bytes,
        /// Whether the id was minted here and carries its row's number.
        minted: bool,
    },
    /// New values for a job's head.
    Update {
        /// The whole new head.
        head: Head,
    },
    /// A job's note of one kind, replaced or removed.
    Note {
        /// Which job.
        job: JobId,
        /// Which note.
        kind: NoteKind,
        /// The note's text; `None` removes it.
        text: Option<Bytes>,
    },
    /// A request was absorbed by a job: its id is kept, with the request's digest, until the job's body is
    /// deleted.
    Spend {
        /// The request's id, which no job has.
        id: JobId,
        /// The job that absorbed it.
        job: JobId,
        /// The digest of the request.
        digest: Option<[u8; 32]>,
    },
    /// A spent id is no longer kept.
    Free {
        /// The id.
        id: JobId,
    },
    /// A finished job's body, notes and spent ids are deleted. If its head stays, its own id stays taken.
    Forget {
        /// Which job.
        job: JobId,
        /// Until when the head stays for its key, because it may still block other jobs. The store forgets it
        /// then, or later if its window was renewed meanwhile. It is no longer a job: only its key leads to
        /// it.
        remember: Option<Timestamp>,
    },
    /// A queue's new settings.
    Queue {
        /// The whole row.
        row: QueueRow,
    },
    /// A document that is new, changed or deleted.
    Document {
        /// Which document.
        key: DocumentKey,
        /// The whole document; `None` deletes it.
        document: Option<Document>,
    },
}

impl Write {
    /// Approximate bytes it adds to a commit on top of a head's few hundred: only texts can be long.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Insert { body, .. } => body.len(),
            Self::Note { text, .. } => text.as_ref().map_or(0, Bytes::len),
            Self::Document { document, .. } => document.as_ref().map_or(0, |document| document.text.len()),
            Self::Update { .. }
            | Self::Spend { .. }
            | Self::Free { .. }
            | Self::Forget { .. }
            | Self::Queue { .. } => 0,
        }
    }
}

/// The writes of one decision, applied all or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// What the decision relied on.
    pub expect: Vec<Expect>,
    /// The versions that keys must have had before the whole batch, where `expect` names versions that
    /// earlier groups of the batch make. A group may write a holder without relying on its key, so the key's
    /// resulting version does not show whether another writer moved it before.
    pub began: Vec<(UniqueKey, u64)>,
    /// What it writes.
    pub writes: Vec<Write>,
    /// The events for the log.
    pub events: Vec<Event>,
    /// Outcomes of offers that are answered to no caller. They are counted once the group is applied; a store
    /// does not keep them.
    pub offered: Vec<Offered>,
}

/// The outcome of one offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The offered job's type.
    pub job_type: JobType,
    /// The offered job's queue, as stored.
    pub queue: QueueName,
    /// The [name](crate::enqueue::Outcome::name) of the outcome.
    pub outcome: &'static str,
}

impl Group {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The heads that are inserted or updated, in order.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        self.writes.iter().filter_map(|write| match write {
            Write::Insert { head, .. } | Write::Update { head } => Some(head),
            _ => None,
        })
    }

    /// Approximate bytes of text it adds to a commit.
    pub fn text_bytes(&self) -> usize {
        self.writes.iter().map(Write::text_bytes).sum()
    }

    /// Whether a commit has to check it: because it writes, or because what it was decided on may never have
    /// been in the store.
    pub fn is_checked(&self) -> bool {
        !self.writes.is_empty() || !self.expect.is_empty()
    }

    /// Keeps only the last write of each list that the decision has extended item by item. That one includes
    /// all earlier ones, of which there may be a thousand.
    pub(super) fn keep_last_of_lists(&mut self) {
        let list = |write: &Write| match write {
            Write::Note { job, kind: kind @ (NoteKind::Waiters | NoteKind::Duplicates), .. } => {
                Some((*job, *kind))
            }
            _ => None,
        };
        if self.writes.iter().filter_map(list).nth(1).is_none() {
            return;
        }
        let mut seen = HashSet::new();
        let later_first = self.writes.iter().rev();
        let is_last: Vec<bool> =
            later_first.map(|write| list(write).is_none_or(|list| seen.insert(list))).collect();
        let mut is_last = is_last.into_iter().rev();
        self.writes.retain(|_| is_last.next().unwrap_or(true));
    }

    /// Whether the group relies on there being no such job, and does not add it either. To such a group, a
    /// job whose head is kept only for its key does not exist.
    pub fn found_none(&self, id: JobId) -> bool {
        let record = Record::Job(id);
        self.expect.iter().any(|expect| expect.version == 0 && expect.record == record)
            && !self.writes.iter().any(|write| matches!(write, Write::Insert { head, .. } if head.id == id))
    }
}

/// Pushes onto a list that nearly always has one element. A vector's first growth would make room for four,
/// which are hundreds of bytes each here.
pub(super) fn push_one<T>(list: &mut Vec<T>, item: T) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
    list.push(item);
}
