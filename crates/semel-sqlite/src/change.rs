//! What a commit wrote, as bytes: every change of one commit in one record. The encoding is frozen with the file's format:
//! numbers in little endian, optional parts announced by bits.

use bytes::Bytes;
use semel_core::draft::{Document, DocumentKey, DocumentKind, QueueRow};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head, Lease, NoteKind, Role};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::{Hold, UniqueKey};
use semel_store::model::QueueTotals;

use crate::error::SqliteError;
use crate::journal::HEADER;
use crate::names::Names;
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

/// Bits of what a moving part has.
mod has {
    pub const FOLLOW_UP_ROLE: u16 = 1;
    pub const RELEASED: u16 = 1 << 1;
    pub const EXPIRES: u16 = 1 << 2;
    pub const STARTED: u16 = 1 << 3;
    pub const FINISHED: u16 = 1 << 4;
    pub const RENEWED: u16 = 1 << 5;
    pub const LEASE: u16 = 1 << 6;
    pub const FOLLOW_UP: u16 = 1 << 7;
    pub const ENDING: u16 = 1 << 8;
    pub const BURNED: u16 = 1 << 9;
    pub const AWAITED: u16 = 1 << 10;
    pub const ALL: u16 = (1 << 11) - 1;
}

/// The record of the present commit: room for the journal's header, then the changes.
#[derive(Debug)]
pub struct Record(Vec<u8>);

impl Default for Record {
    fn default() -> Self {
        Self(vec![0; HEADER])
    }
}

impl Record {
    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Bytes of changes so far.
    pub fn len(&self) -> usize {
        self.0.len() - HEADER
    }

    /// Begins the next record.
    pub fn clear(&mut self) {
        self.0.truncate(HEADER);
    }

    /// A new type or queue.
    pub fn name(&mut self, id: i64, text: &str) {
        self.begin(NAME, id);
        self.blob(text.as_bytes());
    }

    /// What happened, as the log encodes it.
    pub fn events(&mut self, count: u64, data: &[u8]) {
        self.begin(EVENTS, i64::try_from(count).unwrap_or(i64::MAX));
        self.blob(data);
    }

    /// What is remembered of an ended job for its key, or that nothing is.
    pub fn memory(
        &mut self,
        key: &UniqueKey,
        seq: i64,
        id: JobId,
        remembered: Option<(&Remembered, i64, i64)>,
    ) {
        self.begin(MEMORY, seq);
        self.put(key.as_bytes());
        self.put(&id.to_bytes());
        self.put(&[u8::from(remembered.is_some())]);
        if let Some((Remembered { head, forget_at }, job_type, queue)) = remembered {
            self.fixed(head, job_type, queue);
            self.moving(head, false);
            self.put(&[u8::from(forget_at.is_some())]);
            self.time(forget_at.unwrap_or(Timestamp::EPOCH));
        }
    }

    /// A new job, with the numbers of its names.
    pub fn insert(&mut self, seq: i64, head: &Head, job_type: i64, queue: i64, body: &[u8]) {
        self.0.reserve(256 + body.len());
        self.begin(INSERT, seq);
        self.fixed(head, job_type, queue);
        self.moving(head, false);
        self.blob(body);
    }

    fn fixed(&mut self, head: &Head, job_type: i64, queue: i64) {
        self.put(&head.id.to_bytes());
        self.number(job_type);
        self.number(queue);
        self.put(&head.priority.to_le_bytes());
        for small in [head.max_attempts, head.visibility_ms, head.timeout_ms] {
            self.put(&small.to_le_bytes());
        }
        self.time(head.created_at);
        self.put(&[u8::from(head.key.is_some())]);
        if let Some(key) = &head.key {
            self.put(key.as_bytes());
            self.put(&head.hold.to_bytes());
        }
    }

    /// New values of a job's moving part. `released` says whether an operator released its key.
    pub fn update(&mut self, seq: i64, head: &Head, released: bool) {
        self.begin(UPDATE, seq);
        self.moving(head, released);
    }

