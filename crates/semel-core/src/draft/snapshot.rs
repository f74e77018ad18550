//! What a decision reads: the records it asks for, and what a store loaded, consistently, at one time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::ident::{JobId, QueueName};
use crate::job::{Head, NoteKind};
use crate::state::StateSet;
use crate::time::Timestamp;
use crate::unique::UniqueKey;

use super::Draft;
use super::document::{Document, DocumentKey, Sheet};
use super::write::Record;

/// A hash table with a fast hash, seeded per process.
pub type Map<K, V> = HashMap<K, V, RandomState>;

/// The records to load. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Jobs whose heads are wanted.
    pub heads: Vec<JobId>,
    /// Jobs whose heads, bodies and notes are wanted.
    pub fulls: Vec<JobId>,
    /// Keys whose holders are wanted.
    pub keys: Vec<KeyRead>,
    /// Queues whose settings are wanted.
    pub queues: Vec<QueueName>,
    /// Documents that are wanted.
    pub documents: Vec<DocumentKey>,
}

impl Reads {
    /// Whether nothing is to be loaded.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.is_only_keys()
    }

    /// Whether nothing other than keys is to be loaded.
    pub fn is_only_keys(&self) -> bool {
        self.heads.is_empty() && self.fulls.is_empty() && self.queues.is_empty() && self.documents.is_empty()
    }

    /// Each key once, and whether its finished holders may be wanted.
    pub fn keys_once(&self) -> Map<&UniqueKey, bool> {
        let mut once: Map<&UniqueKey, bool> = Map::default();
        for read in &self.keys {
            *once.entry(&read.key).or_default() |= read.states.intersects(StateSet::FINISHED);
        }
        once
    }

    /// Empties the lists, keeping their memory.
    pub fn clear(&mut self) {
        self.heads.clear();
        self.fulls.clear();
        self.keys.clear();
        self.queues.clear();
        self.documents.clear();
    }

    /// Whether the two name a record in common.
    pub fn meet(&self, other: &Self) -> bool {
        let jobs = |reads: &Self, id: &JobId| reads.heads.contains(id) || reads.fulls.contains(id);
        let keys = |key: &UniqueKey| other.keys.iter().any(|read| read.key == *key);
        self.heads.iter().chain(&self.fulls).any(|id| jobs(other, id))
            || self.keys.iter().any(|read| keys(&read.key))
            || self.queues.iter().any(|name| other.queues.contains(name))
            || self.documents.iter().any(|key| other.documents.contains(key))
    }

    /// Adds one record.
    fn add(&mut self, record: &Record) {
        match record {
            Record::Job(id) => self.heads.push(*id),
            Record::Key(key) => {
                self.keys.push(KeyRead { key: *key, states: StateSet::default(), all: false });
            }
            Record::Queue(name) => self.queues.push(name.clone()),
            Record::Document(key) => self.documents.push(key.clone()),
        }
    }
}

impl Draft {
    /// What the present decision relies on, if it writes nothing: the answer must wait until these records
    /// are durable. A decision that writes reports this with its [group](Self::finish).
    pub fn relied_on(&self) -> Reads {
        let mut reads = Reads::default();
        if self.group.writes.is_empty() {
            let looked_at = self.taken_back.iter().chain(&self.group.expect);
            looked_at.for_each(|expect| reads.add(&expect.record));
        }
        reads
    }

    /// Whether the present decision, if it ended now, would write nothing and depend only on what the store
    /// has. That is so if it has read only keys and heads, and no earlier decision of its batch has touched
    /// any of them: then it is right whatever becomes of the others. Answers no when in doubt.
    pub fn rests_on_store_alone(&self) -> bool {
        let is_stored = |record: &Record| match record {
            Record::Key(key) => self.snapshot.keys.get(key).is_some_and(|view| !view.is_touched),
            // Notes may have been added to fully loaded jobs without a trace.
            Record::Job(id) => {
                self.snapshot.jobs.get(id).is_some_and(|row| !row.dirty && !row.gone && row.full.is_none())
            }
            Record::Queue(_) | Record::Document(_) => false,
        };
        let looked_at = self.taken_back.iter().chain(&self.group.expect);
        let mut looked_at = looked_at.map(|expect| &expect.record).peekable();
        self.group.writes.is_empty() && looked_at.peek().is_some() && looked_at.all(is_stored)
    }
}

