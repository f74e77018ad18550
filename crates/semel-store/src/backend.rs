//! The store boundary: what a store must do. A store moves data; every rule is in `semel-core`.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use semel_core::draft::{
    Document, DocumentKey, DocumentKind, Full, Group, QueueRow, Reads, Record, Snapshot, Write,
};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Grant, Unclaimable};
use semel_core::limit::Lane;
use semel_core::slot::Due;
use semel_core::state::{State, StateSet};
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use tokio::time::Instant;

use crate::carry::{Heritage, Part, Piece};
use crate::error::StoreError;
use crate::hints::Hints;
use crate::log::LogPage;

/// A boxed future, so that the boundary is object-safe: the server chooses its store at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether a row belongs to a queue that has settings.
pub fn is_set(row: &QueueRow) -> bool {
    row.name.is_queue() && row.settings.is_some()
}

/// A store.
///
/// # Contract
/// - **Time.** A store's time never goes back: [`load`](Self::load) and the claims of [`commit`](Self::commit) use
///   `max(clock, last committed time)`.
/// - **Versions.** [`commit`](Self::commit) applies a group entirely or not at all, and only if every record
///   it relied on still has the version it names; else that group is [`Verdict::Stale`] and no other is
///   touched. A key's version moves on every write of a head that holds it, to
///   `max(version + 1, head.version)`. A group that relies on what a stale group of its own batch would have
///   written is stale as well, whatever the version numbers say ([`Unwritten`]).
/// - **Durability.** Once [`commit`](Self::commit) has answered, what it applied survives a crash of this
///   process and, at the strength the store declares, of the machine. A failed commit has applied nothing, or
///   the store is poisoned, or the error says that it may have applied something ([`StoreError::Unknown`],
///   [`StoreError::Lagging`]).
/// - **Order.** A claim takes from its queues in the order they are named; within one queue by (priority descending,
///   available_at, id). A job under a limit takes its place in that order, and is returned unclaimed unless its
///   limit is closed: jobs under closed limits are skipped. A claim that has granted none, and has shown as many as
///   it has room for, goes on to show the jobs under limits that follow, up to the queue's first job under none.
/// - **Bounds.** Every answer is bounded by the request's own limit.
pub trait Backend: Send + Sync + 'static {
    /// Loads everything that `reads` names, consistently, with the store's time. For a missing whole job it
    /// says why, if the id is [spent](semel_core::draft::Spent).
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>>;

    /// As [`load`](Self::load), without what is unreachable now; the second value is that part of `reads`. In
    /// a store of several independently stored parts, an unreachable one keeps no caller from the others. A
    /// caller that needs it [waits](Self::load).
    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        Box::pin(async move { Ok((self.load(reads).await?, Reads::default())) })
    }

    /// The store's way to answer without a load, if it has one. Whoever closes the store stops using it.
    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        None
    }

    /// Applies the groups in order, then serves the claims; one wait for durability covers all of them.
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>>;

    /// Waits until everything that loads have shown so far of the records in `seen` is as durable as an acknowledged
    /// commit. A decision that wrote nothing is answered only after this, since its answer names what others wrote.
    /// A store that shows only durable data has nothing to do; one that is stored as a whole waits for the whole.
    fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        let _ = seen;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether everything [`load`](Self::load) can return right now is already as durable as an acknowledged
    /// write, so that [`confirm`](Self::confirm) would return at once.
    ///
    /// Only an optimisation: if true, decisions that wrote nothing and rest on nothing that their group writes
    /// are answered while the group's commit is still running. They still call `confirm`. A store whose `confirm`
    /// relies on this must be right about it: a wrong `true` answers duplicates before their holder is durable.
    fn shows_what_is_durable(&self) -> bool {
        true
    }

    /// Whether a commit that wrote something has waited for all that loads had shown before it, as
    /// [`confirm`](Self::confirm) does. In a store of several independently stored parts it has waited only
    /// for those it wrote to.
    fn waits_for_all(&self) -> bool {
        true
    }

    /// When the store last noticed that writes go to another server than before, such as a promoted replica:
    /// what was loaded until then may not exist there. Groups with writes are checked where they are applied;
    /// decisions on such data that wrote nothing must be taken again.
    fn moved(&self) -> Option<Instant> {
        None
    }

    /// Ids that are due, oldest first, at most `limit`, and when the next one falls due. A store that searches
    /// for [`Due::Purge`] in bounded pieces, in whatever order, reports that time as already reached until its
    /// search is complete.
    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>>;

    /// A page of jobs for people, newest id first.
    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// All queues that have or had a job or a setting, by name. Rows that are [no queue](QueueName::is_queue)
    /// may be among them.
    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>>;

    /// The rows of those queues that have settings, in any order. The server asks every second: a store in
    /// which scanning all queues is expensive must answer from less.
    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        Box::pin(async {
            let rows = self.queues().await?.into_iter().map(|stats| stats.row);
            Ok(rows.filter(is_set).collect())
        })
    }

    /// Checks whether the store would accept a write now, for health checks: reads succeed even on a full
    /// disk. It goes by what is known without a write, except that after a refused write it tries one. It
    /// leaves nothing visible.
    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a claim skips jobs that another transaction has locked for the moment. If that transaction
    /// leaves them unchanged, no wake-up follows: a worker whose claim found nothing [asks](Self::overlooked),
    /// and soon looks again.
    fn passes_over(&self) -> bool {
        false
    }

    /// Whether any of these queues has jobs that a claim may have skipped.
    fn overlooked(&self, queues: Vec<QueueName>) -> BoxFuture<'_, Result<bool, StoreError>> {
        let _ = queues;
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Documents that are due, or all of one kind, as `seek` says.
    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>>;

    /// The log after `cursor`, oldest first, at most `limit` records, and the range of positions it covers.
    /// The caller must refuse a cursor that is too old or too far ahead ([`LogPage::place`]).
    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>>;

    /// Does a bounded piece of the store's own housekeeping. Returns whether more is waiting.
    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Announces that the store is about to be closed: [housekeeping](Self::maintain) that waits for another
    /// process, such as one that makes a copy, gives up. Closing waits for whatever is still running.
    fn closing(&self) {}

    /// Deletes everything. For tests; a server offers it only if told to.
    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// A page of a part that no other method shows, for copying the store into another. `after` is the
    /// previous page's `next`. Meant for a store that is not written to meanwhile: otherwise what is written
    /// may come twice, or not at all.
    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>>;

    /// Makes the store the successor of another, from which everything was copied. It takes effect for those
    /// who open the store from then on, and may be repeated.
    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>>;

    /// How many other processes that decide on this store are seen to have it open. Zero for a store that
    /// belongs to one process.
    fn company(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Copies the store, consistently, to a new file.
    fn backup(&self, path: std::path::PathBuf) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The counter from which minted ids take their row numbers.
    fn rows(&self) -> Arc<AtomicU64>;

    /// A secret number, drawn when the store was created and kept with it and its copies. The ids and keys
    /// shown to tenants depend on it.
    fn secret(&self) -> [u8; 16];

    /// What this store is and promises.
    fn facts(&self) -> Facts;

    /// Reports to `hints` from now on, until they are dropped, when other processes may have written to the store.
    /// It may miss some writes and report some in vain. A store that belongs to one process has nothing to report.
    fn tell(&self, hints: &Arc<Hints>) {
        let _ = hints;
    }
}

