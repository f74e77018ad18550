//! Loads: one statement and one snapshot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use semel_core::draft::{Document, DocumentKey, Full, KeyRead, KeyView, QueueRow, Reads, Snapshot, Spent};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::{Head, NoteKind};
use semel_core::settings::waiting;
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;

use crate::connect;
use crate::documents;
use crate::durability::Durability;
use crate::error::PostgresError;
use crate::rows;
use crate::session::Fields;
use crate::store::Shared;
use crate::values::{Id, Params};

/// The first column of a head in the rows returned by `look`.
const HEAD: usize = 7;

/// Flags by which `look` describes the database: its commits wait for a standby; it takes no writes, so it
/// may be behind what others were told; its isolation level is too strict, so that transactions do not see
/// what they waited for; its commits reach the disk after they are answered, or whenever the system likes.
pub(crate) const AWAITS_STANDBY: i16 = 1;
const TAKES_NO_WRITES: i16 = 2;
const IS_TOO_STRICT: i16 = 4;
pub(crate) const COMMITS_LAZILY: i16 = 8;
pub(crate) const SYNCS_NOTHING: i16 = 16;

/// The rows that `look` returned, sorted by kind.
#[derive(Default)]
struct Answered {
    now: Timestamp,
    /// Heads, and until when each is kept if it is kept only for its key.
    heads: HashMap<JobId, (Head, Option<Timestamp>)>,
    fulls: HashMap<JobId, Full>,
    absorbed: HashMap<JobId, Spent>,
    keys: HashMap<UniqueKey, Held>,
    queues: HashMap<QueueName, QueueRow>,
    counts: HashMap<QueueName, [u64; State::ALL.len()]>,
    documents: HashMap<DocumentKey, Document>,
}

/// A load, as a statement.
pub(crate) struct Question<'a> {
    pub(crate) sql: String,
    pub(crate) params: Params<'a>,
    /// The keys asked for, and whether ended holders are wanted.
    pub(crate) keys: HashMap<UniqueKey, bool>,
}

#[derive(Default)]
struct Held {
    version: u64,
    holders: Vec<JobId>,
}

impl Shared {
    /// Loads everything that `reads` names.
    pub(crate) async fn load(&self, reads: &Reads) -> Result<Snapshot, PostgresError> {
        let question = self.question(reads);
        let rows = self.look(&question.sql, &question.params).await?;
        // The first row describes the database. Only this session's counts, as a caller's may have other
        // settings.
        let first = rows.first().ok_or(PostgresError::Answer("load"))?;
        let state = first.try_get::<_, Option<i16>>(4)?.unwrap_or(0);
        if let Some(since) = first.try_get::<_, Option<&str>>(6)? {
            self.was_answered_by(since);
        }
        if state & TAKES_NO_WRITES != 0 {
            return Err(PostgresError::ReadOnly);
        }
        if state & IS_TOO_STRICT != 0 {
            return Err(connect::too_strict("stricter ones"));
        }
        self.awaits_standby.store(state & AWAITS_STANDBY != 0, Ordering::Release);
        self.commits_lazily.store(state & COMMITS_LAZILY != 0, Ordering::Release);
        self.is_as_durable_as(Durability::by(state, self.address.fails_over()));
        self.answer(reads, &question.keys, &rows)
    }

    /// Builds the snapshot from the rows that answer the question.
    pub(crate) fn answer(
        &self,
        reads: &Reads,
        keys: &HashMap<UniqueKey, bool>,
        rows: &[impl Fields],
    ) -> Result<Snapshot, PostgresError> {
        let mut answered = Answered::default();
        for row in rows {
            answered.take(row, self)?;
        }
        let mut snapshot = Snapshot::with_room_for(answered.now, reads);
        for id in &reads.heads {
            let head = answered.heads.get(id).filter(|(_, kept)| kept.is_none());
            snapshot.add_head(*id, head.map(|(head, _)| head.clone()));
        }
        for (key, with_ended) in keys {
            snapshot.add_key(*key, answered.view(*key, *with_ended));
        }
        for name in &reads.queues {
            let row = answered.queues.get(name).cloned();
            let waiting = answered.counts.get(name).map_or(0, waiting);
            snapshot.add_queue(row.unwrap_or_else(|| QueueRow::fresh(name.clone())), waiting);
        }
        for key in &reads.documents {
            snapshot.add_document(key.clone(), answered.documents.get(key).cloned());
        }
        for id in &reads.fulls {
            let head = answered.heads.get(id);
            let full = answered.fulls.get(id).filter(|_| head.is_some_and(|(_, kept)| kept.is_none()));
            let row = head.zip(full).map(|((head, _), full)| (head.clone(), full.clone()));
            // If two transactions used an id at the same moment, one for a job and one for an absorbed
            // request, it is the job's, as for a commit.
            let spent = match head {
                Some((head, _)) => row.is_none().then(|| Spent::remembered(*id, head.version)),
                None => answered.absorbed.get(id).copied(),
            };
            snapshot.add_full(*id, row.clone());
            if let Some(spent) = spent {
                snapshot.add_spent(*id, spent);
            }
        }
        Ok(snapshot)
    }

    /// Returns the statement that loads what `reads` names.
    pub(crate) fn question<'a>(&self, reads: &'a Reads) -> Question<'a> {
        let mut params = Params::sparse();
        self.push_time(&mut params);
        let keys = push_reads(reads, &mut params);
        let sql = format!("SELECT * FROM {}({})", self.name("look"), params.marks());
        Question { sql, params, keys }
    }
}

