//! The boundary: what a store must do. A store moves data; every rule is in `semel-core`.

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

/// Whether a row is a queue's that has settings.
pub fn is_set(row: &QueueRow) -> bool {
    row.name.is_queue() && row.settings.is_some()
}

/// A store.
///
/// # Contract
/// - **Time.** A store's time never goes back: [`load`](Self::load) and the claims of [`commit`](Self::commit) use
///   `max(clock, last committed time)`.
/// - **Versions.** [`commit`](Self::commit) applies a group all or none, and only if every record it relied on still
///   has the version it names; else that group is [`Verdict::Stale`] and no other is touched. A key's version moves on
///   every write of a head that holds it, to `max(version + 1, head.version)`. A group that relies on what a stale group
///   of its own batch would have written is stale as well, whatever the numbers say ([`Unwritten`]).
/// - **Durability.** When [`commit`](Self::commit) has answered, what it applied survives a crash of this process and,
///   at the strength the store declares, of the machine. A failed commit has applied nothing, or is poisoned, or
///   says that it may have ([`StoreError::Unknown`], [`StoreError::Lagging`]).
/// - **Order.** A claim takes from its queues in the order they are named; within one queue by (priority descending,
///   available_at, id). A job under a limit takes its place in that order, and comes back unclaimed unless the limit is
///   one of the closed: those are as if they were not there. Where it has granted none and shown as many as it has room for, it
///   shows those under limits that come next, too, up to the first job of the queue that is under none.
/// - **Bounds.** Every answer is bounded by the request's own limit.
pub trait Backend: Send + Sync + 'static {
    /// Everything `reads` names, consistently, with the store's time. Of a whole job that is not there it says why, if
    /// its id is [spent](semel_core::draft::Spent).
    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>>;

    /// The same without what cannot be had now, and which part of `reads` that is: in a store of several parts, each of which is kept
    /// for itself, one that is away keeps nobody from what is in the others. Whoever needs the rest [waits for it](Self::load).
    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        Box::pin(async move { Ok((self.load(reads).await?, Reads::default())) })
    }

    /// What can be said without a load, if this store can say anything so. Who closes the store asks it no more.
    fn peeks(&self) -> Option<Arc<dyn Peek>> {
        None
    }

    /// Applies the groups in order, then serves the claims; one durability wait for all of them.
    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>>;

    /// Waits until what loads have shown so far of the records that `seen` names is as durable as what a commit has answered: before
    /// whatever was decided on them without writing is answered, for it names what others wrote. A store that shows only what is has
    /// nothing to do, and one that is kept as a whole waits for the whole.
    fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        let _ = seen;
        Box::pin(std::future::ready(Ok(())))
    }

    /// True if everything [`load`](Self::load) can return right now is already as durable as an acknowledged write, so that
    /// [`confirm`](Self::confirm) would return at once. Used only as an optimisation: when true, decisions that wrote nothing and rest on
    /// nothing that their group writes are answered while the group's commit is still running. They still call `confirm`. A store whose
    /// `confirm` goes by this must be right about it: a wrong `true` has duplicates answered before their holder is durable.
    fn shows_what_is_durable(&self) -> bool {
        true
    }

    /// Whether a commit that wrote something has waited for all that loads had shown before it, as [`confirm`](Self::confirm) does.
    /// In a store of several parts, each of which is kept for itself, it has waited for those alone in which it wrote.
    fn waits_for_all(&self) -> bool {
        true
    }

    /// When it was last noticed that something else takes the writes than before, as a replica does that took over: what was
    /// loaded until then may not be there. Groups that hold are looked at where they are applied; whatever was decided on it
    /// without writing has to be decided again.
    fn moved(&self) -> Option<Instant> {
        None
    }

    /// Ids that are due, oldest first, at most `limit`, and the next time something of that kind falls due. A store that looks
    /// for [`Due::Purge`] a bounded piece at a time, in whatever order, says of that time that it has come until it has looked
    /// at all.
    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>>;

    /// Jobs for people, newest id first.
    fn list(&self, filter: Filter) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// All queues that have or had a job or a setting, by name. Rows that are [no queue](QueueName::is_queue) may be among
    /// them.
    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueStats>, StoreError>>;

    /// The rows of those queues that have settings, in any order. It is asked every second: a store in which looking at all
    /// queues costs something answers from less.
    fn settings(&self) -> BoxFuture<'_, Result<Vec<QueueRow>, StoreError>> {
        Box::pin(async {
            let rows = self.queues().await?.into_iter().map(|stats| stats.row);
            Ok(rows.filter(is_set).collect())
        })
    }

    /// Whether the store would take a write now, as far as is known without one, for who watches it: what only reads answers on a full disk
    /// as well. After a write that was refused it is tried. Leaves nothing that anybody sees.
    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a claim passes over jobs that somebody else has locked for the moment. If he lets go of them as they were nobody is
    /// told: who found nothing [asks](Self::overlooked), and looks again soon.
    fn passes_over(&self) -> bool {
        false
    }

    /// Whether one of these queues has jobs that may have been passed over.
    fn overlooked(&self, queues: Vec<QueueName>) -> BoxFuture<'_, Result<bool, StoreError>> {
        let _ = queues;
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Documents that are due, or of a kind.
    fn documents(&self, seek: Seek) -> BoxFuture<'_, Result<Found, StoreError>>;

    /// The log after `cursor`, oldest first, at most `limit` records, and how far it reaches back and forth. A cursor
    /// that is too old or ahead is the caller's to refuse ([`LogPage::place`]).
    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>>;

    /// A bounded piece of the store's own housekeeping. Says whether more is waiting.
    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// The store is about to be closed: [housekeeping](Self::maintain) that waits for somebody else, such as another process that
    /// makes a copy, gives up. Who closes the store waits for whatever goes on.
    fn closing(&self) {}

    /// Deletes everything. For tests; a server offers it only when told to.
    fn clear(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// What nobody else asks a store for, a piece at a time: for who carries the store over into another. `after` is where the
    /// piece before says that the next one begins. It is meant for a store that nobody writes to meanwhile: what is
    /// written may come twice, or not at all.
    fn rest(&self, part: Part, after: Option<Bytes>, limit: u32) -> BoxFuture<'_, Result<Piece, StoreError>>;

    /// Has the store go on for another whose place it takes, from which all it has was carried over. It counts for those who
    /// open the store from then on, and may be done twice.
    fn inherit(&self, heritage: Heritage) -> BoxFuture<'_, Result<(), StoreError>>;

    /// How many others are seen to have the store open, of those who decide on it. A store that one process has for itself
    /// has none.
    fn company(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Copies the store, consistently, to a new file.
    fn backup(&self, path: std::path::PathBuf) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The counter of the rows that minted ids number.
    fn rows(&self) -> Arc<AtomicU64>;

    /// A number that nobody outside knows, drawn when the store was made and kept with it, in its copies too: what
    /// tenants see of ids and keys hangs on it.
    fn secret(&self) -> [u8; 16];

    /// What this store is and promises.
    fn facts(&self) -> Facts;

    /// Tells `hints` from now on, until they are dropped, when others than this process may have written to the store.
    /// It may miss some and tell some in vain. A store that one process has for itself has nobody to tell of.
    fn tell(&self, hints: &Arc<Hints>) {
        let _ = hints;
    }
}

/// What one commit does.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Decisions, in order; later ones may rely on versions that earlier ones write.
    pub groups: Vec<Group>,
    /// Claims, served in order after the groups.
    pub claims: Vec<Claim>,
}

