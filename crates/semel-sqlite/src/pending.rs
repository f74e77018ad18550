//! What the journal has and the rows have not: kept in memory until a round carries it over.

use std::collections::HashSet;

use bytes::Bytes;
use semel_core::draft::Map;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::NoteKind;
use semel_core::time::Timestamp;

/// Notes of one job that are not in its rows yet; a removed one is `None`.
#[derive(Debug)]
pub struct Notes {
    /// The job's row.
    pub seq: i64,
    /// By kind, at most one of each.
    pub texts: Vec<(NoteKind, Option<Bytes>)>,
}

/// What is still to be carried over, beyond what the present round has taken.
#[derive(Debug, Default)]
pub struct Pending {
    /// Bodies of jobs that have no row. Shared with whoever offered them, so they are copied only into the journal.
    pub bodies: Map<JobId, Bytes>,
    /// Notes to be written.
    pub notes: Map<JobId, Notes>,
    /// Jobs whose heads moved since their rows were written; one that moved twice is here twice.
    pub moved: Vec<JobId>,
    /// Queues whose counters or settings moved.
    pub queues: HashSet<QueueName>,
    /// Jobs that ended.
    pub ended: usize,
    /// Bytes of journal.
    pub bytes: usize,
    /// The time of the first of it.
    pub since: Option<Timestamp>,
}

impl Pending {
    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Notes a job's newer note.
    pub fn note(&mut self, seq: i64, job: JobId, kind: NoteKind, text: Option<Bytes>) {
        let notes = self.notes.entry(job).or_insert_with(|| Notes { seq, texts: Vec::new() });
        notes.texts.retain(|(known, _)| *known != kind);
        notes.texts.push((kind, text));
    }

    /// Forgets a job whose rows are gone.
    pub fn forget(&mut self, job: JobId) {
        self.bodies.remove(&job);
        self.notes.remove(&job);
    }
}
