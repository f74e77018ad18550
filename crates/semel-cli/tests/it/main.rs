//! The real binary, as a person or a script runs it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what a test's helpers do not expect is a failure of the test"
)]

#[cfg(unix)]
mod away;
mod backups;
mod bench;
mod broken_off;
#[cfg(unix)]
mod browser;
mod copies;
mod demo;
mod doctor;
mod embedded;
mod help;
mod herd;
mod least;
mod log;
#[cfg(unix)]
#[path = "../../../semel-redis/tests/it/nodes.rs"]
#[allow(dead_code, reason = "the tests of the store need more of it")]
mod nodes;
mod operators;
#[cfg(unix)]
#[path = "../../../semel-redis/tests/it/own.rs"]
#[allow(dead_code, reason = "the tests of the store need more of it")]
mod own;
#[cfg(target_os = "linux")]
mod owners;
mod pages;
mod postgres;
mod redis;
mod requests;
mod retention;
mod run;
mod secrets;
mod serve;
mod settings;
mod start;
#[cfg(target_os = "linux")]
mod streams;
mod templates;
mod tls;
mod token;
mod top;
mod traces;
mod verbs;