/// What a commit did.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// One verdict per group.
    pub groups: Vec<Verdict>,
    /// One answer per claim.
    pub claims: Vec<Claimed>,
}

/// What became of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was applied.
    Applied,
    /// A record it relied on has moved; nothing of it was applied.
    Stale,
    /// Somebody else has locked a record of it, and the store does not wait for him; nothing of it was applied.
    Busy,
}

/// What the stale groups of one batch would have written.
///
/// Two writers who read the same version at the same time give the next one the same number. So a later group of the
/// batch, decided on top of a stale one, may name a version that is there and is not the one it saw. The same holds of a
/// key that somebody else has moved, once a group that does not rely on it has written one of its holders.
#[derive(Debug, Default)]
pub struct Unwritten(HashSet<Record>);

impl Unwritten {
    /// Before a batch is applied: keys that are not at the versions from which its groups were decided. `version` gives
    /// the one a key has.
    pub fn before(groups: &[Group], version: impl Fn(&UniqueKey) -> u64) -> Self {
        let began = groups.iter().flat_map(|group| &group.began);
        let moved = began.filter(|(key, began)| version(key) != *began);
        Self(moved.map(|(key, _)| Record::Key(*key)).collect())
    }

    /// Notes a stale group.
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

    /// Whether a group relies on any of it.
    pub fn concerns(&self, group: &Group) -> bool {
        !self.0.is_empty() && group.expect.iter().any(|expect| self.0.contains(&expect.record))
    }
}

