//! The binary encoding of a commit: all its changes, in one journal record. The encoding is frozen with the
//! file's format.

use bytes::Bytes;
use semel_core::draft::{Document, DocumentKey, DocumentKind, QueueRow};
use semel_core::ident::JobId;
use semel_core::job::{Head, NoteKind};
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::model::QueueTotals;

use crate::error::SqliteError;
use crate::journal::HEADER;
use crate::names::Names;
use crate::packed::{Moving, Packer, Unpacker};
use crate::pending::{Absorbed, Remembered};

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const NOTE: u8 = 3;
const FORGET: u8 = 4;
const QUEUE: u8 = 5;
const NAME: u8 = 6;
const MEMORY: u8 = 7;
const EVENTS: u8 = 8;
const SPEND: u8 = 9;
const FREE: u8 = 10;
const DOCUMENT: u8 = 11;
const RELEASE: u8 = 12;

/// Bit flags in a queue's change.
const PAUSED: u8 = 1;
const SETTINGS: u8 = 1 << 1;

/// The record of the current commit: room for the journal's header, then the changes.
#[derive(Debug)]
pub struct Record(Packer);

impl Default for Record {
    fn default() -> Self {
        Self(Packer(vec![0; HEADER]))
    }
}

impl Record {
    /// The whole record, with the room for its header.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.0
    }

    /// Bytes of changes so far, without the header.
    pub fn len(&self) -> usize {
        self.0.0.len() - HEADER
    }

    /// Empties the record, for the next commit.
    pub fn clear(&mut self) {
        self.0.0.truncate(HEADER);
    }

    /// Adds a new name of a type or queue, with its number.
    pub fn name(&mut self, id: i64, text: &str) {
        self.begin(NAME, id);
        self.0.blob(text.as_bytes());
    }

    /// Adds the events of the commit, as the event log encodes them.
    pub fn events(&mut self, count: u64, data: &[u8]) {
        self.begin(EVENTS, i64::try_from(count).unwrap_or(i64::MAX));
        self.0.blob(data);
    }

    /// Adds what is remembered of an ended job for its key, or that nothing is.
    pub fn memory(
        &mut self,
        key: &UniqueKey,
        seq: i64,
        id: JobId,
        remembered: Option<(&Remembered, i64, i64)>,
    ) {
        self.begin(MEMORY, seq);
        self.0.put(key.as_bytes());
        self.0.put(&id.to_bytes());
        self.0.put(&[u8::from(remembered.is_some())]);
        if let Some((Remembered { head, forget_at }, job_type, queue)) = remembered {
            self.0.fixed(head, job_type, queue);
            self.0.moving(head, false);
            self.0.put(&[u8::from(forget_at.is_some())]);
            self.0.time(forget_at.unwrap_or(Timestamp::EPOCH));
        }
    }

    /// Adds the release of a key: an operator takes it from all its holders.
    pub fn release(&mut self, key: &UniqueKey) {
        self.0.put(&[RELEASE]);
        self.0.put(key.as_bytes());
    }

    /// Adds a new job. Its type and queue are given as numbers.
    pub fn insert(&mut self, seq: i64, head: &Head, job_type: i64, queue: i64, body: &[u8]) {
        self.0.0.reserve(256 + body.len());
        self.begin(INSERT, seq);
        self.0.fixed(head, job_type, queue);
        self.0.moving(head, false);
        self.0.blob(body);
    }

    /// Adds new values of a job's moving part. `released` says whether an operator released its key.
    pub fn update(&mut self, seq: i64, head: &Head, released: bool) {
        self.begin(UPDATE, seq);
        self.0.moving(head, released);
    }

    /// Adds a note, or its removal. The job's id is included because the job may not be in memory during
    /// replay.
    pub fn note(&mut self, seq: i64, job: JobId, kind: NoteKind, text: Option<&[u8]>) {
        self.begin(NOTE, seq);
        self.0.put(&job.to_bytes());
        self.0.put(&[kind.code(), u8::from(text.is_some())]);
        if let Some(text) = text {
            self.0.blob(text);
        }
    }

    /// Adds the removal of a job and its notes. `keeps_id` says whether its id stays taken.
    pub fn forget(&mut self, seq: i64, job: JobId, keeps_id: bool) {
        self.begin(FORGET, seq);
        self.0.put(&job.to_bytes());
        self.0.put(&[u8::from(keeps_id)]);
    }

    /// Adds an absorbed request: its `id` is spent, because it became part of `job`.
    pub fn spend(&mut self, seq: i64, id: JobId, job: JobId, digest: Option<&[u8; 32]>) {
        self.begin(SPEND, seq);
        self.0.put(&id.to_bytes());
        self.0.put(&job.to_bytes());
        self.0.blob(digest.map_or(&[], <[u8; 32]>::as_slice));
    }

    /// Adds that a spent id is free again.
    pub fn free(&mut self, id: JobId) {
        self.0.put(&[FREE]);
        self.0.put(&id.to_bytes());
    }

    /// Adds a queue's settings and counters as they are after this commit.
    pub fn queue(&mut self, row: &QueueRow, totals: &QueueTotals) {
        self.0.put(&[QUEUE]);
        self.0.blob(row.name.as_str().as_bytes());
        let settings = row.settings.as_deref();
        self.0.put(&[(u8::from(row.paused) * PAUSED) | (u8::from(settings.is_some()) * SETTINGS)]);
        for number in [row.version, totals.created, totals.purged].iter().chain(&totals.counts) {
            self.0.put(&number.to_le_bytes());
        }
        if let Some(settings) = settings {
            self.0.blob(settings.as_bytes());
        }
    }

    /// Adds a document's new contents, or its removal.
    pub fn document(&mut self, key: &DocumentKey, document: Option<&Document>) {
        self.0.put(&[DOCUMENT, key.kind.code()]);
        self.0.blob(key.name.as_bytes());
        self.0.put(&[u8::from(document.is_some())]);
        if let Some(document) = document {
            self.0.put(&document.version.to_le_bytes());
            self.0.put(&[u8::from(document.due.is_some())]);
            self.0.time(document.due.unwrap_or(Timestamp::EPOCH));
            self.0.blob(&document.text);
        }
    }

    fn begin(&mut self, what: u8, seq: i64) {
        self.0.put(&[what]);
        self.0.number(seq);
    }
}

