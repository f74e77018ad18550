//! Load on a Semel engine in this process, measured against what the same disk and the same SQLite do without
//! a queue.
//!
//! Every figure names its durability, and the limits are measured in the same run: do not compare figures of
//! different runs or machines, only their [shares of those limits](compare).

pub mod compare;
pub mod grown;
pub mod http;
pub mod limit;
pub mod load;
pub mod on_postgres;
pub mod open_loop;
pub mod postgres;
pub mod redis;
pub mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel_engine::Engine;
use semel_sqlite::Sqlite;

use crate::open_loop::Pace;

pub use on_postgres::run_on_postgres;
pub use report::{BenchError, Figure, Report};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder for the files, which are left there.
    pub folder: PathBuf,
    /// How many callers run at once.
    pub callers: usize,
    /// Bytes of each job's args.
    pub args_bytes: usize,
    /// How long each case runs.
    pub duration: Duration,
    /// Jobs per second offered in an open loop; if not set, half of what the waiting callers reached.
    pub rate: Option<f64>,
    /// Jobs already waiting in the second round; with 0 there is no second round.
    pub waiting: u64,
    /// Kept connections of the case over HTTP; with 0 it is left out.
    pub connections: usize,
    /// Databases only: finished jobs that are kept in the second round, besides those waiting.
    pub finished: u64,
    /// Databases only: how long jobs come and go before the last figures are taken; zero leaves these out.
    pub churn: Duration,
    /// Run only the cases whose names contain this.
    pub only: Option<String>,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// The pace of an open loop, where waiting callers reached this many jobs per second.
    fn pace(&self, reached: f64) -> Pace {
        Pace { rate: self.rate.unwrap_or(reached / 2.0), duration: self.duration }
    }
}

/// Runs all cases on new embedded stores, telling `progress` the name of each.
///
/// # Errors
/// When a store fails, or a key is admitted twice or not at all.
pub async fn run(options: &Options, progress: impl Fn(&str)) -> Result<Report, BenchError> {
    let Options { folder, args_bytes, duration, .. } = options;
    std::fs::create_dir_all(folder)?;
    let mut figures = Vec::new();
    progress("limits");
    let limit = limit::raw_writer(folder, *args_bytes, *duration)?;
    figures.push(limit::one_fsync(folder, (*duration).min(Duration::from_secs(1)))?);
    let writes_per_second = limit.per_second;
    figures.push(limit);

    let engine = Engine::start(Arc::new(Sqlite::open(folder.join("bench.db"))?))?;
    let facts = engine.facts();
    let mut run = Run { options, progress: &progress, writes_per_second: Some(writes_per_second), from: 0 };
    figures.extend(run.cases(&engine, 0).await?);
    engine.close().await;
    if options.waiting > 0 {
        // A store of its own: the jobs that earlier cases left to be filed must not be counted here.
        let engine = Engine::start(Arc::new(Sqlite::open(folder.join("waiting.db"))?))?;
        run.fill(&engine).await?;
        figures.extend(run.cases(&engine, options.waiting).await?);
        engine.close().await;
    }
    let mut report = Report::of(&facts, options, figures);
    if options.connections > 0 && http::NAMES.into_iter().any(|name| options.wants(name)) {
        report.figures.extend(http::measure(options, &progress).await?);
    }
    Ok(report)
}

