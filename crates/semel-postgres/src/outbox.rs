//! The outbox: a table into which programs in any language insert jobs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use deadpool_postgres::Object;
use semel_core::ident::JobId;
use semel_store::StoreError;
use semel_store::backend::BoxFuture;
use semel_store::inside::Inside;
use semel_store::outbox::{Outbox, Relayed, Taken};
use tokio_postgres::Client;

use crate::address::Address;
use crate::connect::{self, ask};
use crate::error::PostgresError;
use crate::inside::Transaction;
use crate::store::{Postgres, Shared};
use crate::values::{Params, Uuid};

/// How long the relay waits for a key held by another transaction before it goes on with other entries. The
/// entries behind wait as long for each such entry.
const PATIENCE: &str = "SET LOCAL lock_timeout = '25ms'";

/// The size limit of an entry in bytes, as in the table's own check: that of any request for a job, in any
/// notation.
const ENVELOPE_BYTES_MAX: i64 = 8 * 1024 * 1024;
/// Entries are taken together up to this many bytes, because all of them are in memory at once.
const PIECE_BYTES_MAX: i64 = 2 * ENVELOPE_BYTES_MAX;

/// An entry as stored in the table.
#[derive(Clone, Copy)]
struct Lying {
    /// The id as it was written: a value that is not a valid job id can be named in no other way.
    id: Uuid,
    /// Whether it is too long to be read. Its text is then left empty, which is not a valid request.
    is_too_long: bool,
}

/// Locked entries. Their connection returns to the pool only once its transaction has ended.
struct Piece {
    shared: Arc<Shared>,
    rows: Arc<AtomicU64>,
    entries: Vec<(JobId, String)>,
    /// The stored entry of each.
    lying: Vec<Lying>,
    /// The place of the last entry.
    last: i64,
    connection: Option<Object>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Closing the connection makes the database roll back.
            drop(Object::take(connection));
        }
    }
}

impl Postgres {
    /// Returns how long the first unrelayed entry in the outbox at `address` has waited, if there is one.
    /// Changes nothing.
    ///
    /// # Errors
    /// When the database cannot be reached, or has no outbox.
    pub async fn outbox_waits(address: &Address) -> Result<Option<Duration>, PostgresError> {
        let connection = connect::suited(address).await?.1.get().await?;
        let sql = format!(
            "SELECT (extract(epoch FROM now() - created_at) * 1000)::int8 FROM \"{}\".outbox \
             WHERE outcome IS NULL ORDER BY place LIMIT 1",
            address.schema.as_str()
        );
        let rows = ask(&connection, &sql, &Params::default()).await?;
        let waited: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?;
        Ok(waited.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
    }

    async fn has_no_entries(&self) -> Result<bool, PostgresError> {
        let sql = format!("SELECT 1 FROM {} WHERE outcome IS NULL LIMIT 1", self.shared.name("outbox"));
        let connection = self.shared.connection().await?;
        Ok(ask(&connection, &sql, &Params::default()).await?.is_empty())
    }

    async fn take_entries(&self, limit: u32, after: i64) -> Result<Option<Piece>, PostgresError> {
        let table = self.shared.name("outbox");
        let connection = self.shared.connection().await?;
        let mut params = Params::default();
        params.number(after);
        params.number(i64::from(limit));
        // Usually there is none, and then no transaction is needed.
        let any = format!("SELECT 1 FROM {table} WHERE outcome IS NULL AND place > $1 LIMIT least($2, 1)");
        if ask(&connection, &any, &params).await?.is_empty() {
            return Ok(None);
        }
        // From here on any failure closes the connection.
        let (shared, rows) = (Arc::clone(&self.shared), Arc::clone(&self.rows));
        let mut piece = Piece {
            shared,
            rows,
            entries: Vec::new(),
            lying: Vec::new(),
            last: after,
            connection: Some(connection),
        };
        let client = piece.client()?;
        client.batch_execute("BEGIN").await?;
        client.batch_execute(PATIENCE).await?;
        params.number(ENVELOPE_BYTES_MAX);
        params.number(PIECE_BYTES_MAX);
        // Entries that are locked here but not returned wait for the next piece.
        let sql = format!(
            "SELECT id, CASE WHEN bytes <= $3 THEN envelope::text END, place FROM ( \
             SELECT *, sum(least(bytes, $3)) OVER (ORDER BY place) AS total FROM ( \
             SELECT id, place, envelope, octet_length(envelope::text) AS bytes FROM {table} \
             WHERE outcome IS NULL AND place > $1 ORDER BY place LIMIT $2 FOR UPDATE SKIP LOCKED) AS locked) AS summed \
             WHERE total <= $4 ORDER BY place"
        );
        let rows = client.query_typed(&sql, &params.typed()).await?;
        for row in rows {
            let (id, text) = (row.try_get::<_, Uuid>(0)?, row.try_get::<_, Option<String>>(1)?);
            piece.lying.push(Lying { id, is_too_long: text.is_none() });
            piece.last = row.try_get(2)?;
            piece.entries.push((JobId::from_bytes(id.0), text.unwrap_or_default()));
        }
        if piece.entries.is_empty() {
            piece.end("ROLLBACK").await?;
            return Ok(None);
        }
        Ok(Some(piece))
    }
}

impl Outbox for Postgres {
    fn take(&self, limit: u32, after: i64) -> BoxFuture<'_, Result<Option<Box<dyn Taken>>, StoreError>> {
        Box::pin(async move {
            let taken = self.take_entries(limit, after).await.map_err(PostgresError::inside)?;
            Ok(taken.map(|piece| Box::new(piece) as Box<dyn Taken>))
        })
    }

