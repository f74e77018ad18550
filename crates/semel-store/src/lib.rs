//! The boundary between Semel's rules and its stores.
//!
//! # Layout
//! - [`backend`]: what a store must do.
//! - [`Store`]: the handle on a store; [`batcher`]: group commit in front of any store.
//! - `flight`, `fate`, `waitlist`: one group in flight; what its commit means for each decision; decisions
//!   whose records another transaction has locked.
//! - [`model`], [`documents`], [`memory`]: heads, documents and their indexes in memory; the `memory:` store.
//! - [`layer`]: a store around a store; [`decor`]: stores that misbehave on purpose, for tests.
//! - [`inside`], [`outbox`]: decisions inside a caller's own transaction; jobs that wait in a table to be relayed.
//! - [`copy`](mod@copy), [`carry`]: copying a whole store into another one.
//! - [`log`]: a page of the event log. [`repeated`]: recurring failures, logged at intervals. [`bounds`],
//!   [`random`]: what all stores share.
//! - [`hints`], [`news`], [`lanes`], `readiness`, `watch`, [`clock`], [`error`]: wake-ups, time, what may go
//!   wrong.

mod answers;
mod asked;
pub mod backend;
pub mod batcher;
pub mod bounds;
pub mod carry;
pub mod clock;
pub mod copy;
pub mod decor;
pub mod documents;
pub mod error;
mod fate;
mod flight;
mod heads;
pub mod hints;
mod holders;
pub mod inside;
pub mod lanes;
pub mod layer;
pub mod log;
pub mod memory;
pub mod model;
pub mod news;
pub mod outbox;
pub mod random;
mod readiness;
mod ready;
pub mod repeated;
mod request;
mod store;
mod waitlist;
mod watch;

pub use backend::Backend;
pub use error::StoreError;
pub use log::{LogPage, Recorded};
pub use news::{News, UnsentNews};
pub use readiness::Mark;
pub use store::Store;
pub use waitlist::WAIT_MAX;
pub use watch::Watch;
