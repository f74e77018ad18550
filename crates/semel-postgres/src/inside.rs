//! Decisions inside a caller's own transaction. They wait for keys that others hold, as long as the caller's
//! settings allow. Their writes become visible when the transaction commits, and are undone if it rolls back.
//! Locks on anything that a decision does not write, such as the key of a duplicate, are released at once, so
//! that other requests for that key do not wait for the caller's transaction.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use semel_core::draft::{Draft, Group, Missing, Reads, Record, Snapshot, Write};
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;
use semel_store::backend::BoxFuture;
use semel_store::bounds::{COMMIT_ATTEMPTS_MAX, Loads};
use semel_store::inside::Inside;
use semel_store::{News, StoreError};
use tokio::time::{Instant, timeout_at};

use crate::batch::Columns;
use crate::commit::{WAIT, new_mark};
use crate::connect::ask;
use crate::error::PostgresError;
use crate::session::{Fields, Line, Session};
use crate::store::{Postgres, Shared};
use crate::teller;
use crate::values::Params;

/// How often holding all keys of a decision is tried; in between, missing key rows are made.
const HOLDS: u32 = 3;
/// How long to wait for another connection on which to make rows. All of a pooler's connections may be in
/// transactions like this one, which would then wait for one another.
const ASIDE_MAX: Duration = Duration::from_secs(1);
/// How long that connection waits for a row that another transaction has made and not committed: as long as a
/// commit does. Without this bound the database would go on waiting after the caller has given up.
pub(crate) const ROW_MAX: &str = "250ms";

/// Rolls back to the savepoint and stays in it. Releases its locks.
const ANEW: &str = "ROLLBACK TO SAVEPOINT semel";
/// Ends the savepoint and keeps its writes.
const KEEP: &str = "RELEASE SAVEPOINT semel";
/// Undoes and ends the savepoint. Releases its locks too.
const UNDO: &str = "ROLLBACK TO SAVEPOINT semel; RELEASE SAVEPOINT semel";

/// A caller's transaction on the database of a store.
pub struct Transaction<S> {
    pub(crate) shared: Arc<Shared>,
    rows: Arc<AtomicU64>,
    session: S,
    /// Whether no other connection was to be had; then none is waited for again.
    is_alone: bool,
}

impl Postgres {
    /// Returns a handle on a transaction that the caller has begun on this store's database, and will end.
    /// `session` is its connection.
    pub fn inside<S: Session>(&self, session: S) -> Transaction<S> {
        Transaction::on(Arc::clone(&self.shared), Arc::clone(&self.rows), session)
    }
}

impl<S: Session> Transaction<S> {
    /// Like [`inside`](Postgres::inside), for a connection of the store's own.
    pub(crate) fn on(shared: Arc<Shared>, rows: Arc<AtomicU64>, session: S) -> Self {
        Self { shared, rows, session, is_alone: false }
    }
}

/// Keys, in the order in which everybody locks them.
type Keys = BTreeSet<[u8; 32]>;

type Decide<'a> = dyn FnMut(&mut Draft) -> Result<(), Missing> + Send + 'a;

impl<S: Session> Inside for Transaction<S> {
    fn decide<'a>(
        &'a mut self,
        reads: Reads,
        decide: &'a mut (dyn FnMut(&mut Draft) -> Result<(), Missing> + Send),
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.savepoint(reads, decide).await.map_err(|error| error.inside()) })
    }
}

impl<S: Session> Transaction<S> {
    /// Takes a decision in a savepoint that is kept or undone as a whole: an error of ours leaves the
    /// caller's transaction as it was, if the database allows that.
    async fn savepoint(&mut self, reads: Reads, decide: &mut Decide<'_>) -> Result<(), PostgresError> {
        self.session.run("SAVEPOINT semel").await?;
        let decided = self.decided(reads, decide).await;
        let ends = match decided {
            Ok(true) => format!("{KEEP}{}", self.vouched()),
            // Makes the caller's commit wait for the standbys, even if it has written nothing else.
            Ok(false) if self.shared.awaits_standby.load(Ordering::Acquire) => {
                format!("{UNDO}; {WAIT}{}", self.vouched())
            }
            Ok(false) | Err(_) => UNDO.to_owned(),
        };
        let ended = self.session.run(&ends).await;
        decided.and_then(|_| Ok(ended?))
    }

