//! Copies of a store: a consistent one while it is in use, and back again.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::SqliteError;
use crate::lock::FileLock;
use crate::open::{load, open};

fn refuse_existing(path: &Path) -> Result<(), SqliteError> {
    if path.exists() {
        return Err(SqliteError::Unsupported(format!("{} exists already; name a new file", path.display())));
    }
    Ok(())
}

/// Copies a store to a new file, consistently, while another connection may be writing.
///
/// # Errors
/// When the copy exists already or cannot be written.
pub fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    refuse_existing(to)?;
    let io = |source| SqliteError::Io { path: to.display().to_string(), source };
    let db = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    db.execute("VACUUM INTO ?1", [to.to_string_lossy()])?;
    // The copy is a promise too: it is on the disk before it is reported.
    std::fs::File::open(to).and_then(|file| file.sync_all()).map_err(io)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
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
    load(&open(to)?).map(drop)
}