/// The contents of one commit.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Decided groups, in order; later ones may rely on versions that earlier ones write.
    pub groups: Vec<Group>,
    /// Claims, served in order after the groups.
    pub claims: Vec<Claim>,
}

/// The result of a commit.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// One verdict per group.
    pub groups: Vec<Verdict>,
    /// One answer per claim.
    pub claims: Vec<Claimed>,
}

/// The result of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was applied.
    Applied,
    /// A record it relied on has moved; nothing was applied.
    Stale,
    /// Another transaction has locked one of its records, and the store does not wait; nothing was applied.
    Busy,
}

/// The records that the stale groups of one batch would have written.
///
/// Two writers that read the same version at the same time give the next one the same number. So a later group of the
/// batch, decided on top of a stale one, may name a version that exists and is not the one it saw. The same holds for
/// a key that another writer has moved, once a group that does not rely on the key has written one of its holders.
#[derive(Debug, Default)]
pub struct Unwritten(HashSet<Record>);

impl Unwritten {
    /// The set before a batch is applied: keys no longer at the versions from which the batch's groups were
    /// decided. `version` returns a key's current version.
    pub fn before(groups: &[Group], version: impl Fn(&UniqueKey) -> u64) -> Self {
        let began = groups.iter().flat_map(|group| &group.began);
        let moved = began.filter(|(key, began)| version(key) != *began);
        Self(moved.map(|(key, _)| Record::Key(*key)).collect())
    }

