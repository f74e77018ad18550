//! Runs the examples as real programs, on databases of their own.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test says where it fails")]
#![allow(clippy::print_stderr, reason = "a test says what it installed")]

mod database;
mod outbox;
mod program;
mod tools;
mod webhooks;
