//! Loads: everything that a decision reads, by one script.

use std::sync::Arc;

use bytes::Bytes;
use redis::Value;
use semel_core::draft::{Document, Full, KeyRead, KeyView, QueueRow, Reads, Snapshot, Spent};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::NoteKind;
use semel_core::settings::waiting;
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;

use crate::error::RedisError;
use crate::head::{self, Reader, Stored, maybe_time};
use crate::request::{count, document_name};
use crate::scripts::Script;
use crate::store::Shared;
use crate::values::{Values, bytes, id_of, list, maybe_bytes, number, pairs};

/// Up to this many ended holders of a key are loaded even where none are asked for.
const ENDED_FEW: usize = 8;

/// A queue's counters, as `HGETALL` answers them.
#[derive(Debug, Default)]
pub struct Counters {
    /// Jobs by state number.
    pub by_state: [u64; State::ALL.len()],
    /// Jobs ever admitted.
    pub created: u64,
    /// Jobs whose bodies were deleted.
    pub purged: u64,
}

impl Shared {
    /// Loads everything that `reads` names.
    pub(crate) async fn load(&self, reads: &Reads) -> Result<Snapshot, RedisError> {
        let keys: Vec<(UniqueKey, bool)> =
            reads.keys_once().into_iter().map(|(key, ended)| (*key, ended)).collect();
        let Loaded { now, heads, found, mut answer } = self.ask_for(reads, &keys, &[]).await?;
        let mut snapshot = Snapshot::with_room_for(now, reads);
        for (id, value) in reads.heads.iter().zip(heads) {
            let stored = stored(*id, value)?.filter(|stored| stored.kept.is_none());
            snapshot.add_head(*id, stored.map(|stored| stored.head));
        }
        for ((key, _), found) in keys.into_iter().zip(found) {
            snapshot.add_key(key, view(key, found, now));
        }
        for id in &reads.fulls {
            let mut parts = Values::of(answer.take()?)?;
            let stored = stored(*id, parts.take()?)?;
            let (body, notes) = (maybe_bytes(parts.take()?)?, notes(parts.take()?)?);
            let absorbed = maybe_bytes(parts.take()?)?.map(|bytes| spent(&bytes)).transpose()?;
            let row = match (&stored, body) {
                (Some(Stored { head, kept: None }), Some(body)) => {
                    Some((head.clone(), Full { body: Bytes::from(body), notes }))
                }
                _ => None,
            };
            let remembered = stored.filter(|_| row.is_none());
            let remembered = remembered.map(|stored| Spent::remembered(*id, stored.head.version));
            // The full job replaces its head.
            snapshot.add_full(*id, row);
            if let Some(spent) = absorbed.or(remembered) {
                snapshot.add_spent(*id, spent);
            }
        }
        for name in &reads.queues {
            let mut parts = Values::of(answer.take()?)?;
            let row = queue_row(name.clone(), maybe_bytes(parts.take()?)?)?;
            snapshot.add_queue(row, waiting(&counters(parts.take()?)?.by_state));
        }
        for key in &reads.documents {
            snapshot.add_document(
                key.clone(),
                maybe_bytes(answer.take()?)?.map(|bytes| document(&bytes)).transpose()?,
            );
        }
        Ok(snapshot)
    }

    /// The full name of a record of the kind `letter`.
    pub(crate) fn record(&self, letter: u8, rest: &[u8]) -> Vec<u8> {
        [self.link.base().as_bytes(), &[letter], rest].concat()
    }

