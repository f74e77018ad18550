//! `semel bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use semel_bench::Options;

use crate::config::Globals;
use crate::failure::{Context, Failure};
use crate::link::random;
use crate::place::Place;
use crate::print::{Printer, Style};

/// Measure a store in this process, beside what the same disk or database does without a queue
#[derive(Args, Debug)]
#[command(after_help = "\
Every figure is durable: an answer comes after an fsync, or after the database's commit; in Redis as that is set. The
limits are measured in the same run; figures of different machines are not to be compared. Without --store it is a new
file; in a database it is a new schema, in Redis a new prefix, deleted afterwards.

Examples:
  semel bench
  semel bench --seconds 10 --waiting 1000000
  semel bench --only HTTP --waiting 0
  semel bench --only cycle --folder /data/bench --json
  semel bench --store postgres://semel@db.example/jobs --callers 64
  semel bench --store redis://redis.example --callers 64")]
pub struct Bench {
    /// How long each case runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Callers in flight
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    callers: u32,
    /// Bytes of each job's args
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    args_bytes: u32,
    /// Jobs already waiting in a second round; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    waiting: u64,
    /// Kept connections of the case over HTTP; 0 leaves it out, and a database is asked without
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4_000))]
    connections: u32,
    /// With a database: finished jobs that are kept, beside those that wait, in the second round
    #[arg(long, value_name = "N", default_value_t = 0)]
    finished: u64,
    /// With a database: how many seconds jobs come and go before a last round; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 0)]
    churn: u64,
    /// Only the cases whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where the files are made, on the disk to be measured; removed afterwards [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Bench {
    /// Measures.
    ///
    /// # Errors
    /// When a store fails, or does not keep its promise.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let place: Option<Place> =
            globals.store.as_deref().map(str::parse).transpose().map_err(Failure::usage)?;
        if let Some(Place::Sqlite(_) | Place::Memory) = place {
            return Err(Failure::usage("the bench makes a store of its own").next(
                "leave --store out, say where with --folder DIR, or name a database: --store postgres://…, redis://…",
            ));
        }
        if !matches!(place, Some(Place::Postgres(_))) && (self.finished > 0 || self.churn > 0) {
            return Err(Failure::usage("--finished and --churn are for PostgreSQL")
                .next("name one: --store postgres://…"));
        }
        let parent = self.folder.unwrap_or_else(std::env::temp_dir);
        // A folder of its own, so that nothing but the bench's files is removed.
        let folder = parent.join(format!("semel-bench-{}", random()));
        let options = Options {
            folder: folder.clone(),
            callers: usize::try_from(self.callers).unwrap_or(usize::MAX),
            args_bytes: usize::try_from(self.args_bytes).unwrap_or(usize::MAX),
            duration: Duration::from_secs(self.seconds),
            waiting: self.waiting,
            connections: usize::try_from(self.connections).unwrap_or(usize::MAX),
            finished: self.finished,
            churn: Duration::from_secs(self.churn),
            only: self.only,
        };
        let progress = |case: &str| printer.remark(format_args!("measuring: {case}"));
        let report = if let Some(Place::Postgres(address)) = place {
            let address =
                address.with_schema(&format!("bench_{}", random())).context("cannot name a schema")?;
            semel_bench::run_on_postgres(&address, &options, progress).await.context("the bench broke off")?
        } else if let Some(Place::Redis(address)) = place {
            let address =
                address.with_prefix(&format!("bench_{}", random())).context("cannot name a prefix")?;
            semel_bench::run_on_redis(&address, &options, progress).await.context("the bench broke off")?
        } else {
            let ran = semel_bench::run(&options, progress).await;
            let removed = std::fs::remove_dir_all(&folder);
            let report = ran.context("the bench broke off")?;
            removed.context("cannot remove the bench's files")?;
            report
        };
        if printer.is_json() {
            printer.value(&serde_json::to_value(&report).context("cannot write the report")?);
            return Ok(());
        }
        printer.line(format_args!("engine      {} ({})", report.engine, report.durability));
        printer.line(format_args!("callers     {} in flight, {} cores", report.callers, report.cores));
        printer.line("");
        let rows = report.figures.iter().map(|figure| {
            vec![
                figure.name.clone(),
                printer.styled(Style::Bold, &format!("{:.0}", figure.per_second)),
                format!("{:.2}", figure.p50_ms),
                format!("{:.2}", figure.p99_ms),
                figure.share_of_limit.map_or_else(|| "-".to_owned(), |share| format!("{share:.2}")),
            ]
        });
        printer.table(&["CASE", ">PER SECOND", ">P50 MS", ">P99 MS", ">OF LIMIT"], rows);
        Ok(())
    }
}
