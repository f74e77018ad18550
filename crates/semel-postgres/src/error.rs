//! What may go wrong with the database, and what that means for callers.

use deadpool_postgres::PoolError;
use semel_core::ident::JobId;
use semel_store::StoreError;
use semel_store::error::Undone;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::session::Failure;

/// A failure of the store, with its details. No address and no value of a row is in its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// PostgreSQL refused, or the connection failed.
    #[error("postgres: {}", Failure::from(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// The same of a caller's own connection, in the words of its driver.
    #[error("postgres: {0}")]
    Session(Failure),
    /// No connection could be had.
    #[error("postgres: no connection: {0}")]
    Pool(String),
    /// A row is not what this program wrote.
    #[error("job {id}: {what}")]
    Row {
        /// Which.
        id: JobId,
        /// What is wrong.
        what: &'static str,
    },
    /// An answer is not of the form that was asked for.
    #[error("an answer is not understood: {0}")]
    Answer(&'static str),
    /// The database is not fit, or of a version this program does not handle.
    #[error("{0}")]
    Unsupported(String),
    /// The schema is to be changed, and this user may not.
    #[error("{0}")]
    Forbidden(String),
    /// The database takes no writes now. It is not asked for decisions either: what it shows may be older than what others
    /// have been told.
    #[error(
        "the database takes no writes: it is a standby, or is set to be read-only. Where another one takes its place, name \
         both in the address: postgres://USER@ONE,OTHER/DATABASE"
    )]
    ReadOnly,
    /// The address is none.
    #[error("{0}")]
    Address(String),
    /// The connection was lost during a commit, and the database could not say what became of it.
    #[error(
        "the database was lost during a commit and could not say in time what became of it: whether it was applied is \
         unknown. Send the same request with the same id again"
    )]
    Unknown,
    /// The server that was asked was left before it said anything, for another has taken its place or it takes no writes any more.
    #[error(
        "the database's server that was asked says nothing, and another has taken its place or it takes no writes any more; \
         try again"
    )]
    Left,
    /// The records are in such demand that no decision could be written in the allowed number of tries.
    #[error("the records are in too much demand right now; try again")]
    Contended,
    /// Inside a caller's transaction: its snapshot is older than a row that it needs.
    #[error("the transaction began before a row that it needs was there")]
    OldSnapshot,
    /// The task that did the work is gone.
    #[error("the work was given up: {0}")]
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

    /// Whether it was refused for what it is, and not because there is no room, nor anybody to take it just now.
    pub fn is_refusal(&self) -> bool {
        // Of the class of connections the first is what poolers say to who wants to set what they do not let him.
        self.code().is_some_and(|code| {
            code == SqlState::PROTOCOL_VIOLATION
                || !["08", "53", "57"].iter().any(|class| code.code().starts_with(class))
        })
    }

    /// Whether the database undid the transaction because of another one: the same may be asked again at once.
    pub fn was_in_the_way(&self) -> bool {
        self.code().is_some_and(|code| {
            [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(&code)
        })
    }

    /// Whether the server that was asked takes no writes.
    pub fn takes_no_writes(&self) -> bool {
        matches!(self, Self::ReadOnly) || self.code() == Some(SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// Whether there may be no room for what was to be written: the database says so, or has no code for what the system says, as of a
    /// quota. That is to be tried then.
    pub fn may_want_room(&self) -> bool {
        self.code().is_some_and(|code| MAY_WANT_ROOM.contains(&code.code()))
    }

    /// Whether a lock was not had in the time allowed; the transaction was undone.
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
                    // Whatever it is that the database dies of, it may have committed before. The whole class of connections:
                    // poolers end them by other codes than the database, and do not always call that fatal.
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

/// Errors with which the database ends a connection: an administrator, a crash, and times that were too long: idle, idle in a
/// transaction, a transaction.
const ENDS_THE_CONNECTION: &[&str] = &["57P01", "57P02", "57P05", "25P03", "25P04"];

/// A full disk, no memory, whatever else a system says to who writes.
const MAY_WANT_ROOM: &[&str] = &["53100", "53200", "58030", "XX000"];

/// Errors of a database in which a schema, table or function is not there, or is not for this user.
const IS_NO_STORE_OF_OURS: &[&str] = &["3F000", "42P01", "42883", "42501"];

impl PostgresError {
    /// What it means for a caller whose own transaction this was.
    pub(crate) fn inside(self) -> StoreError {
        match self.code() {
            Some(code) if code == SqlState::T_R_DEADLOCK_DETECTED => StoreError::Undone(Undone::Deadlock),
            Some(code) if code == SqlState::T_R_SERIALIZATION_FAILURE => {
                StoreError::Undone(Undone::Serialization)
            }
            _ if matches!(self, Self::OldSnapshot) => StoreError::Undone(Undone::Serialization),
            Some(code) if code == SqlState::IN_FAILED_SQL_TRANSACTION => StoreError::Undone(Undone::Aborted),
            Some(code) if code == SqlState::NO_ACTIVE_SQL_TRANSACTION => StoreError::Unsupported(format!(
                "no transaction is open on this connection, so nothing can be made a part of one: begin it first ({self})"
            )),
            // Of what is the store's own nothing is to be had there: no trying again helps.
            Some(code) if IS_NO_STORE_OF_OURS.contains(&code.code()) => StoreError::Unsupported(format!(
                "the transaction's database has no store of this schema, or its user may not use it: it must be on the queue's own \
                 database ({self})"
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
            // Noticed by a write before a look noticed it.
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
