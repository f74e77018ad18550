//! The boundary between Semel's rules and its stores.
//!
//! # Layout
//! - [`backend`]: what a store must do.
//! - [`Store`]: the handle on a store; [`batcher`]: group commit in front of any store.
//! - `flight`, `fate`, `waitlist`: one group on its way; what its commit makes of a decision; decisions whose records somebody else
//!   has locked.
//! - [`model`], [`documents`], [`memory`]: heads, documents and their indexes in memory; the `memory:` store.
//! - [`layer`]: a store around a store; [`decor`]: stores that misbehave on purpose, for tests.
//! - [`inside`], [`outbox`]: decisions inside a transaction of the caller's own; jobs that wait in a table.
//! - [`copy`](mod@copy), [`carry`]: a store carried over into another one.
//! - [`log`]: a piece of the event log. [`repeated`]: failures that stay, told now and then. [`bounds`], [`random`]: what stores have in common.
//! - [`hints`], [`news`], [`lanes`], `readiness`, `watch`, [`clock`], [`error`]: wake-ups, time, what may go wrong.

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
