//! Errors of the store in PostgreSQL, and what they mean for callers.

use deadpool_postgres::PoolError;
use semel_core::ident::JobId;
use semel_store::StoreError;
use semel_store::error::Undone;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::session::Failure;

/// A failure of the store, with its details. Its text contains no address and no values of rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// PostgreSQL returned an error, or the connection failed.
    #[error("postgres: {}", Failure::from(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// The same on a caller's own connection, as its driver reports it.
    #[error("postgres: {0}")]
    Session(Failure),
    /// No connection could be obtained.
    #[error("postgres: no connection: {0}")]
    Pool(String),
    /// A row is not as this program writes it.
    #[error("job {id}: {what}")]
    Row {
        /// The job.
        id: JobId,
        /// What is wrong.
        what: &'static str,
    },
    /// An answer does not have the expected form.
    #[error("unexpected answer from the database: {0}")]
    Answer(&'static str),
    /// The database is not suitable, or this program cannot handle its version or that of its schema.
    #[error("{0}")]
    Unsupported(String),
    /// The schema must be changed, and this user may not.
    #[error("{0}")]
    Forbidden(String),
    /// The database takes no writes now. It is not asked for decisions either: it may show an older state
    /// than others have been told.
    #[error(
        "the database takes no writes: it is a standby, or is set to read-only. If another one can take its place, name both \
         in the address: postgres://USER@ONE,OTHER/DATABASE"
    )]
    ReadOnly,
    /// The address is not valid.
    #[error("{0}")]
    Address(String),
    /// The connection was lost during a commit, and the database could not say what became of it.
    #[error(
        "the database was lost during a commit and could not be asked in time what became of it: it is unknown whether it was \
         applied. Send the same request with the same id again"
    )]
    Unknown,
    /// The server that was asked was left before it answered: another has taken its place, or it takes no
    /// writes any more.
    #[error(
        "the database server did not answer, and another has taken its place or it takes no writes any more; try again"
    )]
    Left,
    /// The records are in such demand that no decision could be committed within the allowed number of tries.
    #[error("too many writers compete for these records right now; try again")]
    Contended,
    /// Inside a caller's transaction: its snapshot is older than a row that it needs.
    #[error("the transaction began before a row that it needs was written")]
    OldSnapshot,
    /// The task that did the work has ended without a result.
    #[error("the work was abandoned: {0}")]
    GivenUp(String),
}

impl PostgresError {
    fn code(&self) -> Option<SqlState> {
        match self {
            Self::Postgres(error) => error.code().cloned(),
            Self::Session(failure) => failure.code.as_deref().map(SqlState::from_code),
            _ => None,
        }
    }

