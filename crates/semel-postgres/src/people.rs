//! Reads for people and for readers of the log: pages of jobs, queues, the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::QueueRow;
use semel_core::event::{Event, EventKind};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_store::backend::{Filter, Listing, QueueStats, is_set};
use semel_store::{LogPage, Recorded};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use semel_store::bounds::{LIST_LOOKS_MAX, PLACE_BITS};

use crate::error::PostgresError;
use crate::rows;
use crate::store::Shared;
use crate::values::{Id, Params};

/// How often the log is read again while records wait for an older transaction that is still open.
const LOG_LOOKS: u32 = 20;
/// The pause between two reads.
const LOG_PAUSE: Duration = Duration::from_millis(10);
/// The highest place within a transaction that a cursor has bits for.
const PLACE_MAX: u64 = (1 << PLACE_BITS) - 1;
/// The slot of heads that are kept only for their keys.
pub(crate) const KEPT: i16 = -1;
/// Counters of a queue that are not about a state.
pub(crate) const CREATED: i16 = 100;
pub(crate) const PURGED: i16 = 101;

impl Shared {
    /// Returns a page of jobs. Looks at a bounded number of rows.
    pub(crate) async fn list(&self, filter: Filter) -> Result<Listing, PostgresError> {
        let limit = filter.limit as usize;
        let mut listing = Listing::default();
        if limit == 0 {
            return Ok(listing);
        }
        let columns: Vec<&str> = rows::COLUMNS.iter().map(|(name, _)| *name).collect();
        // Other filters are applied here: without an index for them the database would read any number of
        // rows.
        let sql = format!(
            "SELECT {}, slot FROM {} WHERE id < $1 {} ORDER BY id DESC LIMIT $2",
            columns.join(", "),
            self.name("head"),
            if filter.dead_letters { "AND dead" } else { "" },
        );
        let size = limit.clamp(64, 512);
        let mut below = filter.before.unwrap_or(JobId::from_bytes([0xff; 16]));
        let mut looked = 0;
        while looked < LIST_LOOKS_MAX {
            let mut params = Params::default();
            params.push(Id(below), Type::UUID);
            params.number(i64::try_from(size).unwrap_or(i64::MAX));
            let rows = self.show(&sql, &params).await?;
            for row in &rows {
                if listing.heads.len() >= limit {
                    return Ok(listing);
                }
                below = rows::id(row, 0)?;
                listing.next = Some(below);
                // A head that is kept only for its key is no job any more.
                if row.try_get::<_, i16>(columns.len())? == KEPT && !filter.with_key {
                    continue;
                }
                let head = rows::head(row, 0)?;
                if filter.admits(&head) {
                    listing.heads.push(head);
                }
            }
            looked += rows.len();
            if rows.len() < size {
                listing.next = None;
                return Ok(listing);
            }
        }
        Ok(listing)
    }

    /// Returns all queues.
    pub(crate) async fn queues(&self) -> Result<Vec<QueueStats>, PostgresError> {
        let sql = format!("SELECT * FROM {}()", self.name("queues"));
        let mut queues: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
        for row in self.show(&sql, &Params::default()).await? {
            let name = QueueName::from_stored(row.try_get(0)?);
            let queue = queues.entry(name.clone()).or_insert_with(|| QueueStats {
                row: QueueRow::fresh(name),
                counts: [0; State::ALL.len()],
                created: 0,
                purged: 0,
                oldest_ready: None,
            });
            let number: i64 = row.try_get(2)?;
            let count = u64::try_from(number).unwrap_or(0);
            match row.try_get::<_, Option<i16>>(1)? {
                Some(CREATED) => queue.created = count,
                Some(PURGED) => queue.purged = count,
                Some(state) => {
                    let place = usize::try_from(state).ok().and_then(|state| queue.counts.get_mut(state));
                    *place.ok_or(PostgresError::Answer("queues"))? = count;
                }
                None => {
                    queue.row.paused = row.try_get(3)?;
                    queue.row.version = count;
                    queue.row.settings = row.try_get::<_, Option<&str>>(5)?.map(Arc::from);
                    queue.oldest_ready = row.try_get::<_, Option<i64>>(4)?.map(Timestamp::from_micros);
                }
            }
        }
        Ok(queues.into_values().collect())
    }

    /// Returns the rows of queues that have settings. Not limited to the share of connections for such reads,
    /// because enqueues wait for it.
    pub(crate) async fn settings(&self) -> Result<Vec<QueueRow>, PostgresError> {
        let table = self.name("queue");
        // Workers and limits have rows in this table too, many more than there are queues.
        let sql = format!(
            "SELECT name, paused, version, settings FROM {table} WHERE settings IS NOT NULL AND left(name, 1) <> '~'"
        );
        let mut rows = Vec::new();
        for row in self.current(&sql, &Params::default()).await? {
            rows.push(QueueRow {
                name: QueueName::from_stored(row.try_get(0)?),
                paused: row.try_get(1)?,
                version: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
                settings: row.try_get::<_, Option<&str>>(3)?.map(Arc::from),
            });
        }
        rows.retain(is_set);
        Ok(rows)
    }

