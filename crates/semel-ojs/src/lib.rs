//! Open Job Spec on the wire: what requests say, what answers look like, and the catalogue of errors. Everything here
//! is a pure function of text; nothing else in the workspace reads or writes OJS.
//!
//! # Layout
//! - [`enqueue`], [`unique`], [`retry`], [`duration`]: an enqueue request and its parts, in every form that
//!   clients really send.
//! - [`limit`], [`settings`]: rate and concurrency limits, and what operators set.
//! - [`batch`], [`bulk`], [`worker`], [`progress`], [`cron`], [`workflow`]: the other requests.
//!   [`sensitive`]: values that only the worker is shown.
//! - [`job`], [`answer`], [`explain`], [`event`], [`queue`]: answers.
//! - [`template`], [`task`]: defaults and rules for all jobs of a type, and tasks: steps under one identity.
//! - [`outbox`]: enqueue requests in a database table.
//! - [`webhook`]: subscriptions and deliveries.
//! - [`problem`]: every error, in one table. [`refusal`]: the one-word reason why a request about a job was refused.
//! - `members`, [`write`](mod@write): reading and writing JSON objects as text. `surrogate`: texts that were
//!   cut inside a character.

pub mod answer;
pub mod batch;
pub mod bulk;
pub mod cron;
pub mod duration;
pub mod enqueue;
pub mod event;
pub mod explain;
pub mod job;
pub mod limit;
pub mod outbox;
pub mod place;
pub mod problem;
pub mod progress;
pub mod queue;
pub mod refusal;
pub mod retry;
pub mod sensitive;
pub mod settings;
pub mod task;
pub mod template;
pub mod trace;
pub mod unique;
pub mod webhook;
pub mod worker;
pub mod workflow;
pub mod write;

mod digest;
mod members;
mod near;
mod offered;
mod surrogate;

pub use enqueue::{Enqueue, Terms};
pub use job::JobView;
pub use problem::{Code, Problem};
pub use template::{Template, TemplateSet, Templates};

/// The media type of OJS bodies, without parameters.
pub const MEDIA_TYPE: &str = "application/openjobspec+json";
/// The version of the specification that answers follow.
pub const VERSION: &str = "1.0";

/// Whether a client's version of the specification is supported: any 1.0, including its release candidates,
/// which real clients send.
pub fn is_supported_version(version: &str) -> bool {
    let version = version.trim();
    version == "1" || version == "1.0" || version.starts_with("1.0.") || version.starts_with("1.0-")
}
