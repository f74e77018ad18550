//! The groups of a commit as columns. What one group relies on of another of the same commit is worked out here; what it
//! relies on of the database, there.

use std::collections::HashMap;

use semel_core::draft::{DocumentKey, Expect, Group, Record, Write};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;

use crate::rows::{push_heads, version};
use crate::values::Params;

/// Guards of absent ids and documents: few, because the database keeps each lock in memory that all connections share.
const GUARDS: u128 = 256;

/// What earlier groups of the commit do to a record.
#[derive(Default)]
struct Chain {
    /// The last group that relies on it: it goes with every group before it that is not in `since`.
    relies: Option<i32>,
    /// Groups after that which write it.
    since: Vec<i32>,
    /// The last group that relies on it does so on there being none.
    is_absent: bool,
    /// Of a job, a queue or a document: what becomes of it.
    becomes: Option<Becomes>,
    /// Of a key at version `v`: it becomes `max(v + more, least)`.
    more: i64,
    least: i64,
}

#[derive(Clone, Copy)]
enum Becomes {
    /// It has this version.
    Version(u64),
    /// It is kept for its key alone, at its version if that is known.
    Remembered(Option<u64>),
    /// There is none.
    Gone,
}

/// The groups of a commit, taken apart.
#[derive(Default)]
#[expect(
    clippy::type_complexity,
    reason = "a list for each column, in the order of the function's parameters"
)]
pub struct Columns<'a> {
    stale: Vec<i32>,
    guards: Vec<i32>,
    owned: Vec<i32>,
    jobs: (Vec<i32>, Vec<JobId>, Vec<i64>, Vec<bool>),
    keys: (Vec<i32>, Vec<&'a [u8]>, Vec<i64>, Vec<i64>, Vec<i64>),
    queues: (Vec<i32>, Vec<&'a str>, Vec<i64>),
    documents: (Vec<i32>, Vec<i16>, Vec<&'a str>, Vec<i64>),
    chosen: (Vec<i32>, Vec<i64>),
    order: (Vec<i32>, Vec<i32>),
    locked: Vec<&'a [u8]>,
    lookup: Vec<JobId>,
    heads: (Vec<i32>, Vec<bool>, Vec<Option<i64>>, Vec<&'a Head>),
    bodies: (Vec<i32>, Vec<JobId>, Vec<&'a [u8]>),
    notes: (Vec<i32>, Vec<JobId>, Vec<i16>, Vec<Option<&'a [u8]>>),
    spent: (Vec<i32>, Vec<JobId>, Vec<Option<JobId>>, Vec<Option<&'a [u8]>>),
    forgotten: (Vec<i32>, Vec<JobId>, Vec<Option<i64>>),
    settings: (Vec<i32>, Vec<&'a str>, Vec<bool>, Vec<Option<&'a str>>, Vec<i64>),
    papers: (Vec<i32>, Vec<i16>, Vec<&'a str>, Vec<i64>, Vec<Option<i64>>, Vec<Option<&'a [u8]>>),
    events: (Vec<i32>, Vec<i16>, Vec<JobId>, Vec<&'a str>, Vec<&'a str>, Vec<i64>, Vec<i64>),
}

impl<'a> Columns<'a> {
    /// Takes groups apart.
    pub fn of(groups: &'a [Group]) -> Self {
        let mut columns = Self::default();
        let mut chains: HashMap<Record, Chain> = HashMap::new();
        for (number, group) in (0_i32..).zip(groups) {
            for expect in &group.expect {
                columns.expect(number, group, expect, chains.entry(expect.record.clone()).or_default());
            }
            for (key, began) in &group.began {
                // As the database has it, whatever earlier groups make of it.
                columns.keys.0.push(number);
                columns.keys.1.push(key.as_bytes());
                columns.keys.2.push(0);
                columns.keys.3.push(0);
                columns.keys.4.push(version(*began));
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
            for event in &group.events {
                columns.events.0.push(number);
                columns.events.1.push(i16::from(event.kind.code()));
                columns.events.2.push(event.job);
                columns.events.3.push(event.job_type.as_str());
                columns.events.4.push(event.queue.as_str());
                columns.events.5.push(i64::from(event.attempt));
                columns.events.6.push(i64::from(event.amount));
            }
        }
        columns.locked.sort_unstable();
        columns.locked.dedup();
        columns
    }

    fn expect(&mut self, number: i32, group: &Group, expect: &'a Expect, chain: &mut Chain) {
        for earlier in chain.since.iter().chain(&chain.relies) {
            self.order.0.push(number);
            self.order.1.push(*earlier);
        }
        let stored = version(expect.version);
        match (&expect.record, chain.becomes) {
            (Record::Key(key), _) => {
                self.locked.push(key.as_bytes());
                self.keys.0.push(number);
                self.keys.1.push(key.as_bytes());
                self.keys.2.push(chain.more);
                self.keys.3.push(chain.least);
                self.keys.4.push(stored);
            }
            (Record::Job(id), None) => {
                if expect.version == 0 {
                    self.guards.push(guard(*id));
                }
                self.jobs.0.push(number);
                self.jobs.1.push(*id);
                self.jobs.2.push(stored);
                self.jobs.3.push(group.found_none(*id));
            }
            (Record::Queue(name), None) => {
                self.queues.0.push(number);
                self.queues.1.push(name.as_str());
                self.queues.2.push(stored);
            }
            (Record::Document(key), None) => {
                if expect.version == 0 {
                    self.guards.push(guard_of_document(key));
                }
                self.documents.0.push(number);
                self.documents.1.push(i16::from(key.kind.code()));
                self.documents.2.push(&key.name);
                self.documents.3.push(stored);
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
                    self.chosen.0.push(number);
                    self.chosen.1.push(version(head.version));
                    // The same, where it goes in this very commit.
                    if chains.get(&Record::Job(head.id)).is_some_and(|chain| chain.becomes.is_some()) {
                        self.stale.push(number);
                    }
                }
                self.head(number, head, true, chains);
                self.bodies.0.push(number);
                self.bodies.1.push(head.id);
                self.bodies.2.push(body);
            }
            Write::Update { head } => {
                if head.key.is_none() {
                    self.lookup.push(head.id);
                }
                self.head(number, head, false, chains);
            }
            Write::Note { job, kind, text } => {
                becomes(Record::Job(*job), None);
                self.notes.0.push(number);
                self.notes.1.push(*job);
                self.notes.2.push(i16::from(kind.code()));
                self.notes.3.push(text.as_deref());
            }
            Write::Spend { id, job, digest } => {
                becomes(Record::Job(*id), Some(Becomes::Version(1)));
                becomes(Record::Job(*job), None);
                self.owned.push(guard(*id));
                self.spend(number, *id, Some(*job), digest.as_ref().map(|digest| &digest[..]));
            }
            Write::Free { id } => {
                becomes(Record::Job(*id), Some(Becomes::Gone));
                self.spend(number, *id, None, None);
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
                self.forgotten.0.push(number);
                self.forgotten.1.push(*job);
                self.forgotten.2.push(remember.map(Timestamp::as_micros));
            }
            Write::Queue { row } => {
                becomes(Record::Queue(row.name.clone()), Some(Becomes::Version(row.version)));
                self.settings.0.push(number);
                self.settings.1.push(row.name.as_str());
                self.settings.2.push(row.paused);
                self.settings.3.push(row.settings.as_deref());
                self.settings.4.push(version(row.version));
            }
            Write::Document { key, document } => {
                let chain = chains.entry(Record::Document(key.clone())).or_default();
                // Where this group has seen that it is there, it is its row that is locked.
                if chain.relies != Some(number) || chain.is_absent {
                    self.owned.push(guard_of_document(key));
                }
                chain.since.push(number);
                let becomes = document.as_ref().map(|document| Becomes::Version(document.version));
                chain.becomes = Some(becomes.unwrap_or(Becomes::Gone));
                let document = document.as_ref();
                self.papers.0.push(number);
                self.papers.1.push(i16::from(key.kind.code()));
                self.papers.2.push(&key.name);
                self.papers.3.push(document.map_or(0, |document| version(document.version)));
                self.papers.4.push(document.and_then(|document| document.due).map(Timestamp::as_micros));
                self.papers.5.push(document.map(|document| &document.text[..]));
            }
        }
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
        self.heads.0.push(number);
        self.heads.1.push(is_new);
        self.heads.2.push(remembered_until(head));
        self.heads.3.push(head);
    }

    fn spend(&mut self, number: i32, id: JobId, job: Option<JobId>, digest: Option<&'a [u8]>) {
        self.spent.0.push(number);
        self.spent.1.push(id);
        self.spent.2.push(job);
        self.spent.3.push(digest);
    }

    /// Without the guards of what is absent, which would be held until a caller's transaction ends: there the rows themselves
    /// must do, and an id that is stored twice at the same moment undoes one of the two.
    pub fn without_guards(mut self) -> Self {
        self.guards.clear();
        self.owned.clear();
        self
    }

    /// The parameters of `commit`, after those of the time.
    pub fn push(self, params: &mut Params<'a>) {
        params.places(self.stale);
        params.places(self.guards);
        params.places(self.owned);
        params.places(self.jobs.0);
        params.ids(self.jobs.1);
        params.numbers(self.jobs.2);
        params.flags(self.jobs.3);
        params.places(self.keys.0);
        params.blobs(self.keys.1);
        params.numbers(self.keys.2);
        params.numbers(self.keys.3);
        params.numbers(self.keys.4);
        params.places(self.queues.0);
        params.texts(self.queues.1);
        params.numbers(self.queues.2);
        params.places(self.documents.0);
        params.codes(self.documents.1);
        params.texts(self.documents.2);
        params.numbers(self.documents.3);
        params.places(self.chosen.0);
        params.numbers(self.chosen.1);
        params.places(self.order.0);
        params.places(self.order.1);
        params.blobs(self.locked);
        params.ids(self.lookup);
        params.places(self.heads.0);
        params.flags(self.heads.1);
        params.maybe_numbers(self.heads.2);
        push_heads(params, &self.heads.3);
        params.places(self.bodies.0);
        params.ids(self.bodies.1);
        params.blobs(self.bodies.2);
        params.places(self.notes.0);
        params.ids(self.notes.1);
        params.codes(self.notes.2);
        params.maybe_blobs(self.notes.3);
        params.places(self.spent.0);
        params.ids(self.spent.1);
        params.maybe_ids(self.spent.2);
        params.maybe_blobs(self.spent.3);
        params.places(self.forgotten.0);
        params.ids(self.forgotten.1);
        params.maybe_numbers(self.forgotten.2);
        params.places(self.settings.0);
        params.texts(self.settings.1);
        params.flags(self.settings.2);
        params.maybe_texts(self.settings.3);
        params.numbers(self.settings.4);
        params.places(self.papers.0);
        params.codes(self.papers.1);
        params.texts(self.papers.2);
        params.numbers(self.papers.3);
        params.maybe_numbers(self.papers.4);
        params.maybe_blobs(self.papers.5);
        params.places(self.events.0);
        params.codes(self.events.1);
        params.ids(self.events.2);
        params.texts(self.events.3);
        params.texts(self.events.4);
        params.numbers(self.events.5);
        params.numbers(self.events.6);
    }
}

/// Which guard an absent id has.
fn guard(id: JobId) -> i32 {
    let folded = u128::from_be_bytes(id.to_bytes());
    i32::try_from((folded ^ folded >> 64 ^ folded >> 22) % GUARDS).unwrap_or(0)
}

/// Which guard an absent document has: FNV-1a of its kind and name.
fn guard_of_document(key: &DocumentKey) -> i32 {
    let bytes = std::iter::once(key.kind.code()).chain(key.name.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    i32::try_from(u128::from(hash) % GUARDS).unwrap_or(0)
}

/// Until when a head that is kept for its key alone is kept, by what it says now: nothing when it is not.
fn remembered_until(head: &Head) -> Option<i64> {
    head.remembered_until().map(Timestamp::as_micros)
}