    /// The statement that makes the caller's commit wait for no less than the store's own do: other callers
    /// get answers based on what it makes visible.
    fn vouched(&self) -> String {
        let weaker = if self.shared.awaits_standby.load(Ordering::Acquire) {
            "'off', 'local', 'remote_write'"
        } else if self.shared.commits_lazily.load(Ordering::Acquire) {
            return String::new();
        } else {
            "'off'"
        };
        format!(
            "; SELECT pg_catalog.set_config('synchronous_commit', 'on', true) \
             WHERE pg_catalog.current_setting('synchronous_commit') IN ({weaker})"
        )
    }

    /// Decides and writes. Returns whether anything was written.
    async fn decided(&mut self, mut reads: Reads, decide: &mut Decide<'_>) -> Result<bool, PostgresError> {
        let mut held: Keys = reads.keys.iter().map(|read| *read.key.as_bytes()).collect();
        for _ in 0..COMMIT_ATTEMPTS_MAX {
            self.hold(&held).await?;
            let snapshot = self.load(&reads).await?;
            let seed = snapshot.now.as_micros().cast_unsigned();
            let mut draft = Draft::new(snapshot, seed, Arc::clone(&self.rows));
            let mut loads = Loads::default();
            let is_decided = loop {
                if decide(&mut draft).is_ok() {
                    break true;
                }
                draft.roll_back();
                let missing = draft.take_missing();
                if !loads.one_more() {
                    return Err(PostgresError::Contended);
                }
                if !missing.keys.is_empty() {
                    // These keys must be locked before they are read.
                    held.extend(missing.keys.iter().map(|read| *read.key.as_bytes()));
                    reads.keys.extend(missing.keys);
                    break false;
                }
                draft.extend(self.load(&missing).await?);
            };
            if !is_decided {
                // All keys are locked in one order. Keeping these locks while waiting for an earlier key
                // could deadlock with a transaction that holds that one.
                self.session.run(ANEW).await?;
                continue;
            }
            let group = draft.finish();
            if group.is_empty() {
                return Ok(false);
            }
            let group = without_duplicates(group);
            let written = keys_of(&group);
            if !held.is_empty() && held != written {
                // Only the keys it writes are locked again; versions tell whether they are unchanged.
                self.session.run(ANEW).await?;
            }
            if self.write(&group).await? {
                return Ok(true);
            }
            self.session.run(ANEW).await?;
            // Others wrote first. With these keys locked none can again, unless the decision changes.
            held = written;
        }
        Err(PostgresError::Contended)
    }

    /// Locks keys, and waits for those that others hold.
    async fn hold(&mut self, keys: &Keys) -> Result<(), PostgresError> {
        if keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mut params = Params::default();
        params.blobs(keys.clone());
        let sql = format!("SELECT {}($1)", self.shared.name("hold"));
        for hold in 1..=HOLDS {
            let rows = self.ask(&sql, &params).await?;
            let held: i64 = rows.first().ok_or(PostgresError::Answer("hold"))?.field(0)?;
            if usize::try_from(held) == Ok(keys.len()) {
                return Ok(());
            }
            if hold < HOLDS {
                // Keys to be made may come before the locked ones in the locking order.
                self.session.run(ANEW).await?;
                let making = Making::of(&self.shared, &keys, &[]);
                if !self.make_aside(&making).await {
                    self.ask(&format!("SELECT {}", making.call), &making.params).await?;
                }
            }
        }
        // Housekeeping may have dropped an unheld key in between, though only once. Otherwise the
        // transaction's snapshot is older than the key's row, and the transaction must begin again.
        Err(PostgresError::OldSnapshot)
    }

    async fn load(&mut self, reads: &Reads) -> Result<Snapshot, PostgresError> {
        let question = self.shared.question(reads);
        let rows = self.ask(&question.sql, &question.params).await?;
        self.shared.answer(reads, &question.keys, &rows)
    }

    /// Writes a group. Returns `false` if a record has moved. Its keys were locked, or have rows; missing
    /// queue rows are made first, outside. Whatever is still missing is made by the commit.
    async fn write(&mut self, group: &Group) -> Result<bool, PostgresError> {
        let mut queues = BTreeSet::new();
        for expect in group.expect.iter().filter(|expect| expect.version == 0) {
            if let Record::Queue(name) = &expect.record {
                queues.insert(name.as_str());
            }
        }
        if !queues.is_empty() {
            let queues = Vec::from_iter(queues);
            self.make_aside(&Making::of(&self.shared, &[], &queues)).await;
        }
        let mut params = Params::sparse();
        self.shared.push_time(&mut params);
        Columns::of(std::slice::from_ref(group)).without_guards().push(new_mark(), true, &mut params);
        let sql = format!("SELECT * FROM {}({})", self.shared.name("commit"), params.marks());
        let rows = self.ask(&sql, &params).await?;
        let row = rows.first().ok_or(PostgresError::Answer("commit"))?;
        if !row.field::<Vec<i32>>(1)?.is_empty() {
            return Ok(false);
        }
        let crowded: Vec<Vec<u8>> = row.field(2)?;
        self.look_over(&crowded).await?;
        self.tell(group).await?;
        Ok(true)
    }

