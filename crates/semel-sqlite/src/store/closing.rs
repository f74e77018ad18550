//! Closing a store: a journal that was never written to is removed.

use super::Sqlite;
use crate::whole::forget_journal;

impl Drop for Sqlite {
    fn drop(&mut self) {
        let (Ok(carrier), Ok(inner)) = (self.carrier.get_mut(), self.inner.get_mut()) else { return };
        if inner.failed.is_some() || inner.doubtful || !inner.journal.is_untouched() {
            return;
        }
        // If a file is not in its place, files with these names are not this store's any more.
        if inner.astray().is_some() {
            return;
        }
        let forgotten = forget_journal(&carrier.db).and_then(|()| inner.journal.remove_first());
        if let Err(error) = forgotten {
            tracing::debug!(%error, "an empty journal stays beside the store");
        }
    }
}
