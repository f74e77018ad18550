//! `semel demo`: an at-least-once upstream, workers of which one is killed, and an independent check that every event
//! had its effect exactly once.
//!
//! - [`webhook`], [`plan`], [`mod@random`]: the log, its spellings, its deliveries.
//! - [`upstream`], [`workers`]: who sends and who works, over HTTP.
//! - [`ledger`], [`verify`], [`report`]: what was seen, whether it is right, how it is shown.

mod ledger;
mod plan;
mod random;
mod report;
mod upstream;
mod verify;
mod webhook;
mod workers;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use semel_client::Client;
use semel_core::retention::Retention;
use semel_ojs::Templates;
use tokio::task::JoinSet;

use crate::config::{Globals, Settings, Target};
use crate::failure::{Context, Exit, Failure};
use crate::link::{Link, Purpose, random};
use crate::place::Place;
use crate::print::{Printer, number};
use ledger::Ledger;
use plan::Plan;
use report::Progress;
use webhook::Kind;

/// The unique policy: deliveries with the same type and args are duplicates, whatever becomes of the job. A
/// duplicate is answered with the existing job.
const POLICY: &str = "{\"keys\":[\"type\",\"args\"],\"on_conflict\":\"ignore\",\"states\":[\"scheduled\",\"available\",\"pending\",\"active\",\"retryable\",\"completed\",\"cancelled\",\"discarded\"]}";
/// The worker is killed once this percentage of the events has had its effect.
const KILL_PERCENT: u64 = 40;
/// How often the queues are asked whether all work is done.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// How long the queues may stand still before the demo gives up on them.
const PATIENCE: Duration = Duration::from_secs(20);

/// Play an at-least-once upstream against a server, and check that every event took effect exactly once
#[derive(Args, Debug)]
#[command(after_help = "\
Starts workers, and a server on a file in a temporary directory (unless --store or --server is given). Delivers a
seeded log of webhook events, each 1 to 4 times over 8 connections: out of order, in different spellings (member
order, Unicode form, 1.0 for 1), and as double clicks at the same instant. One worker is killed midway, one scheduled
job is replaced, and once all work is done the whole log is replayed. The effects are then compared with the log and
with the server's own records; exits with 6 if they differ.

Examples:
  semel demo
  semel demo --events 50000 --seed 7
  semel demo --json
  semel demo --store sqlite:./demo.db     # keep the file, to look around in it afterwards
  semel demo --without-policy             # see it fail without uniqueness")]
pub struct Demo {
    /// The number of events in the log
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(50..=1_000_000))]
    events: u32,
    /// The seed of the log: the same seed gives the same log
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Send the events without a unique policy
    #[arg(long)]
    without_policy: bool,
}

/// What all tasks of the demo share.
struct Shared {
    /// Keeps runs on one store apart.
    run: String,
    plan: Plan,
    with_policy: bool,
    ledger: Ledger,
    is_over: AtomicBool,
}

impl Shared {
    fn queue(&self, kind: Kind) -> String {
        format!("demo-{}-{}", self.run, kind.queue())
    }

    /// The business id of a version of the reminder.
    fn reminder(&self, version: &str) -> String {
        format!("reminder_{}_{version}", self.run)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn is_time_to_kill(&self) -> bool {
        self.ledger.executed() * 100 >= self.plan.log.len() as u64 * KILL_PERCENT
    }
}

impl Demo {
    /// Runs the demo and its check.
    ///
    /// # Errors
    /// When the server fails, or the check finds a difference.
    pub async fn run(self, globals: &Globals, printer: &Printer) -> Result<(), Failure> {
        let folder = Folder::new();
        let link = self.link(globals, &folder).await?;
        let played = tokio::select! {
            played = self.play(&link, printer) => played,
            _ = tokio::signal::ctrl_c() => Err(Failure::failed("interrupted")),
        };
        let closed = link.close().await;
        played.and(closed)
    }

    /// Uses only a store that is named on the command line: one from the environment holds real work.
    async fn link(&self, globals: &Globals, folder: &Folder) -> Result<Link, Failure> {
        if globals.server.is_none() && globals.store.is_none() {
            return Link::inside(&folder.store()?, Templates::default(), Retention::default()).await;
        }
        let settings = Settings::read(globals, None)?;
        match &settings.target {
            Target::Store(place @ Place::Memory) => {
                Link::inside(place, Templates::default(), Retention::default()).await
            }
            _ => Link::open(&settings, Purpose::Put).await,
        }
    }