    fn is_empty(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { self.has_no_entries().await.map_err(PostgresError::inside) })
    }
}

impl Taken for Piece {
    fn entries(&self) -> &[(JobId, String)] {
        &self.entries
    }

    fn transaction(&self) -> Result<Box<dyn Inside + '_>, StoreError> {
        Ok(Box::new(Transaction::on(Arc::clone(&self.shared), Arc::clone(&self.rows), self.client()?)))
    }

    fn last(&self) -> i64 {
        self.last
    }

    fn finish(
        mut self: Box<Self>,
        relayed: Vec<Option<Relayed>>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move { self.finished(relayed).await.map_err(PostgresError::inside) })
    }

    fn give_back(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move { self.end("ROLLBACK").await.map_err(PostgresError::inside) })
    }
}

impl Piece {
    fn connection(&self) -> Result<&Object, PostgresError> {
        self.connection.as_ref().ok_or(PostgresError::Answer("outbox"))
    }

    fn client(&self) -> Result<&Client, PostgresError> {
        self.connection().map(|connection| &***connection)
    }

    /// Ends the transaction, and only then returns its connection to the pool.
    async fn end(&mut self, how: &str) -> Result<(), PostgresError> {
        let connection = self.connection()?;
        let ended = async { Ok::<(), PostgresError>(connection.batch_execute(how).await?) };
        self.shared.heard(connection, ended).await?;
        drop(self.connection.take());
        Ok(())
    }

    async fn finished(&mut self, relayed: Vec<Option<Relayed>>) -> Result<(), PostgresError> {
        let both = self.lying.iter().copied().zip(relayed);
        let (lying, relayed): (Vec<Lying>, Vec<Relayed>) =
            both.filter_map(|(lying, relayed)| Some((lying, relayed?))).unzip();
        let reasons: Vec<Option<String>> = lying
            .iter()
            .zip(&relayed)
            .map(|(lying, relayed)| {
                if lying.is_too_long {
                    return Some(format!("the envelope is longer than {ENVELOPE_BYTES_MAX} bytes"));
                }
                // A reason quotes what was refused, and PostgreSQL's texts cannot contain a zero byte.
                relayed.reason.as_ref().map(|reason| reason.replace('\0', "\u{fffd}"))
            })
            .collect();
        let mut params = Params::default();
        params.uuids(lying.iter().map(|lying| lying.id).collect());
        params.texts(relayed.iter().map(|relayed| relayed.outcome).collect());
        params.maybe_ids(relayed.iter().map(|relayed| relayed.job).collect());
        params.maybe_texts(reasons.iter().map(Option::as_deref).collect());
        let sql = format!(
            "UPDATE {} o SET outcome = w.outcome, job = w.job, reason = w.reason, relayed_at = now() \
             FROM unnest($1, $2, $3, $4) AS w(id, outcome, job, reason) WHERE o.id = w.id",
            self.shared.name("outbox")
        );
        self.client()?.execute_typed(&sql, &params.typed()).await?;
        self.end("COMMIT").await
    }
}