    /// A note, or its removal. The id is there for a job that is not in memory when the record is read again.
    pub fn note(&mut self, seq: i64, job: JobId, kind: NoteKind, text: Option<&[u8]>) {
        self.begin(NOTE, seq);
        self.put(&job.to_bytes());
        self.put(&[kind.code(), u8::from(text.is_some())]);
        if let Some(text) = text {
            self.blob(text);
        }
    }

    /// A job that is gone, with its notes. `keeps_id` says whether its id stays taken.
    pub fn forget(&mut self, seq: i64, job: JobId, keeps_id: bool) {
        self.begin(FORGET, seq);
        self.put(&job.to_bytes());
        self.put(&[u8::from(keeps_id)]);
    }

    /// A request that became part of a job.
    pub fn spend(&mut self, seq: i64, id: JobId, job: JobId, digest: Option<&[u8; 32]>) {
        self.begin(SPEND, seq);
        self.put(&id.to_bytes());
        self.put(&job.to_bytes());
        self.blob(digest.map_or(&[], <[u8; 32]>::as_slice));
    }

    /// An id that is kept no longer.
    pub fn free(&mut self, id: JobId) {
        self.put(&[FREE]);
        self.put(&id.to_bytes());
    }

    /// A queue's settings and counters as they are after this commit.
    pub fn queue(&mut self, row: &QueueRow, totals: &QueueTotals) {
        self.put(&[QUEUE]);
        self.blob(row.name.as_str().as_bytes());
        self.put(&[u8::from(row.paused)]);
        for number in [row.version, totals.created, totals.purged].iter().chain(&totals.counts) {
            self.put(&number.to_le_bytes());
        }
    }

    /// A document's new values, or its end.
    pub fn document(&mut self, key: &DocumentKey, document: Option<&Document>) {
        self.put(&[DOCUMENT, key.kind.code()]);
        self.blob(key.name.as_bytes());
        self.put(&[u8::from(document.is_some())]);
        if let Some(document) = document {
            self.put(&document.version.to_le_bytes());
            self.put(&[u8::from(document.due.is_some())]);
            self.time(document.due.unwrap_or(Timestamp::EPOCH));
            self.blob(&document.text);
        }
    }

    fn moving(&mut self, head: &Head, released: bool) {
        let bit = |is: bool, bit: u16| if is { bit } else { 0 };
        let parts = bit(head.role == Role::FollowUp, has::FOLLOW_UP_ROLE)
            | bit(released, has::RELEASED)
            | bit(head.expires_at.is_some(), has::EXPIRES)
            | bit(head.started_at.is_some(), has::STARTED)
            | bit(head.finished_at.is_some(), has::FINISHED)
            | bit(head.renewed_at.is_some(), has::RENEWED)
            | bit(head.lease.is_some(), has::LEASE)
            | bit(head.follow_up.is_some(), has::FOLLOW_UP)
            | bit(head.ending.is_some(), has::ENDING)
            | bit(head.burned_until.is_some(), has::BURNED)
            | bit(head.awaited, has::AWAITED);
        self.put(&parts.to_le_bytes());
        self.put(&[head.state.code()]);
        self.put(&head.version.to_le_bytes());
        self.put(&head.fence.to_le_bytes());
        self.put(&head.attempt.to_le_bytes());
        self.time(head.available_at);
        for time in [head.expires_at, head.started_at, head.finished_at, head.renewed_at, head.burned_until]
            .into_iter()
            .flatten()
        {
            self.time(time);
        }
        if let Some(lease) = &head.lease {
            self.time(lease.visible_until);
            self.time(lease.run_until);
            self.blob(lease.worker.as_bytes());
        }
        if let Some(follow_up) = head.follow_up {
            self.put(&follow_up.to_bytes());
        }
        if let Some(ending) = head.ending {
            self.put(&[ending as u8]);
        }
    }

    fn begin(&mut self, what: u8, seq: i64) {
        self.put(&[what]);
        self.number(seq);
    }

