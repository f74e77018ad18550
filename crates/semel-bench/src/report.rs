//! The results of a run.

use std::time::Duration;

use hdrhistogram::Histogram;
use semel_core::error::Invalid;
use semel_store::StoreError;
use semel_store::backend::Facts;
use serde::Serialize;

use crate::Options;

/// One measured case.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Jobs done.
    pub jobs: u64,
    /// The time they took, in seconds.
    pub seconds: f64,
    /// Jobs per second.
    pub per_second: f64,
    /// In an open loop, jobs that were due per second: they come by a schedule, and latency counts from the
    /// time each was due. None where callers offer their next job once the last is answered.
    pub offered_per_second: Option<f64>,
    /// The median duration of a turn, in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of a turn's duration, in milliseconds.
    pub p99_ms: f64,
    /// The share of the limit measured in the same run, where one applies.
    pub share_of_limit: Option<f64>,
}

impl Figure {
    /// A figure from a count, a time and the latencies in microseconds.
    pub fn new(name: &str, jobs: u64, took: Duration, latencies: &Histogram<u64>) -> Self {
        let ms = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        let seconds = took.as_secs_f64();
        Self {
            name: name.to_owned(),
            jobs,
            seconds,
            per_second: jobs as f64 / seconds,
            offered_per_second: None,
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            share_of_limit: None,
        }
    }

    /// This figure, measured with jobs due at that rate per second.
    #[must_use]
    pub fn offered(self, rate: f64) -> Self {
        Self { offered_per_second: Some(rate), ..self }
    }

    /// This figure with its share of a limit, in jobs per second, that was measured in the same run.
    #[must_use]
    pub fn beside(self, limit: f64) -> Self {
        Self { share_of_limit: Some(self.per_second / limit), ..self }
    }
}

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The engine's name.
    pub engine: String,
    /// What an acknowledged write survives.
    pub durability: String,
    /// Processors of the machine.
    pub cores: usize,
    /// Callers in flight.
    pub callers: usize,
    /// Bytes of each job's args.
    pub args_bytes: usize,
    /// The figures, in the order they were measured.
    pub figures: Vec<Figure>,
}

impl Report {
    /// The report of a run on the store that `facts` describe.
    pub fn of(facts: &Facts, options: &Options, figures: Vec<Figure>) -> Self {
        Self {
            engine: facts.engine.to_owned(),
            durability: facts.durability.to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            callers: options.callers,
            args_bytes: options.args_bytes,
            figures,
        }
    }
}

/// Why a run could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The embedded store's file failed.
    #[error(transparent)]
    Sqlite(#[from] semel_sqlite::SqliteError),
    /// The raw writer failed.
    #[error(transparent)]
    Raw(#[from] rusqlite::Error),
    /// The store in PostgreSQL failed.
    #[error(transparent)]
    Postgres(#[from] semel_postgres::PostgresError),
    /// The store in Redis failed.
    #[error(transparent)]
    Redis(#[from] semel_redis::RedisError),
    /// The plain scripts failed.
    #[error("redis: {0}")]
    Scripts(#[from] redis::RedisError),
    /// The plain inserts failed.
    #[error(transparent)]
    Database(#[from] tokio_postgres::Error),
    /// A file could not be made.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// An unexpected answer, or options that make no sense.
    #[error("{0}")]
    Invalid(String),
    /// The promise was broken: not exactly one job for each distinct offer.
    #[error("{created} jobs were created of {offered} offered: a key was admitted twice, or not at all")]
    Twice {
        /// Jobs offered.
        offered: u64,
        /// Jobs created.
        created: u64,
    },
}

impl BenchError {
    pub(crate) fn invalid(invalid: &Invalid) -> Self {
        Self::Invalid(invalid.to_string())
    }
}
