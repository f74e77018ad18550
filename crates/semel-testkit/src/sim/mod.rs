//! All of Semel except its files and sockets, on one thread, driven by a seed.
//!
//! The real core, driver, engine and duties run over a store that several servers share, behind connections
//! that delay, lose and repeat calls. Callers, workers and operators act as real ones do; servers are killed
//! at any step or paused, and the store's clock jumps. Every commit is judged as it is applied, every answer
//! as it is given; in the end the troubles stop, and everything that waits must end.
//!
//! A run is a function of its seed and its [`Plan`]. A failing seed is shrunk and printed so that it can be
//! replayed: `SEMEL_SEED=7 SEMEL_PLAN="servers=1" cargo test -p semel-testkit --test it sim`.
//!
//! # Layout
//! - [`dice`], [`executor`]: randomness, and the choice of who runs next.
//! - [`plan`]: what a seed draws; [`store`]: the shared store and its connections; [`world`]: servers and network.
//! - [`client`], [`flow`], [`limit`], [`repeat`], [`task`], [`worker`], [`nemesis`]: the actors, and what they ask for.
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
