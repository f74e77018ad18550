//! The library, as a program uses it.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test says where it fails")]

mod beats;
mod crons;
mod derive;
#[cfg(all(feature = "http", feature = "remote"))]
mod directives;
#[cfg(feature = "postgres")]
mod drivers;
mod enqueue;
mod examples;
mod explain;
mod fetching;
mod handle;
mod harness;
#[cfg(all(feature = "http", feature = "templates"))]
mod let_go;
#[cfg(feature = "postgres")]
mod let_go_inside;
#[cfg(all(feature = "http", feature = "remote"))]
mod logs;
mod looking_after;
#[cfg(feature = "postgres")]
mod outbox;
#[cfg(feature = "postgres")]
mod pages;
#[cfg(feature = "postgres")]
mod pools;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "http", feature = "remote"))]
mod remote;
mod retention;
#[cfg(all(feature = "http", feature = "remote"))]
mod serving;
mod shutdown;
mod start;
#[cfg(all(feature = "http", feature = "remote"))]
mod stops;
#[cfg(all(feature = "http", feature = "remote", feature = "templates"))]
mod templates;
mod testing;
#[cfg(feature = "postgres")]
mod transaction;
mod unruly;
mod waiting;
mod worker;
mod workflows;