/// Adds the parameters of `look` after those of the time. Returns for each key whether ended holders are
/// wanted.
pub(crate) fn push_reads<'a>(reads: &'a Reads, params: &mut Params<'a>) -> HashMap<UniqueKey, bool> {
    let ended = reads.keys_once();
    params.named("p_heads").ids(reads.heads.clone());
    let mut fulls = reads.fulls.clone();
    fulls.sort_unstable();
    fulls.dedup();
    params.named("p_fulls").ids(fulls);
    params.named("p_keys").blobs(ended.keys().map(|key| &key.as_bytes()[..]).collect());
    params.named("p_ended").flags(ended.values().copied().collect());
    let mut queues: Vec<&str> = reads.queues.iter().map(QueueName::as_str).collect();
    queues.sort_unstable();
    queues.dedup();
    params.named("p_queues").texts(queues);
    params.named("p_kinds").codes(reads.documents.iter().map(|key| i16::from(key.kind.code())).collect());
    params.named("p_names").texts(reads.documents.iter().map(|key| &*key.name).collect());
    ended.into_iter().map(|(key, with_ended)| (*key, with_ended)).collect()
}

impl Answered {
    fn take(&mut self, row: &impl Fields, shared: &Shared) -> Result<(), PostgresError> {
        let version = || Ok::<u64, PostgresError>(u64::try_from(row.field::<i64>(2)?).unwrap_or(0));
        match row.field::<i16>(0)? {
            0 => self.now = shared.saw_clock(row.field(2)?, row.field(3)?),
            1 => {
                let head = rows::short_head(row, HEAD)?;
                let until = Timestamp::from_micros(row.field(3)?);
                let kept = (row.field::<i64>(2)? == 1).then_some(until);
                self.heads.insert(head.id, (head, kept));
            }
            2 => {
                let body: &[u8] = row.field(5)?;
                self.fulls.entry(rows::id(row, 1)?).or_default().body = bytes::Bytes::copy_from_slice(body);
            }
            3 => {
                let (id, text): (_, &[u8]) = (rows::id(row, 1)?, row.field(5)?);
                let kind = u8::try_from(row.field::<i64>(2)?).ok().and_then(NoteKind::from_code);
                let kind = kind.ok_or(PostgresError::Row { id, what: "no such note" })?;
                self.fulls.entry(id).or_default().notes.push((kind, bytes::Bytes::copy_from_slice(text)));
            }
            4 => {
                let (id, job) = (rows::id(row, HEAD)?, rows::id(row, 1)?);
                let digest: Option<&[u8]> = row.field(5)?;
                let digest = digest.map(<[u8; 32]>::try_from).transpose();
                let digest =
                    digest.map_err(|_| PostgresError::Row { id, what: "a digest is not of 32 bytes" })?;
                self.absorbed.insert(id, Spent::absorbed_by(job, digest));
            }
            5 => {
                let held = self.keys.entry(key(row)?).or_default();
                held.version = version()?;
                if row.field::<Option<Id>>(HEAD)?.is_some() {
                    let head = rows::short_head(row, HEAD)?;
                    held.holders.push(head.id);
                    let until = Timestamp::from_micros(row.field(3)?);
                    let kept = (row.field::<i16>(4)? == 1).then_some(until);
                    self.heads.insert(head.id, (head, kept));
                }
            }
            7 => {
                let name = QueueName::from_stored(row.field(6)?);
                let settings = row.field::<Option<&[u8]>>(5)?.map(std::str::from_utf8).transpose();
                let settings =
                    settings.map_err(|_| PostgresError::Answer("a queue's settings are no text"))?;
                let row = QueueRow {
                    name: name.clone(),
                    paused: row.field::<i16>(4)? != 0,
                    settings: settings.map(Arc::from),
                    version: version()?,
                };
                self.queues.insert(name, row);
            }
            8 => {
                let counts = self.counts.entry(QueueName::from_stored(row.field(6)?)).or_default();
                let what = usize::try_from(row.field::<i16>(4)?).unwrap_or(usize::MAX);
                // Counters that are not about a state have higher numbers than any state.
                if let Some(count) = counts.get_mut(what) {
                    *count = version()?;
                }
            }
            9 => {
                let key = DocumentKey::new(documents::kind(row.field(4)?)?, row.field::<&str>(6)?);
                let document = Document {
                    version: version()?,
                    due: row.field::<Option<i64>>(3)?.map(Timestamp::from_micros),
                    text: bytes::Bytes::copy_from_slice(row.field(5)?),
                };
                self.documents.insert(key, document);
            }
            _ => return Err(PostgresError::Answer("look")),
        }
        Ok(())
    }

    /// Returns the view of a key's holders that a decision gets.
    fn view(&self, key: UniqueKey, with_ended: bool) -> KeyView {
        let states = if with_ended { StateSet::ALL } else { StateSet::LIVE };
        let covered = KeyRead { key, states, all: true };
        let Some(held) = self.keys.get(&key) else { return KeyView::new(0, Vec::new(), &covered, false) };
        // If there are more live ones than a view may hold, the database sends at least one more, and all
        // that decide.
        let found = held.holders.iter().filter_map(|id| self.heads.get(id)).cloned();
        KeyView::of(held.version, found, &covered, self.now)
    }
}

fn key(row: &impl Fields) -> Result<UniqueKey, PostgresError> {
    let bytes: &[u8] = row.field(5)?;
    let bytes = bytes.try_into().map_err(|_| PostgresError::Answer("a key is not of 32 bytes"))?;
    Ok(UniqueKey::from_bytes(bytes))
}
