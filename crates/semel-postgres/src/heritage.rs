//! What the store provides for copying from it to another store, and from another store into it.

use bytes::Bytes;
use semel_core::draft::QueueRow;
use semel_core::ident::{JobId, QueueName};
use semel_core::time::Timestamp;
use semel_store::carry::{Heritage, Piece};
use tokio_postgres::types::Type;

use crate::error::PostgresError;
use crate::people::KEPT;
use crate::rows;
use crate::store::Shared;
use crate::values::{Id, Params};

impl Shared {
    /// Returns a piece of the heads kept only for their keys, in the order of until when they are kept.
    pub(crate) async fn remembered(&self, after: Option<Bytes>, limit: u32) -> Result<Piece, PostgresError> {
        let after = after.as_deref().and_then(|after| after.split_first_chunk());
        let (at, id) = after.map_or((i64::MIN, [0; 16]), |(at, id)| {
            (i64::from_be_bytes(*at), id.try_into().unwrap_or_default())
        });
        let mut params = Params::default();
        params.number(at);
        params.push(Id(JobId::from_bytes(id)), Type::UUID);
        params.number(i64::from(limit));
        let columns: Vec<&str> = rows::COLUMNS.iter().map(|(name, _)| *name).collect();
        let sql = format!(
            "SELECT {}, slot_at FROM {} WHERE slot = {KEPT} AND (slot_at, id) > ($1, $2) ORDER BY slot_at, id LIMIT $3",
            columns.join(", "),
            self.name("head")
        );
        let mut piece = Piece::default();
        for row in self.look_aside(&sql, &params).await? {
            let until: i64 = row.try_get(columns.len())?;
            let head = rows::head(&row, 0)?;
            piece.next = Some([&until.to_be_bytes()[..], &head.id.to_bytes()].concat().into());
            piece.heads.push((head, Timestamp::from_micros(until)));
        }
        if piece.heads.len() < limit as usize {
            piece.next = None;
        }
        Ok(piece)
    }

    /// Returns a piece of the written rows (queues, workers, limits), in the byte order of their names.
    pub(crate) async fn rows(&self, after: Option<Bytes>, limit: u32) -> Result<Piece, PostgresError> {
        let mut params = Params::default();
        let after = after.map(|after| String::from_utf8_lossy(&after).into_owned());
        params.push(after.unwrap_or_default(), Type::TEXT);
        params.number(i64::from(limit));
        let sql = format!(
            "SELECT name, paused, version, settings FROM {} WHERE version > 0 AND name COLLATE \"C\" > $1 \
             ORDER BY name COLLATE \"C\" LIMIT $2",
            self.name("queue")
        );
        let mut piece = Piece::default();
        for row in self.look_aside(&sql, &params).await? {
            let name: &str = row.try_get(0)?;
            piece.next = Some(Bytes::copy_from_slice(name.as_bytes()));
            piece.rows.push(QueueRow {
                name: QueueName::from_stored(name),
                paused: row.try_get(1)?,
                version: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
                settings: row.try_get::<_, Option<&str>>(3)?.map(Into::into),
            });
        }
        if piece.rows.len() < limit as usize {
            piece.next = None;
        }
        Ok(piece)
    }

    /// Makes the store take the place of another. The log's places are given by the database: those given
    /// until now are declared gone.
    pub(crate) async fn inherit(&self, heritage: &Heritage) -> Result<(), PostgresError> {
        let mut params = Params::default();
        params.push(&heritage.secret[..], Type::BYTEA);
        params.number(heritage.time.as_micros());
        let sql = format!(
            "UPDATE {} SET secret = $1, gone = greatest(gone, $2), dropped = pg_current_xact_id()::text::int8",
            self.name("fact")
        );
        self.connection().await?.execute_typed(&sql, &params.typed()).await?;
        Ok(())
    }

    /// Restarts the event log after a restore into another cluster. If a dump came from a cluster with higher
    /// transaction numbers, the log has places that this cluster has yet to assign: until then it would show
    /// nothing, and take old records for new. Readers of the old log are told that it begins anew.
    pub(crate) async fn settle(&self) -> Result<(), PostgresError> {
        let (fact, event) = (self.name("fact"), self.name("event"));
        // Nothing visible that this cluster wrote has a transaction number that is still to come.
        let next = "(SELECT pg_snapshot_xmax(pg_current_snapshot()))";
        let sql = format!(
            "SELECT 1 FROM {fact} WHERE dropped >= {next}::text::int8 OR EXISTS (SELECT FROM {event} WHERE tx >= {next})"
        );
        if self.look_aside(&sql, &Params::default()).await?.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "WITH other AS (DELETE FROM {event} WHERE tx >= {next}) \
             UPDATE {fact} SET dropped = pg_current_xact_id()::text::int8"
        );
        self.connection().await?.execute_typed(&sql, &[]).await?;
        tracing::warn!("the database was restored from another cluster: its event log starts over");
        Ok(())
    }
}
