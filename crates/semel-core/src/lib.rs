//! The rules of Semel, and nothing else: which jobs are the same, what happens to a duplicate, how a job lives and
//! ends. Everything here is a pure function of its arguments. There is no I/O, no clock, no async, no wire format.
//!
//! # Layout
//! - [`ident`], [`time`], [`limits`], [`error`], [`hex`]: names, points in time, bounds, refusals, bytes as digits.
//! - [`state`], [`slot`]: the eight states, the only table of moves, and where a row is filed.
//! - [`job`], [`body`], [`trail`], [`event`]: a stored job, its parts, and what the log tells of it.
//! - [`canon`], [`unique`]: identity, hold and conflict: the heart.
//! - [`template`]: what holds for all jobs of a type, and which identity a job gets in the end.
//! - [`schema`]: what jobs of a type may be given.
//! - [`tenant`], [`sight`], [`sensitive`]: namespaces around ids, keys and queues; what of it a caller sees.
//! - [`draft`]: load, decide, apply: what decisions read and write.
//! - [`webhook`]: who wants to be told of events, and what a delivery looks like.
//! - [`partition`]: which part of a divided store an id, a key or a name belongs to.
//! - [`planted`]: bugs on purpose, for tests; nothing of it is compiled in otherwise.
//! - [`cron`], [`workflow`]: jobs offered by a schedule, jobs that depend on each other; [`task`]: steps under one identity; [`deferred`], [`waiting`]: a job
//!   that is kept to be offered later, and who is told of a job's end.
//! - [`enqueue`], [`settle`], [`life`], [`lease`], [`retry`], [`follow_up`]: the decisions; [`explain`]: why.
//! - [`limit`], [`settings`]: how many may start, how many may wait, and what workers are told; [`retention`]: how long what has
//!   ended is kept.

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
