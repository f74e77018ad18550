//! What the same database does without a queue: the bounds that the figures on PostgreSQL are compared with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use semel_postgres::{Address, Postgres};
use tokio::task::JoinSet;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::report::{BenchError, Figure};

/// Rows inserted by one statement.
const GROUP: u64 = 512;
/// Rows claimed by one statement.
const CLAIM: i64 = 100;
/// Connections that work at once.
const CONNECTIONS: u64 = 4;
/// The table's name.
const TABLE: &str = "bench_limit";

/// A table with the rows of jobs and the indexes that a queue needs, and none of a queue's rules.
pub struct Plain<'a> {
    address: &'a Address,
    table: String,
    next: Arc<AtomicU64>,
}

impl<'a> Plain<'a> {
    /// Makes the table, empty, and its schema if there is none.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn new(address: &'a Address) -> Result<Self, BenchError> {
        let schema = address.schema();
        let table = format!("\"{schema}\".{TABLE}");
        Postgres::connect(address)
            .await?
            .batch_execute(&format!(
                "CREATE SCHEMA IF NOT EXISTS \"{schema}\"; \
                 CREATE TABLE {table} (id uuid PRIMARY KEY, key bytea NOT NULL UNIQUE, queue text NOT NULL, \
                 priority int2 NOT NULL, at int8 NOT NULL, state int2 NOT NULL, worker text, started_at int8, \
                 finished_at int8, body bytea NOT NULL) WITH (fillfactor = 85); \
                 CREATE INDEX ON {table} (queue, priority DESC, at, id) WHERE state = 1"
            ))
            .await?;
        Ok(Self { address, table, next: Arc::default() })
    }

    /// Plain inserts of 512 rows per statement, each a transaction, by the same driver.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn inserts(&self, args_bytes: usize, duration: Duration) -> Result<Figure, BenchError> {
        let sql = format!(
            "INSERT INTO {} (id, key, queue, priority, at, state, body) \
             SELECT lpad(to_hex(w.n), 32, '0')::uuid, sha256(w.n::text::bytea), 'bench', 0, w.n, 1, w.body \
             FROM unnest($1, $2) AS w(n, body) ON CONFLICT DO NOTHING",
            self.table
        );
        let bodies = Arc::new(vec![vec![b'x'; args_bytes + 60]; GROUP as usize]);
        let name = "limit: the same rows by plain INSERT ... ON CONFLICT, groups of 512, four connections";
        self.drive(name, duration, move |client, next| {
            let (sql, bodies) = (sql.clone(), Arc::clone(&bodies));
            async move {
                let from = i64::try_from(next.fetch_add(GROUP, Ordering::Relaxed)).unwrap_or(i64::MAX);
                let numbers: Vec<i64> = (from..from.saturating_add(GROUP.cast_signed())).collect();
                let params: [(&(dyn ToSql + Sync), Type); 2] =
                    [(&numbers, Type::INT8_ARRAY), (&*bodies, Type::BYTEA_ARRAY)];
                client.execute_typed(&sql, &params).await
            }
        })
        .await
    }

    /// Claims a hundred rows in the order of a queue and marks them finished: two statements, each a
    /// transaction. The rows stay.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn claims(&self, duration: Duration) -> Result<Figure, BenchError> {
        // As autovacuum would do after a minute.
        Postgres::connect(self.address).await?.batch_execute(&format!("ANALYZE {}", self.table)).await?;
        let claim = format!(
            "UPDATE {0} t SET state = 3, worker = 'bench', started_at = at FROM (SELECT id FROM {0} \
             WHERE queue = 'bench' AND state = 1 ORDER BY priority DESC, at, id LIMIT $1 FOR UPDATE SKIP LOCKED) AS w \
             WHERE t.id = w.id RETURNING t.id, t.body",
            self.table
        );
        let finish = format!(
            "UPDATE {} SET state = 5, worker = NULL, finished_at = at WHERE id IN (SELECT unnest($1))",
            self.table
        );
        let name = "limit: plain claim of 100 and UPDATE as finished, four connections";
        self.drive(name, duration, move |client, _| {
            let (claim, finish) = (claim.clone(), finish.clone());
            async move {
                let rows = client.query_typed(&claim, &[(&CLAIM, Type::INT8)]).await?;
                let ids = rows.iter().map(|row: &Row| row.try_get(0)).collect::<Result<Vec<Raw>, _>>()?;
                client.execute_typed(&finish, &[(&ids, Type::UUID_ARRAY)]).await
            }
        })
        .await
    }

    /// Runs turns on all connections until the time is over. A turn answers how many rows it was.
    async fn drive<F, Fut>(&self, name: &str, duration: Duration, turn: F) -> Result<Figure, BenchError>
    where
        F: Fn(Arc<Client>, Arc<AtomicU64>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<u64, tokio_postgres::Error>> + Send,
    {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Arc::new(Postgres::connect(self.address).await?));
        }
        let started = Instant::now();
        let mut running = JoinSet::new();
        for client in clients {
            let (turn, next) = (turn.clone(), Arc::clone(&self.next));
            running.spawn(async move {
                let (mut jobs, mut took) = (0, Vec::new());
                while started.elapsed() < duration {
                    let began = Instant::now();
                    jobs += turn(Arc::clone(&client), Arc::clone(&next)).await?;
                    took.push(began.elapsed());
                }
                Ok::<_, BenchError>((jobs, took))
            });
        }
        let mut latencies: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000, 3)
            .map_err(|error| BenchError::Invalid(error.to_string()))?;
        let mut all = 0;
        while let Some(ran) = running.join_next().await {
            let (jobs, took) = ran.map_err(|error| BenchError::Invalid(error.to_string()))??;
            all += jobs;
            for took in took {
                latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            }
        }
        Ok(Figure::new(name, all, started.elapsed(), &latencies))
    }

    /// Drops the table.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn remove(self) -> Result<(), BenchError> {
        Ok(Postgres::connect(self.address)
            .await?
            .batch_execute(&format!("DROP TABLE {}", self.table))
            .await?)
    }
}

/// An id in the database's binary format.
#[derive(Debug)]
struct Raw([u8; 16]);

impl<'a> tokio_postgres::types::FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

impl ToSql for Raw {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(tokio_postgres::types::IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    tokio_postgres::types::to_sql_checked!();
}

/// Drops everything the bench has made.
///
/// # Errors
/// When the database refuses.
pub async fn remove(address: &Address) -> Result<(), BenchError> {
    let schema = address.schema();
    Ok(Postgres::connect(address).await?.batch_execute(&format!("DROP SCHEMA \"{schema}\" CASCADE")).await?)
}
