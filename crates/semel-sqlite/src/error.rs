//! What may go wrong with the file, and what that means for callers.

use std::io::ErrorKind;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, ffi};
use semel_core::ident::JobId;
use semel_store::StoreError;

use crate::private;

/// A failure of the embedded store, with its details.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    /// SQLite refused.
    #[error("sqlite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What it said.
        source: std::io::Error,
    },
    /// A row is not what this program wrote.
    #[error("row {seq}: {what}")]
    Row {
        /// Its number.
        seq: i64,
        /// What is wrong.
        what: &'static str,
    },
    /// What is stored of one job is not what this program wrote. Of a finished job it concerns nobody but who asks for it; with a
    /// live one's the file does not open.
    #[error("job {id} (row {seq}): {what}")]
    Job {
        /// The job.
        id: JobId,
        /// Its row's number.
        seq: i64,
        /// What is wrong.
        what: &'static str,
    },
    /// The journal is not what this program wrote.
    #[error("the journal is damaged: {0}")]
    Journal(String),
    /// It is unknown what of the journal's last record reached the disk.
    #[error("the journal could not be brought to the disk: {0}")]
    Sync(String),
    /// One commit would write more than the journal can read again.
    #[error("one commit would write {size} bytes, and {most} is the most: send less at once")]
    TooLong {
        /// How much.
        size: usize,
        /// How much it may be.
        most: usize,
    },
    /// The job at which a page was to go on is gone, and its id does not say where it was.
    #[error("the job that this cursor names is gone")]
    CursorGone,
    /// Another process has the file.
    #[error("{}", owned(path, owner, *is_here))]
    Owned {
        /// Which file.
        path: String,
        /// Who has it, as far as it said.
        owner: String,
        /// Whether that is this very process.
        is_here: bool,
    },
    /// Another process has the file, and not by the lock beside it.
    #[error(
        "{path} is open in another process, though the lock beside it is nobody's: {path}.lock was deleted while it was in use, or the file \
         has another name (a hard link). Stop that process before you open it (`lsof {path}` names it)"
    )]
    Held {
        /// Which file.
        path: String,
    },
    /// A file of the store is not where it was opened. Nothing is stored, for nobody would find it again, until it is there again.
    #[error(
        "{path} was deleted, moved away or replaced while the store has it open; nothing is stored any more. What was acknowledged before may \
         be in the open file alone, which is gone when this process ends: put back what was moved away, and it goes on; of what was deleted \
         take a copy first{} (operating.md)",
        descriptors()
    )]
    Astray {
        /// Which file.
        path: String,
    },
    /// The file is not ours, or of a version this program does not handle.
    #[error("{0}")]
    Unsupported(String),
}

/// Where a system shows what a process has open.
fn descriptors() -> String {
    if cfg!(target_os = "linux") { format!(", from /proc/{}/fd", std::process::id()) } else { String::new() }
}

fn owned(path: &str, owner: &str, is_here: bool) -> String {
    if is_here {
        return format!(
            "{path} is open already in this process{owner}; use that one, whose handle can be cloned. Or it is just being opened or closed: \
             try again in a moment"
        );
    }
    format!(
        "{path} is in use by another process{owner}; talk to it instead (--server URL), or stop it first. One process owns an embedded store"
    )
}

fn is_want_of_room(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl SqliteError {
    /// The same; where SQLite could not do with the files of `store` what it wanted, what the file system says to that: SQLite speaks of an
    /// I/O error where there is no room, and of a file that it cannot open where nothing may be written beside it.
    pub(crate) fn of_files(self, store: &Path) -> Self {
        let Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) = &self else { return self };
        match failure.code {
            ErrorCode::CannotOpen
            | ErrorCode::SystemIoFailure
            | ErrorCode::ReadOnly
            | ErrorCode::DiskFull => match private::find_room(store) {
                Err(source) if store.exists() => Self::Io { path: store.display().to_string(), source },
                _ => self,
            },
            _ => self,
        }
    }

    /// The same; where SQLite's writing failed for want of room, that: of a quota that is used up it knows nothing, and speaks of an
    /// I/O error. For who loses nothing by it, as what was being written is rolled back.
    pub(crate) fn for_want_of_room(self, db: &Connection) -> Self {
        let Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) = &self else { return self };
        let Some(store) = db.path().filter(|_| failure.extended_code == ffi::SQLITE_IOERR_WRITE) else {
            return self;
        };
        match private::find_room(Path::new(store)) {
            Err(source) if is_want_of_room(&source) => Self::Io { path: store.to_owned(), source },
            _ => self,
        }
    }

    /// Whether there is no room on the disk for what was to be written, or none that this account may have.
    pub fn is_want_of_room(&self) -> bool {
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) => failure.code == ErrorCode::DiskFull,
            Self::Io { source, .. } => is_want_of_room(source),
            _ => false,
        }
    }

    /// Whether another has the lock.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::DatabaseBusy)
    }

    /// Whether the rows are otherwise than who wrote them took them to be.
    pub fn is_contradiction(&self) -> bool {
        matches!(self, Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::ConstraintViolation)
    }

    /// Whether the engine must not go on after this: it is unknown what reached the disk.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) => matches!(
                failure.code,
                ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase
            ),
            Self::Row { .. } | Self::Journal(_) | Self::Sync(_) => true,
            _ => false,
        }
    }
}

impl From<SqliteError> for StoreError {
    fn from(error: SqliteError) -> Self {
        let message = error.to_string();
        match &error {
            full if full.is_want_of_room() => {
                let quota = matches!(full, SqliteError::Io { source, .. } if source.kind() == ErrorKind::QuotaExceeded);
                let what = if quota { "the disk quota is used up" } else { "the disk is full" };
                Self::Unavailable(format!(
                    "{what} ({message}); nothing was stored. Free some space and try again"
                ))
            }
            SqliteError::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) => match failure.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt(message),
                ErrorCode::SystemIoFailure => Self::Poisoned(message),
                _ => Self::Unavailable(message),
            },
            SqliteError::Sqlite(_) | SqliteError::Io { .. } | SqliteError::Astray { .. } => {
                Self::Unavailable(message)
            }
            SqliteError::Row { .. } | SqliteError::Job { .. } | SqliteError::Journal(_) => {
                Self::Corrupt(message)
            }
            SqliteError::Sync(_) => Self::Poisoned(message),
            SqliteError::CursorGone => Self::CursorGone,
            SqliteError::TooLong { .. }
            | SqliteError::Owned { .. }
            | SqliteError::Held { .. }
            | SqliteError::Unsupported(_) => Self::Unsupported(message),
        }
    }
}
