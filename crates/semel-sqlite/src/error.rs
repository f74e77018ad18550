//! Errors of the embedded store, and what they mean for callers.

use std::io::ErrorKind;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, ffi};
use semel_core::ident::JobId;
use semel_store::StoreError;

use crate::private;

/// A failure of the embedded store, with its details.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    /// SQLite returned an error.
    #[error("sqlite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The file system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// The file's path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A row is not as this program writes it.
    #[error("row {seq}: {what}")]
    Row {
        /// The row number.
        seq: i64,
        /// What is wrong.
        what: &'static str,
    },
    /// The stored data of one job is not as this program writes it. If the job has ended, only requests for
    /// it fail; if it is live, the file does not open.
    #[error("job {id} (row {seq}): {what}")]
    Job {
        /// The job.
        id: JobId,
        /// Its row number.
        seq: i64,
        /// What is wrong.
        what: &'static str,
    },
    /// The journal is not as this program writes it.
    #[error("the journal is damaged: {0}")]
    Journal(String),
    /// A sync failed: it is unknown how much of the journal's last record reached the disk.
    #[error("the journal could not be written to disk: {0}")]
    Sync(String),
    /// One commit would write more than the journal can read again.
    #[error("one commit would write {size} bytes, but {most} is the limit: send less at once")]
    TooLong {
        /// The size, in bytes.
        size: usize,
        /// The bound, in bytes.
        most: usize,
    },
    /// The job named by a page's cursor is gone, and its id does not tell where it was.
    #[error("the job that this cursor names is gone")]
    CursorGone,
    /// Another process owns the file, or this one has it open already.
    #[error("{}", owned(path, owner, *is_here))]
    Owned {
        /// The file's path.
        path: String,
        /// The owner, as far as it has said.
        owner: String,
        /// Whether the owner is this very process.
        is_here: bool,
    },
    /// Another process has locked the file itself, but not the lock file beside it.
    #[error(
        "{path} is open in another process, although nobody holds the lock beside it: {path}.lock was deleted while it was in \
         use, or the file has another name (a hard link). Stop that process before you open it (`lsof {path}` names it)"
    )]
    Held {
        /// The file's path.
        path: String,
    },
    /// A file of the store is no longer where it was opened. Nothing is stored until it is back, because it
    /// would not be found again.
    #[error(
        "{path} was deleted, moved away or replaced while the store had it open; nothing more is stored. What was \
         acknowledged before may exist only in the open file, which is lost when this process ends: if it was moved, put it \
         back, and the store goes on; if it was deleted, first save a copy of it{} (operating.md)",
        descriptors()
    )]
    Astray {
        /// The file's path.
        path: String,
    },
    /// The file is not a Semel store, or this program cannot handle it or its version.
    #[error("{0}")]
    Unsupported(String),
}

/// The place where the system lists a process's open files.
fn descriptors() -> String {
    if cfg!(target_os = "linux") { format!(", from /proc/{}/fd", std::process::id()) } else { String::new() }
}

fn owned(path: &str, owner: &str, is_here: bool) -> String {
    if is_here {
        return format!(
            "{path} is already open in this process{owner}; clone the handle of that store instead. If it is just being \
             opened or closed, try again in a moment"
        );
    }
    format!(
        "{path} is in use by another process{owner}; talk to it instead (--server URL), or stop it first. Only one process at a time can own an embedded store"
    )
}

fn is_want_of_room(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl SqliteError {
    /// Replaces SQLite's error about the files of `store` by the file system's own, if there is one: SQLite
    /// reports a full disk as an I/O error, and a folder that is not writable as a file that cannot be
    /// opened.
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

    /// Replaces SQLite's write error by want of room, if that is the cause: SQLite does not know of quotas,
    /// and reports an I/O error. Only for writes that are rolled back, so that nothing is lost.
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

    /// Whether the disk is full, or this account's quota is used up.
    pub fn is_want_of_room(&self) -> bool {
        match self {
            Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) => failure.code == ErrorCode::DiskFull,
            Self::Io { source, .. } => is_want_of_room(source),
            _ => false,
        }
    }

    /// Whether another connection has SQLite's lock.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::DatabaseBusy)
    }

    /// Whether a constraint was violated: the rows are not as the writer assumed.
    pub fn is_contradiction(&self) -> bool {
        matches!(self, Self::Sqlite(rusqlite::Error::SqliteFailure(failure, _)) if failure.code == ErrorCode::ConstraintViolation)
    }

    /// Whether the engine must not go on: it is unknown what reached the disk, or the file is damaged.
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