/// Which holders of a key to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRead {
    /// The key.
    pub key: UniqueKey,
    /// States in which holders matter. A store may omit finished holders only if none of these is finished.
    pub states: StateSet,
    /// Whether all holders are needed, up to [`HOLDERS_PER_KEY_MAX`](crate::limits::HOLDERS_PER_KEY_MAX). If not,
    /// a store may omit one if it gives another in the same state that blocks and hides at least as much.
    pub all: bool,
}

/// The holders of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyView {
    /// Moves on every write to a holder.
    pub version: u64,
    /// The holders.
    pub holders: Vec<Head>,
    /// The states of holders that this view covers.
    pub states: StateSet,
    /// Whether every holder in those states is present.
    pub all: bool,
    /// Whether the key has more holders than a view may carry.
    pub too_many: bool,
    /// The version as loaded, before any decision of the group's batch.
    pub(super) loaded: u64,
    pub(super) command: u32,
    /// The last decision that wrote to a holder, and the version before that write.
    pub(super) written: (u32, u64),
    /// Whether a decision of the group's batch has changed a holder without relying on the key. That change is
    /// applied whatever happens to the other holders, so the store may never have had what the view shows.
    pub(super) is_mixed: bool,
    /// Whether a decision of the group's batch has changed a holder, even if that was undone.
    pub(super) is_touched: bool,
}

impl KeyView {
    /// A view as a store loaded it.
    pub fn new(version: u64, holders: Vec<Head>, read: &KeyRead, too_many: bool) -> Self {
        Self {
            version,
            holders,
            states: read.states,
            all: read.all,
            too_many,
            loaded: version,
            command: 0,
            written: (0, 0),
            is_mixed: false,
            is_touched: false,
        }
    }

    pub(super) fn serves(&self, read: &KeyRead) -> bool {
        self.states.contains_all(read.states) && (self.all || !read.all)
    }

    /// The version that a decision reading the key now relies on: the store's, before its own writes.
    pub(super) fn relied_on(&self, command: u32) -> u64 {
        if self.written.0 == command { self.written.1 } else { self.version }
    }
}

/// Body and notes of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Full {
    /// The encoded [`Body`](crate::body::Body).
    pub body: Bytes,
    /// What has been noted since, at most one of each kind.
    pub notes: Vec<(NoteKind, Bytes)>,
}

impl Full {
    /// The note of that kind.
    pub fn note(&self, kind: NoteKind) -> Option<&Bytes> {
        self.notes.iter().find(|(found, _)| *found == kind).map(|(_, text)| text)
    }

    pub(super) fn put(&mut self, kind: NoteKind, text: Option<Bytes>) {
        self.notes.retain(|(found, _)| *found != kind);
        if let Some(text) = text {
            self.notes.push((kind, text));
        }
    }
}

/// Settings and counters of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The queue's name.
    pub name: QueueName,
    /// Claims get nothing from a paused queue.
    pub paused: bool,
    /// Settings that the core stores here; opaque to a store.
    pub settings: Option<Arc<str>>,
    /// Moves on every change of the settings; 0 when the queue has none yet.
    pub version: u64,
}

impl QueueRow {
    /// A queue without any settings.
    pub fn fresh(name: QueueName) -> Self {
        Self { name, paused: false, settings: None, version: 0 }
    }
}

