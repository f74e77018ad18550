//! What is in the journal but not in the rows yet. It is kept in memory until a round carries it over; every
//! read of the rows must look here first.

use std::collections::HashSet;

use bytes::Bytes;
use semel_core::draft::Map;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;

use crate::documents::Unwritten;
use crate::fresh::Fresh;

/// A counter of changes, which tells whether what was written to the rows is still the newest value.
pub type Stamp = u64;

/// Notes of one job that are not in its rows yet. `None` stands for a removed note.
#[derive(Clone, Debug)]
pub struct Notes {
    /// The job's row number.
    pub seq: i64,
    /// By kind, at most one of each.
    pub texts: Vec<(NoteKind, Option<Bytes>)>,
    /// Increases with every change.
    pub stamp: Stamp,
}

/// An ended job that is kept for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The part of its head that the key needs.
    pub head: Head,
    /// Until when it is remembered, once the job itself has been purged.
    pub forget_at: Option<Timestamp>,
}

impl Remembered {
    /// Returns the same, with the head as it is [without a body](Head::without_body) if that is gone.
    #[must_use]
    pub fn settled(self) -> Self {
        if self.forget_at.is_none() {
            return self;
        }
        Self { head: self.head.without_body(), forget_at: self.forget_at }
    }
}

/// A change of what is remembered of one job: new values, or nothing any more.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The job's row number.
    pub seq: i64,
    /// The job.
    pub id: JobId,
    /// What is remembered from now on.
    pub remembered: Option<Remembered>,
    /// Increases with every change.
    pub stamp: Stamp,
}

/// A request that was absorbed: it became part of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absorbed {
    /// The job's row number.
    pub seq: i64,
    /// The job.
    pub job: JobId,
    /// The digest of the request.
    pub digest: Option<[u8; 32]>,
}

/// A job that is gone, but whose rows are still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// Its row number.
    pub seq: i64,
    /// Whether its id stays taken, because its key is remembered.
    pub keeps_id: bool,
}

/// Everything that is still to be carried over to the rows.
#[derive(Debug, Default)]
pub struct Pending {
    /// Jobs added since the current round began, which have no row. Their bodies are shared with the callers'
    /// requests, so that they are copied only once, into the journal.
    pub fresh: Fresh,
    /// Notes to write.
    pub notes: Map<JobId, Notes>,
    /// Changes of the keys' memory.
    pub memory: Map<UniqueKey, Vec<Memory>>,
    /// Ids that were spent by absorbed requests, or are free again.
    pub spent: Map<JobId, (Option<Absorbed>, Stamp)>,
    /// Ids chosen by callers that nothing keeps any more, whatever the rows say.
    pub freed: Map<JobId, Stamp>,
    /// Jobs that are gone, but whose rows are still there.
    pub forgotten: Map<JobId, Forgotten>,
    /// The rows of jobs forgotten since the current round began. An id that was reused and forgotten again is
    /// here twice.
    pub going: Vec<(i64, JobId)>,
    /// Jobs whose heads have changed since their rows were written; one that changed twice is here twice.
    pub moved: Vec<JobId>,
    /// Documents to write.
    pub documents: Unwritten,
    /// Names of types and queues that have no row yet.
    pub names: Vec<(i64, String)>,
    /// Queues whose counters or settings have changed.
    pub queues: HashSet<QueueName>,
    /// The number of jobs that have ended.
    pub ended: usize,
    /// Bytes of journal to carry over.
    pub bytes: usize,
    /// The time of the oldest commit to carry over.
    pub since: Option<Timestamp>,
    stamp: Stamp,
}

impl Pending {
    /// Whether there is nothing to carry over.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0 && self.moved.is_empty()
    }

    /// Keeps the body of a new job until its row is written.
    pub fn insert(&mut self, seq: i64, job: JobId, body: Bytes) {
        self.fresh.insert(seq, job, body);
    }

    /// Records a note of a job, in place of an older one of its kind.
    pub fn note(&mut self, seq: i64, job: JobId, kind: NoteKind, text: Option<Bytes>) {
        self.stamp += 1;
        let notes = self.notes.entry(job).or_insert_with(|| Notes { seq, texts: Vec::new(), stamp: 0 });
        notes.stamp = self.stamp;
        notes.texts.retain(|(known, _)| *known != kind);
        notes.texts.push((kind, text));
    }

    /// Records what is remembered of a job for its key from now on.
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

    /// Records which job absorbed the request with this id, or that the id is free again.
    pub fn spend(&mut self, id: JobId, absorbed: Option<Absorbed>) {
        self.stamp += 1;
        self.spent.insert(id, (absorbed, self.stamp));
    }

    /// Drops a change of a spent id that the rows now have, unless a newer one has replaced it.
    pub fn is_spent(&mut self, id: JobId, stamp: Stamp) {
        if self.spent.get(&id).is_some_and(|(_, known)| *known == stamp) {
            self.spent.remove(&id);
        }
    }

    /// Records that a job is gone and its rows are to be deleted.
    pub fn forget(&mut self, seq: i64, job: JobId, keeps_id: bool) {
        self.fresh.forget(seq, job);
        self.notes.remove(&job);
        self.spent.retain(|_, (absorbed, _)| absorbed.is_none_or(|absorbed| absorbed.job != job));
        self.forgotten.insert(job, Forgotten { seq, keeps_id });
        self.going.push((seq, job));
    }

    /// Drops the record of a forgotten job whose row is now deleted.
    pub fn is_gone(&mut self, job: JobId, seq: i64) {
        if self.forgotten.get(&job).is_some_and(|forgotten| forgotten.seq == seq) {
            self.forgotten.remove(&job);
        }
    }

    /// Drops notes that the rows now have, unless they have changed since.
    pub fn noted(&mut self, job: JobId, stamp: Stamp) {
        if self.notes.get(&job).is_some_and(|notes| notes.stamp == stamp) {
            self.notes.remove(&job);
        }
    }

    /// Drops a change of a key's memory that the rows now have, unless a newer one has replaced it.
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
