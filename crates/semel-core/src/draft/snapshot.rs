//! What a decision reads: what is asked of a store, and what it loaded, consistently, at one time.

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

/// A hash table with a fast, per-process seeded hash.
pub type Map<K, V> = HashMap<K, V, RandomState>;

/// What is to be loaded. Empty lists are the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Heads of these jobs.
    pub heads: Vec<JobId>,
    /// Heads, bodies and notes of these jobs.
    pub fulls: Vec<JobId>,
    /// Holders of these keys.
    pub keys: Vec<KeyRead>,
    /// Settings of these queues.
    pub queues: Vec<QueueName>,
    /// Documents.
    pub documents: Vec<DocumentKey>,
}

impl Reads {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.is_only_keys()
    }

    /// Whether nothing but keys is asked for.
    pub fn is_only_keys(&self) -> bool {
        self.heads.is_empty() && self.fulls.is_empty() && self.queues.is_empty() && self.documents.is_empty()
    }

    /// Each key that is asked for, once, and whether finished holders of it may be wanted.
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

    /// Whether both name some record.
    pub fn meet(&self, other: &Self) -> bool {
        let jobs = |reads: &Self, id: &JobId| reads.heads.contains(id) || reads.fulls.contains(id);
        let keys = |key: &UniqueKey| other.keys.iter().any(|read| read.key == *key);
        self.heads.iter().chain(&self.fulls).any(|id| jobs(other, id))
            || self.keys.iter().any(|read| keys(&read.key))
            || self.queues.iter().any(|name| other.queues.contains(name))
            || self.documents.iter().any(|key| other.documents.contains(key))
    }

    /// Names one more record.
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
    /// What the present decision relies on, if it writes nothing: as durable as that has to be before it is answered. One that writes
    /// says it with its [group](Self::finish).
    pub fn relied_on(&self) -> Reads {
        let mut reads = Reads::default();
        if self.group.writes.is_empty() {
            let looked_at = self.taken_back.iter().chain(&self.group.expect);
            looked_at.for_each(|expect| reads.add(&expect.record));
        }
        reads
    }

    /// Whether the present decision, if it ended now, would write nothing and rest on nothing but what the store has: it has looked at
    /// keys and at heads alone, and no decision before it in its batch has touched one of them. Then it is right whatever becomes
    /// of the others. Says no where it is not sure.
    pub fn rests_on_store_alone(&self) -> bool {
        let is_stored = |record: &Record| match record {
            Record::Key(key) => self.snapshot.keys.get(key).is_some_and(|view| !view.is_touched),
            // Notes may have been added to whole jobs without a trace.
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

/// Which holders of a key are to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRead {
    /// The key.
    pub key: UniqueKey,
    /// Holders in which states matter. A store may leave out finished holders only if no finished state is named.
    pub states: StateSet,
    /// Every holder, at most [`HOLDERS_PER_KEY_MAX`](crate::limits::HOLDERS_PER_KEY_MAX). Else a store may leave out a
    /// holder for which it gives another in the same state that blocks whomever the first blocks and hides as much.
    pub all: bool,
}

/// The holders of one key.
#[derive(Clone, Debug, Default)]
pub struct KeyView {
    /// Moves on every write to a holder.
    pub version: u64,
    /// The holders.
    pub holders: Vec<Head>,
    /// Which states of holders this view covers.
    pub states: StateSet,
    /// Whether every holder in those states is here.
    pub all: bool,
    /// There are more than a view may carry.
    pub too_many: bool,
    /// The version as it was loaded, before any decision of the group's batch.
    pub(super) loaded: u64,
    pub(super) command: u32,
    /// The last decision that wrote to a holder, and the version before it did.
    pub(super) written: (u32, u64),
    /// Whether a decision of the group's batch has changed a holder without relying on the key. It is applied whatever
    /// becomes of the other holders meanwhile, so what is seen here then need never have been in the store.
    pub(super) is_mixed: bool,
    /// Whether a decision of the group's batch has changed a holder, even if that was taken back.
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

    /// The version that a decision which looks at the key now relies on: the store's, not that of its own writes.
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
    /// What the core keeps with it: a text that says nothing to a store.
    pub settings: Option<Arc<str>>,
    /// Moves on every change of the settings; 0 when the queue has none yet.
    pub version: u64,
}

impl QueueRow {
    /// A queue nobody has set anything of.
    pub fn fresh(name: QueueName) -> Self {
        Self { name, paused: false, settings: None, version: 0 }
    }
}

/// What is left of a caller's id that is no job's: it may not be given to another, and is not a job's that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The version by which decisions that saw it are fenced; never 0.
    pub version: u64,
    /// The job that absorbed the request with this id; the id itself when its own job has been purged and only its key
    /// is remembered.
    pub job: JobId,
    /// The digest of the absorbed request. None of a job's own id: what was asked for went with its body.
    pub digest: Option<[u8; 32]>,
}

