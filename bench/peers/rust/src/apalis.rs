//! apalis on PostgreSQL and Redis: `idempotency_key`, fetches of 1,000, woken by the store and every 10 ms.

use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_postgres::{PgPool, PostgresStorage};
use apalis_redis::{RedisStorage, factory::RedisStorageFactory};
use futures::stream;

use crate::measure::{Args, Failure, Queue, Starts};

/// The version in the manifest.
pub const VERSION: &str = "1.0.0";
const NAME: &str = "bench";
/// The number of jobs per fetch.
const FETCH: usize = 1_000;
/// How often a worker polls when nothing wakes it: a wake-up announces only one push, even if more jobs wait.
const LOOK: Duration = Duration::from_millis(10);

fn task(args: Args) -> Task<Args> {
    let key = format!("{}-{}", std::process::id(), args.order);
    TaskBuilder::new(args).idempotency_key(key).build()
}

/// Accepts a duplicate, which PostgreSQL reports as an error.
fn or_known(result: Result<(), impl std::error::Error>) -> Result<(), Failure> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => {
            let mut text = format!("{error}");
            let mut source = error.source();
            while let Some(inner) = source {
                text = format!("{text}: {inner}");
                source = inner.source();
            }
            if text.contains("duplicate key") { Ok(()) } else { Err(text.into()) }
        }
    }
}

async fn tell(args: Args, starts: Data<Starts>) -> Result<(), BoxDynError> {
    // Fails once all jobs are done, when nothing receives any more.
    let _ = starts.send((args.order, Instant::now()));
    Ok(())
}

/// Runs a worker on a thread of its own, as its future is not `Send`; its jobs run on all threads.
fn until_it_ends<E: std::fmt::Display>(
    run: impl FnOnce(&tokio::runtime::Handle) -> Result<(), E> + Send + 'static,
) {
    let handle = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        if let Err(error) = run(&handle) {
            eprintln!("the worker has ended: {error}");
        }
        std::process::exit(1);
    });
}

/// On PostgreSQL.
#[derive(Clone)]
pub struct Postgres {
    pool: PgPool,
    storage: PostgresStorage<Args>,
}

impl Postgres {
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(16).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        let config = apalis_postgres::Config::default().queue(NAME).batch_size(FETCH).lock_tasks(false);
        Ok(Self { storage: PostgresStorage::new(&pool).with_config(config), pool })
    }
}

impl Queue for Postgres {
    async fn enqueue(&self, job: Args) -> Result<(), Failure> {
        or_known(self.storage.clone().push_task(task(job)).await)
    }

    async fn bulk(&self, jobs: Vec<Args>) -> Result<(), Failure> {
        let tasks = jobs.into_iter().map(task).collect::<Vec<_>>();
        Ok(self.storage.clone().push_all(stream::iter(tasks)).await?)
    }

    async fn waiting(&self) -> Result<u64, Failure> {
        let query = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM apalis.jobs WHERE status = 'Pending'");
        Ok(query.fetch_one(&self.pool).await?.unsigned_abs())
    }

    async fn work(&self, starts: Starts) -> Result<(), Failure> {
        let backend = self.storage.clone().with_pubsub().poll_with_interval(LOOK);
        until_it_ends(|handle| {
            let worker =
                WorkerBuilder::new(NAME).backend(backend).data(starts).parallelize(tokio::spawn).build(tell);
            handle.block_on(worker.run())
        });
        Ok(())
    }
}

/// On Redis.
#[derive(Clone)]
pub struct Redis {
    client: redis::Client,
    connection: apalis_redis::ConnectionManager,
    config: apalis_redis::Config,
}

impl Redis {
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let connection = apalis_redis::connect(url).await?;
        let config = apalis_redis::Config::default()
            .queue(NAME)
            .batch_size(FETCH)
            .lock_tasks(false)
            .idempotency_ttl(Some(Duration::from_secs(3_600)));
        // RESP3 is needed to receive push messages besides answers.
        let joint = if url.contains('?') { '&' } else { '?' };
        let client = redis::Client::open(format!("{url}{joint}protocol=resp3"))?;
        Ok(Self { client, connection, config })
    }

    fn storage(&self) -> RedisStorage<Args> {
        RedisStorage::new(self.connection.clone()).with_config(self.config.clone())
    }
}

impl Queue for Redis {
    async fn enqueue(&self, job: Args) -> Result<(), Failure> {
        or_known(self.storage().push_task(task(job)).await)
    }

    async fn bulk(&self, jobs: Vec<Args>) -> Result<(), Failure> {
        let tasks = jobs.into_iter().map(task).collect::<Vec<_>>();
        Ok(self.storage().push_all(stream::iter(tasks)).await?)
    }

    async fn waiting(&self) -> Result<u64, Failure> {
        let mut connection = self.connection.clone();
        let scheduled: u64 =
            redis::cmd("ZCARD").arg(self.config.scheduled_jobs_set()).query_async(&mut connection).await?;
        let active: u64 =
            redis::cmd("LLEN").arg(self.config.active_jobs_list()).query_async(&mut connection).await?;
        Ok(scheduled + active)
    }

    async fn work(&self, starts: Starts) -> Result<(), Failure> {
        // The only storage of apalis that is woken by pushes.
        let mut woken = RedisStorageFactory::new(self.client.clone()).await?;
        let backend: <RedisStorageFactory as BackendFactory<Args>>::Backend =
            woken.create_with_config(self.config.clone())?;
        let backend = backend.poll_with_interval(LOOK);
        until_it_ends(|handle| {
            let worker =
                WorkerBuilder::new(NAME).backend(backend).data(starts).parallelize(tokio::spawn).build(tell);
            handle.block_on(worker.run())
        });
        Ok(())
    }
}
