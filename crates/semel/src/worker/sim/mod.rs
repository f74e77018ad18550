//! Workers in programs that die, stand still and are ended, over a store that fails, by a seed.
//!
//! Each process is a [runtime of its own](process) with a clock that whoever plays moves: he says which goes on and how far, drops
//! one wherever it stands, or lets it stand still for longer than a lease. In each a [program](program) has the real queue, its
//! batcher and duties, real workers and callers; all are on one store, the kit's, which judges every commit. What handlers are
//! called with, and what becomes of what they say, is held against the store's word in a [book](book).
//!
//! A run is a function of its seed and its [`Plan`]: `SEMEL_SEED=7 SEMEL_PLAN="processes=1" cargo test -p semel --lib worker::sim`.
//! `SEMEL_WORKER_SEEDS=100000` plays so many instead of those of a usual run.

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

/// Seeds of a run in all shards together.
const SEEDS: u64 = 400;
const SHARDS: u64 = 2;
/// A failure in one shard ends the others.
static FAILED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What a run on this thread draws where others ask the system.
    static CHANCE: RefCell<Option<Dice>> = const { RefCell::new(None) };
}

/// A number up to 255 of the run on this thread, if there is one.
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
                // Of a bug that was put in on purpose nobody wants the smallest example.
                let is_planted = std::env::var_os(PLANTED).is_some();
                panic!("{}", if is_planted { broken } else { shrink(broken) });
            }
        }
    }
    println!("{sum:?}");
    // Every promise holds where nothing happens.
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

/// A plan is read as it is shown, and the shrinker ends at the least of them.
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

/// Were a run not a function of its seed, a failure could not be played again.
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..40 {
        let plan = Plan::of(seed);
        assert_eq!(play(seed, &plan).unwrap(), play(seed, &plan).unwrap(), "{seed} {plan}");
    }
}
