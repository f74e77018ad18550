//! Commits: one statement for all groups, and one for each set of claims. Several statements are sent as one
//! transaction, without waiting for one another's answers.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::Object;
use semel_core::ident::JobId;
use semel_store::News;
use semel_store::backend::{Applied, Batch, Claimed, Unwritten, Verdict};
use semel_store::random;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::batch::Columns;
use crate::brief::Brief;
use crate::claim::Together;
use crate::connect::ask;
use crate::error::PostgresError;
use crate::server::{SINCE, given_back};
use crate::store::Shared;
use crate::values::{Id, Params};

/// How often a transaction is tried that fails because of another one.
const TRIES: u32 = 8;
/// How long to ask what became of a commit whose answer was lost: as long as a failover takes.
const RESOLVE_MAX: Duration = Duration::from_secs(30);
/// The pause between two attempts.
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);
/// How many records such a commit is looked for among: never more than housekeeping keeps.
const RESOLVE_LOOKS: i32 = 100_000;
/// How much later than its time a record may be written, in microseconds: a commit reads the time before its
/// turn.
const RECORD_LATE_MAX: i64 = 10_000_000;

/// How long, from the first timeout, the groups that want a lock are searched for: callers would not wait
/// much longer.
const SEARCH_MAX: Duration = Duration::from_secs(1);

/// The least that makes a commit wait for the standbys: one that wrote nothing does not wait.
pub(crate) const WAIT: &str = "SELECT pg_catalog.pg_logical_emit_message(true, 'semel', '')";

/// Begins a transaction with the same lock timeout as `commit` has.
pub(crate) const BEGIN_PART: &str = "BEGIN; SET LOCAL lock_timeout = '250ms'";

/// Which form a commit is sent in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wording {
    /// The short form, if it fits.
    Short,
    /// The long form.
    Full,
}

/// How much of a batch a transaction commits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All of it.
    Whole,
    /// A part of it, after a lock was not had.
    Part,
}

/// The rows that a transaction returned.
struct Answer {
    groups: Vec<Row>,
    claims: Vec<Vec<Row>>,
}

/// Why there is no answer.
struct Failed {
    error: PostgresError,
    /// Whether something may have been committed nevertheless.
    is_unsure: bool,
}

impl From<PostgresError> for Failed {
    fn from(error: PostgresError) -> Self {
        Self { is_unsure: error.is_lost_connection(), error }
    }
}

type Part<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, PostgresError>> + Send + 'a>>;

impl Shared {
    /// Applies a batch, and thins out the keys that it has crowded.
    pub(crate) async fn commit(self: &Arc<Self>, batch: &Batch) -> Result<Applied, PostgresError> {
        let mut crowded = Vec::new();
        let applied = self.apply(batch, Wording::Short, None, &mut crowded).await;
        // Also after an error: some of it may have been committed.
        self.fronts.note(batch);
        self.dues.note(batch);
        self.look_over(crowded).await;
        applied
    }

