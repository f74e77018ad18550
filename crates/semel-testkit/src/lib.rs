//! What Semel's tests share. Never part of a release.
//!
//! # Layout
//! - [`fixture`], [`make`], [`flows`]: a store under test with a manually driven clock, and requests for it.
//! - [`cases`]: the conformance kit; one line of [`conformance!`](crate::conformance) admits a store to it.
//! - [`copying`]: a store with something of everything, to be copied.
//! - [`mod@races`]: many tasks on one key.
//! - [`differential`]: random programs on a store and on the memory model, compared step by step.
//! - [`sim`]: servers, workers and callers on one thread by a seed, over a store and a network that fail.
//! - [`history`]: the judge of what a store did and answered; [`planted`]: bugs on purpose, to judge the judges.
//! - [`transact`]: one decision on a store that has no batcher.
//! - `log`: the event log of a store that may hold events back for a while.
//! - [`logbook`]: a store that reports its whole state after each commit; [`gated`]: one whose commits wait.
//! - [`crash`]: a process to be killed, and the account of what it acknowledged.
//! - [`mod@let_go`]: calls that are dropped at every await, [`calls`]: all those of the engine;
//!   [`whole`]: what must hold afterwards.
//! - [`traffic`]: callers and workers that go on through outages of their store.
//! - [`database`]: a schema of a test's own in PostgreSQL; [`cluster`]: a PostgreSQL of a test's own, to be killed.
//! - [`redis`]: a prefix of a test's own in Redis.
//! - [`warnings`]: what the process logged for an operator.
//! - [`chromium`]: a Chromium of a test's own.
//! - [`patience`]: real-clock timing, and how often a test is played; [`runtime`]: a runtime that outlives tests;
//!   [`signal`]: signals that end or halt a process.
//! - [`ojs`]: the runner of Open Job Spec's suites, which tools use too.

#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod calls;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod cases;
#[cfg(unix)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod chromium;
#[cfg(unix)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod cluster;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod copying;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod crash;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod database;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod differential;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod fixture;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod flows;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod gated;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod history;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod let_go;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
mod log;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod logbook;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod make;
pub mod ojs;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod patience;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod planted;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod races;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod redis;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod runtime;
/// Several servers on one store.
pub mod several;
pub mod signal;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod sim;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod traffic;
pub mod transact;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod warnings;
#[allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
pub mod whole;

pub use fixture::{Fixture, Step, TempDir};
pub use make::Want;