    /// Adds the records of a stale group.
    pub fn note(&mut self, group: &Group) {
        self.0.extend(group.expect.iter().map(|expect| expect.record.clone()));
        for write in &group.writes {
            match write {
                Write::Insert { head, .. } | Write::Update { head } => {
                    self.0.insert(Record::Job(head.id));
                    self.0.extend(head.key.map(Record::Key));
                }
                Write::Note { job, .. } | Write::Forget { job, .. } => {
                    self.0.insert(Record::Job(*job));
                }
                Write::Spend { id, job, .. } => self.0.extend([Record::Job(*id), Record::Job(*job)]),
                Write::Free { id } => drop(self.0.insert(Record::Job(*id))),
                Write::Queue { row } => drop(self.0.insert(Record::Queue(row.name.clone()))),
                Write::Document { key, .. } => drop(self.0.insert(Record::Document(key.clone()))),
            }
        }
    }

    /// Whether a group relies on any of these records.
    pub fn concerns(&self, group: &Group) -> bool {
        !self.0.is_empty() && group.expect.iter().any(|expect| self.0.contains(&expect.record))
    }
}

/// A worker's request for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The queues to take from, the first named first.
    pub queues: Vec<QueueName>,
    /// The most jobs to take.
    pub limit: u32,
    /// What each grant is filled in with.
    pub grant: Grant,
    /// Jobs under these limits are skipped. Sorted, without duplicates.
    pub closed: Vec<Lane>,
}

impl Claim {
    /// Whether two claims differ only in the worker and the number of jobs: then one look may serve both in turn.
    pub fn differs_in_taker_alone(&self, other: &Self) -> bool {
        // Destructured, so that a new field of a claim is not overlooked here.
        let Self { queues, limit: _, grant, closed } = self;
        *queues == other.queues && *closed == other.closed && grant.differs_in_worker_alone(&other.grant)
    }
}

/// What a claim took.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// The jobs, with their new heads, in order.
    pub jobs: Vec<(Head, Full)>,
    /// Ready jobs that may not be granted; the engine resolves them.
    pub unclaimable: Vec<(JobId, Unclaimable)>,
}

/// The ids that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueIds {
    /// The store's time.
    pub now: Timestamp,
    /// The ids.
    pub ids: Vec<JobId>,
    /// When the next one falls due; in the past if `ids`, or the search, was cut short.
    pub next: Option<Timestamp>,
}

/// Which documents to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Documents whose time has come, oldest first, at most `limit`.
    Due {
        /// The most documents to return.
        limit: u32,
    },
    /// Documents of one kind, in the byte order of their names.
    Kind {
        /// The kind.
        kind: DocumentKind,
        /// The page's cursor: only names after this one, or before it when `descending`.
        from: Option<Arc<str>>,
        /// Whether the last name comes first.
        descending: bool,
        /// The most documents to return.
        limit: u32,
    },
}

/// The documents found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The store's time.
    pub now: Timestamp,
    /// The documents, in order.
    pub documents: Vec<(DocumentKey, Document)>,
    /// When the next document falls due; in the past if the list was cut short. `None` for a search by kind.
    pub next: Option<Timestamp>,
}

