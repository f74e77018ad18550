//! The store in Redis against the conformance kit: as it is, with housekeeping after every step, and reopened
//! after every step.
//!
//! The tests need a server: `cargo xtask test` starts one and passes its address in `SEMEL_TEST_REDIS`.
//! Without it they fail. Each test has a prefix of its own, so that they run side by side.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

mod against_the_model;
mod breaks;
#[cfg(unix)]
mod cluster;
mod crash;
#[cfg(target_os = "linux")]
mod cut_off;
mod damage;
#[cfg(target_os = "linux")]
mod doors;
#[cfg(unix)]
mod emptied;
#[cfg(unix)]
mod encrypted;
mod ends;
#[cfg(unix)]
mod forgotten;
mod fresh;
mod halves;
#[cfg(unix)]
mod heirs;
#[cfg(unix)]
mod kills;
mod let_go;
#[cfg(unix)]
mod loading;
mod losses;
mod lost;
#[cfg(unix)]
mod many;
#[cfg(unix)]
mod migration;
#[cfg(unix)]
mod moved;
#[cfg(unix)]
mod nodes;
mod own;
mod partitions;
mod place;
#[cfg(unix)]
mod replicas;
#[cfg(unix)]
mod sentinels;
mod servers;
#[cfg(unix)]
mod settings;
mod shortcut;
#[cfg(unix)]
mod slow;
#[cfg(unix)]
mod takeover;

use semel_testkit::{Fixture, Step, conformance, races};

pub(crate) fn fixture(step: Step) -> Fixture {
    let place = place::Passing(place::Place::new());
    Fixture::new(step, move |clock| place.0.open_with(clock))
}

/// The same over four partitions.
pub(crate) fn divided(step: Step) -> Fixture {
    let place = place::Passing(place::Place::divided(4));
    Fixture::new(step, move |clock| place.0.open_with(clock)).divided(4)
}

conformance!(as_it_is, crate::fixture(Step::Nothing));
conformance!(kept_after_every_step, crate::fixture(Step::Maintain));
conformance!(reopened_after_every_step, crate::fixture(Step::Reopen));

races!(racing, crate::fixture(Step::Nothing));

conformance!(divided_as_it_is, crate::divided(Step::Nothing));
conformance!(divided_kept_after_every_step, crate::divided(Step::Maintain));
conformance!(divided_reopened_after_every_step, crate::divided(Step::Reopen));

races!(divided_racing, crate::divided(Step::Nothing));
