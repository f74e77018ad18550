//! A load: one script.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use redis::Value;
use semel_core::draft::{Document, Full, KeyRead, KeyView, QueueRow, Reads, Snapshot, Spent};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::settings::waiting;
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{UniqueKey, is_kept, leave_out_outlived};
use semel_store::model::deciding;

use crate::error::RedisError;
use crate::head::{self, Reader, Stored, maybe_time};
use crate::request::document_name;
use crate::scripts::Script;
use crate::store::Shared;
use crate::values::{Values, bytes, id, id_of, maybe_bytes, number, pairs};

/// What `HGETALL` says of a queue's counters.
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
    /// Everything `reads` names.
    pub(crate) async fn load(&self, reads: &Reads) -> Result<Snapshot, RedisError> {
        let mut command = self.link.call(Script::Load);
        self.push_time(&mut command);
        let mut ended: HashMap<UniqueKey, bool> = HashMap::new();
        for read in &reads.keys {
            *ended.entry(read.key).or_default() |= read.states.intersects(StateSet::FINISHED);
        }
        let keys: Vec<(UniqueKey, bool)> = ended.into_iter().collect();
        let mut want = |letter: u8, name: &[u8]| {
            let mut wanted = Vec::with_capacity(1 + name.len());
            wanted.push(letter);
            wanted.extend_from_slice(name);
            command.arg(wanted);
        };
        reads.heads.iter().for_each(|id| want(b'H', &id.to_bytes()));
        keys.iter().for_each(|(key, ended)| want(if *ended { b'K' } else { b'k' }, key.as_bytes()));
        reads.queues.iter().for_each(|name| want(b'Q', name.as_str().as_bytes()));
        reads.documents.iter().for_each(|key| want(b'O', &document_name(key)));
        // Last: a whole job takes the place of its head among a key's holders.
        reads.fulls.iter().for_each(|id| want(b'F', &id.to_bytes()));

        let mut answer = Values::of(self.look(command).await?)?;
        let now = self.saw_clock(answer.time()?, answer.time()?);
        let mut snapshot = Snapshot::with_room_for(now, reads);
        for id in &reads.heads {
            let stored = stored(*id, answer.take()?)?.filter(|stored| stored.kept.is_none());
            snapshot.add_head(*id, stored.map(|stored| stored.head));
        }
        for (key, _) in keys {
            snapshot.add_key(key, view(key, answer.take()?, now)?);
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
            snapshot.add_full(*id, row);
            if let Some(spent) = absorbed.or(remembered) {
                snapshot.add_spent(*id, spent);
            }
        }
        Ok(snapshot)
    }
}

/// A head, if there is one.
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

/// A queue's settings.
pub fn queue_row(name: QueueName, bytes: Option<Vec<u8>>) -> Result<QueueRow, RedisError> {
    let Some(bytes) = bytes else { return Ok(QueueRow::fresh(name)) };
    let wrong = RedisError::Answer("a queue's settings are not understood");
    let mut reader = Reader(&bytes);
    let (Some(version), Some([paused, has_settings])) = (reader.take(), reader.take()) else {
        return Err(wrong);
    };
    let Ok(text) = std::str::from_utf8(reader.0) else { return Err(wrong) };
    let settings = (has_settings != 0).then(|| Arc::from(text));
    Ok(QueueRow { name, paused: paused != 0, settings, version: u64::from_be_bytes(version) })
}

/// A queue's counters.
pub fn counters(value: Value) -> Result<Counters, RedisError> {
    let mut counters = Counters::default();
    for (what, n) in pairs(value)? {
        // A job that was counted twice would be a defect, and a count below zero one as well; neither is shown.
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

/// A document.
pub fn document(bytes: &[u8]) -> Result<Document, RedisError> {
    let mut reader = Reader(bytes);
    let (Some(version), Some(due)) = (reader.take(), reader.take()) else {
        return Err(RedisError::Answer("a document is not understood"));
    };
    let text = Bytes::copy_from_slice(reader.0);
    Ok(Document { version: u64::from_be_bytes(version), due: maybe_time(due), text })
}

fn spent(bytes: &[u8]) -> Result<Spent, RedisError> {
    let (job, digest) =
        bytes.split_at_checked(16).ok_or(RedisError::Answer("an absorbed id is not understood"))?;
    let digest = if digest.is_empty() { None } else { Some(digest.try_into()) };
    let digest = digest.transpose().map_err(|_| RedisError::Answer("a digest has 32 bytes"))?;
    Ok(Spent::absorbed_by(id_of(job)?, digest))
}

/// The holders of a key, as a decision may see them.
fn view(key: UniqueKey, value: Value, now: Timestamp) -> Result<KeyView, RedisError> {
    let mut parts = Values::of(value)?;
    let Some(record) = maybe_bytes(parts.take()?)? else {
        let covered = KeyRead { key, states: StateSet::ALL, all: true };
        return Ok(KeyView::new(0, Vec::new(), &covered, false));
    };
    let found = parts.rest();
    // Behind the version and a number, each holder has 16 bytes.
    let with_ended = found.len() * 16 + 12 == record.len();
    let covered = KeyRead { key, states: if with_ended { StateSet::ALL } else { StateSet::LIVE }, all: true };
    let version = Reader(&record).take().map(u64::from_be_bytes);
    let version = version.ok_or(RedisError::Answer("a key's record is not understood"))?;
    let mut holders: Vec<Head> = Vec::new();
    for part in found {
        let mut holder = Values::of(part)?;
        let id = id(holder.take()?)?;
        let Some(stored) = stored(id, holder.take()?)? else { continue };
        if stored.kept.is_none_or(|until| is_kept(until, now)) {
            holders.push(stored.head);
        }
    }
    if with_ended {
        leave_out_outlived(&mut holders);
    }
    let too_many = holders.len() > HOLDERS_PER_KEY_MAX;
    if too_many {
        holders = deciding(holders.iter()).into_iter().cloned().collect();
    }
    Ok(KeyView::new(version, holders, &covered, too_many))
}