    /// Returns the log after `cursor`. Transactions do not commit in the order in which they began: a record
    /// is shown only when all transactions with lower numbers are over, so that no cursor passes one that is
    /// still to come.
    pub(crate) async fn events(&self, cursor: u64, limit: u32) -> Result<LogPage, PostgresError> {
        let mut looks = 0;
        loop {
            let page = self.page(cursor, limit).await?;
            looks += 1;
            if !page.waits || page.events.len() >= limit as usize || looks == LOG_LOOKS {
                return Ok(page);
            }
            tokio::time::sleep(LOG_PAUSE).await;
        }
    }

    /// Reads one page of the log.
    async fn page(&self, cursor: u64, limit: u32) -> Result<LogPage, PostgresError> {
        let mut params = Params::default();
        params.push((cursor >> PLACE_BITS).to_string(), Type::TEXT);
        params.number((cursor & PLACE_MAX).cast_signed());
        params.number(i64::from(limit));
        // One statement, so that the records and the bound on finished transactions are from one snapshot.
        // The page must not be short because records that were already read, of the same transaction, fill
        // the limit: fewer events than asked for mean the end of the log. A record may have many events, so
        // records beyond a full page are not sent; some of the first record's events may be before the
        // cursor.
        let sql = format!(
            "SELECT NULL::int8, 0, pg_snapshot_xmin(pg_current_snapshot())::text::int8, NULL::int2[], \
             NULL::uuid[], NULL::text[], NULL::text[], NULL::int8[], NULL::int8[], dropped FROM {} UNION ALL \
             (SELECT tx::text::int8, first, at, kinds, jobs, types, queues, attempts, amounts, NULL::int8 FROM ( \
             SELECT *, sum(ahead) OVER (ORDER BY tx, first) - ahead AS before FROM ( \
             SELECT *, pg_catalog.cardinality(kinds) - CASE WHEN tx = $1::text::xid8 THEN greatest($2 - first, 0) ELSE 0 END AS ahead \
             FROM {} WHERE tx >= $1::text::xid8 AND pg_catalog.cardinality(kinds) > 0 \
             AND (tx > $1::text::xid8 OR first + pg_catalog.cardinality(kinds) > $2) ORDER BY tx, first LIMIT $3) AS found) AS summed \
             WHERE before < $3 ORDER BY tx, first)",
            self.name("fact"),
            self.name("event")
        );
        let mut page = LogPage::default();
        let mut running = 0;
        let _turn = self.turn_aside().await?;
        for row in self.current(&sql, &params).await? {
            let Some(transaction) = row.try_get::<_, Option<i64>>(0)? else {
                running = row.try_get::<_, i64>(2)?;
                let dropped: i64 = row.try_get(9)?;
                page.kept_after = if dropped == 0 { 0 } else { end_of(dropped) };
                page.newest = end_of(running - 1).max(page.kept_after);
                continue;
            };
            if transaction >= running {
                page.waits = true;
                return Ok(page);
            }
            take(&row, cursor, limit as usize, &mut page.events)?;
        }
        Ok(page)
    }
}

/// The highest cursor that an event of this transaction can have.
fn end_of(transaction: i64) -> u64 {
    (transaction.unsigned_abs() << PLACE_BITS) | PLACE_MAX
}

/// Takes the events of a record that are after `cursor`, as long as there is room.
fn take(row: &Row, cursor: u64, limit: usize, found: &mut Vec<Recorded>) -> Result<(), PostgresError> {
    let transaction = u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or(0);
    let first = u64::try_from(row.try_get::<_, i32>(1)?).unwrap_or(0);
    let at = Timestamp::from_micros(row.try_get(2)?);
    let kinds: Vec<i16> = row.try_get(3)?;
    let jobs: Vec<Id> = row.try_get(4)?;
    let types: Vec<&str> = row.try_get(5)?;
    let queues: Vec<&str> = row.try_get(6)?;
    let attempts: Vec<i64> = row.try_get(7)?;
    let amounts: Vec<i64> = row.try_get(8)?;
    let columns = kinds.iter().zip(&jobs).zip(&types).zip(&queues).zip(&attempts).zip(&amounts);
    for (place, (((((kind, job), job_type), queue), attempt), amount)) in (1_u64..).zip(columns) {
        let here = (transaction << PLACE_BITS) + first + place;
        if here <= cursor {
            continue;
        }
        if found.len() >= limit {
            return Ok(());
        }
        let kind = u8::try_from(*kind).ok().and_then(EventKind::from_code);
        let event = Event {
            kind: kind.ok_or(PostgresError::Row { id: job.0, what: "no such event" })?,
            job: job.0,
            job_type: JobType::from_stored(job_type),
            queue: QueueName::from_stored(queue),
            attempt: u32::try_from(*attempt).unwrap_or(u32::MAX),
            amount: u32::try_from(*amount).unwrap_or(u32::MAX),
        };
        found.push(Recorded { cursor: here, at, event });
    }
    Ok(())
}
