//! A job as the commits made it, and the mark that identifies a request.

use std::collections::BTreeSet;

use semel_core::job::Head;
use semel_core::state::State;
use semel_core::unique::UniquePolicy;

/// The mark in a job's meta, which identifies the request that stored it: `{"n":7,"inspect":true}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mark {
    /// The request's number.
    pub n: u64,
    /// Whether the caller may see other callers' jobs.
    pub inspect: bool,
}

impl Mark {
    /// Reads the mark from a meta document.
    pub fn read(meta: &str) -> Result<Self, String> {
        serde_json::from_str(meta).map_err(|error| format!("a job of nobody's: {error}"))
    }

    /// The meta document of the mark.
    pub fn write(&self) -> String {
        format!("{{\"n\":{},\"inspect\":{}}}", self.n, self.inspect)
    }
}

/// A job as the commits made it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The job's present head.
    pub head: Head,
    /// Its own policy.
    pub policy: Option<UniquePolicy>,
    /// The request that stored it.
    pub mark: Mark,
    /// Its present args.
    pub args: Box<str>,
    /// The args it had before.
    pub earlier_args: Vec<Box<str>>,
    /// The request whose payload it has, and when that request came.
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
    /// Whether an operator has ever sent it back.
    pub was_revived: bool,
    /// Duplicates recorded on it.
    pub duplicates: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The state of its job right after the end.
    pub state: State,
    /// Whether its fence was burned: someone other than its worker ended the run, or its worker cancelled the
    /// job.
    pub is_burned: bool,
    /// Whether its lease had expired while its execution timeout had not.
    pub had_run_out: bool,
}
