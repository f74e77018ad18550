//! Semel's engine: the requests of callers, workers and operators to a store, and the duties that run by the clock.
//!
//! # Layout
//! - [`engine`]: the handle everyone uses, and the loop.
//! - [`follow`], [`key_log`]: reading the event log, and the events of one key.
//! - [`webhooks`]: subscriptions, and the delivery of events to them.
//! - [`crons`], [`workflows`], [`tasks`]: requests about those.
//! - [`duty`]: promote, reap, expire, tend (crons and old workflows), purge.
//! - [`job`], [`duplicates`], [`counters`], [`history`]: a whole job, the duplicates record, metrics, metrics
//!   over time.
//! - [`limits`], [`workers`], [`throughput`], [`latency`], `queues`: limits in use, known workers, the last
//!   minute's runs, how long jobs waited and ran, queues with a bound.
//! - [`held`], [`holding`], [`hottest`], [`policies`]: held keys, the jobs that hold them, the keys and
//!   holders that absorbed most, policies in use.
//! - [`room`]: whole jobs, as many as fit into one answer.
//! - [`samples`]: samples of incoming jobs for advice on policies, if switched on.
//! - `once`: requests that were sent before.
//! - `apart`: items decided in one commit until one of them blocks the others.
//! - `deadline`: the time at which a wait ends.
//! - `lease_guard`: gives back leased jobs that no worker received.

mod apart;
pub mod counters;
pub mod crons;
mod deadline;
pub mod duplicates;
pub mod duty;
pub mod engine;
pub mod follow;
pub mod held;
pub mod history;
pub mod holding;
pub mod hottest;
pub mod job;
pub mod key_log;
pub mod latency;
mod lease_guard;
pub mod limits;
mod once;
pub mod policies;
mod queues;
pub mod room;
pub mod samples;
pub mod tasks;
pub mod throughput;
pub mod webhooks;
pub mod workers;
pub mod workflows;

pub use engine::{Engine, Holders};
pub use job::Job;