/// What is left of a caller's id that no job has: no job may take it, and none can be read under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The version that fences decisions which saw this record; never 0.
    pub version: u64,
    /// The job that absorbed this id's request; the id itself if its job was purged but its key is remembered.
    pub job: JobId,
    /// The digest of the absorbed request. `None` for the id of a purged job: the request went with its body.
    pub digest: Option<[u8; 32]>,
}

impl Spent {
    /// The version of an id whose request was absorbed: such a record is written only once.
    pub const ABSORBED_VERSION: u64 = 1;

    /// The record of a request that `job` absorbed.
    pub const fn absorbed_by(job: JobId, digest: Option<[u8; 32]>) -> Self {
        Self { version: Self::ABSORBED_VERSION, job, digest }
    }

    /// The record of a purged job whose head is kept, at `version`, only for its key.
    pub const fn remembered(job: JobId, version: u64) -> Self {
        Self { version, job, digest: None }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) head: Option<Head>,
    pub(super) full: Option<Full>,
    /// Set when no job has this id, and none can: a head here is only remembered for its key.
    pub(super) spent: Option<Spent>,
    /// Notes written in this group before the full row was loaded.
    pub(super) pending: Vec<(NoteKind, Option<Bytes>)>,
    /// Whether this group wrote the row; what the store has is older.
    pub(super) dirty: bool,
    /// Whether this group forgot the job, even as its key's memory: what the store has is older.
    pub(super) gone: bool,
    pub(super) command: u32,
}

impl Row {
    /// The head, unless it is only remembered and the job is gone.
    pub(super) fn job(&self) -> Option<&Head> {
        self.head.as_ref().filter(|_| self.spent.is_none())
    }

    /// The version that a decision which reads this row relies on.
    pub(super) fn version(&self) -> u64 {
        match (&self.head, &self.spent) {
            (Some(head), _) => head.version,
            (None, Some(spent)) => spent.version,
            (None, None) => 0,
        }
    }
}

/// What was loaded, consistently, at one time of the store.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The store's time at the load.
    pub now: Timestamp,
    /// Into how many partitions the store is divided; each minted id names one. Values below two mean one.
    pub partitions: u16,
    /// The partitions that do not respond now: jobs that may be in any partition are put into the others.
    pub away: Vec<u16>,
    pub(super) jobs: Map<JobId, Row>,
    pub(super) keys: Map<UniqueKey, KeyView>,
    pub(super) queues: Map<QueueName, (QueueRow, u32)>,
    /// How many jobs waited in each loaded queue.
    pub(super) waiting: Map<QueueName, u64>,
    pub(super) documents: Map<DocumentKey, Sheet>,
    /// Jobs minted in this group that hold a key: their heads are among its holders. They become rows when a
    /// later decision asks for them, which is rare; those without a key cannot be asked for.
    pub(super) fresh: Map<JobId, (UniqueKey, Bytes, u32)>,
}

impl Snapshot {
    /// An empty snapshot with room for what `reads` names.
    pub fn with_room_for(now: Timestamp, reads: &Reads) -> Self {
        Self {
            now,
            partitions: 1,
            away: Vec::new(),
            jobs: Map::with_capacity_and_hasher(
                reads.heads.len() + reads.fulls.len(),
                RandomState::default(),
            ),
            keys: Map::with_capacity_and_hasher(reads.keys.len(), RandomState::default()),
            queues: Map::default(),
            waiting: Map::default(),
            documents: Map::default(),
            fresh: Map::with_capacity_and_hasher(reads.keys.len(), RandomState::default()),
        }
    }

    /// A random partition, by `chance`, for what may be in any; one that is not away, unless all are.
    pub(super) fn somewhere(&self, chance: u64) -> u16 {
        let is_there = |place: &u16| !self.away.contains(place);
        let there = (0..self.partitions).filter(is_there).count() as u64;
        if there == 0 {
            return (chance % u64::from(self.partitions.max(1))) as u16;
        }
        (0..self.partitions).filter(is_there).nth((chance % there) as usize).unwrap_or(0)
    }

