//! The loops that measure every queue in Rust, the same as in `bench/peers/node/measure.mjs`. Semel's own bench includes this file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Anything that goes wrong.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A job's args.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Args {
    pub order: u64,
    pub user: String,
    pub note: String,
}

/// Where a handler reports each start: the job's number and the time.
pub type Starts = UnboundedSender<(u64, Instant)>;

/// An open queue.
pub trait Queue: Clone + Send + Sync + 'static {
    /// Enqueues one unique job, or a plain one if the options say so; returns when it is stored or found to be a duplicate.
    fn enqueue(&self, job: Args) -> impl Future<Output = Result<(), Failure>> + Send;
    /// Enqueues several jobs in one call of the queue's API.
    fn bulk(&self, jobs: Vec<Args>) -> impl Future<Output = Result<(), Failure>> + Send;
    /// The number of waiting jobs in the store.
    fn waiting(&self) -> impl Future<Output = Result<u64, Failure>> + Send;
    /// Starts a worker that only reports each start, until the process ends.
    fn work(&self, starts: Starts) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The options that `cargo xtask bench peers` passes; each case reads those that it needs.
#[derive(Deserialize)]
#[serde(default)]
pub struct Options {
    pub url: String,
    pub args_bytes: usize,
    pub callers: usize,
    pub seconds: f64,
    pub duplicates: f64,
    pub size: u64,
    pub jobs: u64,
    pub limit: u64,
    pub rate: f64,
    pub rounds: u64,
    /// Whether jobs are unique: the difference shows what uniqueness costs.
    pub unique: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: String::new(),
            args_bytes: 200,
            callers: 64,
            seconds: 5.0,
            duplicates: 0.0,
            size: 1_000,
            jobs: 10_000,
            limit: 120,
            rate: 100.0,
            rounds: 100,
            unique: true,
        }
    }
}

/// The result of a case.
struct Figure {
    jobs: u64,
    seconds: f64,
    latencies: Histogram<u64>,
    keys: Option<u64>,
}

impl Figure {
    fn new(jobs: u64, began: Instant, latencies: Histogram<u64>) -> Self {
        Self { jobs, seconds: began.elapsed().as_secs_f64(), latencies, keys: None }
    }
}

struct Bench<Q> {
    queue: Q,
    options: Arc<Options>,
    padding: Arc<str>,
}

impl<Q: Queue> Clone for Bench<Q> {
    fn clone(&self) -> Self {
        let Self { queue, options, padding } = self;
        Self { queue: queue.clone(), options: Arc::clone(options), padding: Arc::clone(padding) }
    }
}

/// Measures one case; returns the line to print.
///
/// # Errors
/// When the queue fails, or there is no such case.
pub async fn measure<Q: Queue>(
    queue: Q,
    version: &str,
    case: &str,
    options: Options,
) -> Result<Value, Failure> {
    let padding = "x".repeat(options.args_bytes.saturating_sub(60)).into();
    let bench = Bench { queue, options: Arc::new(options), padding };
    let before = processor_seconds();
    let figure = match case {
        "enqueue" => bench.enqueue().await?,
        "bulk" => bench.bulk().await?,
        "process" => bench.process().await?,
        "cycle" => bench.cycle().await?,
        "latency" => bench.latency().await?,
        "race" => bench.race().await?,
        "repeat" => bench.repeat().await?,
        other => return Err(format!("there is no case `{other}`").into()),
    };
    let used = processor_seconds() - before;
    let stored = match figure.keys {
        Some(_) => Some(bench.queue.waiting().await?),
        None => None,
    };
    let ms = |share: f64| match figure.latencies.len() {
        0 => Value::Null,
        _ => json!(figure.latencies.value_at_quantile(share) as f64 / 1_000.0),
    };
    Ok(json!({
        "version": version,
        "jobs": figure.jobs,
        "seconds": figure.seconds,
        "p50_ms": ms(0.5),
        "p95_ms": ms(0.95),
        "p99_ms": ms(0.99),
        "keys": figure.keys,
        "stored": stored,
        "client_cpu_seconds": used,
    }))
}

impl<Q: Queue> Bench<Q> {
    fn job(&self, order: u64) -> Args {
        Args { order, user: format!("u-{}", order % 9973), note: self.padding.to_string() }
    }

    /// Runs loops until the time is over; each turn gets its number and returns how many jobs it enqueued.
    async fn drive<F, Fut>(&self, callers: usize, turn: F) -> Result<Figure, Failure>
    where
        F: Fn(u64) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<u64, Failure>> + Send,
    {
        let (next, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let until = began + Duration::from_secs_f64(self.options.seconds);
        let mut loops = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let (turn, next) = (turn.clone(), Arc::clone(&next));
            loops.spawn(async move {
                let (mut jobs, mut latencies, mut at) = (0, Vec::new(), Instant::now());
                while at < until {
                    jobs += turn(next.fetch_add(1, Ordering::Relaxed)).await?;
                    let now = Instant::now();
                    latencies.push(now.duration_since(at));
                    at = now;
                }
                Ok::<_, Failure>((jobs, latencies))
            });
        }
        let (mut jobs, mut latencies) = (0, histogram()?);
        while let Some(done) = loops.join_next().await {
            let (some, took) = done??;
            jobs += some;
            took.into_iter().for_each(|took| record(&mut latencies, took));
        }
        Ok(Figure::new(jobs, began, latencies))
    }

