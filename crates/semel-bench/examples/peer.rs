//! One case on Semel, as `cargo xtask bench peers` asks of every queue: `peer CASE '{"url": …}'`. The last line printed is the result.
#![allow(clippy::print_stdout, reason = "a tool for programs")]

#[path = "../../../bench/peers/rust/src/measure.rs"]
#[allow(missing_docs, reason = "the file of a program")]
mod measure;

use std::time::{Duration, Instant};

use semel::{Envelope, Job, OnConflict, Semel, State, Unique, Worker};
use semel_core::state::State as JobState;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::measure::{Args, Failure, Options, Queue, Starts, measure};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Serialize, Deserialize, Job)]
#[job(type = "noop", queue = "bench")]
struct Noop {
    order: u64,
    user: String,
    note: String,
}

#[derive(Clone)]
struct Library {
    semel: Semel,
    is_unique: bool,
}

impl Library {
    fn job(&self, Args { order, user, note }: Args) -> Envelope {
        let job = Envelope::of(&Noop { order, user, note });
        if !self.is_unique {
            return job;
        }
        job.unique(Unique::by_args(["order"]).on_conflict(OnConflict::Ignore))
    }
}

impl Queue for Library {
    async fn enqueue(&self, job: Args) -> Result<(), Failure> {
        self.semel.enqueue(self.job(job)).await?;
        Ok(())
    }

    async fn bulk(&self, jobs: Vec<Args>) -> Result<(), Failure> {
        let many = self.semel.enqueue_many(jobs.into_iter().map(|job| self.job(job))).await?;
        for outcome in many.outcomes {
            outcome?;
        }
        Ok(())
    }

    async fn waiting(&self) -> Result<u64, Failure> {
        let queues = self.semel.engine()?.queues().await?;
        Ok(queues.iter().map(|queue| queue.count(JobState::Available)).sum())
    }

    async fn work(&self, starts: Starts) -> Result<(), Failure> {
        let worker = Worker::new(&self.semel).state(starts).handle(tell).queue("bench", 500).prefetch(1_000);
        let working = worker.start()?;
        tokio::spawn(async move {
            // It goes on until the process ends.
            std::future::pending::<()>().await;
            drop(working);
        });
        Ok(())
    }
}

async fn tell(job: Noop, State(starts): State<Starts>) {
    // Nobody listens any more once all are done.
    let _ = starts.send((job.order, Instant::now()));
}

/// What the store can do with no queue on top, measured as `semel bench` does.
async fn limit(options: &Options) -> Result<Value, Failure> {
    let time = Duration::from_secs_f64(options.seconds);
    let figure = if options.url.starts_with("postgres") {
        let address = semel_postgres::Address::parse(&options.url)?;
        let plain = semel_bench::postgres::Plain::new(&address).await?;
        let inserts = plain.inserts(options.args_bytes, time).await?;
        let claims = plain.claims(time).await?;
        plain.remove().await?;
        return Ok(json!({
            "version": "-", "jobs": inserts.jobs, "seconds": inserts.seconds, "claims_per_second": claims.per_second,
        }));
    } else if options.url.starts_with("redis") {
        let address = semel_redis::Address::parse(&options.url)?;
        let info = address.info().ok_or("the limit is measured at one Redis that stays where it is")?;
        semel_bench::redis::raw_scripts(info, &address.base(), options.args_bytes, time).await?
    } else {
        let file = std::path::Path::new(options.url.trim_start_matches("sqlite:"));
        let folder = file.parent().ok_or("the file is in no folder")?;
        semel_bench::limit::raw_writer(folder, options.args_bytes, time)?
    };
    Ok(json!({ "version": "-", "jobs": figure.jobs, "seconds": figure.seconds }))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (case, text) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let options: Options = serde_json::from_str(&text)?;
    let result = if case == "limit" {
        limit(&options).await?
    } else {
        let library = Library { semel: Semel::open(&options.url).await?, is_unique: options.unique };
        measure(library, env!("CARGO_PKG_VERSION"), &case, options).await?
    };
    println!("{result}");
    Ok(())
}
