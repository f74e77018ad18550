//! The embedded store against the conformance kit: as it is, with housekeeping after every step, and reopened
//! after every step.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

use std::path::Path;
use std::sync::Arc;

use semel_sqlite::Sqlite;
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::{Fixture, Step, conformance, races};

pub(crate) fn open(dir: &Path, clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(Sqlite::open_with_clock(dir.join("semel.db"), clock.clone()).unwrap().filing_at_once())
}

conformance!(as_it_is, Fixture::in_dir(Step::Nothing, crate::open));
conformance!(filed_after_every_step, Fixture::in_dir(Step::Maintain, crate::open));
conformance!(reopened_after_every_step, Fixture::in_dir(Step::Reopen, crate::open));

mod against_the_model;
mod alone;
#[cfg(unix)]
mod astray;
mod backups;
mod closing;
mod crash;
mod disk;
mod gone;
mod kept;
#[cfg(target_os = "linux")]
mod killed;
mod left_out;
mod let_go;
#[cfg(unix)]
mod links;
mod log;
#[cfg(unix)]
mod modes;
#[cfg(target_os = "linux")]
mod platter;
#[cfg(target_os = "linux")]
mod power;
#[cfg(target_os = "linux")]
mod quota;
mod recovery;
#[cfg(target_os = "linux")]
mod tap;
mod unreadable;
#[cfg(target_os = "linux")]
mod voyage;

races!(racing, Fixture::in_dir(Step::Nothing, crate::open));
