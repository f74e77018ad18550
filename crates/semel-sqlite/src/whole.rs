//! Whether a store is all there. What was committed last is in the journal alone, which is found by name beside the file: not by
//! another name of it, nor where it was copied or moved without. No journal must not be taken for an empty one then, or what is
//! acknowledged is unknown, and what is committed next gets numbers that are taken.

use std::path::Path;

use rusqlite::Connection;

use crate::error::SqliteError;
use crate::journal::{is_there, newest};
use crate::open::{carried, fact, identity, set_fact};

/// Of which identity the store is that has a journal: a copy has an identity of its own, and no journal yet.
const JOURNALED: &str = "journaled";
/// Of which identity the store is that a file is a copy of, or was before it was worked on.
const COPIED: &str = "copied";

/// Whether the file says that there is a journal.
pub fn is_journaled(db: &Connection) -> Result<bool, SqliteError> {
    let identity = identity(db)?;
    Ok(identity != 0 && fact(db, JOURNALED)? == identity)
}

/// Refuses a file without the journal that it says there is.
pub fn refuse_half(db: &Connection, store: &Path) -> Result<(), SqliteError> {
    // In this order: its owner may be making the first one.
    if !is_journaled(db)? || is_there(store)? {
        return Ok(());
    }
    let shown = store.display();
    Err(SqliteError::Unsupported(format!(
        "the journal of {shown} is not beside it ({shown}-log.N): another name of the file, or was it copied, moved or mounted alone? \
         Open it by its own name, or put its *-log.* and *-wal beside it, as {shown}-*; if they are lost, \
         `semel restore --without-journal` makes a store of the file alone"
    )))
}

/// Has a copy say of which store it is one, before it gets its own [identity]: the copy of a copy that nobody has worked on is of the same
/// store.
pub fn note_copied(db: &Connection) -> Result<(), SqliteError> {
    if is_journaled(db)? || fact(db, COPIED)? == 0 {
        set_fact(db, COPIED, identity(db)?)?;
    }
    Ok(())
}

/// Refuses a copy that has the name of the store it is a copy of, where that one's journal is still beside it and has what came after the
/// copy: it would be left out in silence, and be written over. What makes copies puts none there; somebody's hands may.
pub fn refuse_older(db: &Connection, store: &Path) -> Result<(), SqliteError> {
    let own = identity(db)?;
    let brought: i64 = db.query_row("SELECT coalesce(max(cursor), 0) FROM journal", [], |row| row.get(0))?;
    let known = carried(db)?.max(brought.unsigned_abs());
    // Earlier versions say it of a copy by the one alone.
    for other in [fact(db, COPIED)?, fact(db, JOURNALED)?] {
        if other == 0 || other == own || newest(store, other)? <= known {
            continue;
        }
        let shown = store.display();
        return Err(SqliteError::Unsupported(format!(
            "{shown} is a copy of a store, and the journal of that store is beside it ({shown}-log.N) and has what was committed after the \
             copy was made: put the store's own file back beside it; or, to go back to the copy, move {shown} and every {shown}-* away, \
             together, and make {shown} of the copy by `semel restore`"
        )));
    }
    Ok(())
}

/// Has the file say that there is none: nothing was committed while it was open, and it may go anywhere alone, as a copy does that somebody
/// has only looked at. To be called before its files are taken away.
pub fn forget_journal(db: &Connection) -> Result<(), SqliteError> {
    set_fact(db, JOURNALED, 0)
}

/// Has the file say that there is a journal, durably and by itself: by another name SQLite's own log is not beside it either. To be
/// called when the name of the journal's first file is on the disk, and before anything is committed. Where another process has
/// SQLite's lock, whoever opens the store next does it.
pub fn note_journal(db: &Connection) -> Result<(), SqliteError> {
    if is_journaled(db)? {
        return Ok(());
    }
    match set_fact(db, JOURNALED, identity(db)?) {
        Err(error) if error.is_busy() => return Ok(()),
        noted => noted?,
    }
    Ok(db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?)
}
