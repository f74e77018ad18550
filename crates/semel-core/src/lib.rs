//! The rules of Semel, and nothing else: which jobs are the same, what happens to a duplicate, how a job lives and ends.
//!
//! Everything here is a pure function of its arguments. There is no I/O, no clock, no async, no wire format.
//!
//! # Layout
//! - [`ident`], [`time`], [`limits`], [`error`], [`hex`]: identifiers, points in time, bounds on input, refusals,
//!   hexadecimal.
//! - [`state`], [`slot`]: the eight states, the only transition table, and the index a row is filed in.
//! - [`job`], [`body`], [`trail`], [`event`]: a stored job, its parts, and the events that the log records.
//! - [`canon`], [`unique`]: identity, hold and conflict: the heart.
//! - [`template`]: what holds for all jobs of a type, and which identity a job finally gets.
//! - [`schema`]: the schema that args of a job type must fit.
//! - [`tenant`], [`sight`], [`sensitive`]: namespaces around ids, keys and queues, and what a caller may see in them.
//! - [`draft`]: load, decide, apply: what decisions read and write.
//! - [`webhook`]: subscriptions to events, and the form of a delivery.
//! - [`partition`]: which partition of a divided store an id, a key or a name belongs to.
//! - [`planted`]: bugs planted on purpose, for tests; none of it is compiled in otherwise.
//! - [`cron`], [`workflow`]: jobs offered by a schedule, jobs that depend on each other; [`task`]: workflow steps
//!   under one identity; [`deferred`], [`waiting`]: offers stored for later, and what is told of a job's end.
//! - [`enqueue`], [`settle`], [`life`], [`lease`], [`retry`], [`follow_up`]: the decisions; [`explain`]: why they
//!   turn out so.
//! - [`limit`], [`settings`]: how many jobs may start, how many may wait, and what workers are told; [`retention`]:
//!   how long ended jobs are kept.

pub mod body;
pub mod canon;
pub mod cron;
pub mod deferred;
pub mod draft;
pub mod enqueue;
pub mod error;
pub mod event;
pub mod explain;
pub mod follow_up;
pub mod hex;
pub mod ident;
pub mod job;
pub mod lease;
pub mod life;
pub mod limit;
pub mod limits;
pub mod lineage;
pub mod partition;
pub mod planted;
pub mod retention;
pub mod retry;
pub mod schema;
pub mod sensitive;
pub mod settings;
pub mod settle;
pub mod sight;
pub mod slot;
pub mod state;
mod stored;
pub mod task;
pub mod template;
pub mod tenant;
pub mod time;
pub mod trail;
pub mod unique;
pub mod waiting;
pub mod webhook;
pub mod workflow;
