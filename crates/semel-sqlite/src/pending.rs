//! What the journal has and the rows have not: kept in memory until a round carries it over. Whoever reads the rows
//! looks here first.

use std::collections::HashSet;

use bytes::Bytes;
use semel_core::draft::Map;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;

use crate::documents::Unwritten;
use crate::fresh::Fresh;

/// Counts changes, so that what was written to the rows is known to be the newest.
pub type Stamp = u64;

/// Notes of one job that are not in its rows yet; a removed one is `None`.
#[derive(Clone, Debug)]
pub struct Notes {
    /// The job's row.
    pub seq: i64,
    /// By kind, at most one of each.
    pub texts: Vec<(NoteKind, Option<Bytes>)>,
    /// Moves with every change.
    pub stamp: Stamp,
}

/// An ended job that is kept for its key's sake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// What the key needs of it.
    pub head: Head,
    /// Until when, once the job itself is gone.
    pub forget_at: Option<Timestamp>,
}

impl Remembered {
    /// The same, and of one whose body is gone [what that means](Head::without_body).
    #[must_use]
    pub fn settled(self) -> Self {
        if self.forget_at.is_none() {
            return self;
        }
        Self { head: self.head.without_body(), forget_at: self.forget_at }
    }
}

/// A change of what is remembered of one job: other values, or nothing.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The job's row.
    pub seq: i64,
    /// The job.
    pub id: JobId,
    /// What is remembered from now on.
    pub remembered: Option<Remembered>,
    /// Moves with every change.
    pub stamp: Stamp,
}

/// A request that became part of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absorbed {
    /// The job's row.
    pub seq: i64,
    /// The job.
    pub job: JobId,
    /// The digest of the request.
    pub digest: Option<[u8; 32]>,
}

/// A job that is gone and whose rows are still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Its row.
    pub seq: i64,
    /// Whether its id stays taken, because its key is remembered.
    pub keeps_id: bool,
}

/// What is still to be carried over.
#[derive(Debug, Default)]
pub struct Pending {
    /// Jobs that came since the round under way began, and have no row. Their bodies are shared with whoever offered them, so
    /// they are copied only into the journal.
    pub fresh: Fresh,
    /// Notes to be written.
    pub notes: Map<JobId, Notes>,
    /// Changes of the keys' memory.
    pub memory: Map<UniqueKey, Vec<Memory>>,
    /// Ids that requests spent, or that are free again.
    pub spent: Map<JobId, (Option<Absorbed>, Stamp)>,
    /// Ids that callers chose and that nothing keeps any more, whatever the rows say.
    pub freed: Map<JobId, Stamp>,
    /// Jobs that are gone and whose rows are still there.
    pub forgotten: Map<JobId, Forgotten>,
    /// The rows of those that went since the round under way began. An id that came again and went again is here twice.
    pub going: Vec<(i64, JobId)>,
    /// Jobs whose heads moved since their rows were written; one that moved twice is here twice.
    pub moved: Vec<JobId>,
    /// Documents to be written.
    pub documents: Unwritten,
    /// Types and queues without a row.
    pub names: Vec<(i64, String)>,
    /// Queues whose counters or settings moved.
    pub queues: HashSet<QueueName>,
    /// Jobs that ended.
    pub ended: usize,
    /// Bytes of journal.
    pub bytes: usize,
    /// The time of the first of it.
    pub since: Option<Timestamp>,
    stamp: Stamp,
}

impl Pending {
    /// Whether nothing is to be carried over.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.moved.is_empty()
    }

    /// Keeps the body of a new job until its row is written.
    pub fn insert(&mut self, seq: i64, job: JobId, body: Bytes) {
        self.fresh.insert(seq, job, body);
    }

    /// Notes a job's newer note.
    pub fn note(&mut self, seq: i64, job: JobId, kind: NoteKind, text: Option<Bytes>) {
        self.stamp += 1;
        let notes = self.notes.entry(job).or_insert_with(|| Notes { seq, texts: Vec::new(), stamp: 0 });
        notes.stamp = self.stamp;
        notes.texts.retain(|(known, _)| *known != kind);
        notes.texts.push((kind, text));
    }

    /// Changes what is remembered of a job for its key.
    pub fn remember(&mut self, key: UniqueKey, seq: i64, id: JobId, remembered: Option<Remembered>) {
        self.stamp += 1;
        if remembered.is_none() {
            self.freed.insert(id, self.stamp);
        } else {
            self.freed.remove(&id);
        }
        let changes = self.memory.entry(key).or_default();
        changes.retain(|known| known.seq != seq);
        changes.push(Memory { seq, id, remembered, stamp: self.stamp });
    }

    /// Notes who absorbed the request with this id, or that it is free again.
    pub fn spend(&mut self, id: JobId, absorbed: Option<Absorbed>) {
        self.stamp += 1;
        self.spent.insert(id, (absorbed, self.stamp));
    }

    /// This change of a spent id is in the rows now.
    pub fn is_spent(&mut self, id: JobId, stamp: Stamp) {
        if self.spent.get(&id).is_some_and(|(_, known)| *known == stamp) {
            self.spent.remove(&id);
        }
    }

    /// Notes that a job's rows are to go.
    pub fn forget(&mut self, seq: i64, job: JobId, keeps_id: bool) {
        self.fresh.forget(seq, job);
        self.notes.remove(&job);
        self.spent.retain(|_, (absorbed, _)| absorbed.is_none_or(|absorbed| absorbed.job != job));
        self.forgotten.insert(job, Forgotten { seq, keeps_id });
        self.going.push((seq, job));
    }

    /// This row of a job is gone now.
    pub fn is_gone(&mut self, job: JobId, seq: i64) {
        if self.forgotten.get(&job).is_some_and(|forgotten| forgotten.seq == seq) {
            self.forgotten.remove(&job);
        }
    }

    /// These notes are in the rows now.
    pub fn noted(&mut self, job: JobId, stamp: Stamp) {
        if self.notes.get(&job).is_some_and(|notes| notes.stamp == stamp) {
            self.notes.remove(&job);
        }
    }

    /// This change of a key's memory is in the rows now.
    pub fn remembered(&mut self, key: &UniqueKey, seq: i64, id: JobId, stamp: Stamp) {
        if self.freed.get(&id) == Some(&stamp) {
            self.freed.remove(&id);
        }
        if let Some(changes) = self.memory.get_mut(key) {
            changes.retain(|known| known.seq != seq || known.stamp != stamp);
            if changes.is_empty() {
                self.memory.remove(key);
            }
        }
    }
}
