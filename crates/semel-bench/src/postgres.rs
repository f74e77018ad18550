//! What the same database does without a queue: the bound the figures on PostgreSQL are held against.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use semel_postgres::{Address, Postgres};
use tokio::task::JoinSet;
use tokio_postgres::types::Type;

use crate::report::{BenchError, Figure};

/// Rows of one statement.
const GROUP: u64 = 512;
/// Connections that insert at once.
const CONNECTIONS: u64 = 4;

/// Plain inserts of the rows of a job, by the same driver, into a table with the indexes that a queue cannot do without: each
/// statement a transaction.
///
/// # Errors
/// When the database refuses.
pub async fn raw_inserts(
    address: &Address,
    args_bytes: usize,
    duration: Duration,
) -> Result<Figure, BenchError> {
    let schema = address.schema();
    Postgres::connect(address)
        .await?
        .batch_execute(&format!(
            "CREATE TABLE \"{schema}\".bench_limit (id uuid PRIMARY KEY, key bytea NOT NULL UNIQUE, queue text NOT NULL, \
             priority int2 NOT NULL, at int8 NOT NULL, body bytea NOT NULL); \
             CREATE INDEX ON \"{schema}\".bench_limit (queue, priority DESC, at, id)"
        ))
        .await?;
    let sql = format!(
        "INSERT INTO \"{schema}\".bench_limit \
         SELECT lpad(to_hex(w.n), 32, '0')::uuid, sha256(w.n::text::bytea), 'bench', 0, w.n, w.body \
         FROM unnest($1, $2) AS w(n, body) ON CONFLICT DO NOTHING"
    );
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (client, sql, next) = (Postgres::connect(address).await?, sql.clone(), Arc::clone(&next));
        let bodies = vec![vec![b'x'; args_bytes + 60]; GROUP as usize];
        running.spawn(async move {
            let mut took = Vec::new();
            while started.elapsed() < duration {
                let from = i64::try_from(next.fetch_add(GROUP, Ordering::Relaxed)).unwrap_or(i64::MAX);
                let numbers: Vec<i64> = (from..from.saturating_add(GROUP.cast_signed())).collect();
                let began = Instant::now();
                let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
                    [(&numbers, Type::INT8_ARRAY), (&bodies, Type::BYTEA_ARRAY)];
                client.execute_typed(&sql, &params).await?;
                took.push(began.elapsed());
            }
            Ok::<_, BenchError>(took)
        });
    }
    let mut latencies: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000, 3)
        .map_err(|error| BenchError::Invalid(error.to_string()))?;
    while let Some(took) = running.join_next().await {
        for took in took.map_err(|error| BenchError::Invalid(error.to_string()))?? {
            latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }
    let jobs = next.load(Ordering::Relaxed);
    Ok(Figure::new(
        "limit: the same rows by plain INSERT ... ON CONFLICT, groups of 512, four connections",
        jobs,
        started.elapsed(),
        &latencies,
    ))
}

/// Takes away everything the bench has made.
///
/// # Errors
/// When the database refuses.
pub async fn remove(address: &Address) -> Result<(), BenchError> {
    let schema = address.schema();
    Ok(Postgres::connect(address).await?.batch_execute(&format!("DROP SCHEMA \"{schema}\" CASCADE")).await?)
}
