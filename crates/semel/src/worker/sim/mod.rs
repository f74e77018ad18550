//! A seeded simulation of workers in programs that crash, pause and stop, over a store that fails.
//!
//! Each process is a [runtime of its own](process), whose clock the player moves: the player decides which
//! process goes on and how far, drops one wherever it stands, or pauses it for longer than a lease. Each
//! process runs a [program](program) with the real queue, its batcher and duties, real workers and callers.
//! All share one store, the test kit's, which checks every commit. A [book](book) checks what handlers are
//! called with, and what becomes of their outcomes, against the store.
//!
//! A run is a function of its seed and its [`Plan`]:
//! `SEMEL_SEED=7 SEMEL_PLAN="processes=1" cargo test -p semel --lib worker::sim`. `SEMEL_WORKER_SEEDS=100000`
//! plays that many seeds instead of the usual number.

mod book;
mod plan;
mod process;
mod program;
mod run;
mod world;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_testkit::planted::VARIABLE as PLANTED;
use semel_testkit::sim::dice::Dice;

use self::plan::Plan;
use self::run::{Ran, play, shrink};

/// How many seeds a run plays, in all shards together.
const SEEDS: u64 = 400;
const SHARDS: u64 = 2;
/// A failure in one shard ends the others.
static FAILED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The randomness of the run on this thread, where other code asks the system.
    static CHANCE: RefCell<Option<Dice>> = const { RefCell::new(None) };
}

/// A random number up to 255, if a simulation runs on this thread.
pub(super) fn chance() -> Option<u32> {
    CHANCE.with_borrow_mut(|dice| dice.as_mut().map(|dice| dice.below(256) as u32))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

fn shard(at: u64) {
    if let Some(seed) = number("SEMEL_SEED") {
        if seed % SHARDS == at {
            alone(seed);
        }
        return;
    }
    let seeds = number("SEMEL_WORKER_SEEDS").unwrap_or(SEEDS);
    let (mut sum, mut played) = (Ran::default(), 0);
    for seed in (at..seeds).step_by(SHARDS as usize) {
        if FAILED.load(Ordering::Relaxed) {
            return;
        }
        match play(seed, &Plan::of(seed)) {
            Ok(ran) => {
                sum.add(ran);
                played += 1;
            }
            Err(broken) => {
                FAILED.store(true, Ordering::Relaxed);
                // A bug planted on purpose needs no smallest example.
                let is_planted = std::env::var_os(PLANTED).is_some();
                panic!("{}", if is_planted { broken } else { shrink(broken) });
            }
        }
    }
    println!("{sum:?}");
    // If nothing happens, every promise holds.
    assert!(
        sum.jobs >= 4 * played && sum.handled >= sum.jobs / 2,
        "{played} seeds, and hardly a run: {sum:?}"
    );
    assert!(sum.outlived >= played / 20, "{played} seeds, and hardly a lease that ran out: {sum:?}");
}

fn alone(seed: u64) {
    let plan = Plan::of(seed).with(&std::env::var("SEMEL_PLAN").unwrap_or_default());
    match play(seed, &plan) {
        Ok(ran) => println!("seed {seed}, {plan}: {ran:?}"),
        Err(broken) => panic!("{broken}"),
    }
}

#[test]
fn shard_0() {
    shard(0);
}

#[test]
fn shard_1() {
    shard(1);
}

/// A plan can be parsed from its own display, and shrinking ends at the least plan.
#[test]
fn a_plan_is_read_as_it_is_shown_and_can_be_made_least() {
    let plan = Plan::of(7);
    assert_eq!(Plan::of(8).with(&plan.to_string()), plan);
    let mut least = plan;
    while let Some(smaller) = least.smaller().into_iter().next() {
        least = smaller;
    }
    let text = "faults=0 crashes=0 pauses=0 jumps=0 stops=0 processes=1 workers=1 requests=1";
    assert_eq!(least.to_string(), text);
}

/// Otherwise a failure could not be replayed.
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..40 {
        let plan = Plan::of(seed);
        assert_eq!(play(seed, &plan).unwrap(), play(seed, &plan).unwrap(), "{seed} {plan}");
    }
}
