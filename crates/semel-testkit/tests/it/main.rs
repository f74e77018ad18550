//! The kit's own tests that need the whole of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]
#![allow(clippy::print_stdout, reason = "a run that is asked for by hand says what it amounted to")]

mod calls;
mod cancellation;
mod simulation;
