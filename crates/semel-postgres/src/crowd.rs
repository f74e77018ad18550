//! Keys that have been found to have many ended holders: those that another outlives are taken from them.

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

/// How many keys are looked over at once.
const KEYS_MAX: usize = 64;
/// For how long the answer to a commit waits for it.
const WAIT_MAX: Duration = Duration::from_millis(500);

impl Shared {
    /// Looks over keys that a commit has found to have many ended holders. The answer to that commit waits for it, though not for
    /// long: a claim passes over the jobs of a key that is locked, and who was answered expects nothing of what he did to be in his way.
    pub(crate) async fn look_over(self: &Arc<Self>, keys: Vec<Vec<u8>>) {
        if keys.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        let looking = tokio::spawn(async move {
            for keys in keys.chunks(KEYS_MAX) {
                if let Err(error) = shared.thin_out(keys).await {
                    tracing::debug!(%error, "the ended holders of keys were not looked over");
                }
            }
        });
        // What is not done by then goes on by itself.
        let _ = timeout(WAIT_MAX, looking).await;
    }

    /// Takes from the ended holders of keys those that another outlives. Nobody sees them as it is; this keeps the lists short. A
    /// key that somebody has locked, or that has moved since it was seen, is left for the next time.
    async fn thin_out(&self, keys: &[Vec<u8>]) -> Result<(), PostgresError> {
        let connection = self.connection().await?;
        let rows = ask(&connection, &looking(self), &named(keys)).await?;
        let Some(outlived) = outlived(&rows)? else { return Ok(()) };
        // A crash may undo it: the keys are not locked for as long as the disk takes.
        let by = "pg_catalog.set_config('synchronous_commit', 'off', true) AS o CROSS JOIN ";
        ask(&connection, &taking(self, by, "o = 'off'"), &outlived).await?;
        // Who was woken by the commit itself may have passed over their jobs.
        self.teller.note(News { ready: true, ..News::default() });
        Ok(())
    }
}

impl<S: Session> Transaction<S> {
    /// Looks over keys that the transaction has found to have many ended holders, and has locked: nobody else can before its end, and
    /// nobody may come to them after it who adds one outside of a transaction.
    pub(crate) async fn look_over(&mut self, keys: &[Vec<u8>]) -> Result<(), PostgresError> {
        for keys in keys.chunks(KEYS_MAX) {
            let rows = self.ask(&looking(&self.shared), &named(keys)).await?;
            match outlived(&rows) {
                // Its commit is the caller's, and as durable as he has it.
                Ok(Some(outlived)) => drop(self.ask(&taking(&self.shared, "", "true"), &outlived).await?),
                Ok(None) => {}
                // A row that cannot be read is no reason to refuse what has nothing to do with it.
                Err(error) => tracing::debug!(%error, "the ended holders of keys were not looked over"),
            }
        }
        Ok(())
    }
}

/// Asks for the ended holders of keys.
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

/// Takes those found by [`outlived`] from their keys.
fn taking(shared: &Shared, by: &str, is_so: &str) -> String {
    format!(
        "UPDATE {0} k SET done = ARRAY(SELECT u.id FROM pg_catalog.unnest(k.done) AS u(id) WHERE u.id <> ALL ($3)) \
         FROM (SELECT k.key FROM {by}unnest($1, $2) AS w(key, version) JOIN {0} k ON k.key = w.key AND k.version = w.version \
         WHERE {is_so} ORDER BY k.key FOR UPDATE OF k SKIP LOCKED) AS w WHERE k.key = w.key",
        shared.name("key")
    )
}

/// Keys with their versions, and those of their ended holders that another outlives; nothing when there are none.
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
