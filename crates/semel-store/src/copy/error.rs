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
    #[error("the source is itself an unfinished copy, with only a part of another store")]
    SourceUnfinished,
    /// The target holds something.
    #[error("the target is not empty")]
    NotEmpty,
    /// The target holds what a copy of another store left.
    #[error("the target holds an unfinished copy of another store")]
    OfAnother,
    /// The source was written to.
    #[error("the source was written to since the copy began: a server or a program is still using it")]
    SourceMoved,
    /// The latest writes are still hidden by an open transaction.
    #[error("an open transaction in the source's database, not Semel's own, hides the latest writes")]
    SourceWaits,
    /// The source's outbox has entries that were not relayed.
    #[error("the source's outbox has jobs that have not been relayed yet")]
    OutboxWaits,
    /// The target was written to by something else.
    #[error("the target differs from what was copied: something else has written to it")]
    TargetMoved,
    /// Not every job could be read.
    #[error("the source counts {counted} jobs, but only {read} of them could be read")]
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
