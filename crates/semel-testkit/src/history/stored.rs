//! A job as the commits made it, and the mark by which a request is known.

use std::collections::BTreeSet;

use semel_core::job::Head;
use semel_core::state::State;
use semel_core::unique::UniquePolicy;

/// What is noted in a job's meta, so that a request is known by what it stored: `{"n":7,"inspect":true}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mark {
    /// The request's number.
    pub n: u64,
    /// Whether its caller may see other people's jobs.
    pub inspect: bool,
}

impl Mark {
    /// The mark of a meta document.
    pub fn read(meta: &str) -> Result<Self, String> {
        serde_json::from_str(meta).map_err(|error| format!("a job of nobody's: {error}"))
    }

    /// The meta document.
    pub fn write(&self) -> String {
        format!("{{\"n\":{},\"inspect\":{}}}", self.n, self.inspect)
    }
}

/// A job as the commits made it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its head now.
    pub head: Head,
    /// Its own policy.
    pub policy: Option<UniquePolicy>,
    /// The request that stored it.
    pub mark: Mark,
    /// Its present args.
    pub args: Box<str>,
    /// Those it had before.
    pub earlier_args: Vec<Box<str>>,
    /// The request whose payload it carries, and when that came.
    pub asked: (u64, u64),
    /// When it was first granted.
    pub first_run_at: Option<u64>,
    /// When it was last granted; 0 before the first run.
    pub ran_at: u64,
    /// When its state last changed.
    pub moved_at: u64,
    /// Every version it was stored with.
    pub versions: BTreeSet<u64>,
    /// Whether its body is gone.
    pub is_purged: bool,
    /// Whether an operator sent it back once.
    pub was_revived: bool,
    /// Duplicates recorded on it.
    pub duplicates: u64,
}

/// How a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What its job was then.
    pub state: State,
    /// Whether its fence was burned: somebody else than its worker ended it, or its worker by cancelling the job.
    pub is_burned: bool,
    /// Whether its lease had run out and its time had not.
    pub had_run_out: bool,
}
