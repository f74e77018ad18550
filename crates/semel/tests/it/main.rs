//! The library, as a program uses it.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test says where it fails")]

mod beats;
mod crons;
mod derive;
#[cfg(all(feature = "http", feature = "remote"))]
mod directives;
mod enqueue;
mod handle;
mod harness;
#[cfg(all(feature = "http", feature = "remote"))]
mod remote;
mod shutdown;
mod testing;
mod worker;
mod workflows;
