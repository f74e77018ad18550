//! Checks that all of a store is there. The last commits are in the journal alone, which is found by name
//! beside the file: not if the file is opened by another name, nor if it was copied or moved without its
//! journal. A missing journal must not be taken for an empty one: acknowledged commits would be lost, and new
//! commits would get numbers that are taken.

use std::path::Path;

use rusqlite::Connection;

use crate::error::SqliteError;
use crate::journal::{is_there, newest};
use crate::open::{carried, fact, identity, set_fact};

/// The fact that holds the identity of the store if it has a journal. A copy has a new identity, and no
/// journal yet.
const JOURNALED: &str = "journaled";
/// The fact that holds the identity of the store that this file is a copy of, or was until it was used.
const COPIED: &str = "copied";

/// Whether the database says that it has a journal.
pub fn is_journaled(db: &Connection) -> Result<bool, SqliteError> {
    let identity = identity(db)?;
    Ok(identity != 0 && fact(db, JOURNALED)? == identity)
}

/// Refuses a database whose journal, which it says it has, is missing.
pub fn refuse_half(db: &Connection, store: &Path) -> Result<(), SqliteError> {
    // In this order, because its owner may be creating the first journal file.
    if !is_journaled(db)? || is_there(store)? {
        return Ok(());
    }
    let shown = store.display();
    Err(SqliteError::Unsupported(format!(
        "the journal of {shown} is not beside it ({shown}-log.N): is this another name of the file, or was the file copied, \
         moved or mounted without it? Open it by its own name, or put its *-log.* and *-wal beside it, as {shown}-*; if they \
         are lost, `semel restore --without-journal` makes a store from the file alone"
    )))
}

/// Records in a copy which store it is a copy of, before it gets its own [identity]. A copy of an unused copy
/// counts as a copy of the original store.
pub fn note_copied(db: &Connection) -> Result<(), SqliteError> {
    if is_journaled(db)? || fact(db, COPIED)? == 0 {
        set_fact(db, COPIED, identity(db)?)?;
    }
    Ok(())
}

/// Refuses a copy that was put in the place of its original, whose journal is still beside it and has commits
/// made after the copy: they would be ignored silently, and then overwritten. Our own copy commands never put
/// a copy there, but a person may.
pub fn refuse_older(db: &Connection, store: &Path) -> Result<(), SqliteError> {
    let own = identity(db)?;
    let brought: i64 = db.query_row("SELECT coalesce(max(cursor), 0) FROM journal", [], |row| row.get(0))?;
    let known = carried(db)?.max(brought.unsigned_abs());
    // Earlier versions mark a copy by `JOURNALED` alone.
    for other in [fact(db, COPIED)?, fact(db, JOURNALED)?] {
        if other == 0 || other == own || newest(store, other)? <= known {
            continue;
        }
        let shown = store.display();
        return Err(SqliteError::Unsupported(format!(
            "{shown} is a copy of a store, but the journal beside it ({shown}-log.N) is that store's own and has what was \
             committed after the copy was made: put the store's own file back beside it; or, to go back to the copy, move \
             {shown} and every {shown}-* away together, and make {shown} from the copy with `semel restore`"
        )));
    }
    Ok(())
}

/// Records that there is no journal: nothing was committed while the file was open, so it may be moved alone,
/// like a copy that was only looked at. Must be called before the journal's files are removed.
pub fn forget_journal(db: &Connection) -> Result<(), SqliteError> {
    set_fact(db, JOURNALED, 0)
}

/// Records that there is a journal, durably in the database file alone: under another name SQLite's own log
/// would not be found either. Must be called once the name of the first journal file is synced, and before
/// anything is committed. If another process has SQLite's lock, it is left to the next process that opens the
/// store.
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
