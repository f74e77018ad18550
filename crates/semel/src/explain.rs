//! What would become of a job, and why.

use std::fmt;

use semel_core::time::Timestamp;
use semel_core::unique::OnConflict;
use semel_ojs::explain::Account;
pub use semel_ojs::explain::{Holding, Would};

use crate::handle::Handle;
use crate::queue::Semel;

/// What would become of a job if it were enqueued now, and why; see [`Enqueue::explain`](crate::Enqueue::explain). Shown as sentences,
/// one a line, that name no values of args or meta.
#[derive(Clone)]
pub struct Explained {
    /// When it was decided, by the store's clock.
    pub at: Timestamp,
    /// What would become of it.
    pub would: Would,
    /// The job that would be the answer, or be replaced, or is in the way, where it may be shown.
    pub existing: Option<Handle>,
    /// JSON pointers of the places that differ, where it would be a mismatch.
    pub differs_at: Vec<String>,
    /// The text that is hashed, with values marked sensitive hidden in it; none without a unique policy. It holds what the policy
    /// looks at, values of args among it: not for logs.
    pub hashed: Option<String>,
    /// The unique key, in the digits that `semel keys` and `semel release` take; none without a unique policy.
    pub key: Option<String>,
    /// The jobs that hold the key and may be shown, newest first.
    pub holders: Vec<Holding>,
    /// What each strategy would do that the rest of the policy can be combined with; none where the jobs may not be shown.
    pub strategies: Vec<(OnConflict, Would)>,
    sentences: Vec<String>,
}

impl Explained {
    pub(crate) fn of(semel: &Semel, account: Account) -> Self {
        Self {
            at: account.at,
            would: account.would,
            existing: account.existing.map(|id| semel.job(id)),
            differs_at: account.differs_at,
            hashed: account.canonical,
            key: account.key.map(|key| key.to_string()),
            holders: account.holders,
            strategies: account.strategies,
            sentences: account.sentences,
        }
    }

    /// Why, in words.
    pub fn sentences(&self) -> impl Iterator<Item = &str> {
        self.sentences.iter().map(String::as_str)
    }
}

impl fmt::Debug for Explained {
    /// Without what is hashed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explained")
            .field("at", &self.at)
            .field("would", &self.would)
            .field("existing", &self.existing)
            .field("differs_at", &self.differs_at)
            .field("holders", &self.holders)
            .field("strategies", &self.strategies)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentences.join("\n"))
    }
}