    /// Applies a batch, in the short form if that is allowed and fits. For a part of a batch that timed out
    /// on a lock, `until` is when it is no longer divided. Adds keys that now have many ended holders to
    /// `crowded`.
    async fn apply(
        &self,
        batch: &Batch,
        wording: Wording,
        until: Option<Instant>,
        crowded: &mut Vec<Vec<u8>>,
    ) -> Result<Applied, PostgresError> {
        if batch.groups.is_empty() && batch.claims.is_empty() {
            return Ok(Applied::default());
        }
        let connection = self.connection().await?;
        // Nothing committed from here on has an earlier time.
        let since = self.floor();
        let extent = if until.is_some() { Extent::Part } else { Extent::Whole };
        let mut tries = 0;
        let answer = loop {
            tries += 1;
            let mark = new_mark();
            // After a failed try something has moved, which the short form cannot handle.
            let wording = if tries == 1 { wording } else { Wording::Full };
            let transacted = self.transact(&connection, mark, batch, wording, extent);
            match self.heard(&connection, transacted).await {
                Err(Failed { error, is_unsure: true }) => {
                    // Closed, which ends whatever was begun on it.
                    drop(Object::take(connection));
                    return self.resolved(mark, since, batch, error).await;
                }
                // The database undid the transaction, and nothing else was done.
                Err(Failed { error, .. }) if error.was_in_the_way() && tries < TRIES => {
                    tracing::debug!(%error, tries, "another transaction was in the way");
                }
                Err(Failed { error, .. }) if error.waited_in_vain() && !batch.groups.is_empty() => {
                    drop(connection);
                    let until = until.unwrap_or_else(|| Instant::now() + SEARCH_MAX);
                    return self.commit_in_parts(batch, until, crowded).await;
                }
                Err(Failed { error, .. }) => return Err(error),
                Ok(answer) => break answer,
            }
        };
        self.fronts.note(batch);
        // The groups are committed now: an unreadable answer to a claim must not fail them.
        let mut claims = vec![Claimed::default(); batch.claims.len()];
        for (together, rows) in Together::of(&batch.claims).iter().zip(&answer.claims) {
            match together.claimed(self, rows) {
                Ok(claimed) => {
                    for (place, claimed) in together.places.iter().zip(claimed) {
                        claims[*place] = claimed;
                    }
                }
                Err(error) if batch.groups.is_empty() => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "the answer to a claim cannot be read; its leases will expire");
                }
            }
        }
        let mut applied = applied(batch.groups.len(), &[], &[])?;
        for row in &answer.groups {
            let Some(now) = row.try_get::<_, Option<i64>>(0)? else {
                drop(connection);
                return self.at_length(batch, claims, until, crowded).await;
            };
            self.saw(now);
            let (stale, busy): (Vec<i32>, Vec<i32>) = (row.try_get(1)?, row.try_get(3)?);
            applied = self::applied(batch.groups.len(), &stale, &busy)?;
            crowded.append(&mut row.try_get(2)?);
        }
        applied.claims = claims;
        self.tell(batch, &applied);
        Ok(applied)
    }

    /// Applies the groups of a batch in the long form, after its claims were granted with the short one.
    async fn at_length(
        &self,
        batch: &Batch,
        claims: Vec<Claimed>,
        until: Option<Instant>,
        crowded: &mut Vec<Vec<u8>>,
    ) -> Result<Applied, PostgresError> {
        let groups = Batch { groups: batch.groups.clone(), claims: Vec::new() };
        let mut applied = match Box::pin(self.apply(&groups, Wording::Full, until, crowded)).await {
            // No group was applied, but the claims have taken jobs: they are answered, and the groups are
            // decided again.
            Err(error) if !claims.is_empty() && !matches!(error, PostgresError::Unknown) => {
                tracing::debug!(%error, "the groups of a commit with claims are decided again");
                Applied { groups: vec![Verdict::Stale; batch.groups.len()], ..Applied::default() }
            }
            applied => applied?,
        };
        applied.claims = claims;
        self.teller.note(News::of(std::iter::empty(), &applied.claims));
        Ok(applied)
    }

    /// Applies a batch in halves, after a lock that cannot be skipped was not obtained in time, to find the
    /// group that wants it and commit the others. If a whole table is locked every part waits in vain; groups
    /// that are not told apart in time are answered as busy.
    async fn commit_in_parts(
        &self,
        batch: &Batch,
        until: Instant,
        crowded: &mut Vec<Vec<u8>>,
    ) -> Result<Applied, PostgresError> {
        let claims = Batch { groups: Vec::new(), claims: batch.claims.clone() };
        let half = batch.groups.len() / 2;
        let mut applied = Applied::default();
        if half == 0 || Instant::now() >= until {
            applied.groups = vec![Verdict::Busy; batch.groups.len()];
        } else {
            let first = Batch { groups: batch.groups[..half].to_vec(), claims: Vec::new() };
            applied.groups = Box::pin(self.apply(&first, Wording::Short, Some(until), crowded)).await?.groups;
            let mut unwritten = Unwritten::default();
            for (group, verdict) in batch.groups.iter().zip(&applied.groups) {
                if *verdict != Verdict::Applied {
                    unwritten.note(group);
                }
            }
            let mut rest = Batch::default();
            let mut verdicts = Vec::new();
            for group in &batch.groups[half..] {
                let is_concerned = unwritten.concerns(group);
                verdicts.push(is_concerned.then_some(Verdict::Stale));
                if is_concerned {
                    unwritten.note(group);
                } else {
                    rest.groups.push(group.clone());
                }
            }
            let mut others = match Box::pin(self.apply(&rest, Wording::Short, Some(until), crowded)).await {
                Ok(others) => others.groups.into_iter(),
                Err(PostgresError::Unknown) => return Err(PostgresError::Unknown),
                // None of these were applied, but the first half was: they are decided again.
                Err(error) => {
                    tracing::debug!(%error, "half of a commit is decided again");
                    Vec::new().into_iter()
                }
            };
            applied.groups.extend(
                verdicts
                    .into_iter()
                    .map(|verdict| verdict.or_else(|| others.next()).unwrap_or(Verdict::Stale)),
            );
        }
        if Instant::now() >= until {
            applied.claims = vec![Claimed::default(); batch.claims.len()];
            return Ok(applied);
        }
        applied.claims = match Box::pin(self.apply(&claims, Wording::Short, Some(until), crowded)).await {
            Ok(claimed) => claimed.claims,
            // The groups are applied, whatever becomes of the claims.
            Err(error) => {
                tracing::debug!(%error, "the claims of a commit found nothing");
                vec![Claimed::default(); batch.claims.len()]
            }
        };
        Ok(applied)
    }

    /// Finds out what became of a commit begun after `since` that may have been applied, but whose answer was
    /// lost with the connection: asks the database once it can be asked. The jobs that its claims took remain
    /// unknown; their leases run out.
    async fn resolved(
        &self,
        mark: Id,
        since: i64,
        batch: &Batch,
        lost: PostgresError,
    ) -> Result<Applied, PostgresError> {
        if batch.groups.is_empty() {
            return Err(lost);
        }
        let mut params = Params::default();
        params.push(mark, Type::UUID);
        params.number(since.saturating_sub(RECORD_LATE_MAX));
        params.push(RESOLVE_LOOKS, Type::INT4);
        let sql = format!("SELECT is_known, stale FROM {}($1, $2, $3)", self.name("resolve"));
        let deadline = Instant::now() + RESOLVE_MAX;
        while Instant::now() < deadline {
            let asked = match timeout_at(deadline, self.connection()).await {
                Err(_) => break,
                Ok(Err(error)) => Err(error),
                Ok(Ok(connection)) => {
                    let asked = self.heard(&connection, ask(&connection, &sql, &params));
                    match timeout_at(deadline, asked).await {
                        Ok(asked) => given_back(connection, asked),
                        Err(_) => {
                            // Closed: the next user would wait behind this question.
                            drop(Object::take(connection));
                            break;
                        }
                    }
                }
            };
            match asked {
                Ok(rows) => {
                    let row = rows.first().ok_or(PostgresError::Answer("resolve"))?;
                    if !row.try_get::<_, bool>(0)? {
                        tracing::warn!(
                            "the answer to a commit was lost, and too much was committed since to tell whether it was applied"
                        );
                        break;
                    }
                    let Some(stale) = row.try_get::<_, Option<Vec<i32>>>(1)? else { return Err(lost) };
                    tracing::info!("the answer to a commit was lost; the database says that it was applied");
                    let mut applied = applied(batch.groups.len(), &stale, &[])?;
                    applied.claims = vec![Claimed::default(); batch.claims.len()];
                    self.tell(batch, &applied);
                    return Ok(applied);
                }
                Err(error) => {
                    tracing::warn!(%error, "the answer to a commit was lost, and the database cannot be asked about it yet");
                    if error.takes_no_writes() {
                        self.leave();
                    }
                    tokio::time::sleep(RESOLVE_PAUSE).await;
                }
            }
        }
        Err(PostgresError::Unknown)
    }

    /// Waits for the standbys: a commit that writes one log record and no row waits until they have all
    /// before it. Its answer also says which server gave it; repeating it does no harm.
    pub(crate) async fn confirm(&self) -> Result<(), PostgresError> {
        let sql = format!("{WAIT}, {SINCE}");
        let rows = self.look(&sql, &Params::default()).await?;
        self.was_answered_by(rows.first().ok_or(PostgresError::Answer("confirm"))?.try_get(1)?);
        Ok(())
    }

    /// Notifies other servers of what was applied.
    fn tell(&self, batch: &Batch, applied: &Applied) {
        let done = batch.groups.iter().zip(&applied.groups);
        let done = done.filter(|(_, verdict)| **verdict == Verdict::Applied).map(|(group, _)| group);
        self.teller.note(News::of(done, &applied.claims));
    }

    async fn transact(
        &self,
        connection: &Object,
        mark: Id,
        batch: &Batch,
        wording: Wording,
        extent: Extent,
    ) -> Result<Answer, Failed> {
        let (groups, claims) = (&batch.groups[..], &batch.claims[..]);
        let mut statements: Vec<(String, Params<'_>)> = Vec::new();
        if !groups.is_empty() {
            let mut params = Params::sparse();
            self.push_time(&mut params);
            let brief = match wording {
                Wording::Short => Brief::of(groups),
                Wording::Full => None,
            };
            let function = match brief {
                Some(brief) => {
                    brief.push(mark, &mut params);
                    "brief"
                }
                None => {
                    Columns::of(groups).push(mark, false, &mut params);
                    "commit"
                }
            };
            statements.push((format!("SELECT * FROM {}({})", self.name(function), params.marks()), params));
        }
        self.fronts.note(batch);
        for together in Together::of(claims) {
            let params = together.params(self);
            statements.push((format!("SELECT * FROM {}({})", self.name("take"), params.marks()), params));
        }
        // Claims left over from a batch wait for a lock no longer than its groups did.
        let waits_little = extent == Extent::Part && groups.is_empty();
        let mut answers = if let ([(sql, params)], false) = (&statements[..], waits_little) {
            vec![ask(connection, sql, params).await?]
        } else {
            let begin = if waits_little { BEGIN_PART } else { "BEGIN" };
            let mut parts: Vec<Part<'_>> = vec![plain(connection, begin)];
            for (sql, params) in &statements {
                parts.push(Box::pin(ask(connection, sql, params)));
            }
            parts.push(plain(connection, "COMMIT"));
            let last = parts.len() - 1;
            let mut answers = Vec::with_capacity(parts.len());
            let mut failed: Option<Failed> = None;
            for (place, answer) in in_order(parts).await.into_iter().enumerate() {
                match answer {
                    Ok(rows) => answers.push(rows),
                    Err(error) => {
                        // If BEGIN failed, each other part was a transaction of its own; if COMMIT failed,
                        // the transaction is still open. Otherwise the parts after the first failure fail
                        // because of it.
                        let is_unsure = place == 0 || place == last || error.is_lost_connection();
                        failed.get_or_insert(Failed { error, is_unsure: false }).is_unsure |= is_unsure;
                    }
                }
            }
            if let Some(failed) = failed {
                // COMMIT made the database roll the transaction back.
                return Err(failed);
            }
            answers.pop();
            answers.remove(0);
            answers
        };
        let groups = if groups.is_empty() { Vec::new() } else { answers.remove(0) };
        Ok(Answer { groups, claims: answers })
    }
}