/// One change, as read back from a record. Each variant is what the method of [`Record`] with its name wrote.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A new job.
    Insert { seq: i64, head: Head, body: Bytes },
    /// New values of a job's moving part.
    Update { seq: i64, moving: Moving },
    /// A note, or its removal (`text` is `None`).
    Note { seq: i64, job: JobId, kind: NoteKind, text: Option<Bytes> },
    /// A job was removed.
    Forget { seq: i64, job: JobId, keeps_id: bool },
    /// A queue's settings and counters after the commit.
    Queue { row: QueueRow, totals: QueueTotals },
    /// A new name of a type or queue.
    Name { id: i64, text: String },
    /// What is remembered of an ended job for its key, or that nothing is.
    Memory { key: UniqueKey, seq: i64, id: JobId, remembered: Option<Remembered> },
    /// The events of the commit, as the event log encodes them.
    Events { count: u64, data: Bytes },
    /// A request was absorbed: it became part of a job.
    Spend { id: JobId, absorbed: Absorbed },
    /// A spent id is free again.
    Free { id: JobId },
    /// A key was taken from all its holders, including ended ones that are not in memory.
    Release { key: UniqueKey },
    /// A document's new contents, or its removal.
    Document { key: DocumentKey, document: Option<Document> },
}

/// Iterates over the changes of a record, in order.
pub struct Changes {
    cursor: u64,
    record: Bytes,
    /// How many bytes of the record have been read.
    read: usize,
}

impl Changes {
    /// Starts reading `record`, the journal's record number `cursor`.
    pub fn new(cursor: u64, record: Bytes) -> Self {
        Self { cursor, record, read: 0 }
    }

    /// Returns the next change. `names` must already contain the names that earlier changes added.
    ///
    /// # Errors
    /// When the record was not written in this program's format.
    pub fn next(&mut self, names: &Names) -> Result<Option<Change>, SqliteError> {
        let mut from = Unpacker(self.record.get(self.read..).unwrap_or_default());
        if from.0.is_empty() {
            return Ok(None);
        }
        let change = change(&mut from, &self.record, names)?;
        self.read = self.record.len() - from.0.len();
        match change {
            Some(change) => Ok(Some(change)),
            None => {
                Err(SqliteError::Journal(format!("record {} is not in this program's format", self.cursor)))
            }
        }
    }
}