    /// Makes rows outside of the transaction, so that nobody waits for it to commit them. Returns `false` if
    /// that failed; then they are made inside.
    async fn make_aside(&mut self, making: &Making<'_>) -> bool {
        if self.is_alone {
            return false;
        }
        let sql = format!("SELECT pg_catalog.set_config('lock_timeout', '{ROW_MAX}', true), {}", making.call);
        let until = Instant::now() + ASIDE_MAX;
        let asked = match timeout_at(until, self.shared.connection()).await {
            Err(_) => None,
            Ok(Err(error)) => Some(Err(error)),
            Ok(Ok(connection)) => {
                let asked = timeout_at(until, ask(&connection, &sql, &making.params)).await.ok();
                if asked.is_none() {
                    // Closed, so that a pooler does not run it later.
                    drop(Object::take(connection));
                }
                asked
            }
        };
        self.is_alone = asked.is_none();
        match asked {
            Some(Ok(_)) => true,
            Some(Err(error)) => {
                tracing::debug!(%error, "rows are made inside a caller's transaction");
                false
            }
            None => false,
        }
    }

    /// Notifies other servers when the transaction commits.
    async fn tell(&mut self, group: &Group) -> Result<(), PostgresError> {
        let (sql, params) = teller::inside(&self.shared, News::of(std::iter::once(group), &[]));
        self.ask(&sql, &params).await?;
        Ok(())
    }

    pub(crate) async fn ask(&mut self, sql: &str, params: &Params<'_>) -> Result<Vec<Line>, PostgresError> {
        Ok(self.session.ask(sql, &params.values()?).await?)
    }
}

/// Returns the keys that a group relies on or writes.
fn keys_of(group: &Group) -> Keys {
    let mut keys = Keys::new();
    for expect in &group.expect {
        if let Record::Key(key) = &expect.record {
            keys.insert(*key.as_bytes());
        }
    }
    for write in &group.writes {
        if let Write::Insert { head, .. } | Write::Update { head } = write {
            keys.extend(head.key.as_ref().map(|key| *key.as_bytes()));
        }
    }
    keys
}

/// Removes from a group what only answers without a write relied on: like duplicates asked for alone, they
/// are right as of the load. A decision that writes because of a key writes one of its holders, so other keys
/// and jobs belong to such answers. If it writes a document, forgets a job, or updates one without a key
/// (perhaps just released), that cannot be told, and everything is kept.
fn without_duplicates(mut group: Group) -> Group {
    let may_rely_on_others = |write: &Write| match write {
        Write::Update { head } => head.key.is_none(),
        Write::Forget { .. } | Write::Document { .. } => true,
        _ => false,
    };
    if group.writes.iter().any(may_rely_on_others) {
        return group;
    }
    let mut keys: HashSet<UniqueKey> = HashSet::new();
    let mut jobs: HashSet<JobId> = HashSet::new();
    for write in &group.writes {
        match write {
            Write::Insert { head, .. } | Write::Update { head } => {
                keys.extend(head.key);
                jobs.insert(head.id);
            }
            Write::Note { job, .. } => drop(jobs.insert(*job)),
            Write::Spend { id, job, .. } => jobs.extend([*id, *job]),
            Write::Free { id } => drop(jobs.insert(*id)),
            Write::Queue { .. } | Write::Forget { .. } | Write::Document { .. } => {}
        }
    }
    group.expect.retain(|expect| match &expect.record {
        Record::Key(key) => keys.contains(key),
        Record::Job(id) => jobs.contains(id),
        Record::Queue(_) | Record::Document(_) => true,
    });
    group.began.retain(|(key, _)| keys.contains(key));
    group
}

/// The call that makes rows which are to be locked.
struct Making<'a> {
    call: String,
    params: Params<'a>,
}

impl<'a> Making<'a> {
    fn of(shared: &Shared, keys: &[&'a [u8]], queues: &[&'a str]) -> Self {
        let mut params = Params::default();
        params.blobs(keys.to_vec());
        params.texts(queues.to_vec());
        Self { call: format!("{}($1, $2)", shared.name("make")), params }
    }
}