/// A mark that identifies one commit.
pub(crate) fn new_mark() -> Id {
    Id(JobId::from_bytes(random::secret()))
}

/// Returns the verdicts on `groups` groups, of which `stale` are stale; those of them in `busy` are busy
/// instead.
fn applied(groups: usize, stale: &[i32], busy: &[i32]) -> Result<Applied, PostgresError> {
    let mut applied = Applied { groups: vec![Verdict::Applied; groups], ..Applied::default() };
    for (numbers, is) in [(stale, Verdict::Stale), (busy, Verdict::Busy)] {
        for number in numbers {
            let verdict = usize::try_from(*number).ok().and_then(|number| applied.groups.get_mut(number));
            *verdict.ok_or(PostgresError::Answer("commit"))? = is;
        }
    }
    Ok(applied)
}

fn plain<'a>(connection: &'a Object, sql: &'static str) -> Part<'a> {
    Box::pin(async move {
        connection.batch_execute(sql).await?;
        Ok(Vec::new())
    })
}

/// Polls futures in order, so that each sends its message before the next one does, and waits for all of
/// them.
async fn in_order<T>(parts: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut parts: Vec<_> = parts.into_iter().map(|part| (part, None)).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (part, answer) in &mut parts {
            if answer.is_none() {
                match part.as_mut().poll(context) {
                    Poll::Ready(value) => *answer = Some(value),
                    Poll::Pending => is_done = false,
                }
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    parts.into_iter().filter_map(|(_, answer)| answer).collect()
}
