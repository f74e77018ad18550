//! Checks on the journal's files as they are in the folder: whether they are needed, and whether they still
//! exist.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use super::{Journal, Segment, io, path_of, read};
use crate::error::SqliteError;
use crate::place::is_astray;

impl Journal {
    /// Whether nothing was ever written to any of the journal's files.
    pub fn is_untouched(&self) -> bool {
        let is_empty = |segment: &Segment| segment.file.metadata().is_ok_and(|file| file.len() == 0);
        self.current.is_none() && self.full.is_empty() && self.free.iter().all(is_empty)
    }

    /// Deletes the journal's first file. Nothing may have been written to it.
    ///
    /// # Errors
    /// When the file cannot be deleted.
    pub fn remove_first(&mut self) -> Result<(), SqliteError> {
        self.free.clear();
        let first = self.path(0);
        std::fs::remove_file(&first).map_err(|error| io(&first, error))
    }

    /// Whether the next record will be the first in its file.
    pub fn begins_a_file(&self) -> bool {
        self.current.is_none()
    }

    /// Returns a journal file that is no longer where it was created. Free files count: the next records may
    /// go there.
    pub fn astray(&self) -> Option<&Path> {
        let mut segments = self.full.iter().chain(&self.current).chain(&self.free);
        let strays =
            |segment: &&Segment| segment.file.metadata().is_ok_and(|open| is_astray(&segment.path, &open));
        segments.find(strays).map(|segment| &*segment.path)
    }
}

/// Returns the number of the last record that the files beside `store` hold for the store with this
/// `identity`; 0 when there is none.
///
/// # Errors
/// When a file cannot be read.
pub fn newest(store: &Path, identity: i64) -> Result<u64, SqliteError> {
    let mut newest = 0;
    for number in 0.. {
        let path = path_of(store, number);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(io(&path, error)),
        };
        // With this bound no payload is kept in memory.
        let contents = read(&file, identity, u64::MAX).map_err(|error| io(&path, error))?;
        newest = newest.max(contents.cursor);
    }
    Ok(newest)
}
