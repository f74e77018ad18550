//! Converts the groups of a commit to columns. Dependencies between groups of the same commit are resolved
//! here; versions of the database's records are compared there.

use std::collections::HashMap;

use semel_core::draft::{Document, DocumentKey, Expect, Group, Record, Write};
use semel_core::event::Event;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use tokio_postgres::types::Type;

use crate::rows::{push_heads, version};
use crate::values::{Id, Params};

/// Advisory locks that guard absent ids and documents: few, as PostgreSQL keeps all locks in shared memory.
const GUARDS: u128 = 256;

/// What earlier groups of the commit do to a record.
#[derive(Default)]
struct Chain {
    /// The last group that relies on it: it depends on all before it, later ones on it and on `since`.
    relies: Option<i32>,
    /// Groups after that one that write the record.
    since: Vec<i32>,
    /// Whether the last group that relies on the record relies on its absence.
    is_absent: bool,
    /// For a job, a queue or a document: its state after these groups.
    becomes: Option<Becomes>,
    /// For a key at version `v`: its version becomes `max(v + more, least)`.
    more: i64,
    least: i64,
}

#[derive(Clone, Copy)]
enum Becomes {
    /// It has this version.
    Version(u64),
    /// It is kept only for its key, at this version if known.
    Remembered(Option<u64>),
    /// It does not exist.
    Gone,
}

/// A job that a group relies on: its version, and whether no job was found where one is kept for its key.
struct SeenJob {
    group: i32,
    id: JobId,
    version: i64,
    none: bool,
}

/// A key that a group relies on: its version after `more` earlier writes, the last making it at least
/// `least`.
struct SeenKey<'a> {
    group: i32,
    key: &'a [u8],
    more: i64,
    least: i64,
    version: i64,
}

/// A queue that a group relies on.
struct SeenQueue<'a> {
    group: i32,
    name: &'a str,
    version: i64,
}

/// A document that a group relies on.
struct SeenDocument<'a> {
    group: i32,
    kind: i16,
    name: &'a str,
    version: i64,
}

/// A new job whose id was chosen by its caller.
struct Chosen {
    group: i32,
    version: i64,
}

/// One group was decided on top of another.
struct OnTop {
    group: i32,
    earlier: i32,
}

/// A write of a head, and until when it is remembered if it is kept only for its key.
struct Written<'a> {
    group: i32,
    is_new: bool,
    until: Option<i64>,
    head: &'a Head,
}

/// A new job's body.
struct Body<'a> {
    group: i32,
    id: JobId,
    body: &'a [u8],
}

/// A note of a job; without a text, its removal.
struct Note<'a> {
    group: i32,
    id: JobId,
    kind: i16,
    text: Option<&'a [u8]>,
}

/// An id absorbed by a job; without a job, the id is free again.
struct Absorbed<'a> {
    group: i32,
    id: JobId,
    job: Option<JobId>,
    digest: Option<&'a [u8]>,
}

/// A job that is removed, and until when it is remembered for its key, if at all.
struct Forgotten {
    group: i32,
    id: JobId,
    until: Option<i64>,
}

/// A queue's row.
struct Settings<'a> {
    group: i32,
    name: &'a str,
    paused: bool,
    settings: Option<&'a str>,
    version: i64,
}

/// A document; without a text, its removal.
struct Paper<'a> {
    group: i32,
    kind: i16,
    name: &'a str,
    version: i64,
    due: Option<i64>,
    text: Option<&'a [u8]>,
}

/// An event.
struct Told<'a> {
    group: i32,
    event: &'a Event,
}

/// The groups of a commit, as columns.
#[derive(Default)]
pub struct Columns<'a> {
    /// The number of groups.
    groups: i32,
    stale: Vec<i32>,
    guards: Vec<i32>,
    owned: Vec<i32>,
    jobs: Vec<SeenJob>,
    keys: Vec<SeenKey<'a>>,
    queues: Vec<SeenQueue<'a>>,
    documents: Vec<SeenDocument<'a>>,
    chosen: Vec<Chosen>,
    order: Vec<OnTop>,
    locked: Vec<&'a [u8]>,
    lookup: Vec<JobId>,
    heads: Vec<Written<'a>>,
    bodies: Vec<Body<'a>>,
    notes: Vec<Note<'a>>,
    spent: Vec<Absorbed<'a>>,
    forgotten: Vec<Forgotten>,
    settings: Vec<Settings<'a>>,
    papers: Vec<Paper<'a>>,
    events: Vec<Told<'a>>,
}

