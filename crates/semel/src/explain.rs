//! What would become of a job if it were enqueued now, and why.

use std::fmt;

use semel_core::time::Timestamp;
use semel_core::unique::OnConflict;
use semel_ojs::explain::Account;
pub use semel_ojs::explain::{Holding, Would};

use crate::handle::Handle;
use crate::queue::Semel;

/// What would become of a job if it were enqueued now, and why; see
/// [`Enqueue::explain`](crate::Enqueue::explain).
///
/// `Display` writes the explanation as sentences, one per line, which quote no values of args or meta.
#[derive(Clone)]
pub struct Explained {
    /// The time of the decision, by the store's clock.
    pub at: Timestamp,
    /// What would become of the job.
    pub would: Would,
    /// The job that would be the answer, would be replaced, or is in the way; `None` if there is none or it
    /// may not be shown.
    pub existing: Option<Handle>,
    /// JSON pointers of the places that differ, if the answer would be a mismatch.
    pub differs_at: Vec<String>,
    /// The text that is hashed into the unique key, with values marked sensitive hidden; `None` without a
    /// unique policy. It contains whatever the policy covers, including values of args: do not log it.
    pub hashed: Option<String>,
    /// The unique key, in the digits that `semel keys` and `semel release` accept; `None` without a unique
    /// policy.
    pub key: Option<String>,
    /// The jobs that hold the key, newest first, as far as they may be shown.
    pub holders: Vec<Holding>,
    /// The outcome under each conflict strategy that the rest of the policy allows; empty if the jobs may not
    /// be shown.
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

    /// The explanation, sentence by sentence.
    pub fn sentences(&self) -> impl Iterator<Item = &str> {
        self.sentences.iter().map(String::as_str)
    }
}

impl fmt::Debug for Explained {
    /// Leaves out the hashed text and the key: the text may contain values of args.
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
