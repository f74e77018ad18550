//! The memory store and its decorators against the kit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

mod abreast;
mod apart;
mod aside;
mod away;
mod company;
mod durable;
mod edges;
mod faults;
mod forgetful;
mod gone;
mod loads;
mod long;
mod mixed;
mod silent;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_store::decor::{Faulty, Slow};
use semel_store::memory::Memory;
use semel_testkit::{Fixture, Step, conformance, differential, races};

fn memory(clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(Memory::new(clock.clone()))
}

fn faultless(clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(Faulty::new(memory(clock)))
}

fn slow(clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(Slow::new(memory(clock), Duration::from_micros(1)))
}

conformance!(memory_store, Fixture::new(Step::Nothing, crate::memory));
conformance!(faulty_without_faults, Fixture::new(Step::Nothing, crate::faultless));
races!(racing, Fixture::new(Step::Nothing, crate::memory));
races!(racing_abreast, Fixture::new(Step::Nothing, crate::abreast::abreast));
races!(racing_slowly, Fixture::new(Step::Nothing, crate::slow));

/// If runs differed from each other, a comparison with other stores would prove nothing.
#[test]
fn the_model_agrees_with_itself() {
    differential::compare(7, differential::cases(40), false, || Fixture::new(Step::Nothing, memory));
}