impl Spent {
    /// The version of an id whose request was absorbed: it is written once.
    pub const ABSORBED_VERSION: u64 = 1;

    /// Of a request that `job` absorbed.
    pub const fn absorbed_by(job: JobId, digest: Option<[u8; 32]>) -> Self {
        Self { version: Self::ABSORBED_VERSION, job, digest }
    }

    /// Of a job that has been purged, whose head is kept at `version` for its key's sake.
    pub const fn remembered(job: JobId, version: u64) -> Self {
        Self { version, job, digest: None }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) head: Option<Head>,
    pub(super) full: Option<Full>,
    /// There is no job with this id, and cannot be: a head here is only remembered for its key's sake.
    pub(super) spent: Option<Spent>,
    /// Notes written in this group before the full row was loaded.
    pub(super) pending: Vec<(NoteKind, Option<Bytes>)>,
    /// Written in this group; what the store has is older.
    pub(super) dirty: bool,
    /// Forgotten in this group, its key's memory included: what the store still says of it is older.
    pub(super) gone: bool,
    pub(super) command: u32,
}

impl Row {
    /// The head, unless it is only remembered and no job's any more.
    pub(super) fn job(&self) -> Option<&Head> {
        self.head.as_ref().filter(|_| self.spent.is_none())
    }

    /// What a decision that sees this row relies on.
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
    /// Into how many partitions the store is divided: minted ids name one of them. Fewer than two are one.
    pub partitions: u16,
    /// Those of them that nobody hears of now: what may be in any is put elsewhere.
    pub away: Vec<u16>,
    pub(super) jobs: Map<JobId, Row>,
    pub(super) keys: Map<UniqueKey, KeyView>,
    pub(super) queues: Map<QueueName, (QueueRow, u32)>,
    /// Jobs that waited in the queues loaded.
    pub(super) waiting: Map<QueueName, u64>,
    pub(super) documents: Map<DocumentKey, Sheet>,
    /// Jobs minted in this group that hold a key: their heads are among the key's holders. They become rows when a
    /// later decision asks for them, which is rare; those without a key nobody can ask for.
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

    /// A partition for what may be in any, by chance: none that is away, unless all are.
    pub(super) fn somewhere(&self, chance: u64) -> u16 {
        let is_there = |place: &u16| !self.away.contains(place);
        let there = (0..self.partitions).filter(is_there).count() as u64;
        if there == 0 {
            return (chance % u64::from(self.partitions.max(1))) as u16;
        }
        (0..self.partitions).filter(is_there).nth((chance % there) as usize).unwrap_or(0)
    }

    /// What of it `reads` names, for one of several who had it loaded together.
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

    /// Makes a row of a job minted in this group.
    pub(super) fn unfold(&mut self, id: JobId) {
        if self.fresh.is_empty() {
            return;
        }
        let Some((key, body, command)) = self.fresh.remove(&id) else { return };
        let holders = self.keys.get(&key).map(|view| &view.holders);
        let head = holders.and_then(|holders| holders.iter().rfind(|head| head.id == id)).cloned();
        let full = Some(Full { body, notes: Vec::new() });
        // Whoever minted it relies on nothing; a later decision relies on what it became.
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

    /// Adds that there is no job with this id, and why there cannot be one.
    pub fn add_spent(&mut self, id: JobId, spent: Spent) {
        self.jobs.entry(id).or_default().spent = Some(spent);
    }

    /// Adds the holders of a key.
    pub fn add_key(&mut self, key: UniqueKey, view: KeyView) {
        self.keys.insert(key, view);
    }

    /// Adds a queue's settings, and how many jobs [wait](crate::settings::waiting) in it.
    pub fn add_queue(&mut self, row: QueueRow, waiting: u64) {
        self.waiting.entry(row.name.clone()).or_insert(waiting);
        self.queues.entry(row.name.clone()).or_insert((row, 0));
    }

    /// Adds a document; `None` says that there is no such one.
    pub fn add_document(&mut self, key: DocumentKey, document: Option<Document>) {
        self.documents.entry(key).or_insert_with(|| Sheet::of(document));
    }

    /// A document as loaded or as overlaid since.
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

    /// The job as loaded or as overlaid since.
    pub fn peek(&self, id: JobId) -> Option<(&Head, Option<&Full>)> {
        let row = self.jobs.get(&id)?;
        row.job().map(|head| (head, row.full.as_ref()))
    }

    /// Why an id that is no job's cannot become one's, of those whose whole jobs were asked for.
    pub fn peek_spent(&self, id: JobId) -> Option<Spent> {
        self.jobs.get(&id)?.spent
    }

    /// A queue's settings and how many jobs wait in it, as loaded.
    pub fn peek_queue(&self, name: &QueueName) -> Option<(&QueueRow, u64)> {
        let (row, _) = self.queues.get(name)?;
        Some((row, self.waiting.get(name).copied().unwrap_or(0)))
    }

    /// The holders of a key as loaded or as overlaid since.
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
