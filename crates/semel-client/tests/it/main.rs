//! The client against a server of canned answers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on stops here")]

mod canned;
mod let_go;
mod requests;
mod trouble;
