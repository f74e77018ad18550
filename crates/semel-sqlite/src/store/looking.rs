//! Looking whether the store's files are where they were opened, before anything is written to them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Inner;
use crate::error::SqliteError;

/// Commits look so often, whoever else looks: what was acknowledged in between is all that may be in a file that is gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Inner {
    /// Looks whether all files are where they were opened, if that was not done just now, or `at_once`. A failure does not end the
    /// store: with the process the files would be gone that have what was acknowledged, and where they are put back it goes on.
    ///
    /// # Errors
    /// [`SqliteError::Astray`] when one of them is not.
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
                tracing::info!("the store's files are where they were; it goes on");
            }
            return Ok(());
        };
        let error = SqliteError::Astray { path: path.display().to_string() };
        if !was_astray {
            tracing::error!(%error, "the store takes no writes");
        }
        Err(error)
    }

    /// A file of the store that is not where it was opened.
    pub(super) fn astray(&self) -> Option<PathBuf> {
        self.place.astray().or_else(|| self.journal.astray()).map(Path::to_path_buf)
    }
}
