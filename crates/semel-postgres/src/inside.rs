//! Decisions inside a caller's own transaction. They wait for keys that others hold, as the caller's settings allow; what they
//! write is there with the transaction's commit, and free again with its rollback. What a decision does not write, such as the
//! key of a duplicate, it gives back at once: whoever has a job of that key does not wait for a stranger's transaction.

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

/// How often it is tried to hold all keys of a decision; between two tries those that are not there are made.
const HOLDS: u32 = 3;
/// How long it is waited for another connection to make rows on. All of a pooler's may be in transactions like this one, which
/// wait for one another then.
const ASIDE_MAX: Duration = Duration::from_secs(1);
/// How long the database itself waits there for a row that somebody has made and not committed: as long as a commit does. It would
/// go on for whoever has given up, as long as that transaction is open.
pub(crate) const ROW_MAX: &str = "250ms";

/// Begins a part of a transaction anew. Its locks are given back.
const ANEW: &str = "ROLLBACK TO SAVEPOINT semel";
/// Ends a part of a transaction that is kept.
const KEEP: &str = "RELEASE SAVEPOINT semel";
/// Ends a part of a transaction as if it had not been. Its locks are given back too.
const UNDO: &str = "ROLLBACK TO SAVEPOINT semel; RELEASE SAVEPOINT semel";

/// A caller's transaction on the database of a store.
pub struct Transaction<S> {
    pub(crate) shared: Arc<Shared>,
    rows: Arc<AtomicU64>,
    session: S,
    /// Whether no other connection was to be had: it is not waited for again.
    is_alone: bool,
}

impl Postgres {
    /// A transaction that the caller has begun on this store's database and will end, by the connection it is open on.
    pub fn inside<S: Session>(&self, session: S) -> Transaction<S> {
        Transaction::on(Arc::clone(&self.shared), Arc::clone(&self.rows), session)
    }
}

impl<S: Session> Transaction<S> {
    /// One on a connection of the store's own.
    pub(crate) fn on(shared: Arc<Shared>, rows: Arc<AtomicU64>, session: S) -> Self {
        Self { shared, rows, session, is_alone: false }
    }
}

/// Keys in the order in which everybody locks them.
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
    /// Has a decision taken in a part of the transaction that is kept or not as a whole: an error of ours leaves the caller's
    /// transaction as it was, where the database allows that.
    async fn savepoint(&mut self, reads: Reads, decide: &mut Decide<'_>) -> Result<(), PostgresError> {
        self.session.run("SAVEPOINT semel").await?;
        let decided = self.decided(reads, decide).await;
        let ends = match decided {
            Ok(true) => format!("{KEEP}{}", self.vouched()),
            // The caller's commit then waits for the standbys, also when it wrote nothing else.
            Ok(false) if self.shared.awaits_standby.load(Ordering::Acquire) => {
                format!("{UNDO}; {WAIT}{}", self.vouched())
            }
            Ok(false) | Err(_) => UNDO.to_owned(),
        };
        let ended = self.session.run(&ends).await;
        decided.and_then(|_| Ok(ended?))
    }

    /// What has the caller's commit wait for no less than the store's own do: others are answered by what it shows.
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

    /// Says whether it wrote anything.
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
                    // They are to be held before anything is seen of them.
                    held.extend(missing.keys.iter().map(|read| *read.key.as_bytes()));
                    reads.keys.extend(missing.keys);
                    break false;
                }
                draft.extend(self.load(&missing).await?);
            };
            if !is_decided {
                // All are locked in one order: whoever kept these, and waited for one that comes before them, would be waited for
                // by who has that one.
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
                // What it writes is locked anew, and the versions say whether it is as it was.
                self.session.run(ANEW).await?;
            }
            if self.write(&group).await? {
                return Ok(true);
            }
            self.session.run(ANEW).await?;
            // Others were there first. Nobody else will be, as long as the same is to be written.
            held = written;
        }
        Err(PostgresError::Contended)
    }

    /// Waits for keys.
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
                // What is made may come before what was locked.
                self.session.run(ANEW).await?;
                let making = Making::of(&self.shared, &keys, &[]);
                if !self.make_aside(&making).await {
                    self.ask(&format!("SELECT {}", making.call), &making.params).await?;
                }
            }
        }
        // Housekeeping may have taken a key that nobody held, once. Else the transaction's snapshot is older than the key: it
        // must begin anew.
        Err(PostgresError::OldSnapshot)
    }

    async fn load(&mut self, reads: &Reads) -> Result<Snapshot, PostgresError> {
        let question = self.shared.question(reads);
        let rows = self.ask(&question.sql, &question.params).await?;
        self.shared.answer(reads, &question.keys, &rows)
    }

    /// Writes a group. Says whether it did: not when a record has moved. The keys that it needs were held, or have rows; queues that
    /// have none are made beforehand. What is not there all the same, the commit makes.
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

    /// Makes rows outside of the transaction, so that nobody else must wait for them to be there. Says whether it did: where it
    /// could not, they are made inside.
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
                    // Closed, so that a pooler does not ask the database later.
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

    /// Has servers told when the transaction is committed.
    async fn tell(&mut self, group: &Group) -> Result<(), PostgresError> {
        let (sql, params) = teller::inside(&self.shared, News::of(std::iter::once(group), &[]));
        self.ask(&sql, &params).await?;
        Ok(())
    }

    pub(crate) async fn ask(&mut self, sql: &str, params: &Params<'_>) -> Result<Vec<Line>, PostgresError> {
        Ok(self.session.ask(sql, &params.values()?).await?)
    }
}

/// The keys that a group relies on or writes.
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

/// A group without what only those of its answers relied on that write nothing: as when they had been asked for alone, they are
/// right at the moment of the load. Whoever writes on the strength of a key writes one of its holders, so the other keys and jobs are
/// such answers'. Where a document or a key that was released may say otherwise, all is relied on.
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

/// How rows are made that are to be locked.
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