    fn time(&mut self, at: Timestamp) {
        self.number(at.as_micros());
    }

    fn number(&mut self, number: i64) {
        self.put(&number.to_le_bytes());
    }

    fn blob(&mut self, bytes: &[u8]) {
        // A body is bounded far below this (OJS: 1 MiB); a longer one would be refused when it is read again.
        self.put(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.put(bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// One change of a record that is read again.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A new job.
    Insert { seq: i64, head: Head, body: Bytes },
    /// New values of a job's moving part.
    Update { seq: i64, moving: Moving },
    /// A note, or its removal.
    Note { seq: i64, job: JobId, kind: NoteKind, text: Option<Bytes> },
    /// A job that is gone.
    Forget { seq: i64, job: JobId, keeps_id: bool },
    /// A queue's settings and counters.
    Queue { row: QueueRow, totals: QueueTotals },
    /// A new type or queue.
    Name { id: i64, text: String },
    /// What is remembered of an ended job for its key, or that nothing is.
    Memory { key: UniqueKey, seq: i64, id: JobId, remembered: Option<Remembered> },
    /// What happened, as the log encodes it.
    Events { count: u64, data: Bytes },
    /// A request that became part of a job.
    Spend { id: JobId, absorbed: Absorbed },
    /// An id that is kept no longer.
    Free { id: JobId },
    /// A document's new values, or its end.
    Document { key: DocumentKey, document: Option<Document> },
}

/// What moves of a head.
#[derive(Debug, PartialEq, Eq)]
pub struct Moving {
    state: State,
    role: Role,
    /// Whether an operator released the key.
    pub released: bool,
    version: u64,
    fence: u64,
    attempt: u32,
    available_at: Timestamp,
    expires_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    renewed_at: Option<Timestamp>,
    burned_until: Option<Timestamp>,
    lease: Option<Lease>,
    follow_up: Option<JobId>,
    ending: Option<Ending>,
    awaited: bool,
}

impl Moving {
    /// The head with these values.
    pub fn onto(self, head: &Head) -> Head {
        Head {
            state: self.state,
            role: self.role,
            key: if self.released { None } else { head.key },
            version: self.version,
            fence: self.fence,
            attempt: self.attempt,
            available_at: self.available_at,
            expires_at: self.expires_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            renewed_at: self.renewed_at,
            burned_until: self.burned_until,
            lease: self.lease,
            follow_up: self.follow_up,
            ending: self.ending,
            awaited: self.awaited,
            ..head.clone()
        }
    }
}

/// Reads the changes of a record, in order.
pub struct Changes {
    cursor: u64,
    rest: Bytes,
}

impl Changes {
    /// The changes in `record`, which is the journal's record `cursor`.
    pub fn new(cursor: u64, record: Bytes) -> Self {
        Self { cursor, rest: record }
    }

    /// The next change. `names` must have the names that earlier changes added.
    ///
    /// # Errors
    /// When the record is not what this program writes.
    pub fn next(&mut self, names: &Names) -> Result<Option<Change>, SqliteError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        match self.change(names)? {
            Some(change) => Ok(Some(change)),
            None => {
                Err(SqliteError::Journal(format!("record {} is not what this program writes", self.cursor)))
            }
        }
    }

    fn change(&mut self, names: &Names) -> Result<Option<Change>, SqliteError> {
        let Some([what]) = self.take() else { return Ok(None) };
        Ok(match what {
            INSERT => return self.insert(names),
            MEMORY => return self.memory(names),
            UPDATE => self.number().zip(self.moving()).map(|(seq, moving)| Change::Update { seq, moving }),
            NOTE => self.note(),
            FORGET => self.forget(),
            QUEUE => self.queue(),
            SPEND => self.spend(),
            FREE => self.take().map(|id| Change::Free { id: JobId::from_bytes(id) }),
            DOCUMENT => self.document(),
            NAME => self.name(),
            EVENTS => {
                let (count, data) = (self.number(), self.blob());
                count.zip(data).map(|(count, data)| Change::Events { count: count.unsigned_abs(), data })
            }
            _ => None,
        })
    }

    fn insert(&mut self, names: &Names) -> Result<Option<Change>, SqliteError> {
        let Some(seq) = self.number() else { return Ok(None) };
        let Some(head) = self.head(names)? else { return Ok(None) };
        Ok(self.blob().map(|body| Change::Insert { seq, head, body }))
    }

    fn memory(&mut self, names: &Names) -> Result<Option<Change>, SqliteError> {
        let Some((seq, key)) = self.number().zip(self.take()) else { return Ok(None) };
        let key = UniqueKey::from_bytes(key);
        let Some(id) = self.take().map(JobId::from_bytes) else { return Ok(None) };
        let remembered = match self.take() {
            Some([0]) => None,
            Some([1]) => {
                let Some(head) = self.head(names)? else { return Ok(None) };
                let Some(([is_bounded], at)) = self.take().zip(self.time()) else { return Ok(None) };
                Some(Remembered { head, forget_at: (is_bounded == 1).then_some(at) })
            }
            _ => return Ok(None),
        };
        Ok(Some(Change::Memory { key, seq, id, remembered }))
    }

    fn document(&mut self) -> Option<Change> {
        let kind = DocumentKind::from_code(u8::from_le_bytes(self.take()?))?;
        let name = self.blob()?;
        let key = DocumentKey::new(kind, str::from_utf8(&name).ok()?);
        let document = match self.take()? {
            [0] => None,
            [1] => {
                let version = u64::from_le_bytes(self.take()?);
                let ([has_due], at) = (self.take()?, self.time()?);
                Some(Document { version, due: (has_due == 1).then_some(at), text: self.blob()? })
            }
            _ => return None,
        };
        Some(Change::Document { key, document })
    }

    fn name(&mut self) -> Option<Change> {
        let (id, text) = (self.number()?, self.blob()?);
        Some(Change::Name { id, text: str::from_utf8(&text).ok()?.to_owned() })
    }

    fn head(&mut self, names: &Names) -> Result<Option<Head>, SqliteError> {
        let Some((fixed, moving)) = self.fixed().zip(self.moving()) else { return Ok(None) };
        let head = Head {
            id: fixed.id,
            key: fixed.key,
            hold: fixed.hold,
            job_type: names.job_type(fixed.job_type)?,
            queue: names.queue(fixed.queue)?,
            priority: fixed.priority,
            state: State::Available,
            role: Role::Plain,
            attempt: 0,
            max_attempts: fixed.max_attempts,
            visibility_ms: fixed.visibility_ms,
            timeout_ms: fixed.timeout_ms,
            version: 0,
            fence: 0,
            created_at: fixed.created_at,
            available_at: fixed.created_at,
            expires_at: None,
            started_at: None,
            finished_at: None,
            renewed_at: None,
            burned_until: None,
            lease: None,
            follow_up: None,
            ending: None,
            awaited: false,
        };
        Ok(Some(moving.onto(&head)))
    }

    fn fixed(&mut self) -> Option<Fixed> {
        let id = JobId::from_bytes(self.take()?);
        let (job_type, queue) = (self.number()?, self.number()?);
        let priority = i8::from_le_bytes(self.take()?);
        let (max_attempts, visibility_ms, timeout_ms) = (self.small()?, self.small()?, self.small()?);
        let created_at = self.time()?;
        let (key, hold) = match self.take()? {
            [0] => (None, Hold::NONE),
            [1] => (Some(UniqueKey::from_bytes(self.take()?)), {
                let hold: [u8; Hold::BYTES] = self.take()?;
                Hold::from_bytes(&hold)?
            }),
            _ => return None,
        };
        Some(Fixed {
            id,
            key,
            hold,
            job_type,
            queue,
            priority,
            max_attempts,
            visibility_ms,
            timeout_ms,
            created_at,
        })
    }

    fn moving(&mut self) -> Option<Moving> {
        let parts = u16::from_le_bytes(self.take()?);
        if parts & !has::ALL != 0 {
            return None;
        }
        let state = State::from_code(u8::from_le_bytes(self.take()?))?;
        let (version, fence, attempt) =
            (u64::from_le_bytes(self.take()?), u64::from_le_bytes(self.take()?), self.small()?);
        let available_at = self.time()?;
        let mut optional = |bit: u16| if parts & bit == 0 { Some(None) } else { self.time().map(Some) };
        let expires_at = optional(has::EXPIRES)?;
        let started_at = optional(has::STARTED)?;
        let finished_at = optional(has::FINISHED)?;
        let renewed_at = optional(has::RENEWED)?;
        let burned_until = optional(has::BURNED)?;
        let lease = if parts & has::LEASE == 0 {
            None
        } else {
            let (visible_until, run_until) = (self.time()?, self.time()?);
            Some(Lease { worker: str::from_utf8(&self.blob()?).ok()?.into(), visible_until, run_until })
        };
        let follow_up =
            if parts & has::FOLLOW_UP == 0 { None } else { Some(JobId::from_bytes(self.take()?)) };
        let ending = if parts & has::ENDING == 0 {
            None
        } else {
            Some(Ending::from_code(u8::from_le_bytes(self.take()?))?)
        };
        Some(Moving {
            state,
            role: if parts & has::FOLLOW_UP_ROLE == 0 { Role::Plain } else { Role::FollowUp },
            released: parts & has::RELEASED != 0,
            version,
            fence,
            attempt,
            available_at,
            expires_at,
            started_at,
            finished_at,
            renewed_at,
            burned_until,
            lease,
            follow_up,
            ending,
            awaited: parts & has::AWAITED != 0,
        })
    }

    fn note(&mut self) -> Option<Change> {
        let (seq, job) = (self.number()?, JobId::from_bytes(self.take()?));
        let [kind, is_there] = self.take()?;
        let kind = NoteKind::from_code(kind)?;
        let text = match is_there {
            0 => None,
            1 => Some(self.blob()?),
            _ => return None,
        };
        Some(Change::Note { seq, job, kind, text })
    }

    fn forget(&mut self) -> Option<Change> {
        let (seq, job) = (self.number()?, JobId::from_bytes(self.take()?));
        let [keeps_id] = self.take()?;
        Some(Change::Forget { seq, job, keeps_id: keeps_id != 0 })
    }

    fn spend(&mut self) -> Option<Change> {
        let (seq, id, job) =
            (self.number()?, JobId::from_bytes(self.take()?), JobId::from_bytes(self.take()?));
        let digest = self.blob()?;
        let digest = if digest.is_empty() { None } else { Some(<[u8; 32]>::try_from(&*digest).ok()?) };
        Some(Change::Spend { id, absorbed: Absorbed { seq, job, digest } })
    }

    fn queue(&mut self) -> Option<Change> {
        let name = self.blob()?;
        let name = semel_core::ident::QueueName::from_stored(str::from_utf8(&name).ok()?);
        let [paused] = self.take()?;
        let mut big = || Some(u64::from_le_bytes(self.take()?));
        let row = QueueRow { name, paused: paused != 0, version: big()? };
        let mut totals = QueueTotals { created: big()?, purged: big()?, ..QueueTotals::default() };
        for count in &mut totals.counts {
            *count = big()?;
        }
        Some(Change::Queue { row, totals })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.rest.first_chunk::<N>()?;
        bytes::Buf::advance(&mut self.rest, N);
        Some(taken)
    }

    fn number(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    fn small(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.number().map(Timestamp::from_micros)
    }

    fn blob(&mut self) -> Option<Bytes> {
        let length = self.small()? as usize;
        (length <= self.rest.len()).then(|| self.rest.split_to(length))
    }
}

struct Fixed {
    id: JobId,
    key: Option<UniqueKey>,
    hold: Hold,
    job_type: i64,
    queue: i64,
    priority: i8,
    max_attempts: u32,
    visibility_ms: u32,
    timeout_ms: u32,
    created_at: Timestamp,
}