    /// Whether the request itself was refused: not because of a lost connection, lack of resources, or a
    /// server that accepts nothing just now.
    pub fn is_refusal(&self) -> bool {
        // A protocol violation is how poolers refuse a client that sets something they do not allow.
        self.code().is_some_and(|code| {
            code == SqlState::PROTOCOL_VIOLATION
                || !["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
        })
    }

    /// Whether the database undid the transaction because of another one: it may be repeated at once.
    pub fn was_in_the_way(&self) -> bool {
        self.code().is_some_and(|code| {
            [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(&code)
        })
    }

    /// Whether the server that was asked takes no writes.
    pub fn takes_no_writes(&self) -> bool {
        matches!(self, Self::ReadOnly) || self.code() == Some(SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// Whether there may have been no room for a write: the database says so, or has no code for the system's
    /// error, as when a quota is used up. The caller is to check by trying.
    pub fn may_want_room(&self) -> bool {
        self.code().is_some_and(|code| MAY_WANT_ROOM.contains(&code.code()))
    }

    /// Whether a lock was not obtained in the allowed time. The transaction was undone.
    pub fn waited_in_vain(&self) -> bool {
        self.code().is_some_and(|code| code == SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Whether the connection was lost: what was asked on it may have been done or not.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code() {
                None => {
                    error.is_closed()
                        || std::error::Error::source(error)
                            .is_some_and(|source| source.is::<std::io::Error>())
                }
                Some(code) => {
                    let severity = error.as_db_error().and_then(DbError::parsed_severity);
                    // Whatever ends the server process, it may have committed before. The whole class of
                    // connection errors counts: poolers use other codes than the database, and do not always
                    // call them fatal.
                    matches!(severity, Some(Severity::Fatal | Severity::Panic))
                        || code.code().starts_with("08")
                        || ENDS_THE_CONNECTION.contains(&code.code())
                }
            },
            Self::Left => true,
            _ => false,
        }
    }
}

/// Codes with which the database ends a connection: by an administrator, after a crash, or after a timeout
/// (idle session, idle in a transaction, transaction).
const ENDS_THE_CONNECTION: &[&str] = &["57P01", "57P02", "57P05", "25P03", "25P04"];

/// Codes of a full disk, lack of memory, a system error, an internal error.
const MAY_WANT_ROOM: &[&str] = &["53100", "53200", "58030", "XX000"];

/// Codes for a schema, table or function that does not exist, or that this user may not use.
const IS_NO_STORE_OF_OURS: &[&str] = &["3F000", "42P01", "42883", "42501"];

impl PostgresError {
    /// Converts the error for a caller whose own transaction this was.
    pub(crate) fn inside(self) -> StoreError {
        match self.code() {
            Some(code) if code == SqlState::T_R_DEADLOCK_DETECTED => StoreError::Undone(Undone::Deadlock),
            Some(code) if code == SqlState::T_R_SERIALIZATION_FAILURE => {
                StoreError::Undone(Undone::Serialization)
            }
            _ if matches!(self, Self::OldSnapshot) => StoreError::Undone(Undone::Serialization),
            Some(code) if code == SqlState::IN_FAILED_SQL_TRANSACTION => StoreError::Undone(Undone::Aborted),
            Some(code) if code == SqlState::NO_ACTIVE_SQL_TRANSACTION => StoreError::Unsupported(format!(
                "no transaction is open on this connection, so nothing can be made part of one: begin one first ({self})"
            )),
            // The caller's database has no store, so retrying does not help.
            Some(code) if IS_NO_STORE_OF_OURS.contains(&code.code()) => StoreError::Unsupported(format!(
                "the transaction's database has no store in this schema, or its user may not use it: the transaction must be \
                 on the queue's own database ({self})"
            )),
            _ => self.into(),
        }
    }
}

impl From<Failure> for PostgresError {
    fn from(failure: Failure) -> Self {
        Self::Session(failure)
    }
}

impl From<PoolError> for PostgresError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::Postgres(error),
            other => Self::Pool(other.to_string()),
        }
    }
}

impl From<PostgresError> for StoreError {
    fn from(error: PostgresError) -> Self {
        let message = error.to_string();
        match &error {
            PostgresError::Contended | PostgresError::OldSnapshot => Self::Contended,
            // A write may notice this before the next load does.
            _ if error.takes_no_writes() => Self::Unavailable(PostgresError::ReadOnly.to_string()),
            _ if error.was_in_the_way() || error.waited_in_vain() => Self::Contended,
            PostgresError::Row { .. } | PostgresError::Answer(_) => Self::Corrupt(message),
            PostgresError::Unsupported(_) | PostgresError::Forbidden(_) | PostgresError::Address(_) => {
                Self::Unsupported(message)
            }
            PostgresError::Postgres(_)
            | PostgresError::Session(_)
            | PostgresError::Pool(_)
            | PostgresError::ReadOnly
            | PostgresError::Left => Self::Unavailable(message),
            PostgresError::Unknown | PostgresError::GivenUp(_) => Self::Unknown(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_otherwise_soon_is_no_refusal() {
        let is_refusal = |code: Option<&str>| {
            let failure = Failure { code: code.map(str::to_owned), message: String::new() };
            PostgresError::Session(failure).is_refusal()
        };
        for code in ["08P01", "0A000", "28000", "42501"] {
            assert!(is_refusal(Some(code)), "{code}");
        }
        for code in ["08006", "53300", "57P01", "57P03"] {
            assert!(!is_refusal(Some(code)), "{code}");
        }
        assert!(!is_refusal(None));
    }
}
