//! graphile_worker, the Rust queue of that name: `job_key` in mode `unsafe_dedupe`, its cheapest (a duplicate changes nothing), and its
//! local queue with batched completions, as its docs recommend for speed. Finished jobs are deleted.

use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobKeyMode, JobSpec, JobSpecBuilder, LocalQueueConfig, RawJobSpec, TaskHandler,
    WorkerContext, WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use crate::measure::{Args, Failure, Queue, Starts};

/// The version in the manifest.
pub const VERSION: &str = "0.14.1";
const SCHEMA: &str = "graphile_worker";
/// The number of jobs per fetch.
const FETCH: usize = 500;
const AT_ONCE: usize = 24;
/// How long finished jobs wait to be batched with others: the shortest delay that its docs recommend.
const FLUSH: Duration = Duration::from_millis(1);

#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Noop(Args);

#[derive(Clone, Debug)]
struct Told(Starts);

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(Told(starts)) = context.get_ext::<Told>() {
            // Fails once all jobs are done, when nothing receives any more.
            let _ = starts.send((self.0.order, Instant::now()));
        }
        Ok::<(), String>(())
    }
}

/// The mode is a parameter because bulk calls refuse "unsafe_dedupe".
fn spec(job: &Args, mode: JobKeyMode) -> JobSpec {
    let key = format!("{}-{}", std::process::id(), job.order);
    JobSpecBuilder::new().job_key(key).job_key_mode(mode).build()
}

/// On PostgreSQL, its only store.
#[derive(Clone)]
pub struct Postgres {
    pool: PgPool,
    utils: WorkerUtils,
}

impl Postgres {
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(16).connect(url).await?;
        let utils = WorkerUtils::new(pool.clone(), SCHEMA);
        utils.migrate().await?;
        Ok(Self { pool, utils })
    }
}

impl Queue for Postgres {
    async fn enqueue(&self, job: Args) -> Result<(), Failure> {
        let spec = spec(&job, JobKeyMode::UnsafeDedupe);
        self.utils.add_job(Noop(job), spec).await?;
        Ok(())
    }

    async fn bulk(&self, jobs: Vec<Args>) -> Result<(), Failure> {
        let raw = |job: Args| {
            let spec = spec(&job, JobKeyMode::Replace);
            let payload = serde_json::to_value(job)?;
            Ok::<_, Failure>(RawJobSpec { identifier: Noop::IDENTIFIER.to_owned(), payload, spec })
        };
        let jobs = jobs.into_iter().map(raw).collect::<Result<Vec<_>, _>>()?;
        self.utils.add_raw_jobs(&jobs).await?;
        Ok(())
    }

    async fn waiting(&self) -> Result<u64, Failure> {
        let query = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM graphile_worker._private_jobs");
        Ok(query.fetch_one(&self.pool).await?.unsigned_abs())
    }

    async fn work(&self, starts: Starts) -> Result<(), Failure> {
        let worker = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema(SCHEMA)
            .concurrency(AT_ONCE)
            .poll_interval(Duration::from_secs(1))
            .local_queue(LocalQueueConfig::default().with_size(FETCH))
            .complete_job_batch_delay(FLUSH)
            .add_extension(Told(starts))
            .define_job::<Noop>()
            .init()
            .await?;
        tokio::spawn(async move {
            if let Err(error) = worker.run().await {
                eprintln!("the worker has ended: {error}");
            }
            std::process::exit(1);
        });
        Ok(())
    }
}
