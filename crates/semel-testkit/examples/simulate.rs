//! Plays many seeds of the simulation on all cores and says how far it is: `cargo xtask simulate`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool prints")]

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use semel_testkit::sim::{Failure, Plan, Ran, play, shrink};

const USAGE: &str = "usage: simulate [--seeds N] [--from SEED] [--threads N]";
/// How often it says how far it is.
const TELL: Duration = Duration::from_secs(10);

struct Args {
    seeds: u64,
    from: u64,
    threads: usize,
}

fn args() -> Result<Args, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut args = Args { seeds: 1_000_000, from: 0, threads };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} takes a number; {USAGE}"))?;
        let number: u64 =
            value.replace('_', "").parse().map_err(|_| format!("{value} is not a number; {USAGE}"))?;
        match name.as_str() {
            "--seeds" => args.seeds = number,
            "--from" => args.from = number,
            "--threads" => args.threads = usize::try_from(number.max(1)).unwrap_or(threads),
            _ => return Err(format!("there is no {name}; {USAGE}")),
        }
    }
    Ok(args)
}

/// What all threads share: the next seed, what was played, the failure of the lowest seed.
struct Shared {
    next: AtomicU64,
    /// Seeds from here on are not begun.
    end: AtomicU64,
    played: AtomicU64,
    sum: Mutex<Ran>,
    failed: Mutex<Option<Failure>>,
}

impl Shared {
    fn work(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end.load(Ordering::Relaxed) {
                return;
            }
            match play(seed, &Plan::of(seed)) {
                Ok(ran) => self.sum.lock().unwrap_or_else(|held| held.into_inner()).add(ran),
                Err(failure) => {
                    self.end.fetch_min(seed, Ordering::Relaxed);
                    let mut failed = self.failed.lock().unwrap_or_else(|held| held.into_inner());
                    if failed.as_ref().is_none_or(|known| seed < known.seed) {
                        *failed = Some(failure);
                    }
                }
            }
            self.played.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn told(shared: &Shared, seeds: u64, began: Instant) -> String {
    let played = shared.played.load(Ordering::Relaxed);
    let took = began.elapsed().as_secs_f64();
    let rate = played as f64 / took.max(0.001);
    let left = (seeds.saturating_sub(played)) as f64 / rate.max(0.001);
    format!(
        "{played} of {seeds} seeds, {rate:.0} a second, {} gone, {} left",
        clock(took as u64),
        clock(left as u64)
    )
}

fn clock(seconds: u64) -> String {
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn main() -> ExitCode {
    let args = match args() {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let shared = Shared {
        next: AtomicU64::new(args.from),
        end: AtomicU64::new(args.from.saturating_add(args.seeds)),
        played: AtomicU64::new(0),
        sum: Mutex::new(Ran::default()),
        failed: Mutex::new(None),
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let (over, is_over) = channel::<()>();
        let (shared, seeds) = (&shared, args.seeds);
        for _ in 0..args.threads {
            // Closed when the last of them has ended.
            let over = over.clone();
            scope.spawn(move || {
                shared.work();
                drop(over);
            });
        }
        drop(over);
        while is_over.recv_timeout(TELL) == Err(RecvTimeoutError::Timeout) {
            println!("{}", told(shared, seeds, began));
            drop(std::io::stdout().flush());
        }
    });
    println!("{}", told(&shared, args.seeds, began));
    let failed = shared.failed.into_inner().unwrap_or_else(|held| held.into_inner());
    let Some(failure) = failed else {
        let sum = shared.sum.into_inner().unwrap_or_else(|held| held.into_inner());
        println!(
            "seeds {} to {}: every promise held, in {} jobs, {} events, {} steps",
            args.from,
            args.from + args.seeds.saturating_sub(1),
            sum.jobs,
            sum.events,
            sum.steps
        );
        return ExitCode::SUCCESS;
    };
    println!("seed {} breaks a promise: {}\nmaking it smaller", failure.seed, failure.what);
    let least = shrink(failure);
    println!("{}\nplay it again:", least.what);
    println!(
        "  SEMEL_SEED={} SEMEL_PLAN=\"{}\" cargo test -p semel-testkit --test it simulation::shard",
        least.seed, least.plan
    );
    ExitCode::FAILURE
}