/// Decodes one change. Texts and bodies share the bytes of `record`.
fn change(from: &mut Unpacker<'_>, record: &Bytes, names: &Names) -> Result<Option<Change>, SqliteError> {
    let Some([what]) = from.take() else { return Ok(None) };
    Ok(match what {
        INSERT => return insert(from, record, names),
        MEMORY => return memory(from, names),
        UPDATE => from.number().zip(from.moving()).map(|(seq, moving)| Change::Update { seq, moving }),
        NOTE => note(from, record),
        FORGET => forget(from),
        QUEUE => queue(from),
        SPEND => spend(from),
        RELEASE => from.take().map(|key| Change::Release { key: UniqueKey::from_bytes(key) }),
        FREE => from.take().map(|id| Change::Free { id: JobId::from_bytes(id) }),
        DOCUMENT => document(from, record),
        NAME => name(from),
        EVENTS => from.number().zip(from.blob()).map(|(count, data)| Change::Events {
            count: count.unsigned_abs(),
            data: record.slice_ref(data),
        }),
        _ => None,
    })
}

fn insert(from: &mut Unpacker<'_>, record: &Bytes, names: &Names) -> Result<Option<Change>, SqliteError> {
    let Some(seq) = from.number() else { return Ok(None) };
    let Some(head) = from.head(names)? else { return Ok(None) };
    Ok(from.blob().map(|body| Change::Insert { seq, head, body: record.slice_ref(body) }))
}

fn memory(from: &mut Unpacker<'_>, names: &Names) -> Result<Option<Change>, SqliteError> {
    let Some((seq, key)) = from.number().zip(from.take()) else { return Ok(None) };
    let key = UniqueKey::from_bytes(key);
    let Some(id) = from.take().map(JobId::from_bytes) else { return Ok(None) };
    let remembered = match from.take() {
        Some([0]) => None,
        Some([1]) => {
            let Some(head) = from.head(names)? else { return Ok(None) };
            let Some(([is_bounded], at)) = from.take().zip(from.time()) else { return Ok(None) };
            Some(Remembered { head, forget_at: (is_bounded == 1).then_some(at) })
        }
        _ => return Ok(None),
    };
    Ok(Some(Change::Memory { key, seq, id, remembered }))
}

fn document(from: &mut Unpacker<'_>, record: &Bytes) -> Option<Change> {
    let kind = DocumentKind::from_code(u8::from_le_bytes(from.take()?))?;
    let key = DocumentKey::new(kind, str::from_utf8(from.blob()?).ok()?);
    let document = match from.take()? {
        [0] => None,
        [1] => {
            let version = u64::from_le_bytes(from.take()?);
            let ([has_due], at) = (from.take()?, from.time()?);
            let text = record.slice_ref(from.blob()?);
            Some(Document { version, due: (has_due == 1).then_some(at), text })
        }
        _ => return None,
    };
    Some(Change::Document { key, document })
}

fn name(from: &mut Unpacker<'_>) -> Option<Change> {
    let (id, text) = (from.number()?, from.blob()?);
    Some(Change::Name { id, text: str::from_utf8(text).ok()?.to_owned() })
}

fn note(from: &mut Unpacker<'_>, record: &Bytes) -> Option<Change> {
    let (seq, job) = (from.number()?, JobId::from_bytes(from.take()?));
    let [kind, is_there] = from.take()?;
    let kind = NoteKind::from_code(kind)?;
    let text = match is_there {
        0 => None,
        1 => Some(record.slice_ref(from.blob()?)),
        _ => return None,
    };
    Some(Change::Note { seq, job, kind, text })
}

fn forget(from: &mut Unpacker<'_>) -> Option<Change> {
    let (seq, job) = (from.number()?, JobId::from_bytes(from.take()?));
    let [keeps_id] = from.take()?;
    Some(Change::Forget { seq, job, keeps_id: keeps_id != 0 })
}

fn spend(from: &mut Unpacker<'_>) -> Option<Change> {
    let (seq, id, job) = (from.number()?, JobId::from_bytes(from.take()?), JobId::from_bytes(from.take()?));
    let digest = from.blob()?;
    let digest = if digest.is_empty() { None } else { Some(<[u8; 32]>::try_from(digest).ok()?) };
    Some(Change::Spend { id, absorbed: Absorbed { seq, job, digest } })
}

fn queue(from: &mut Unpacker<'_>) -> Option<Change> {
    let name = from.blob()?;
    let name = semel_core::ident::QueueName::from_stored(str::from_utf8(name).ok()?);
    let [parts] = from.take()?;
    let mut big = || Some(u64::from_le_bytes(from.take()?));
    let version = big()?;
    let mut totals = QueueTotals { created: big()?, purged: big()?, ..QueueTotals::default() };
    for count in &mut totals.counts {
        *count = big()?;
    }
    let settings = if parts & SETTINGS == 0 { None } else { Some(str::from_utf8(from.blob()?).ok()?.into()) };
    let row = QueueRow { name, paused: parts & PAUSED != 0, settings, version };
    Some(Change::Queue { row, totals })
}
