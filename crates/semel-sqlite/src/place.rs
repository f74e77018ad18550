//! Checks whether the store's files are still where they were opened. If one was deleted, moved or replaced,
//! what is written to it is not read by the next process that opens the store.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use crate::error::SqliteError;
use crate::location::wal_of;

/// The database and SQLite's log beside it, as they were when the store was opened. Files are identified by
/// their path's metadata: opening and closing them again would release SQLite's locks.
#[derive(Debug)]
pub struct Place {
    files: Vec<(PathBuf, Metadata)>,
}

impl Place {
    /// Records the place of a store that SQLite has just opened. Not earlier: an overlay file system may give
    /// a file another inode number when it is opened for writing.
    ///
    /// # Errors
    /// When the metadata of the database cannot be read.
    pub fn of(store: &Path) -> Result<Self, SqliteError> {
        let io = |source| SqliteError::Io { path: store.display().to_string(), source };
        let mut files = vec![(store.to_path_buf(), std::fs::metadata(store).map_err(io)?)];
        let log = wal_of(store);
        // The log exists from the first read until the last connection is closed.
        if let Ok(about) = std::fs::metadata(&log) {
            files.push((log, about));
        }
        Ok(Self { files })
    }

    /// Returns the first file that is no longer where it was.
    pub fn astray(&self) -> Option<&Path> {
        self.files.iter().find(|(path, open)| is_astray(path, open)).map(|(path, _)| &**path)
    }
}

/// Whether `path` now leads to another file than the `open` one, or to none. If that cannot be determined the
/// answer is no: a folder that is unreadable for a moment is no reason to refuse writes.
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
    // On other systems an open file cannot be deleted or moved.
    #[cfg(not(unix))]
    {
        let _ = (path, open);
        false
    }
}
