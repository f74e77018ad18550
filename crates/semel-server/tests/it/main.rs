//! The server over real connections, on the store that lives in memory.

mod errors;
mod harness;
mod jobs;
mod limits;
mod listing;
mod races;
mod suites;
mod unique;
mod workers;
