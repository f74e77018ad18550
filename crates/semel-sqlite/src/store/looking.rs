//! Checks that the store's files are where they were opened, before anything is written to them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Inner;
use crate::error::SqliteError;

/// How often commits check this: if a file is gone, only commits acknowledged since the last check may be
/// lost with it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// Checks whether all files are where they were opened, if it is time, or `at_once`. A failure does not
    /// end the store: open files that are gone, and hold acknowledged commits, would vanish with the process.
    /// Once they are put back, the store goes on.
    ///
    /// # Errors
    /// [`SqliteError::Astray`] when a file is not in its place.
    pub(super) fn find_in_place(&mut self, at_once: bool) -> Result<(), SqliteError> {
        let is_due = at_once || self.is_astray || self.journal.begins_a_file();
        if !is_due && self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        let found = self.astray();
        let was_astray = std::mem::replace(&mut self.is_astray, found.is_some());
        let Some(path) = found else {
            if was_astray {
                tracing::info!("the store's files are back in place; the store goes on");
            }
            return Ok(());
        };
        let error = SqliteError::Astray { path: path.display().to_string() };
        if !was_astray {
            tracing::error!(%error, "the store takes no writes");
        }
        Err(error)
    }

    /// Returns a file of the store that is not where it was opened, if there is one.
    pub(super) fn astray(&self) -> Option<PathBuf> {
        self.place.astray().or_else(|| self.journal.astray()).map(Path::to_path_buf)
    }
}
