//! Thins out keys that were found to have many ended holders: removes those that another one outlives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::job::Head;
use semel_core::unique::leave_out_outlived;
use semel_store::News;
use tokio::time::timeout;

use crate::connect::ask;
use crate::error::PostgresError;
use crate::inside::Transaction;
use crate::rows;
use crate::session::{Fields, Session};
use crate::store::Shared;
use crate::values::Params;

/// Keys handled in one query.
const KEYS_MAX: usize = 64;
/// How long the answer to a commit waits for this, at most.
const WAIT_MAX: Duration = Duration::from_millis(500);

impl Shared {
    /// Thins out keys that a commit found to have many ended holders. The answer to that commit waits for it,
    /// but not for long: meanwhile claims skip jobs whose key is locked, and a caller that has its answer
    /// does not expect its own commit to be in the way.
    pub(crate) async fn look_over(self: &Arc<Self>, keys: Vec<Vec<u8>>) {
        if keys.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        let looking = tokio::spawn(async move {
            for keys in keys.chunks(KEYS_MAX) {
                if let Err(error) = shared.thin_out(keys).await {
                    tracing::debug!(%error, "ended holders of keys could not be thinned out");
                }
            }
        });
        // What is not done by then goes on in its task.
        let _ = timeout(WAIT_MAX, looking).await;
    }

    /// Removes from the ended holders of keys those that another one outlives. Decisions ignore them anyway;
    /// this keeps the lists short. A key that is locked, or has moved since it was read, is left for the next
    /// time.
    async fn thin_out(&self, keys: &[Vec<u8>]) -> Result<(), PostgresError> {
        let connection = self.connection().await?;
        let rows = ask(&connection, &looking(self), &named(keys)).await?;
        let Some(outlived) = outlived(&rows)? else { return Ok(()) };
        // A crash may undo it. Not waiting for the disk keeps the key locks short.
        let by = "pg_catalog.set_config('synchronous_commit', 'off', true) AS o CROSS JOIN ";
        ask(&connection, &taking(self, by, "o = 'off'"), &outlived).await?;
        // Claims woken by the commit itself may have skipped the jobs of these keys.
        self.teller.note(News { ready: true, ..News::default() });
        Ok(())
    }
}

impl<S: Session> Transaction<S> {
    /// Thins out keys that the transaction found to have many ended holders, and has locked. Nobody else can
    /// before it ends, and there may be no later commit outside of a transaction that would do it.
    pub(crate) async fn look_over(&mut self, keys: &[Vec<u8>]) -> Result<(), PostgresError> {
        for keys in keys.chunks(KEYS_MAX) {
            let rows = self.ask(&looking(&self.shared), &named(keys)).await?;
            match outlived(&rows) {
                // The commit is the caller's, with the durability that the caller has set.
                Ok(Some(outlived)) => drop(self.ask(&taking(&self.shared, "", "true"), &outlived).await?),
                Ok(None) => {}
                // An unreadable row must not fail an operation that is not about it.
                Err(error) => tracing::debug!(%error, "ended holders of keys could not be thinned out"),
            }
        }
        Ok(())
    }
}

/// The query for the ended holders of keys.
fn looking(shared: &Shared) -> String {
    let columns: Vec<String> = rows::COLUMNS.iter().map(|(name, _)| format!("h.{name}")).collect();
    format!(
        "SELECT {}, k.key, k.version FROM {} k, pg_catalog.unnest(k.done) AS u(id) JOIN {} h ON h.id = u.id WHERE k.key = ANY ($1)",
        columns.join(", "),
        shared.name("key"),
        shared.name("head")
    )
}

fn named(keys: &[Vec<u8>]) -> Params<'_> {
    let mut params = Params::default();
    params.blobs(keys.iter().map(Vec::as_slice).collect());
    params
}

/// The statement that removes what [`outlived`] found from its keys.
fn taking(shared: &Shared, by: &str, is_so: &str) -> String {
    format!(
        "UPDATE {0} k SET done = ARRAY(SELECT u.id FROM pg_catalog.unnest(k.done) AS u(id) WHERE u.id <> ALL ($3)) \
         FROM (SELECT k.key FROM {by}unnest($1, $2) AS w(key, version) JOIN {0} k ON k.key = w.key AND k.version = w.version \
         WHERE {is_so} ORDER BY k.key FOR UPDATE OF k SKIP LOCKED) AS w WHERE k.key = w.key",
        shared.name("key")
    )
}

/// Returns keys with their versions, and their ended holders that another one outlives; `None` if there are
/// none.
fn outlived<R: Fields>(rows: &[R]) -> Result<Option<Params<'_>>, PostgresError> {
    let mut holders: BTreeMap<(&[u8], i64), Vec<Head>> = BTreeMap::new();
    for row in rows {
        let key = (row.field(rows::COLUMNS.len())?, row.field(rows::COLUMNS.len() + 1)?);
        holders.entry(key).or_default().push(rows::head(row, 0)?);
    }
    let (mut crowded, mut versions, mut outlived) = (Vec::new(), Vec::new(), Vec::new());
    for ((key, version), all) in holders {
        let mut kept = all.clone();
        leave_out_outlived(&mut kept);
        if kept.len() < all.len() {
            crowded.push(key);
            versions.push(version);
            let is_kept = |head: &Head| kept.iter().any(|kept| kept.id == head.id);
            outlived.extend(all.iter().filter(|head| !is_kept(head)).map(|head| head.id));
        }
    }
    if crowded.is_empty() {
        return Ok(None);
    }
    let mut params = Params::default();
    params.blobs(crowded);
    params.numbers(versions);
    params.ids(outlived);
    Ok(Some(params))
}
