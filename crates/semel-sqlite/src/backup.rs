//! Copies of a store: a consistent one while it is in use, and back again.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use semel_core::planted::{Bug, is_planted};

use crate::error::SqliteError;
use crate::journal::{Journal, sync_file, sync_folder};
use crate::lock::FileLock;
use crate::open::{brought, carried, identity, load, open, set_identity};
use crate::private;

/// How long one piece of a round may take that the copy has to wait for.
const PIECE_MAX: std::time::Duration = std::time::Duration::from_secs(60);

fn refuse_existing(path: &Path) -> Result<(), SqliteError> {
    if path.exists() {
        return Err(SqliteError::Unsupported(format!("{} exists already; name a new file", path.display())));
    }
    Ok(())
}

/// Copies a store to a new file, consistently, whoever owns it and while it is in use: the rows, and what the journal has
/// beyond them. Commits go on; they are carried over to the rows once the copy is made.
///
/// # Errors
/// When the copy exists already or cannot be written.
pub fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    refuse_existing(to)?;
    let io = |source| SqliteError::Io { path: to.display().to_string(), source };
    // While this one is at it nobody else writes rows, and no file of the journal is used again.
    let mut holder = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    holder.busy_timeout(PIECE_MAX)?;
    let hold = holder.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let db = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // An empty file is written into.
    private::make(to);
    if let Err(error) = db.execute("VACUUM INTO ?1", [to.to_string_lossy()]) {
        // One that is still empty would stand in the way of the next try.
        if std::fs::metadata(to).is_ok_and(|file| file.len() == 0) {
            drop(std::fs::remove_file(to));
        }
        return Err(error.into());
    }
    let (_, journal) = Journal::open(from, identity(&db)?, last(&db)?)?;
    drop((db, hold));
    let mut copy = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let transaction = copy.transaction()?;
    let mut insert =
        transaction.prepare("INSERT OR REPLACE INTO journal (cursor, at, payload) VALUES (?1, ?2, ?3)")?;
    for entry in journal {
        let cursor = i64::try_from(entry.cursor).unwrap_or(i64::MAX);
        insert.execute(params![cursor, entry.at.as_micros(), &*entry.payload])?;
    }
    drop(insert);
    set_identity(&transaction)?;
    transaction.commit()?;
    drop(copy);
    if is_planted(Bug::BackupNotSynced) {
        return Ok(());
    }
    // The copy is a promise too: it is on the disk before it is reported.
    sync_file(to).map_err(io)?;
    sync_folder(to).map_err(io)
}

/// The last record of the journal that the file itself has.
fn last(db: &Connection) -> Result<u64, SqliteError> {
    let carried = carried(db)?;
    Ok(brought(db, carried)?.last().map_or(carried, |entry| entry.cursor))
}

/// Makes a store at `to`, which must not exist, from a backup, after looking it over.
///
/// # Errors
/// When the backup is damaged or of another program, or the store exists or is in use.
pub fn restore(from: &Path, to: &Path) -> Result<(), SqliteError> {
    refuse_existing(to)?;
    let _lock = FileLock::take(to)?;
    let db = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let verdict: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(SqliteError::Unsupported(format!("{} is damaged: {verdict}", from.display())));
    }
    drop(db);
    copy(from, to)?;
    // What cannot be opened must be known now, not when it is needed.
    let db = open(to)?;
    load(&db, brought(&db, carried(&db)?)?).map(drop)
}
