//! A job queue for Rust programs whose promise is *enqueue it twice, it runs once, and anyone can see why*.
//!
//! ```
//! use semel::{Job, Semel};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, Job)]
//! #[job(type = "email.welcome", queue = "mail", unique(args("user_id"), on_conflict = "ignore"))]
//! struct Welcome {
//!     user_id: u64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), semel::Error> {
//! let semel = Semel::open("memory:").await?;
//! let first = semel.enqueue(Welcome { user_id: 42 }).await?;
//! let second = semel.enqueue(Welcome { user_id: 42 }).await?;
//! assert!(first.is_inserted() && !second.is_inserted());
//! assert_eq!(first.id(), second.id());
//! semel.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//! - [`Semel`], [`Open`], [`Keep`]: the queue, and how long it keeps jobs that have ended. A queue is opened
//!   by `Semel::open("sqlite:app.db")`, `Semel::open("postgres://…")`, `Semel::open("redis://…")` or
//!   `Semel::open("memory:")`.
//! - [`macro@Job`], [`Options`], [`Unique`], [`Retry`], [`RateLimit`]: what a job type declares about its
//!   jobs.
//! - [`Enqueue`], [`Envelope`], [`Enqueued`], [`Handle`]: enqueueing a job, and what became of it.
//!   [`Explained`]: what would become of it, and why.
//! - [`Jobs`], [`Queue`]: the stored jobs, and the queues they wait in.
//! - [`Chain`], [`Group`], [`Batch`], [`Graph`], [`Workflow`]: jobs that wait for other jobs.
//! - [`Schedule`], [`Cron`]: jobs that a schedule enqueues.
//! - [`Worker`], [`Handler`], [`Outcome`], [`Run`], [`Middleware`]: running jobs. [`shutdown_signal`],
//!   [`Working`], [`Stop`]: shutting down.
//! - `session` (with `postgres`): what a PostgreSQL driver implements so that jobs join its transactions.
//! - [`testing`]: a queue whose clock stands still, jobs run inline, assertions.
//!
//! # Features
//! `sqlite` (default): stores in one file. `postgres`: stores in a database that programs share, and jobs
//! inside transactions. `redis`: stores in a Redis that programs share. `http`: the server inside the
//! program. `remote`: workers over HTTP. `templates`: settings for all jobs of a type, in YAML files that a
//! server reads too.

#[cfg(feature = "http")]
mod admin;
mod codec;
mod cron;
mod enqueue;
mod envelope;
mod error;
mod explain;
#[cfg(feature = "templates")]
mod folder;
mod handle;
mod job;
mod jobs;
mod named_queue;
mod open;
mod options;
mod outcome;
mod queue;
mod rate_limit;
mod retention;
#[cfg(feature = "postgres")]
pub mod session;
mod signals;
mod steps;
mod stored;
pub mod testing;
#[cfg(feature = "postgres")]
mod transaction;
mod unique;
mod worker;
mod workflow;

#[cfg(feature = "http")]
pub use admin::Admin;
pub use cron::{Cron, Schedule, StoredCron, Tick};
pub use enqueue::{Enqueue, EnqueueMany, Many};
pub use envelope::{At, Envelope, IntoEnvelope};
pub use error::Error;
pub use explain::{Explained, Holding, Would};
pub use handle::{Finished, Handle};
pub use job::Job;
pub use jobs::{Jobs, Page};
pub use named_queue::{Queue, StoredQueue};
pub use options::{Options, Retry};
pub use outcome::{Admitted, Enqueued, Reason, Refused};
pub use queue::{Open, Semel};
pub use rate_limit::RateLimit;
pub use retention::Keep;
pub use signals::shutdown_signal;
pub use steps::{Batch, Chain, Graph, Group, IntoPart, IntoSteps, Part};
pub use stored::Stored;
#[cfg(feature = "postgres")]
pub use transaction::InTransaction;
pub use unique::Unique;

pub use semel_core::cron::{Decision as TickDecision, Overlap};
pub use semel_core::enqueue::Counts;
pub use semel_core::ident::{JobId, WorkflowId};
pub use semel_core::retry::Backoff;
pub use semel_core::state::State as JobState;
pub use semel_core::time::Timestamp;
pub use semel_core::unique::{
    Blocking, Disclose, Frees, OnConflict, OnMismatch, PeriodFrom, Preset, WhenActive,
};
pub use semel_core::workflow::{Status as WorkflowStatus, StepStatus};
pub use semel_macros::Job;
pub use semel_store::StoreError;
pub use semel_store::error::Undone;
pub use tokio_util::sync::CancellationToken;
pub use worker::{
    Attempt, CONCURRENCY_DEFAULT, CONCURRENCY_MAX, Failure, FromRun, Handler, IntoOutcome, Lease, Middleware,
    Next, Outcome, Progress, Return, Run, State, Stop, Worker, Working,
};
pub use workflow::{Start, Step, StoredWorkflow, Workflow};
