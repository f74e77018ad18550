//! What a decision writes: records by version, and the changes that are applied all or none.

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

/// The version a decision saw; 0 says that the record was not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Which record.
    pub record: Record,
    /// Its version.
    pub version: u64,
}

/// One change of the store.
///
/// A key's version is the store's to move, on every write of a head that holds it, to
/// `max(version + 1, head.version)`; it is forgotten with the last holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A new job.
    Insert {
        /// Its head.
        head: Head,
        /// Its encoded body.
        body: Bytes,
        /// Whether its id was minted here and carries its row's number.
        minted: bool,
    },
    /// New values for a job's head.
    Update {
        /// All of them.
        head: Head,
    },
    /// A job's note of one kind: replaced, or removed.
    Note {
        /// Which job.
        job: JobId,
        /// Which note.
        kind: NoteKind,
        /// Its text.
        text: Option<Bytes>,
    },
    /// A request became part of a job: its id is kept with the digest of the request until the job's body is deleted.
    Spend {
        /// The request's id, which is no job's.
        id: JobId,
        /// The job that absorbed it.
        job: JobId,
        /// The digest of the request.
        digest: Option<[u8; 32]>,
    },
    /// An id that was spent is kept no longer.
    Free {
        /// Which.
        id: JobId,
    },
    /// A finished job's body, notes and spent ids are deleted. Where the head stays, its own id stays taken.
    Forget {
        /// Which job.
        job: JobId,
        /// Until when its head stays for its key's sake, because it may still block somebody; the store forgets it
        /// then, or later if its window was renewed meanwhile. It is no job any more: only its key leads to it.
        remember: Option<Timestamp>,
    },
    /// New settings of a queue.
    Queue {
        /// All of them.
        row: QueueRow,
    },
    /// A document: new, with other values, or gone.
    Document {
        /// Which.
        key: DocumentKey,
        /// All of it.
        document: Option<Document>,
    },
}

impl Write {
    /// About how many bytes it brings to a commit, beside a head's few hundred: texts alone may be long.
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

/// The writes of one decision: applied all or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// What the decision relied on.
    pub expect: Vec<Expect>,
    /// The versions that keys must have had before the whole batch, where `expect` names what earlier groups of it make
    /// of them. A group may write a holder without relying on its key, and what the key's version becomes then does not
    /// tell whether somebody else has moved it before.
    pub began: Vec<(UniqueKey, u64)>,
    /// What it writes.
    pub writes: Vec<Write>,
    /// What the log will tell.
    pub events: Vec<Event>,
    /// What became of offers that nobody is answered: they are counted once it is applied, and are nothing that a store keeps.
    pub offered: Vec<Offered>,
}

/// What became of one offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The offered job's type.
    pub job_type: JobType,
    /// Its queue, as it is stored.
    pub queue: QueueName,
    /// The [name](crate::enqueue::Outcome::name) of the outcome.
    pub outcome: &'static str,
}

impl Group {
    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// About how many bytes of texts it brings to a commit.
    pub fn text_bytes(&self) -> usize {
        self.writes.iter().map(Write::text_bytes).sum()
    }

    /// Whether a commit has to look at it: it writes, or what it was decided on may never have been in the store.
    pub fn is_checked(&self) -> bool {
        !self.writes.is_empty() || !self.expect.is_empty()
    }

    /// Keeps the last of each list that the decision has added to one by one: it has all that those before it had, and there may be a
    /// thousand of them.
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

    /// Whether it relies on there being no such job, and does not add it either. To such a group a job whose head is
    /// kept for its key alone is none.
    pub fn found_none(&self, id: JobId) -> bool {
        let record = Record::Job(id);
        self.expect.iter().any(|expect| expect.version == 0 && expect.record == record)
            && !self.writes.iter().any(|write| matches!(write, Write::Insert { head, .. } if head.id == id))
    }
}

/// Pushes onto a list that nearly always has one element: a vector's first growth makes room for four, which are hundreds
/// of bytes each here.
pub(super) fn push_one<T>(list: &mut Vec<T>, item: T) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
    list.push(item);
}