impl<'a> Columns<'a> {
    /// Converts groups to columns.
    pub fn of(groups: &'a [Group]) -> Self {
        let mut columns = Self { groups: i32::try_from(groups.len()).unwrap_or(i32::MAX), ..Self::default() };
        let mut chains: HashMap<Record, Chain> = HashMap::new();
        for (number, group) in (0_i32..).zip(groups) {
            for expect in &group.expect {
                columns.expect(number, group, expect, chains.entry(expect.record.clone()).or_default());
            }
            for (key, began) in &group.began {
                // Compared with the database's version, whatever earlier groups make of it.
                columns.keys.push(SeenKey {
                    group: number,
                    key: key.as_bytes(),
                    more: 0,
                    least: 0,
                    version: version(*began),
                });
            }
            for expect in &group.expect {
                if let Some(chain) = chains.get_mut(&expect.record) {
                    chain.relies = Some(number);
                    chain.is_absent = expect.version == 0;
                    chain.since.clear();
                }
            }
            for write in &group.writes {
                columns.write(number, write, &mut chains);
            }
            columns.events.extend(group.events.iter().map(|event| Told { group: number, event }));
        }
        columns.locked.sort_unstable();
        columns.locked.dedup();
        columns
    }

    fn expect(&mut self, number: i32, group: &Group, expect: &'a Expect, chain: &mut Chain) {
        for earlier in chain.since.iter().chain(&chain.relies) {
            self.order.push(OnTop { group: number, earlier: *earlier });
        }
        let stored = version(expect.version);
        match (&expect.record, chain.becomes) {
            (Record::Key(key), _) => {
                self.locked.push(key.as_bytes());
                self.keys.push(SeenKey {
                    group: number,
                    key: key.as_bytes(),
                    more: chain.more,
                    least: chain.least,
                    version: stored,
                });
            }
            (Record::Job(id), None) => {
                if expect.version == 0 {
                    self.guards.push(guard(*id));
                }
                self.jobs.push(SeenJob {
                    group: number,
                    id: *id,
                    version: stored,
                    none: group.found_none(*id),
                });
            }
            (Record::Queue(name), None) => {
                self.queues.push(SeenQueue { group: number, name: name.as_str(), version: stored });
            }
            (Record::Document(key), None) => {
                if expect.version == 0 {
                    self.guards.push(guard_of_document(key));
                }
                self.documents.push(SeenDocument {
                    group: number,
                    kind: i16::from(key.kind.code()),
                    name: &key.name,
                    version: stored,
                });
            }
            (Record::Job(id), Some(becomes)) => {
                let there = match becomes {
                    Becomes::Version(version) => Some(version),
                    Becomes::Remembered(_) if group.found_none(*id) => Some(0),
                    Becomes::Remembered(version) => version,
                    Becomes::Gone => Some(0),
                };
                if there != Some(expect.version) {
                    self.stale.push(number);
                }
            }
            (Record::Queue(_) | Record::Document(_), Some(becomes)) => {
                let there = match becomes {
                    Becomes::Version(version) => version,
                    Becomes::Remembered(_) | Becomes::Gone => 0,
                };
                if there != expect.version {
                    self.stale.push(number);
                }
            }
        }
    }

    fn write(&mut self, number: i32, write: &'a Write, chains: &mut HashMap<Record, Chain>) {
        let mut becomes = |record: Record, becomes: Option<Becomes>| {
            let chain = chains.entry(record).or_default();
            if chain.since.last() != Some(&number) {
                chain.since.push(number);
            }
            chain.becomes = becomes.or(chain.becomes);
        };
        match write {
            Write::Insert { head, body, minted } => {
                if !minted {
                    self.chosen.push(Chosen { group: number, version: version(head.version) });
                    // Stale if this commit changes or removes that job; `commit` checks those gone before.
                    if chains.get(&Record::Job(head.id)).is_some_and(|chain| chain.becomes.is_some()) {
                        self.stale.push(number);
                    }
                }
                self.head(number, head, true, chains);
                self.bodies.push(Body { group: number, id: head.id, body });
            }
            Write::Update { head } => {
                if head.key.is_none() {
                    self.lookup.push(head.id);
                }
                self.head(number, head, false, chains);
            }
            Write::Note { job, kind, text } => {
                becomes(Record::Job(*job), None);
                self.notes.push(Note {
                    group: number,
                    id: *job,
                    kind: i16::from(kind.code()),
                    text: text.as_deref(),
                });
            }
            Write::Spend { id, job, digest } => {
                becomes(Record::Job(*id), Some(Becomes::Version(1)));
                becomes(Record::Job(*job), None);
                self.owned.push(guard(*id));
                self.spent.push(Absorbed {
                    group: number,
                    id: *id,
                    job: Some(*job),
                    digest: digest.as_ref().map(|digest| &digest[..]),
                });
            }
            Write::Free { id } => {
                becomes(Record::Job(*id), Some(Becomes::Gone));
                self.spent.push(Absorbed { group: number, id: *id, job: None, digest: None });
            }
            Write::Forget { job, remember } => {
                let chain = chains.entry(Record::Job(*job)).or_default();
                chain.since.push(number);
                chain.becomes = Some(match (remember, chain.becomes) {
                    (None, _) => Becomes::Gone,
                    (Some(_), Some(Becomes::Version(version))) => Becomes::Remembered(Some(version)),
                    (Some(_), _) => Becomes::Remembered(None),
                });
                self.lookup.push(*job);
                self.forgotten.push(Forgotten {
                    group: number,
                    id: *job,
                    until: remember.map(Timestamp::as_micros),
                });
            }
            Write::Queue { row } => {
                becomes(Record::Queue(row.name.clone()), Some(Becomes::Version(row.version)));
                self.settings.push(Settings {
                    group: number,
                    name: row.name.as_str(),
                    paused: row.paused,
                    settings: row.settings.as_deref(),
                    version: version(row.version),
                });
            }
            Write::Document { key, document } => self.document(number, key, document.as_ref(), chains),
        }
    }

