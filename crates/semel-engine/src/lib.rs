//! Semel's engine: what callers, workers and operators ask of a store, and the duties that run by the clock.
//!
//! # Layout
//! - [`engine`]: the handle everyone uses, and the loop.
//! - [`follow`], [`key_log`]: reading the event log, and what it has of one key.
//! - [`webhooks`]: subscriptions, and events on their way to them.
//! - [`crons`], [`workflows`], [`tasks`]: what people ask about those.
//! - [`duty`]: promote, reap, expire, tend (crons and old workflows), purge.
//! - [`job`], [`duplicates`], [`counters`], [`history`]: a whole job, the record of duplicates, the metrics, those over time.
//! - [`limits`], [`workers`], [`throughput`], [`latency`], `queues`: limits in use, workers heard of, the last minute, how long
//!   jobs waited and ran, queues with a bound.
//! - [`held`], [`holding`], [`hottest`], [`policies`]: keys that are held, by which jobs, keys and holders that absorbed most, policies
//!   in use.
//! - [`room`]: whole jobs, as many as an answer has room for.
//! - [`samples`]: what policies do with the jobs that come, if somebody asks for it.
//! - `once`: requests that were sent before.
//! - `apart`: what is decided together until one of it stands in the way of the others.
//! - `deadline`: until when somebody waits.
//! - `lease_guard`: gives back jobs that were leased and of which nobody was told.

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
