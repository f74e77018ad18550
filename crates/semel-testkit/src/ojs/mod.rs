//! A runner for Open Job Spec's JSON conformance suites: loads test files, plays their steps against a server
//! over HTTP, and reports for each file what failed and why.
//!
//! ```no_run
//! # use std::path::Path;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use semel_testkit::ojs;
//! let client = semel_client::Client::new("http://127.0.0.1:8080")?;
//! let tests = ojs::load(Path::new("suites"))?;
//! let report = ojs::run_all(&tests, &client, None).await;
//! print!("{report}");
//! # Ok(()) }
//! ```
//!
//! # Against the official runner
//! For the demands that the suites make, what passes here passes there, except for the cases marked (+). This
//! runner is stricter, because a check that cannot fail proves nothing:
//! - A matcher, an assertion or a field that it does not know fails the test. Fields that the official runner
//!   is known to ignore are listed in [`Outcome::notes`] instead.
//! - Assertions on a body that is not JSON fail; there they are skipped.
//! - `absent` fails when the path runs through a value of another type, or searches a list that does not
//!   exist.
//! - `null` and `any` require the field to be present; there a missing one passes.
//! - A template that cannot be filled in fails the step; there the braces are sent.
//! - `exclusive_claim`, `equality` and `{"$exists": ...}` on a header are checked; there they are ignored.
//! - A reset that fails also fails the test that it was for.
//! - (+) `{"$type": ...}` and `{"$gte": ...}` alone and `$empty` mean what they say; there they can never
//!   pass (the first two) or are ignored or never pass (the last).
//!
//! Tests are identified by their file's path, since the suites use some test ids twice.
//!
//! # Layout
//! - `suite`: test files and steps.
//! - `assertion`, `matcher`: what a step demands of an answer.
//! - `path`, `template`: places in a JSON body, and texts with values of earlier answers in them.
//! - `runner`, `report`: playing tests, and what came of it.

mod answer;
mod assertion;
mod matcher;
mod path;
mod report;
mod runner;
mod suite;
mod template;

#[cfg(test)]
mod canned;
#[cfg(test)]
mod tests;

pub use report::{Failure, Outcome, Report};
pub use runner::{run, run_all, run_all_in_turn};
pub use suite::{LoadError, SuiteTest, load, load_suite};