/// Which jobs a person wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Jobs in these states; empty means all.
    pub states: StateSet,
    /// Jobs of this tenant; `None` means all.
    pub tenant: Option<Tenant>,
    /// Jobs in this queue.
    pub queue: Option<QueueName>,
    /// Jobs of this type.
    pub job_type: Option<JobType>,
    /// Only dead letters.
    pub dead_letters: bool,
    /// Only jobs that hold a key.
    pub with_key: bool,
    /// Only ids before this one: the page's cursor.
    pub before: Option<JobId>,
    /// The most jobs to return.
    pub limit: u32,
}

impl Filter {
    /// Whether a head matches.
    pub fn admits(&self, head: &Head) -> bool {
        (self.states.is_empty() || self.states.contains(head.state))
            && self.tenant.as_ref().is_none_or(|tenant| head.queue.tenant() == tenant.as_str())
            && self.queue.as_ref().is_none_or(|queue| *queue == head.queue)
            && self.job_type.as_ref().is_none_or(|job_type| *job_type == head.job_type)
            && (!self.dead_letters || head.is_dead_letter())
            && (!self.with_key || head.key.is_some())
            && self.before.is_none_or(|before| head.id < before)
    }
}

/// A page of jobs.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The heads, newest id first.
    pub heads: Vec<Head>,
    /// Where the next page begins, if there may be more. A page may be short, or even empty, and still have a
    /// next one: a store examines a bounded number of rows per page.
    pub next: Option<JobId>,
}

/// What a store can tell about held keys at once, beside its batcher, for decisions that will write nothing.
pub trait Peek: Send + Sync {
    /// What `reads` names, if that is only keys, each with a holder, and nothing must be waited for. All of it
    /// is durable already, so an answer that names it survives any crash, and it is as fresh as the latest
    /// answer given to anyone. `None` says nothing: the caller must ask the batcher.
    fn peek(&self, reads: &Reads) -> Option<Snapshot>;
}

/// A queue as shown to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Its settings.
    pub row: QueueRow,
    /// Jobs now stored, by state number.
    pub counts: [u64; State::ALL.len()],
    /// Jobs ever admitted.
    pub created: u64,
    /// Jobs whose bodies were deleted after their retention.
    pub purged: u64,
    /// The time of the job that has waited longest for a worker. If many limits have ready jobs, a store may
    /// leave out jobs that are behind another under their own limit.
    pub oldest_ready: Option<Timestamp>,
}

impl QueueStats {
    /// The number of jobs in a state.
    pub fn count(&self, state: State) -> u64 {
        self.counts[usize::from(state.code())]
    }
}

/// What a store is and promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The engine's name.
    pub engine: &'static str,
    /// The mechanism that admits exactly one of two equal jobs.
    pub mechanism: &'static str,
    /// What an acknowledged write survives.
    pub durability: &'static str,
    /// Whether `durability` covers everything short of losing the storage itself: otherwise a crash may forget
    /// an acknowledged key, and the manifest calls uniqueness best-effort.
    pub is_strong: bool,
    /// Whether work blocks the thread that does it: the batcher then gets its own thread, and all work goes
    /// through it.
    pub blocks: bool,
    /// How many commits one batcher may have in flight at once.
    pub commits_in_flight: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_go_together_whoever_takes_how_many() {
        let grant = |worker: &str, ms| Grant::new(worker.into(), ms);
        let one = Claim {
            queues: vec![QueueName::default()],
            limit: 1,
            grant: grant("a", None),
            closed: Vec::new(),
        };
        let other = Claim { limit: 9, grant: grant("b", None), ..one.clone() };
        assert!(one.differs_in_taker_alone(&other));
        for apart in [
            Claim { queues: Vec::new(), ..other.clone() },
            Claim { grant: grant("b", Some(1)), ..other.clone() },
            Claim { closed: vec![Lane::of("k")], ..other },
        ] {
            assert!(!one.differs_in_taker_alone(&apart), "{apart:?}");
        }
    }
}
