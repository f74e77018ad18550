//! The simulation, in a few shards so that two cores have something to do.
//!
//! - `SEMEL_SEEDS=1000000`: so many seeds instead of ten thousand.
//! - `SEMEL_SEED=7 SEMEL_PLAN="servers=1"`: this seed alone, its plan changed so.

use semel_testkit::sim::{Plan, play, seeds};

/// Seeds of a run in all shards together.
const SEEDS: u64 = 10_000;
const SHARDS: u64 = 4;

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
    let count = number("SEMEL_SEEDS").unwrap_or(SEEDS) / SHARDS;
    match seeds(at * count, count) {
        Ok(ran) => println!("{count} seeds: {ran:?}"),
        Err(failure) => panic!("{failure}"),
    }
}

fn alone(seed: u64) {
    let changes = std::env::var("SEMEL_PLAN").unwrap_or_default();
    let plan = Plan::of(seed).with(&changes).unwrap();
    match play(seed, &plan) {
        Ok(ran) => println!("seed {seed}, {plan}: {ran:?}"),
        Err(failure) => panic!("{failure}"),
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

#[test]
fn shard_2() {
    shard(2);
}

#[test]
fn shard_3() {
    shard(3);
}

/// Were a run not a function of its seed, a failure could not be played again.
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let plan = Plan::of(seed);
        assert_eq!(play(seed, &plan).unwrap(), play(seed, &plan).unwrap(), "seed {seed}");
    }
}
