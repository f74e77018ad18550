//! `semel bench`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use semel_bench::compare::{Baseline, Change, ROUNDS_MIN};
use semel_bench::{Options, Report};
use semel_postgres::{Address, Postgres};
use semel_redis::Redis;
use serde::{Deserialize, Serialize};

use crate::config::Globals;
use crate::failure::{Context, Failure};
use crate::link::random;
use crate::place::Place;
use crate::print::{Printer, Style};
use crate::stop::Stop;

/// How long one attempt to remove the bench's data may take.
const REMOVED_WITHIN: Duration = Duration::from_secs(5);

/// Benchmark a store in this process, beside what the same disk or database does without a queue
#[derive(Args, Debug)]
#[command(after_help = "\
Every figure is durable: an answer comes after an fsync, or after the database's commit; on Redis, as its settings
say. The limits are measured in the same run; do not compare figures from different machines. Without --store, the
store is a new file; on PostgreSQL it is a new schema, on Redis a new prefix. It is deleted afterwards.

Callers offer their next job once the last one is answered, which shows how much a store can take. In an open loop,
jobs arrive on a schedule whatever is answered (OFFERED, per second), and a job's time counts from when it was due, so
that a stall counts for everything it delayed. This shows how long callers wait who do not wait for one another.

Examples:
  semel bench
  semel bench --seconds 10 --waiting 1000000
  semel bench --only HTTP --waiting 0
  semel bench --only 'open loop' --rate 20000
  semel bench --rounds 5 --json > baseline.json      # then, after a change:
  semel bench --rounds 5 --compare baseline.json
  semel bench --only cycle --folder /data/bench --json
  semel bench --store postgres://semel@db.example/jobs --callers 64
  semel bench --store redis://redis.example --callers 64")]