    /// Asks for what `reads` names, and for keys: `true` asks for all ended holders, however many there are.
    /// In a divided store the answer ends with where the ids of `forwards` lead.
    pub(crate) async fn ask_for(
        &self,
        reads: &Reads,
        keys: &[(UniqueKey, bool)],
        forwards: &[JobId],
    ) -> Result<Loaded, RedisError> {
        let is_short = reads.is_only_keys() && forwards.is_empty() && !keys.is_empty();
        if is_short && let Some(loaded) = self.ask_shortly(keys).await? {
            return Ok(loaded);
        }
        let mut command = self.link.call(Script::Load);
        self.push_time(&mut command);
        let counts =
            [reads.heads.len(), keys.len(), reads.fulls.len(), reads.queues.len(), reads.documents.len()];
        command.arg(counts.into_iter().flat_map(count).collect::<Vec<u8>>());
        command.arg(keys.iter().map(|(_, ended)| if *ended { b'K' } else { b'k' }).collect::<Vec<u8>>());
        for id in &reads.heads {
            command.arg(self.record(b'h', &id.to_bytes()));
        }
        for (key, _) in keys {
            command.arg(self.record(b'k', key.as_bytes()));
        }
        for id in &reads.fulls {
            command.arg(&id.to_bytes()[..]);
        }
        for name in &reads.queues {
            command.arg(name.as_str());
        }
        for key in &reads.documents {
            command.arg(document_name(key));
        }
        for id in forwards {
            command.arg(&id.to_bytes()[..]);
        }
        let mut answer = Values::of(self.look(command).await?)?;
        let now = self.saw_clock(answer.time()?, answer.time()?);
        let heads = list(answer.take()?)?;
        let (records, mut holders) = (list(answer.take()?)?, Values::of(answer.take()?)?);
        if heads.len() != reads.heads.len() || records.len() != keys.len() {
            return Err(RedisError::Answer("other records than were asked for"));
        }
        let mut found = Vec::with_capacity(keys.len());
        for (record, (_, with_ended)) in records.into_iter().zip(keys) {
            let record = maybe_bytes(record)?;
            found.push(record.map(|record| Held::of(&record, *with_ended, &mut holders)).transpose()?);
        }
        if is_short {
            self.shortcut.learn(keys, &found);
        }
        Ok(Loaded { now, heads, found, answer })
    }
}

/// What is stored of the records that a load asked for.
pub struct Loaded {
    /// The store's time.
    pub(crate) now: Timestamp,
    pub(crate) heads: Vec<Value>,
    /// The records of the keys, in order.
    pub(crate) found: Vec<Option<Held>>,
    /// The rest of the answer, in the order in which it was asked for.
    pub(crate) answer: Values,
}

/// A key's record, decoded.
pub struct KeyRecord<'a> {
    /// Its version.
    pub(crate) version: u64,
    /// How many holders are live; they come first.
    live: usize,
    /// The ids of the holders.
    pub(crate) ids: &'a [[u8; 16]],
}

impl<'a> KeyRecord<'a> {
    /// Decodes a key's record.
    pub fn of(record: &'a [u8]) -> Result<Self, RedisError> {
        let mut reader = Reader(record);
        let version = reader.take().map(u64::from_be_bytes);
        let live = reader.small().and_then(|live| usize::try_from(live).ok());
        match (version, live, reader.0.as_chunks::<16>()) {
            (Some(version), Some(live), (ids, [])) if live <= ids.len() => Ok(Self { version, live, ids }),
            _ => Err(RedisError::Answer("a key's record cannot be read")),
        }
    }
}

/// A key's record, with the heads of its holders.
pub struct Held {
    pub(crate) version: u64,
    /// Whether all ended holders are included.
    pub(crate) with_ended: bool,
    /// The holders.
    pub(crate) holders: Vec<Stored>,
}

impl Held {
    /// From a key's record, taking the heads of its holders off `heads`.
    fn of(record: &[u8], ended_are_wanted: bool, heads: &mut Values) -> Result<Self, RedisError> {
        let KeyRecord { version, live, ids } = KeyRecord::of(record)?;
        // As the script decides: where there are many ended holders, only a load that asks for them gets any.
        let with_ended = ended_are_wanted || ids.len() - live <= ENDED_FEW;
        let ids = if with_ended { ids } else { &ids[..live] };
        let mut holders = Vec::with_capacity(ids.len());
        for id in ids {
            holders.extend(stored(JobId::from_bytes(*id), heads.take()?)?);
        }
        Ok(Self { version, with_ended, holders })
    }
}

