//! The store in PostgreSQL against the conformance kit: as it is, with housekeeping after every step, and
//! reopened after every step.
//!
//! The tests need a server: `cargo xtask test` starts one and passes its address in `SEMEL_TEST_POSTGRES`.
//! Without it they fail. Each test has a schema of its own, so that they run side by side.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

mod against_the_model;
mod busy;
mod connections;
#[cfg(unix)]
mod contention;
mod copies;
mod crash;
mod cuts;
#[cfg(unix)]
mod departures;
#[cfg(unix)]
mod duplicates;
#[cfg(unix)]
mod elsewhere;
#[cfg(unix)]
mod failover;
mod front;
#[cfg(unix)]
mod hardship;
mod inside;
mod isolation;
#[cfg(unix)]
mod kills;
mod let_go;
#[cfg(unix)]
mod log;
mod lost;
mod news;
mod outbox;
mod overlooked;
mod place;
mod plain;
#[cfg(unix)]
mod pooler;
mod secret;
mod servers;
mod shadows;
mod strangers;
mod together;
mod trips;
#[cfg(unix)]
mod upgrade;
mod upkeep;

use semel_testkit::{Fixture, Step, conformance, races};

pub(crate) fn fixture(step: Step) -> Fixture {
    let place = place::Passing(place::Place::new());
    Fixture::new(step, move |clock| place.0.open_with(clock))
}

conformance!(as_it_is, crate::fixture(Step::Nothing));
conformance!(kept_after_every_step, crate::fixture(Step::Maintain));
conformance!(reopened_after_every_step, crate::fixture(Step::Reopen));

races!(racing, crate::fixture(Step::Nothing));