pub struct Bench {
    /// How many seconds each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Concurrent callers
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    callers: u32,
    /// Bytes of args per job
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    args_bytes: u32,
    /// Jobs due per second in the open-loop cases [default: half of what callers who wait reached]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rate: Option<u32>,
    /// Jobs already waiting in a second round; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    waiting: u64,
    /// Keep-alive connections for the HTTP cases, which --store leaves out; 0 skips them
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4_000))]
    connections: u32,
    /// PostgreSQL only: finished jobs kept in the second round, beside the waiting ones
    #[arg(long, value_name = "N", default_value_t = 0)]
    finished: u64,
    /// PostgreSQL only: seconds for which jobs come and go before a last round; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 0)]
    churn: u64,
    /// Run only cases whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How often to run everything; the figures shown are the last round's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Compare with earlier rounds, written with --json; exits with 1 if a case is surely slower
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// With --compare: the fraction by which a case may be slower
    #[arg(long, value_name = "PART", default_value_t = 0.25, value_parser = part)]
    slower: f64,
    /// Where to create the files, on the disk to measure; removed afterwards [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Bench {
    /// Runs the benchmark.
    ///
    /// # Errors
    /// When a store fails, or does not keep its promise.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let place: Option<Place> =
            globals.store.as_deref().map(str::parse).transpose().map_err(Failure::usage)?;
        if let Some(Place::Sqlite(_) | Place::Memory) = place {
            return Err(Failure::usage("the benchmark creates its own store").next(
                "leave --store out, choose a place with --folder DIR, or name a database: --store postgres://…, redis://…",
            ));
        }
        if !matches!(place, Some(Place::Postgres(_))) && (self.finished > 0 || self.churn > 0) {
            return Err(Failure::usage("--finished and --churn are only for PostgreSQL")
                .next("name a database: --store postgres://…"));
        }
        let is_many = |place: &Place| matches!(place, Place::Redis(address) if address.info().is_none());
        if self.compare.is_some() && place.as_ref().is_some_and(is_many) {
            return Err(Failure::usage(
                "shares of the limit are compared, and no limit is known for a store on several Redis servers",
            )
            .next("compare on one Redis: --store redis://…, or leave --compare out"));
        }
        // Checked before minutes are spent.
        let before = self.compare.as_deref().map(baseline).transpose()?;
        if before.is_some() && (self.rounds as usize) < ROUNDS_MIN {
            return Err(Failure::usage(format!("{} rounds are too few to compare", self.rounds))
                .next(format!("use --rounds {ROUNDS_MIN} or more, as for the baseline")));
        }
        let mut rounds = Vec::new();
        for round in 1..=self.rounds {
            if self.rounds > 1 {
                printer.remark(format_args!("round {round} of {}", self.rounds));
            }
            rounds.push(self.round(place.as_ref(), printer).await?);
        }
        let now = Baseline::of(&rounds).context("the benchmark has no results")?;
        let changes = before.as_ref().map(|before| before.compare(&now)).transpose();
        let changes = changes.context("cannot compare")?.unwrap_or_default();
        let Some(report) = rounds.pop() else { return Ok(()) };
        if printer.is_json() {
            let told = Told { report: &report, baseline: &now, changes: &changes };
            printer.value(&serde_json::to_value(&told).context("cannot write the report")?);
            return self.judge(&changes);
        }
        printer.line(format_args!("engine      {} ({})", report.engine, report.durability));
        printer.line(format_args!("callers     {} in flight, {} cores", report.callers, report.cores));
        printer.line("");
        let rows = report.figures.iter().map(|figure| {
            vec![
                figure.name.clone(),
                figure.offered_per_second.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
                printer.styled(Style::Bold, &format!("{:.0}", figure.per_second)),
                format!("{:.2}", figure.p50_ms),
                format!("{:.2}", figure.p99_ms),
                figure.share_of_limit.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
            ]
        });
        printer.table(&["CASE", ">OFFERED", ">PER SECOND", ">P50 MS", ">P99 MS", ">OF LIMIT"], rows);
        if !changes.is_empty() {
            printer.line("");
            let rows = changes.iter().map(|change| {
                let verdict = if change.is_slower(self.slower) { "slower" } else { "" };
                vec![
                    change.name.clone(),
                    printer.styled(Style::Bold, &format!("{:.2}", change.ratio)),
                    format!("{:.2} to {:.2}", change.low, change.high),
                    verdict.to_owned(),
                ]
            });
            printer.table(&["SHARE OF THE LIMIT", ">NOW ÷ BEFORE", ">95 %", ""], rows);
        }
        self.judge(&changes)
    }

    /// # Errors
    /// When a case is surely slower than it may be.
    fn judge(&self, changes: &[Change]) -> Result<(), Failure> {
        let slower: Vec<&str> = changes
            .iter()
            .filter(|change| change.is_slower(self.slower))
            .map(|change| &*change.name)
            .collect();
        if slower.is_empty() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "slower than the baseline by more than {}: {}",
            self.slower,
            slower.join("; ")
        ))
        .next("run it again on a quiet machine; then look for what changed"))
    }

    async fn round(&self, place: Option<&Place>, printer: &Printer) -> Result<Report, Failure> {
        let parent = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        // A folder of its own, so that nothing but the bench's files is removed.
        let folder = parent.join(format!("semel-bench-{}", random()));
        let options = Options {
            folder: folder.clone(),
            callers: usize::try_from(self.callers).unwrap_or(usize::MAX),
            args_bytes: usize::try_from(self.args_bytes).unwrap_or(usize::MAX),
            duration: Duration::from_secs(self.seconds),
            rate: self.rate.map(f64::from),
            waiting: self.waiting,
            connections: usize::try_from(self.connections).unwrap_or(usize::MAX),
            finished: self.finished,
            churn: Duration::from_secs(self.churn),
            only: self.only.clone(),
        };
        let progress = |case: &str| printer.remark(format_args!("measuring: {case}"));
        let mut stop = Stop::new()?;
        if let Some(Place::Postgres(address)) = place {
            let address =
                address.with_schema(&format!("bench_{}", random())).context("cannot name a schema")?;
            let ran = tokio::select! {
                ran = semel_bench::run_on_postgres(&address, &options, progress) => Some(ran),
                () = stop.next() => None,
            };
            let Some(ran) = ran else {
                return Err(stopped(removed_within(async || remove_schema(&address).await).await));
            };
            return ran.context("the benchmark failed");
        }
        if let Some(Place::Redis(address)) = place {
            let address =
                address.with_prefix(&format!("bench_{}", random())).context("cannot name a prefix")?;
            let ran = tokio::select! {
                ran = semel_bench::run_on_redis(&address, &options, progress) => Some(ran),
                () = stop.next() => None,
            };
            let Some(ran) = ran else {
                let remove = async || Redis::remove(&address).await.context("cannot remove its keys");
                return Err(stopped(removed_within(remove).await));
            };
            return ran.context("the benchmark failed");
        }
        // The disk is measured by blocking on it, so this runs on a thread that has nothing else to do.
        let (told, here) = (printer.clone(), tokio::runtime::Handle::current());
        let running = tokio::task::spawn_blocking(move || {
            let progress = |case: &str| told.remark(format_args!("measuring: {case}"));
            here.block_on(semel_bench::run(&options, progress))
        });
        let ran = tokio::select! {
            ran = running => Some(ran.context("the benchmark failed")?),
            () = stop.next() => None,
        };
        let remove = async || std::fs::remove_dir_all(&folder).context("cannot remove the benchmark's files");
        let Some(ran) = ran else { return Err(stopped(removed_within(remove).await)) };
        let removed = remove().await;
        let report = ran.context("the benchmark failed")?;
        removed?;
        Ok(report)
    }
}

