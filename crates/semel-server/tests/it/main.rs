//! The server over real connections, on the store that lives in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on stops here")]

mod access;
mod cancellation;
mod errors;
mod harness;
mod jobs;
mod limits;
mod listing;
mod openapi;
mod races;
mod slow;
mod streams;
mod suites;
mod tenants;
mod tls;
mod unique;
mod workers;