    async fn enqueue(&self) -> Result<Figure, Failure> {
        let (keys, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (bench, offered) = (self.clone(), Arc::clone(&keys));
        let figure = self
            .drive(self.options.callers, move |turn| {
                let (bench, keys, answered) = (bench.clone(), Arc::clone(&offered), Arc::clone(&answered));
                async move {
                    let known = answered.load(Ordering::Relaxed);
                    // Two words of a hash of the turn are random enough here.
                    let dice = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let share = (dice >> 11) as f64 / (1_u64 << 53) as f64;
                    if known > 0 && share < bench.options.duplicates {
                        let number = dice.rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9) % known;
                        bench.queue.enqueue(bench.job(number)).await?;
                    } else {
                        let number = keys.fetch_add(1, Ordering::Relaxed);
                        bench.queue.enqueue(bench.job(number)).await?;
                        answered.fetch_max(number + 1, Ordering::Relaxed);
                    }
                    Ok(1)
                }
            })
            .await?;
        Ok(Figure { keys: Some(keys.load(Ordering::Relaxed)), ..figure })
    }

    /// Enqueues one job, then duplicates of it.
    async fn repeat(&self) -> Result<Figure, Failure> {
        self.queue.enqueue(self.job(0)).await?;
        let bench = self.clone();
        let turn = move |_| {
            let bench = bench.clone();
            async move {
                bench.queue.enqueue(bench.job(0)).await?;
                Ok(1)
            }
        };
        let figure = self.drive(self.options.callers, turn).await?;
        Ok(Figure { keys: Some(1), ..figure })
    }

    async fn offer_all(&self, from: u64, upto: u64) -> Result<(), Failure> {
        self.queue.bulk((from..upto).map(|number| self.job(number)).collect()).await
    }

    async fn bulk(&self) -> Result<Figure, Failure> {
        let (bench, size) = (self.clone(), self.options.size);
        let figure = self
            .drive(self.options.callers, move |turn| {
                let bench = bench.clone();
                async move {
                    bench.offer_all(turn * size, (turn + 1) * size).await?;
                    Ok(size)
                }
            })
            .await?;
        Ok(Figure { keys: Some(figure.jobs), ..figure })
    }

    async fn process(&self) -> Result<Figure, Failure> {
        let total = self.options.jobs;
        for from in (0..total).step_by(1_000) {
            self.offer_all(from, (from + 1_000).min(total)).await?;
        }
        let (sender, mut started) = unbounded_channel();
        let began = Instant::now();
        self.queue.work(sender).await?;
        self.until_started(&mut started, total).await?;
        Ok(Figure::new(total, began, histogram()?))
    }

    async fn until_started(
        &self,
        started: &mut UnboundedReceiver<(u64, Instant)>,
        total: u64,
    ) -> Result<(), Failure> {
        let limit = tokio::time::sleep(Duration::from_secs(self.options.limit));
        tokio::pin!(limit);
        for _ in 0..total {
            tokio::select! {
                // Workers that have ended drop their sender.
                told = started.recv() => { told.ok_or("the workers have ended")?; }
                () = &mut limit => return Err(format!("{total} jobs were not done in time").into()),
            }
        }
        Ok(())
    }

    /// Enqueues new jobs one by one while a worker runs, until all of them have started.
    async fn cycle(&self) -> Result<Figure, Failure> {
        let (sender, mut started) = unbounded_channel();
        self.queue.work(sender).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (bench, began) = (self.clone(), Instant::now());
        let turn = move |number| {
            let bench = bench.clone();
            async move {
                bench.queue.enqueue(bench.job(number)).await?;
                Ok(1)
            }
        };
        let offered = self.drive(self.options.callers, turn).await?;
        self.until_started(&mut started, offered.jobs).await?;
        Ok(Figure { seconds: began.elapsed().as_secs_f64(), ..offered })
    }

    async fn latency(&self) -> Result<Figure, Failure> {
        let (sender, mut started) = unbounded_channel();
        self.queue.work(sender).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let total = (self.options.rate * self.options.seconds) as u64;
        let sent: Arc<Mutex<HashMap<u64, Instant>>> = Arc::default();
        let began = tokio::time::Instant::now();
        let mut offers = tokio::task::JoinSet::new();
        for number in 0..total {
            let due = began + Duration::from_secs_f64(number as f64 / self.options.rate);
            tokio::time::sleep_until(due).await;
            sent.lock().unwrap_or_else(PoisonError::into_inner).insert(number, due.into_std());
            let (queue, job) = (self.queue.clone(), self.job(number));
            offers.spawn(async move { queue.enqueue(job).await });
        }
        while let Some(offered) = offers.join_next().await {
            offered??;
        }
        let mut latencies = histogram()?;
        let mut jobs = 0;
        while jobs < total {
            let Ok(Some((number, at))) = tokio::time::timeout(Duration::from_secs(20), started.recv()).await
            else {
                break;
            };
            if let Some(sent) = sent.lock().unwrap_or_else(PoisonError::into_inner).get(&number) {
                record(&mut latencies, at.saturating_duration_since(*sent));
                jobs += 1;
            }
        }
        Ok(Figure::new(jobs, began.into_std(), latencies))
    }

    async fn race(&self) -> Result<Figure, Failure> {
        let (began, mut jobs) = (Instant::now(), 0);
        for round in 0..self.options.rounds {
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..self.options.callers {
                let (queue, job) = (self.queue.clone(), self.job(round));
                callers.spawn(async move { queue.enqueue(job).await });
            }
            while let Some(done) = callers.join_next().await {
                done??;
                jobs += 1;
            }
        }
        Ok(Figure { keys: Some(self.options.rounds), ..Figure::new(jobs, began, histogram()?) })
    }
}

fn histogram() -> Result<Histogram<u64>, Failure> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}

fn record(latencies: &mut Histogram<u64>, took: Duration) {
    latencies.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
}

/// The processor seconds of this process, assuming the usual 100 clock ticks a second.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks =
        |field: usize| after_name.split_whitespace().nth(field).and_then(|text| text.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}
