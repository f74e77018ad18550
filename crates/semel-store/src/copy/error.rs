//! Errors of a copy.

use crate::error::StoreError;

/// Why a store could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source could not be read.
    #[error("the source cannot be read: {0}")]
    Source(StoreError),
    /// The target could not be read or written.
    #[error("the target cannot be written: {0}")]
    Target(StoreError),
    /// A server or program has one of the two stores open.
    #[error("the {} is in use: {others} server(s) or program(s) have it open", if *.is_source { "source" } else { "target" })]
    InUse {
        /// Whether it is the source.
        is_source: bool,
        /// How many others are seen.
        others: u64,
    },
    /// The source itself holds an unfinished copy.
    #[error("the source is itself a copy that was broken off, and has a part of another store")]
    SourceUnfinished,
    /// The target holds something.
    #[error("the target is not empty")]
    NotEmpty,
    /// The target holds what a copy of another store left.
    #[error("the target has what was left by a copy of another store that was broken off")]
    OfAnother,
    /// The source was written to.
    #[error("the source was written to since the copy began: a server or a program still uses it")]
    SourceMoved,
    /// The latest writes are still hidden by an open transaction.
    #[error(
        "a transaction that is open in the source's database, somebody's own, hides what was written last"
    )]
    SourceWaits,
    /// The source's outbox has entries that were not relayed.
    #[error("the source has jobs in its outbox that were not relayed yet")]
    OutboxWaits,
    /// The target was written to by something else.
    #[error("the target has something else than what was copied: it was written to by somebody else")]
    TargetMoved,
    /// Not every job could be read.
    #[error("the source counts {counted} jobs, and {read} of them could be read")]
    Unreadable {
        /// Jobs that the source counts.
        counted: u64,
        /// Jobs that were copied.
        read: u64,
    },
}

impl CopyError {
    /// Wraps a store's error, depending on whether the store is the source.
    pub(super) const fn of(error: StoreError, is_source: bool) -> Self {
        if is_source { Self::Source(error) } else { Self::Target(error) }
    }
}