    /// The part of the snapshot that `reads` names, for one of several decisions loaded together.
    pub fn part(&self, reads: &Reads) -> Self {
        let mut part = Self::with_room_for(self.now, reads);
        (part.partitions, part.away) = (self.partitions, self.away.clone());
        for id in reads.heads.iter().chain(&reads.fulls) {
            part.jobs.extend(self.jobs.get(id).map(|row| (*id, row.clone())));
        }
        for read in &reads.keys {
            part.keys.extend(self.keys.get(&read.key).map(|view| (read.key, view.clone())));
        }
        for name in &reads.queues {
            part.queues.extend(self.queues.get(name).map(|row| (name.clone(), row.clone())));
            part.waiting.extend(self.waiting.get(name).map(|waiting| (name.clone(), *waiting)));
        }
        for key in &reads.documents {
            part.documents.extend(self.documents.get(key).map(|sheet| (key.clone(), sheet.clone())));
        }
        part
    }

    /// Turns a job minted in this group into a row.
    pub(super) fn unfold(&mut self, id: JobId) {
        if self.fresh.is_empty() {
            return;
        }
        let Some((key, body, command)) = self.fresh.remove(&id) else { return };
        let holders = self.keys.get(&key).map(|view| &view.holders);
        let head = holders.and_then(|holders| holders.iter().rfind(|head| head.id == id)).cloned();
        let full = Some(Full { body, notes: Vec::new() });
        // The decision that minted the job relies on nothing; a later one relies on what it became.
        self.jobs.insert(id, Row { head, full, dirty: true, command, ..Row::default() });
    }

    /// Adds a job's head; `None` says that there is no such job.
    pub fn add_head(&mut self, id: JobId, head: Option<Head>) {
        self.jobs.entry(id).or_insert(Row { head, ..Row::default() });
    }

    /// Adds a whole job; `None` says that there is no such job.
    pub fn add_full(&mut self, id: JobId, row: Option<(Head, Full)>) {
        let (head, full) = row.map_or((None, None), |(head, full)| (Some(head), Some(full)));
        match self.jobs.entry(id) {
            Entry::Vacant(vacant) => {
                vacant.insert(Row { head, full, ..Row::default() });
            }
            Entry::Occupied(mut occupied) => {
                let row = occupied.get_mut();
                if row.full.is_none() {
                    row.full = full;
                }
            }
        }
    }

    /// Adds that no job has this id, and why none can.
    pub fn add_spent(&mut self, id: JobId, spent: Spent) {
        self.jobs.entry(id).or_default().spent = Some(spent);
    }

    /// Adds the holders of a key.
    pub fn add_key(&mut self, key: UniqueKey, view: KeyView) {
        self.keys.insert(key, view);
    }

    /// Adds a queue's settings and the number of jobs that [wait](crate::settings::waiting) in it.
    pub fn add_queue(&mut self, row: QueueRow, waiting: u64) {
        self.waiting.entry(row.name.clone()).or_insert(waiting);
        self.queues.entry(row.name.clone()).or_insert((row, 0));
    }

    /// Adds a document; `None` says that there is none with that key.
    pub fn add_document(&mut self, key: DocumentKey, document: Option<Document>) {
        self.documents.entry(key).or_insert_with(|| Sheet::of(document));
    }

    /// A document as loaded, or as overwritten since.
    pub fn peek_document(&self, key: &DocumentKey) -> Option<&Document> {
        self.documents.get(key)?.document.as_ref()
    }

