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
    /// Whether it was done is not known: the store was lost before it said so, or it is done and not as durable as an answer
    /// has to be. Whoever asks for the same with the same id again is answered as the first time.
    #[error("{0}")]
    Unknown(String),
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
    /// Whether the same request may succeed later without anybody's help. Where [nobody knows](Self::Unknown) what became of
    /// it, only one with an id or a policy is the same. After [`Undone`](Self::Undone), and wherever else a transaction of the caller's own
    /// has ended, what may succeed is that transaction, from its first statement; and a [closed](Self::Closed) store when it is opened again.
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::Contended
                | Self::Stalled
                | Self::Undone(Undone::Deadlock | Undone::Serialization)
                | Self::Unavailable(_)
                | Self::Unknown(_)
                | Self::Closed
        )
    }
}

impl From<semel_core::body::Corrupt> for StoreError {
    fn from(corrupt: semel_core::body::Corrupt) -> Self {
        Self::Corrupt(corrupt.0)
    }
}
