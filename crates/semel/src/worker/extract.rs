//! What a handler may take as arguments besides its job.

use std::fmt;

use semel_core::ident::JobId;
use semel_core::lease::LeaseToken;
use tokio_util::sync::CancellationToken;

use super::run::Run;
use super::verdict::Failure;
use crate::error::Error;

/// A handler's argument that is taken from its run: [`State`], [`JobId`], [`Attempt`], [`Lease`],
/// [`CancellationToken`], [`Progress`] or the [`Run`] itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an argument that a handler can take",
    label = "not an argument of a handler",
    note = "after its job a handler takes State<T>, JobId, Attempt, Lease, CancellationToken, Progress or Run, in any order"
)]
pub trait FromRun: Sized + Send {
    /// Takes the argument from the run.
    ///
    /// # Errors
    /// The failure with which the attempt then ends.
    fn from_run(run: &Run) -> Result<Self, Failure>;

    /// The type of the [`State`] that this argument needs and the worker lacks, checked when the worker
    /// starts.
    #[doc(hidden)]
    fn missing(_: &Needs<'_>) -> Option<&'static str> {
        None
    }
}

/// The states that a worker has when it starts.
#[doc(hidden)]
pub struct Needs<'a>(pub(crate) &'a super::run::States);

/// A value that handlers share, given to the worker with [`Worker::state`](crate::Worker::state). It is
/// cloned for each run: wrap what is expensive to clone in an `Arc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<T>(pub T);

impl<T: Clone + Send + Sync + 'static> FromRun for State<T> {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        run.states().get().map(Self).ok_or_else(|| {
            Failure::new("no_state", format!("the worker has no State<{}>", std::any::type_name::<T>()))
        })
    }

    fn missing(needs: &Needs<'_>) -> Option<&'static str> {
        needs.0.require::<T>().err()
    }
}

impl FromRun for Run {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        Ok(run.clone())
    }
}

impl FromRun for JobId {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        Ok(run.id())
    }
}

/// The number of this attempt, and how many are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of this attempt, from 1.
    pub number: u32,
    /// The number of attempts allowed.
    pub max: u32,
}

impl Attempt {
    /// Whether a failure of this attempt ends the job.
    pub const fn is_last(self) -> bool {
        self.number >= self.max
    }
}

impl FromRun for Attempt {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        Ok(Self { number: run.attempt(), max: run.max_attempts() })
    }
}

/// The lease of this attempt, with its fencing token: of two runs of one job, or of one unique key, the later
/// has the greater fence.
///
/// A worker that lost its lease without noticing (a long pause, a network cut) may go on acting. The system
/// it acts on can detect that by the fence, if it keeps the greatest one it has seen:
///
/// ```sql
/// UPDATE account SET balance = ?2, fence = ?1 WHERE id = ?3 AND fence <= ?1
/// ```
///
/// If no row changed, a newer run was here: stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(u64);

impl Lease {
    /// The fence: at most 2^63 - 1, so that every database can store it as an integer.
    #[expect(clippy::cast_possible_wrap, reason = "a fence is microseconds since 1970 or little more")]
    pub const fn fence(self) -> i64 {
        self.0 as i64
    }
}

impl fmt::Display for Lease {
    /// Writes the lease as it is sent on the wire.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        LeaseToken(self.0).fmt(f)
    }
}

impl FromRun for Lease {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        Ok(Self(run.delivery().fence))
    }
}

impl FromRun for CancellationToken {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        Ok(run.token().clone())
    }
}

/// Reports how far the run has come.
#[derive(Clone, Debug)]
pub struct Progress(Run);

impl Progress {
    /// Reports progress: anything serde can write. Waits for the commit.
    ///
    /// # Errors
    /// If the store cannot be written, or the lease is lost.
    pub async fn set(&self, value: impl serde::Serialize + Send) -> Result<(), Error> {
        self.0.progress(value).await
    }
}

impl FromRun for Progress {
    fn from_run(run: &Run) -> Result<Self, Failure> {
        Ok(Self(run.clone()))
    }
}
