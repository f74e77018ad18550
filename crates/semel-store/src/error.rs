//! Store errors, sorted by what the caller can do about them.

/// Why a store could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No decision on these records could be committed in the allowed number of tries, because of other
    /// writers. Nothing was written; the caller may try again.
    #[error("too many writers compete for these records right now; try again")]
    Contended,
    /// A record is behind a commit, or in a part of the store, that does not answer, and was not even
    /// examined. Only callers that do not wait get this. Nothing was written; the caller may try again.
    #[error("the store does not answer for these records right now; try again")]
    Stalled,
    /// The database aborted the caller's own transaction for the sake of another. Roll it back and start again
    /// from its first statement.
    #[error("the database aborted the transaction ({_0}): roll it back{after}", after = again(*_0))]
    Undone(Undone),
    /// The store cannot be reached or cannot write now. No write was acknowledged.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Too few of the replicas that must confirm writes are connected. Nothing of this request was written; if
    /// it repeats an earlier request, that one's writes may exist.
    #[error("the store is unavailable: {0}")]
    Behind(String),
    /// It is unknown whether the request was carried out: the connection to the store was lost before the
    /// answer. A repeat with the same id is answered like the first request.
    #[error("{0}")]
    Unknown(String),
    /// The request, or another part of its commit, was carried out but is not durable enough for an answer:
    /// too few replicas have it yet. Its outcome is withheld, so it may be stored or not. If it is, a repeat
    /// with the same id is answered like the first request, once enough replicas have it.
    #[error("{0}")]
    Lagging(String),
    /// The store has failed in a way after which it must not go on; it must be reopened. Whether work in
    /// progress at that time was done is unknown.
    #[error("the store has failed and must be reopened: {0}")]
    Poisoned(String),
    /// The stored data is not what this program wrote.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store has a version, or is in a state, that this program does not handle.
    #[error("{0}")]
    Unsupported(String),
    /// The job that a page's cursor names is gone, and so is the position. The caller must begin again at the
    /// first page.
    #[error("the job that this cursor names is gone; start again without a cursor")]
    CursorGone,
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

/// Why a database aborted a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undone {
    /// Two transactions waited for each other, as may happen when one enqueues several times. A single call
    /// with all jobs avoids it.
    #[error("deadlock")]
    Deadlock,
    /// In REPEATABLE READ and SERIALIZABLE: another transaction wrote what this one would have had to read.
    #[error("serialization failure")]
    Serialization,
    /// An earlier statement of the transaction failed, for a reason that may persist.
    #[error("an earlier statement in it failed")]
    Aborted,
}

const fn again(undone: Undone) -> &'static str {
    match undone {
        Undone::Deadlock | Undone::Serialization => " and start it again",
        Undone::Aborted => ", and look at that statement's own error",
    }
}

impl StoreError {
    /// Whether the same request may succeed later without intervention.
    ///
    /// If its outcome is [in doubt](Self::is_in_doubt), only a request with an id or a policy counts as the
    /// same. After [`Undone`](Self::Undone), and whenever a transaction of the caller's own has ended, that
    /// whole transaction must be repeated; a [closed](Self::Closed) store must first be reopened.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Contended
            | Self::Stalled
            | Self::Undone(Undone::Deadlock | Undone::Serialization)
            | Self::Unavailable(_)
            | Self::Behind(_)
            | Self::Unknown(_)
            | Self::Lagging(_)
            | Self::Closed => true,
            Self::Undone(Undone::Aborted)
            | Self::Poisoned(_)
            | Self::Corrupt(_)
            | Self::Unsupported(_)
            | Self::CursorGone => false,
        }
    }

    /// Whether the request may have been carried out all the same, in a store that goes on: a repeat may then
    /// store it twice. Work in progress in a [poisoned](Self::Poisoned) or [closed](Self::Closed) store is
    /// also in doubt, but such a store does no more work.
    pub const fn is_in_doubt(&self) -> bool {
        match self {
            Self::Unknown(_) | Self::Lagging(_) => true,
            Self::Contended
            | Self::Stalled
            | Self::Undone(_)
            | Self::Unavailable(_)
            | Self::Behind(_)
            | Self::Poisoned(_)
            | Self::Corrupt(_)
            | Self::Unsupported(_)
            | Self::CursorGone
            | Self::Closed => false,
        }
    }

    /// The error for a caller that wrote nothing: its own request is not in doubt, whatever became of its
    /// group's commit.
    pub(crate) fn of_nothing_written(self) -> Self {
        match self {
            Self::Unknown(why) => Self::Unavailable(format!(
                "this request wrote nothing, and what it read is not confirmed; send it again, with the same id if it has one: {why}"
            )),
            Self::Lagging(_) => Self::Behind(
                "too few replicas are connected to confirm what was read: nothing was stored by this request. Send it again when they are \
                 back, with the same id if it has one"
                    .to_owned(),
            ),
            error => error,
        }
    }
}

impl From<semel_core::body::Corrupt> for StoreError {
    fn from(corrupt: semel_core::body::Corrupt) -> Self {
        Self::Corrupt(corrupt.0)
    }
}

#[cfg(test)]
mod tests {
    use super::StoreError;

    /// Either kind may succeed later; this alone decides whether a request without an id is sent again.
    #[test]
    fn what_too_few_replicas_confirm_is_in_doubt_only_where_it_was_begun() {
        let of = |error: fn(String) -> StoreError| error("a text".to_owned());
        for error in [of(StoreError::Unknown), of(StoreError::Lagging)] {
            assert!(error.is_in_doubt() && error.is_retryable(), "{error:?}");
        }
        for error in [of(StoreError::Unavailable), of(StoreError::Behind)] {
            assert!(!error.is_in_doubt() && error.is_retryable(), "{error:?}");
        }
    }
}