/// The head of a job, if there is one.
pub fn stored(id: JobId, value: Value) -> Result<Option<Stored>, RedisError> {
    maybe_bytes(value)?.map(|bytes| head::read(id, &bytes).ok_or(RedisError::Head { id })).transpose()
}

/// A job's notes, in the order of their kinds.
pub fn notes(value: Value) -> Result<Vec<(NoteKind, Bytes)>, RedisError> {
    let mut notes = Vec::new();
    for (kind, text) in pairs(value)? {
        let kind = bytes(kind)?.first().copied().and_then(NoteKind::from_code);
        notes.push((kind.ok_or(RedisError::Answer("no such note"))?, Bytes::from(bytes(text)?)));
    }
    notes.sort_unstable_by_key(|(kind, _)| *kind);
    Ok(notes)
}

/// Decodes a queue's row; without a record, a fresh one.
pub fn queue_row(name: QueueName, bytes: Option<Vec<u8>>) -> Result<QueueRow, RedisError> {
    let Some(bytes) = bytes else { return Ok(QueueRow::fresh(name)) };
    let wrong = RedisError::Answer("a queue's settings cannot be read");
    let mut reader = Reader(&bytes);
    let (Some(version), Some([paused, has_settings])) = (reader.take(), reader.take()) else {
        return Err(wrong);
    };
    let Ok(text) = std::str::from_utf8(reader.0) else { return Err(wrong) };
    let settings = (has_settings != 0).then(|| Arc::from(text));
    Ok(QueueRow { name, paused: paused != 0, settings, version: u64::from_be_bytes(version) })
}

/// Decodes a queue's counters.
pub fn counters(value: Value) -> Result<Counters, RedisError> {
    let mut counters = Counters::default();
    for (what, n) in pairs(value)? {
        // A negative count would be a defect; it is shown as zero.
        let n = u64::try_from(number::<i64>(n)?).unwrap_or(0);
        match &bytes(what)?[..] {
            b"c" => counters.created = n,
            b"p" => counters.purged = n,
            state => {
                let state = std::str::from_utf8(state).ok().and_then(|state| state.parse::<usize>().ok());
                let count = state.and_then(|state| counters.by_state.get_mut(state));
                *count.ok_or(RedisError::Answer("no such counter"))? = n;
            }
        }
    }
    Ok(counters)
}

/// Decodes a document.
pub fn document(bytes: &[u8]) -> Result<Document, RedisError> {
    let mut reader = Reader(bytes);
    let (Some(version), Some(due)) = (reader.take(), reader.take()) else {
        return Err(RedisError::Answer("a document cannot be read"));
    };
    let text = Bytes::copy_from_slice(reader.0);
    Ok(Document { version: u64::from_be_bytes(version), due: maybe_time(due), text })
}

/// Decodes which job absorbed a request's id.
pub fn spent(bytes: &[u8]) -> Result<Spent, RedisError> {
    let (job, digest) =
        bytes.split_at_checked(16).ok_or(RedisError::Answer("an absorbed id cannot be read"))?;
    let digest = if digest.is_empty() { None } else { Some(digest.try_into()) };
    let digest = digest.transpose().map_err(|_| RedisError::Answer("a digest has 32 bytes"))?;
    Ok(Spent::absorbed_by(id_of(job)?, digest))
}

/// The holders of a key, as a decision may see them.
pub fn view(key: UniqueKey, found: Option<Held>, now: Timestamp) -> KeyView {
    let Some(Held { version, with_ended, holders }) = found else {
        let covered = KeyRead { key, states: StateSet::ALL, all: true };
        return KeyView::new(0, Vec::new(), &covered, false);
    };
    let covered = KeyRead { key, states: if with_ended { StateSet::ALL } else { StateSet::LIVE }, all: true };
    let found = holders.into_iter().map(|stored| (stored.head, stored.kept));
    KeyView::of(version, found, &covered, now)
}
