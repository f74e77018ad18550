//! The kit's own tests that need the whole of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a failed assertion is the answer")]

mod cancellation;
mod simulation;
