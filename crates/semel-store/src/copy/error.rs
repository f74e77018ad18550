//! What stands in the way of a copy.

use crate::error::StoreError;

/// A store could not be carried over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source could not be read.
    #[error("the source cannot be read: {0}")]
    Source(StoreError),
    /// The target could not be read or written.
    #[error("the target cannot be written: {0}")]
    Target(StoreError),
    /// A server or a program has one of the two open.
    #[error("the {} is in use: {others} server(s) or program(s) have it open", if *.is_source { "source" } else { "target" })]
    InUse {
        /// Which of the two.
        is_source: bool,
        /// How many are seen.
        others: u64,
    },
    /// The source has a part of another store.
    #[error("the source is itself a copy that was broken off, and has a part of another store")]
    SourceUnfinished,
    /// The target has something.
    #[error("the target is not empty")]
    NotEmpty,
    /// The target has what another copy left.
    #[error("the target has what was left by a copy of another store that was broken off")]
    OfAnother,
    /// Somebody wrote to the source.
    #[error("the source was written to since the copy began: a server or a program still uses it")]
    SourceMoved,
    /// What was written last cannot be seen yet.
    #[error(
        "a transaction that is open in the source's database, somebody's own, hides what was written last"
    )]
    SourceWaits,
    /// Programs have put jobs into the source's outbox that are not relayed.
    #[error("the source has jobs in its outbox that were not relayed yet")]
    OutboxWaits,
    /// Somebody wrote to the target.
    #[error("the target has something else than what was copied: it was written to by somebody else")]
    TargetMoved,
    /// Not every job could be read.
    #[error("the source counts {counted} jobs, and {read} of them could be read")]
    Unreadable {
        /// Jobs there are.
        counted: u64,
        /// Jobs that were copied.
        read: u64,
    },
}

impl CopyError {
    /// A store's error, by which of the two it is.
    pub(super) const fn of(error: StoreError, is_source: bool) -> Self {
        if is_source { Self::Source(error) } else { Self::Target(error) }
    }
}
