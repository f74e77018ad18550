//! The memory store against the kit.

use std::sync::Arc;

use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_store::Backend;
use semel_testkit::{Fixture, Step, conformance};

fn memory(clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(Memory::new(clock.clone()))
}

conformance!(memory, Fixture::new(Step::Nothing, crate::memory));
