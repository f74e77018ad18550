//! The engine on the memory store: duties run by hand and by the clock, the record of duplicates, and what
//! answers wait for.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says where it fails")]

mod answers;
mod counted;
mod crons;
mod duties;
mod following;
mod held_up;
mod limits;
mod retention;
mod rounds;
mod samples;
mod unreadable;
mod untold;
