//! What may go wrong with a store, by what the caller can do about it.

/// A store could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The records are in such demand that no decision could be committed in the allowed number of tries. Nothing
    /// was written; the caller may try again.
    #[error("the records are in too much demand right now; try again")]
    Contended,
    /// What is needed is behind a commit, or in a part of the store, that does not answer: it was not even looked at. Told to those who do
    /// not wait for it. Nothing was written; the caller may try again.
    #[error("the store does not answer for these records right now; try again")]
    Stalled,
    /// The database undid the caller's own transaction for another one's sake. Roll it back and begin it again, from its
    /// first statement.
    #[error("the transaction is undone ({_0}): roll it back{after}", after = again(*_0))]
    Undone(Undone),
    /// The store cannot be reached or cannot write now. Nothing was acknowledged.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Replicas that are waited for are not there. Nothing was written of what was asked; where it repeats what was asked before, that may
    /// have been.
    #[error("the store is unavailable: {0}")]
    Behind(String),
    /// Whether it was done is not known: the store was lost before it said so. Whoever asks for the same with the same id again is
    /// answered as the first time.
    #[error("{0}")]
    Unknown(String),
    /// It was carried out, or something of its commit was, and is not as durable as an answer has to be: too few replicas have it yet.
    /// What came of it is not told before, so it may be stored or not. Whoever asks for the same with the same id again is answered as
    /// the first time if it is, once they have it.
    #[error("{0}")]
    Lagging(String),
    /// The store has failed in a way after which it must not go on; it has to be opened again. Whether what was under way then
    /// was done is not known.
    #[error("the store has failed and must be reopened: {0}")]
    Poisoned(String),
    /// What is stored is not what this program wrote.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store is of a version, or in a state, that this program does not handle.
    #[error("{0}")]
    Unsupported(String),
    /// The job at which a page was to go on is gone, and nothing else says where that was. Whoever pages begins again.
    #[error("the job that this cursor names is gone; begin again without it")]
    CursorGone,
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

/// Why a database undid a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Undone {
    /// Two transactions waited for one another, as they may when one enqueues several times. One call with all jobs cannot.
    #[error("deadlock")]
    Deadlock,
    /// In REPEATABLE READ and SERIALIZABLE: another transaction wrote what this one would have had to see.
    #[error("serialization failure")]
    Serialization,
    /// An earlier statement of it failed, and what it failed of may not pass by itself.
    #[error("an earlier statement of it failed")]
    Aborted,
}

const fn again(undone: Undone) -> &'static str {
    match undone {
        Undone::Deadlock | Undone::Serialization => " and begin it again",
        Undone::Aborted => ", and see what its own error was",
    }
}

impl StoreError {
    /// Whether the same request may succeed later without anybody's help. Where it is [in doubt](Self::is_in_doubt) what became of
    /// it, only one with an id or a policy is the same. After [`Undone`](Self::Undone), and wherever else a transaction of the caller's own
    /// has ended, what may succeed is that transaction, from its first statement; and a [closed](Self::Closed) store when it is opened again.
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

    /// Whether it may have been done all the same, in a store that goes on: what is done once more may be there twice. Of what was under way
    /// in one that is [poisoned](Self::Poisoned) or [closed](Self::Closed) nobody knows either, and nothing more is done there.
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

    /// The same, as it is told to who wrote nothing: of that nothing is in doubt, whatever became of its group's commit.
    pub(crate) fn of_nothing_written(self) -> Self {
        match self {
            Self::Unknown(why) => Self::Unavailable(format!(
                "this request wrote nothing, and what it saw is not confirmed; send it again, with the same id if it has one: {why}"
            )),
            Self::Lagging(_) => Self::Behind(
                "too few replicas are there to confirm what was seen: nothing was stored by this request. Send it again when they are \
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

    /// One way or the other it may succeed later; whether it is sent again without an id hangs on this alone.
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