/// Removes the bench's data; retries while work still in progress writes there.
async fn removed_within(remove: impl AsyncFn() -> Result<(), Failure>) -> Result<(), Failure> {
    const TRIES: u32 = 5;
    for _ in 1..TRIES {
        match tokio::time::timeout(REMOVED_WITHIN, remove()).await {
            Ok(Ok(())) => return Ok(()),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    let last = tokio::time::timeout(REMOVED_WITHIN, remove()).await;
    last.unwrap_or_else(|_| Err(Failure::failed("cannot remove what it created: no answer")))
}

async fn remove_schema(address: &Address) -> Result<(), Failure> {
    let failed = "cannot remove its schema";
    let client = Postgres::connect(address).await.context(failed)?;
    let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", address.schema());
    client.batch_execute(&sql).await.context(failed)
}

/// The failure of a bench that was told to stop.
fn stopped(removed: Result<(), Failure>) -> Failure {
    match removed {
        Ok(()) => Failure::failed("stopped before it was done; what it had created is removed"),
        Err(failure) => Failure::failed(format!("stopped before it was done; {}", failure.what))
            .next("remove it by hand: its name begins with bench_, or semel-bench-"),
    }
}

/// The output of `--json`: the last round, and the baseline to compare others with.
#[derive(Serialize)]
struct Told<'r> {
    #[serde(flatten)]
    report: &'r Report,
    baseline: &'r Baseline,
    #[serde(skip_serializing_if = "<[Change]>::is_empty")]
    changes: &'r [Change],
}

/// Reads the baseline that an earlier `--json` wrote.
fn baseline(file: &Path) -> Result<Baseline, Failure> {
    #[derive(Deserialize)]
    struct Kept {
        baseline: Baseline,
    }
    let name = file.display();
    let text = std::fs::read_to_string(file).context(&format!("cannot read {name}"))?;
    let kept: Result<Kept, _> = serde_json::from_str(&text);
    kept.map(|kept| kept.baseline).map_err(|error| {
        Failure::usage(format!("{name} is not the output of `semel bench --json`: {error}"))
            .next("write one with: semel bench --rounds 5 --json > baseline.json")
    })
}

fn part(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if (0.0..1.0).contains(&part) => Ok(part),
        _ => Err("must be at least 0 and less than 1, such as 0.25".to_owned()),
    }
}