    async fn play(&self, link: &Link, printer: &Printer) -> Result<(), Failure> {
        let run = random()[..8].to_owned();
        let events = usize::try_from(self.events).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared {
            plan: Plan::new(&run, events, self.seed),
            run,
            with_policy: !self.without_policy,
            ledger: Ledger::default(),
            is_over: AtomicBool::new(false),
        });
        let progress = Progress::start(printer);
        let clients: Vec<Client> =
            (0..upstream::CONNECTIONS).map(|_| link.another()).collect::<Result<_, _>>()?;
        let mut workers = JoinSet::new();
        for number in 0..=workers::WORKERS {
            let dies = number == workers::WORKERS;
            let name = if dies { "worker-killed".to_owned() } else { format!("worker-{number}") };
            workers.spawn(workers::work(Arc::clone(&shared), link.another()?, name, dies));
        }
        let acting = act(&shared, link, &clients, &progress);
        let acted = tokio::select! {
            acted = acting => acted,
            failure = broken(&mut workers) => Err(failure),
        };
        shared.is_over.store(true, Ordering::Relaxed);
        let (reminder, before_replay) = acted?;
        while let Some(ended) = workers.join_next().await {
            ended.context("a worker failed")??;
        }
        let verdict = verify::verify(&shared, &link.client, &reminder, before_replay).await?;
        let counts = shared.ledger.counts();
        let took = progress.elapsed();
        if printer.is_json() {
            printer.value(&report::value(self, &shared, &counts, &verdict, took));
        } else {
            report::show(&shared, &counts, &verdict, took, printer);
        }
        if !verdict.holds() {
            let differing: Vec<String> = verdict
                .checks
                .iter()
                .filter(|check| !check.holds())
                .map(|check| format!("{} (expected {}, found {})", check.what, check.expected, check.found))
                .collect();
            return Err(Failure::new(
                Exit::Differs,
                format!("the demo's checks found differences: {}", differing.join("; ")),
            )
            .next(format!(
                "run it again: semel demo --seed {} --events {}{}",
                self.seed,
                self.events,
                if self.without_policy { " --without-policy" } else { "" },
            )));
        }
        if !printer.is_json() {
            next(printer);
        }
        Ok(())
    }
}

/// Runs the demo up to the end of the replay. Also returns how many effects there were before the replay.
async fn act(
    shared: &Arc<Shared>,
    link: &Link,
    clients: &[Client],
    progress: &Progress<'_>,
) -> Result<(upstream::Reminder, u64), Failure> {
    let reminder = upstream::remind(shared, &link.client).await?;
    let deliver = upstream::deliver(shared, clients, shared.plan.deliveries.clone());
    watched("delivering", deliver, shared, progress).await?;
    watched("finishing the work", drained(shared, &link.client), shared, progress).await?;
    let before_replay = shared.ledger.executed();
    watched("replaying the log", upstream::deliver(shared, clients, shared.plan.replay()), shared, progress)
        .await?;
    watched("done", drained(shared, &link.client), shared, progress).await?;
    Ok((reminder, before_replay))
}

/// Waits for a worker to fail: the demo cannot end well without it.
async fn broken(workers: &mut JoinSet<Result<(), Failure>>) -> Failure {
    while let Some(ended) = workers.join_next().await {
        match ended.context("a worker failed") {
            Ok(Ok(())) => {}
            Ok(Err(failure)) | Err(failure) => return failure,
        }
    }
    Failure::failed("all workers have stopped")
}

/// Waits until no queue has anything left to do and every worker knows what became of its runs: a job ends on
/// the server before its worker hears of it.
async fn drained(shared: &Shared, client: &Client) -> Result<(), Failure> {
    let (mut last, mut moved) = (0, Instant::now());
    loop {
        let mut left = 0;
        for kind in Kind::ALL {
            let answer = client.get_json(&format!("/ojs/v1/queues/{}/stats", shared.queue(kind))).await?;
            for state in ["scheduled", "available", "pending", "active", "retryable"] {
                left += number(&answer, &format!("/queue/{state}"));
            }
        }
        // Read after the server's counts, so that it includes the runs of jobs that had ended by then.
        left += shared.ledger.in_hand();
        if left == 0 {
            return Ok(());
        }
        if left != last {
            (last, moved) = (left, Instant::now());
        }
        if moved.elapsed() > PATIENCE {
            return Err(Failure::new(
                Exit::Differs,
                format!("{left} jobs are left, with no progress for {PATIENCE:?}"),
            ));
        }
        tokio::time::sleep(DRAIN_POLL).await;
    }
}

/// Runs a phase of the demo and shows its progress.
async fn watched(
    phase: &str,
    work: impl Future<Output = Result<(), Failure>>,
    shared: &Shared,
    progress: &Progress<'_>,
) -> Result<(), Failure> {
    let mut ticks = tokio::time::interval(progress.every());
    ticks.tick().await;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                progress.say(phase, &shared.ledger.counts());
                return done;
            }
            _ = ticks.tick() => progress.say(phase, &shared.ledger.counts()),
        }
    }
}

fn next(printer: &Printer) {
    printer.line("");
    printer.line("try next:");
    for command in [
        "semel serve",
        "semel enqueue invoice.pay 42 --key invoice-42",
        "semel explain invoice.pay 42 --key invoice-42",
    ] {
        printer.line(format_args!("  {command}"));
    }
}

/// A folder for the demo's store, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("semel-demo-{}", random())))
    }

    fn store(&self) -> Result<Place, Failure> {
        std::fs::create_dir(&self.0).context("cannot create a temporary directory")?;
        Ok(Place::Sqlite(self.0.join("demo.db")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may never have been created, and what is left of it does no harm.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
