//! Whether the store's files still lie where they were opened: what is written to one that was deleted, moved away or replaced is
//! read by nobody who opens the store next.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use crate::error::SqliteError;
use crate::location::wal_of;

/// The database and SQLite's log beside it, as they were when the store was opened. Which files they are is asked by name: to open
/// them once more and close them would end SQLite's locks.
#[derive(Debug)]
pub struct Place {
    files: Vec<(PathBuf, Metadata)>,
}

impl Place {
    /// Where a store lies that SQLite has just opened: before that a file system of layers may have had another number for it.
    ///
    /// # Errors
    /// When the database cannot be looked at.
    pub fn of(store: &Path) -> Result<Self, SqliteError> {
        let io = |source| SqliteError::Io { path: store.display().to_string(), source };
        let mut files = vec![(store.to_path_buf(), std::fs::metadata(store).map_err(io)?)];
        let log = wal_of(store);
        // There from the first read on, until the last connection is closed.
        if let Ok(about) = std::fs::metadata(&log) {
            files.push((log, about));
        }
        Ok(Self { files })
    }

    /// The first of them that is not where it was.
    pub fn astray(&self) -> Option<&Path> {
        self.files.iter().find(|(path, open)| is_astray(path, open)).map(|(path, _)| &**path)
    }
}

/// Whether `path` leads to another file than the `open` one, or to none. Where that cannot be known nothing is said: a folder that may
/// not be looked into for a moment is no reason to refuse what can be written.
pub fn is_astray(path: &Path, open: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::io::ErrorKind;
        use std::os::unix::fs::MetadataExt as _;
        match std::fs::metadata(path) {
            Ok(found) => (found.dev(), found.ino()) != (open.dev(), open.ino()),
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }
    // Elsewhere nobody deletes or moves a file that is open.
    #[cfg(not(unix))]
    {
        let _ = (path, open);
        false
    }
}