    fn document(
        &mut self,
        number: i32,
        key: &'a DocumentKey,
        document: Option<&'a Document>,
        chains: &mut HashMap<Record, Chain>,
    ) {
        let chain = chains.entry(Record::Document(key.clone())).or_default();
        // If this group saw that the document exists, the row itself is locked instead.
        if chain.relies != Some(number) || chain.is_absent {
            self.owned.push(guard_of_document(key));
        }
        chain.since.push(number);
        let becomes = document.map(|document| Becomes::Version(document.version));
        chain.becomes = Some(becomes.unwrap_or(Becomes::Gone));
        self.papers.push(Paper {
            group: number,
            kind: i16::from(key.kind.code()),
            name: &key.name,
            version: document.map_or(0, |document| version(document.version)),
            due: document.and_then(|document| document.due).map(Timestamp::as_micros),
            text: document.map(|document| &document.text[..]),
        });
    }

    fn head(&mut self, number: i32, head: &'a Head, is_new: bool, chains: &mut HashMap<Record, Chain>) {
        let chain = chains.entry(Record::Job(head.id)).or_default();
        chain.since.push(number);
        chain.becomes = Some(Becomes::Version(head.version));
        if let Some(key) = &head.key {
            let chain = chains.entry(Record::Key(*key)).or_default();
            chain.since.push(number);
            chain.more += 1;
            chain.least = (chain.least + 1).max(version(head.version));
            self.locked.push(UniqueKey::as_bytes(key));
        }
        self.heads.push(Written { group: number, is_new, until: remembered_until(head), head });
    }

    /// Drops the guards of absent records: a caller's transaction would hold them until its end. There the
    /// rows must do: if an id is stored twice at the same moment, one of the two is undone.
    pub fn without_guards(mut self) -> Self {
        self.guards.clear();
        self.owned.clear();
        self
    }

