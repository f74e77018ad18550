//! The whole of Semel but its files and sockets, on one thread, by a seed.
//!
//! The real core, driver, engine and duties run over a store that is shared by several servers, behind connections that
//! delay, lose and repeat. Callers, workers and operators do what such people do; servers are killed at any step,
//! paused, and their clock jumps. Every commit is judged as it is applied, every answer as it is given; in the end the
//! troubles stop and what waits must come to its end.
//!
//! A run is a function of its seed and its [`Plan`]. A seed that fails is made smaller and printed so that it can be
//! played again: `SEMEL_SEED=7 SEMEL_PLAN="servers=1" cargo test -p semel-testkit --test it sim`.
//!
//! # Layout
//! - [`dice`], [`executor`]: chance, and who runs next.
//! - [`plan`]: what a seed draws; [`store`]: the shared store and its connections; [`world`]: servers and network.
//! - [`client`], [`flow`], [`limit`], [`repeat`], [`task`], [`worker`], [`nemesis`]: who acts, and what they ask for.
//! - [`run`]: one seed from its beginning to its judgement; a smaller plan that still fails.

pub mod client;
pub mod dice;
pub mod executor;
pub mod flow;
pub mod limit;
pub mod nemesis;
pub mod plan;
pub mod repeat;
pub mod run;
pub mod store;
pub mod task;
pub mod worker;
pub mod world;

pub use plan::Plan;
pub use run::{Failure, Ran, play, shrink};