/// A worker's wish for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// From these queues, the first named first.
    pub queues: Vec<QueueName>,
    /// At most so many.
    pub limit: u32,
    /// What each grant is filled in with.
    pub grant: Grant,
    /// Jobs under these limits are passed over. In order, each once.
    pub closed: Vec<Lane>,
}

impl Claim {
    /// Whether two claims differ in nothing but who takes how many: then one look may serve both, one after the other.
    pub fn differs_in_taker_alone(&self, other: &Self) -> bool {
        // Taken apart, so that what is added to a claim is thought of here.
        let Self { queues, limit: _, grant, closed } = self;
        *queues == other.queues && *closed == other.closed && grant.differs_in_worker_alone(&other.grant)
    }
}

/// What a claim took.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// The jobs, with their new heads, in order.
    pub jobs: Vec<(Head, Full)>,
    /// Ready jobs that may not be granted; the engine settles them.
    pub unclaimable: Vec<(JobId, Unclaimable)>,
}

/// What is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueIds {
    /// The store's time.
    pub now: Timestamp,
    /// The ids.
    pub ids: Vec<JobId>,
    /// When the next one falls due; in the past when `ids` was cut short, or the look was.
    pub next: Option<Timestamp>,
}

/// Which documents are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Those whose time has come, oldest first, at most `limit`.
    Due {
        /// At most so many.
        limit: u32,
    },
    /// Those of one kind, in the order of their names' bytes.
    Kind {
        /// The kind.
        kind: DocumentKind,
        /// The page's cursor: only names after this one, or before it when `descending`.
        from: Option<Arc<str>>,
        /// The last name first.
        descending: bool,
        /// At most so many.
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
    /// Of those that are due: when the next one is; in the past when the list was cut short. None of a kind's.
    pub next: Option<Timestamp>,
}

/// Which jobs a person wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In these states; empty means all.
    pub states: StateSet,
    /// Of this tenant; none means of all.
    pub tenant: Option<Tenant>,
    /// In this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub job_type: Option<JobType>,
    /// Only dead letters.
    pub dead_letters: bool,
    /// Only jobs that hold a key.
    pub with_key: bool,
    /// Only ids before this one: the page's cursor.
    pub before: Option<JobId>,
    /// At most so many.
    pub limit: u32,
}

impl Filter {
    /// Whether a head is wanted.
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
    /// Where the next page begins, if there may be more. A page may be short, or empty, and still have a next one:
    /// a store looks at a bounded number of rows for each.
    pub next: Option<JobId>,
}

/// What a store can say of held keys at once, beside its batcher: for decisions that will write nothing.
pub trait Peek: Send + Sync {
    /// What `reads` names, if that is keys alone, each with a holder, and nothing has to be waited for. All of it is durable
    /// already, so an answer that names it holds whatever crashes next, and it is as new as the last answer that anybody was
    /// given. `None` says nothing: who gets it asks the batcher.
    fn peek(&self, reads: &Reads) -> Option<Snapshot>;
}

/// A queue for people.
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
    /// The time of the job that has waited longest for a worker. Where many limits have some, a store may leave out those
    /// that have another before them under their own.
    pub oldest_ready: Option<Timestamp>,
}

impl QueueStats {
    /// How many jobs are in that state.
    pub fn count(&self, state: State) -> u64 {
        self.counts[usize::from(state.code())]
    }
}

/// What a store is and promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The engine's name.
    pub engine: &'static str,
    /// By what means exactly one of two equal jobs is admitted.
    pub mechanism: &'static str,
    /// What an acknowledged write survives.
    pub durability: &'static str,
    /// Whether that is all that may become of it, short of the loss of what it is stored on: else a crash may forget a key that
    /// was answered for, and the manifest calls uniqueness best-effort.
    pub is_strong: bool,
    /// Whether work blocks the thread that does it: the batcher then gets a thread of its own, and all goes through it.
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