    /// Whether the head of this job was loaded.
    pub fn has_head(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id)
    }

    /// Whether the holders of this key were loaded.
    pub fn has_key(&self, key: &UniqueKey) -> bool {
        self.keys.contains_key(key)
    }

    /// The job as loaded, or as overwritten since.
    pub fn peek(&self, id: JobId) -> Option<(&Head, Option<&Full>)> {
        let row = self.jobs.get(&id)?;
        row.job().map(|head| (head, row.full.as_ref()))
    }

    /// Why an id that no job has cannot become a job's. Known only for ids that were loaded in full.
    pub fn peek_spent(&self, id: JobId) -> Option<Spent> {
        self.jobs.get(&id)?.spent
    }

    /// A queue's settings and how many jobs wait in it, as loaded.
    pub fn peek_queue(&self, name: &QueueName) -> Option<(&QueueRow, u64)> {
        let (row, _) = self.queues.get(name)?;
        Some((row, self.waiting.get(name).copied().unwrap_or(0)))
    }

    /// The holders of a key as loaded, or as overwritten since.
    pub fn peek_key(&self, key: &UniqueKey) -> Option<&KeyView> {
        self.keys.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::DocumentKind;
    use super::*;

    #[test]
    fn a_part_has_what_it_names_of_every_kind_and_nothing_else() {
        let job = |number: u8| JobId::from_bytes([number; 16]);
        let key = |number: u8| UniqueKey::from_bytes([number; 32]);
        let queue = |name: &str| QueueName::of_row("limit", name);
        let document = |name: &str| DocumentKey::new(DocumentKind::Cron, name);
        let mut whole = Snapshot { partitions: 3, away: vec![2], ..Snapshot::default() };
        for number in [1, 2, 3, 4] {
            whole.add_head(job(number), None);
            whole.add_key(key(number), KeyView::default());
        }
        for name in ["a", "b"] {
            whole.add_queue(QueueRow::fresh(queue(name)), 7);
            whole.add_document(document(name), Some(Document { version: 1, due: None, text: Bytes::new() }));
        }
        let read = KeyRead { key: key(3), states: StateSet::ALL, all: false };
        let (heads, fulls, keys) = (vec![job(1)], vec![job(2)], vec![read]);
        let reads = Reads { heads, fulls, keys, queues: vec![queue("a")], documents: vec![document("a")] };
        let part = whole.part(&reads);
        assert_eq!((part.now, part.partitions, &part.away), (whole.now, 3, &vec![2]));
        assert_eq!([1, 2, 3, 4].map(|number| part.has_head(job(number))), [true, true, false, false]);
        assert_eq!([1, 2, 3, 4].map(|number| part.has_key(&key(number))), [false, false, true, false]);
        assert_eq!(part.peek_queue(&queue("a")).map(|(_, waiting)| waiting), Some(7));
        assert!(part.peek_queue(&queue("b")).is_none());
        assert!(part.peek_document(&document("a")).is_some() && part.peek_document(&document("b")).is_none());
    }

    #[test]
    fn a_key_is_looked_for_once_for_all_who_ask() {
        let key = |number: u8| UniqueKey::from_bytes([number; 32]);
        let read = |number, states| KeyRead { key: key(number), states, all: false };
        let keys = vec![read(1, StateSet::LIVE), read(2, StateSet::LIVE), read(1, StateSet::FINISHED)];
        let reads = Reads { keys, ..Reads::default() };
        let (first, second) = (key(1), key(2));
        assert_eq!(reads.keys_once(), Map::from_iter([(&first, true), (&second, false)]));
    }

    #[test]
    fn what_may_be_anywhere_is_put_where_somebody_is() {
        let mut snapshot = Snapshot { partitions: 4, ..Snapshot::default() };
        let chosen =
            |snapshot: &Snapshot| -> Vec<u16> { (0..5).map(|chance| snapshot.somewhere(chance)).collect() };
        assert_eq!(chosen(&snapshot), [0, 1, 2, 3, 0]);
        snapshot.away = vec![2, 0];
        assert_eq!(chosen(&snapshot), [1, 3, 1, 3, 1]);
        snapshot.away = vec![0, 1, 2, 3];
        assert_eq!(chosen(&snapshot), [0, 1, 2, 3, 0], "none is better than another");
    }
}