    /// Adds the parameters of `commit` after those of the time: `mark` identifies this commit, and `waits`
    /// says whether it waits for locks. Lists are named as in the function: swapped ones would go unnoticed.
    pub fn push(self, mark: Id, waits: bool, params: &mut Params<'a>) {
        params.named("p_mark").push(mark, Type::UUID);
        params.named("p_waits").push(waits, Type::BOOL);
        params.named("p_groups").push(self.groups, Type::INT4);
        params.named("p_stale").places(self.stale);
        params.named("p_guards").places(self.guards);
        params.named("p_owned").places(self.owned);
        params.named("ej_group").places(each(&self.jobs, |seen| seen.group));
        params.named("ej_id").ids(each(&self.jobs, |seen| seen.id));
        params.named("ej_version").numbers(each(&self.jobs, |seen| seen.version));
        params.named("ej_none").flags(each(&self.jobs, |seen| seen.none));
        params.named("ek_group").places(each(&self.keys, |seen| seen.group));
        params.named("ek_key").blobs(each(&self.keys, |seen| seen.key));
        params.named("ek_more").numbers(each(&self.keys, |seen| seen.more));
        params.named("ek_least").numbers(each(&self.keys, |seen| seen.least));
        params.named("ek_version").numbers(each(&self.keys, |seen| seen.version));
        params.named("eq_group").places(each(&self.queues, |seen| seen.group));
        params.named("eq_name").texts(each(&self.queues, |seen| seen.name));
        params.named("eq_version").numbers(each(&self.queues, |seen| seen.version));
        params.named("ed_group").places(each(&self.documents, |seen| seen.group));
        params.named("ed_kind").codes(each(&self.documents, |seen| seen.kind));
        params.named("ed_name").texts(each(&self.documents, |seen| seen.name));
        params.named("ed_version").numbers(each(&self.documents, |seen| seen.version));
        params.named("c_group").places(each(&self.chosen, |chosen| chosen.group));
        params.named("c_version").numbers(each(&self.chosen, |chosen| chosen.version));
        params.named("p_after").places(each(&self.order, |order| order.group));
        params.named("p_before").places(each(&self.order, |order| order.earlier));
        params.named("p_keys").blobs(self.locked);
        params.named("p_lookup").ids(self.lookup);
        params.named("h_group").places(each(&self.heads, |written| written.group));
        params.named("h_insert").flags(each(&self.heads, |written| written.is_new));
        params.named("h_until").maybe_numbers(each(&self.heads, |written| written.until));
        push_heads(params, &each(&self.heads, |written| written.head));
        params.named("b_group").places(each(&self.bodies, |body| body.group));
        params.named("b_id").ids(each(&self.bodies, |body| body.id));
        params.named("b_body").blobs(each(&self.bodies, |body| body.body));
        params.named("n_group").places(each(&self.notes, |note| note.group));
        params.named("n_id").ids(each(&self.notes, |note| note.id));
        params.named("n_kind").codes(each(&self.notes, |note| note.kind));
        params.named("n_text").maybe_blobs(each(&self.notes, |note| note.text));
        params.named("s_group").places(each(&self.spent, |spent| spent.group));
        params.named("s_id").ids(each(&self.spent, |spent| spent.id));
        params.named("s_job").maybe_ids(each(&self.spent, |spent| spent.job));
        params.named("s_digest").maybe_blobs(each(&self.spent, |spent| spent.digest));
        params.named("f_group").places(each(&self.forgotten, |gone| gone.group));
        params.named("f_id").ids(each(&self.forgotten, |gone| gone.id));
        params.named("f_until").maybe_numbers(each(&self.forgotten, |gone| gone.until));
        params.named("q_group").places(each(&self.settings, |row| row.group));
        params.named("q_name").texts(each(&self.settings, |row| row.name));
        params.named("q_paused").flags(each(&self.settings, |row| row.paused));
        params.named("q_settings").maybe_texts(each(&self.settings, |row| row.settings));
        params.named("q_version").numbers(each(&self.settings, |row| row.version));
        params.named("d_group").places(each(&self.papers, |paper| paper.group));
        params.named("d_kind").codes(each(&self.papers, |paper| paper.kind));
        params.named("d_name").texts(each(&self.papers, |paper| paper.name));
        params.named("d_version").numbers(each(&self.papers, |paper| paper.version));
        params.named("d_due").maybe_numbers(each(&self.papers, |paper| paper.due));
        params.named("d_text").maybe_blobs(each(&self.papers, |paper| paper.text));
        params.named("v_group").places(each(&self.events, |told| told.group));
        params.named("v_kind").codes(each(&self.events, |told| i16::from(told.event.kind.code())));
        params.named("v_job").ids(each(&self.events, |told| told.event.job));
        params.named("v_type").texts(each(&self.events, |told| told.event.job_type.as_str()));
        params.named("v_queue").texts(each(&self.events, |told| told.event.queue.as_str()));
        params.named("v_attempt").numbers(each(&self.events, |told| i64::from(told.event.attempt)));
        params.named("v_amount").numbers(each(&self.events, |told| i64::from(told.event.amount)));
    }
}

/// Collects one column of rows.
fn each<'r, R, T>(rows: &'r [R], column: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(column).collect()
}

/// The guard of an absent id.
fn guard(id: JobId) -> i32 {
    let folded = u128::from_be_bytes(id.to_bytes());
    i32::try_from((folded ^ folded >> 64 ^ folded >> 22) % GUARDS).unwrap_or(0)
}

/// The guard of an absent document: FNV-1a of its kind and name.
fn guard_of_document(key: &DocumentKey) -> i32 {
    let bytes = std::iter::once(key.kind.code()).chain(key.name.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    i32::try_from(u128::from(hash) % GUARDS).unwrap_or(0)
}

/// Until when a head that is kept only for its key is remembered; `None` for any other head.
fn remembered_until(head: &Head) -> Option<i64> {
    head.remembered_until().map(Timestamp::as_micros)
}