/// Runs all cases on a new store in the Redis at `address`.
///
/// Its prefix must be unused: everything under it is deleted. The limit is measured on the same Redis; a
/// cluster or Sentinel has none to compare with.
///
/// # Errors
/// As [`run`].
pub async fn run_on_redis(
    address: &semel_redis::Address,
    options: &Options,
    progress: impl Fn(&str),
) -> Result<Report, BenchError> {
    let store = Arc::new(semel_redis::Redis::open(address).await?);
    progress("limits");
    let measured = async {
        let limit = match address.info() {
            Some(info) => {
                let base = address.base();
                Some(redis::raw_scripts(info, &base, options.args_bytes, options.duration).await?)
            }
            None => None,
        };
        let writes_per_second = limit.as_ref().map(|limit| limit.per_second);
        let engine = Engine::start(store)?;
        let mut run = Run { options, progress: &progress, writes_per_second, from: 0 };
        let mut figures: Vec<Figure> = limit.into_iter().collect();
        let measured = async {
            figures.extend(run.cases(&engine, 0).await?);
            if options.waiting > 0 {
                progress("emptying");
                load::drain(&engine, &run.work()?).await?;
                run.fill(&engine).await?;
                figures.extend(run.cases(&engine, options.waiting).await?);
            }
            Ok(figures)
        };
        let measured: Result<Vec<Figure>, BenchError> = measured.await;
        let facts = engine.facts();
        // After this nothing writes to the store, and all of it can be deleted.
        engine.close().await;
        Ok(Report::of(&facts, options, measured?))
    };
    let report = measured.await;
    semel_redis::Redis::remove(address).await?;
    report
}

/// What is measured, one round after the other; no two rounds use the same job.
struct Run<'a, P> {
    options: &'a Options,
    progress: &'a P,
    writes_per_second: Option<f64>,
    from: u64,
}

impl<P: Fn(&str)> Run<'_, P> {
    fn work(&self) -> Result<load::Work, BenchError> {
        load::Work::new(self.options.args_bytes, true)
    }

    /// Enqueues the jobs that are to wait, and lets the store catch up with deferred work: real queues are
    /// long for longer than that takes.
    async fn fill(&mut self, engine: &Engine) -> Result<(), BenchError> {
        let waiting = self.options.waiting;
        (self.progress)("filling");
        load::fill(engine, &self.work()?, self.from, waiting).await?;
        self.from += waiting;
        (self.progress)("settling");
        while engine.store().maintain().await? {}
        Ok(())
    }

    /// Runs all wanted cases while `waiting` jobs wait.
    async fn cases(&mut self, engine: &Engine, waiting: u64) -> Result<Vec<Figure>, BenchError> {
        let Options { callers, duration, .. } = self.options;
        let (work, mut figures) = (self.work()?, Vec::new());
        let label = |case: &str| {
            if waiting == 0 { format!("{case}, empty") } else { format!("{case}, {waiting} waiting") }
        };
        let wanted = |name: &str| {
            let wanted = self.options.wants(name);
            if wanted {
                (self.progress)(name);
            }
            wanted
        };
        let mut from = self.from;
        let name = label("full cycle");
        if wanted(&name) {
            let figure = load::cycle(&name, engine, &work, *callers, *duration, from).await?;
            from += figure.jobs + *callers as u64;
            figures.push(figure);
        }
        let (name, open) = (label("unique enqueue"), label("new jobs, open loop"));
        let rate_is_sought = self.options.wants(&open) && self.options.rate.is_none();
        let mut reached = 0.0;
        if wanted(&name) || rate_is_sought {
            let mut figure = load::enqueue(&name, engine, &work, *callers, *duration, from, 1).await?;
            from += figure.jobs + *callers as u64;
            figure.share_of_limit = self.writes_per_second.map(|limit| figure.per_second / limit);
            reached = figure.per_second;
            figures.push(figure);
        }
        if wanted(&open) {
            let pace = self.options.pace(reached);
            let figure = open_loop::enqueue(&open, engine, &work, pace, from).await?;
            from += figure.jobs;
            figures.push(figure);
        }
        let name = label("99 % duplicates");
        if wanted(&name) {
            let figure = load::enqueue(&name, engine, &work, *callers, *duration, from, 100).await?;
            from += figure.jobs.div_ceil(100);
            figures.push(figure);
        }
        let name = label("claim 50 and complete each");
        if wanted(&name) {
            figures.push(load::process(&name, engine, &work, *callers, *duration).await?);
        }
        let name = label("one caller, unique enqueue");
        if wanted(&name) {
            let figure = load::enqueue(&name, engine, &work, 1, *duration, from, 1).await?;
            from += figure.jobs + 1;
            figures.push(figure);
        }
        self.from = from;
        Ok(figures)
    }
}
