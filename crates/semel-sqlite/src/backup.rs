//! Copies of a store: a consistent one while it is in use, and back again.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, MAIN_DB, OpenFlags, TransactionBehavior, params};

use semel_core::planted::{Bug, is_planted};
use semel_store::random;

use crate::error::SqliteError;
use crate::journal::{self, Entry, has_journal, sync_file, sync_folder};
use crate::location::real;
use crate::lock::{FileLock, lock_path};
use crate::log;
use crate::open::{brought, carried, identity, last, load, open, set_identity};
use crate::private;

/// How long one piece of a round may take that the copy has to wait for.
const PIECE_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// Numbers of records that a restored store leaves out behind those of its backup, at least: more than the store that is lost can have
/// given since the backup was made. Whoever has read what only that one told stands among them, and is told so. As many more as
/// chance will have it, so that of two stores that are restored from one backup the later one does not give the numbers of the other.
const NUMBERS_LEFT_OUT: u64 = 1 << 32;

/// What a copy is made for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// To be kept.
    Backup,
    /// To be worked on, in place of the store that the backup was of.
    Restore,
}

fn refuse_existing(path: &Path) -> Result<(), SqliteError> {
    if path.exists() {
        return Err(SqliteError::Unsupported(format!("{} exists already; name a new file", path.display())));
    }
    Ok(())
}

/// Copies a store to a new file, consistently, whoever owns it and while it is in use: the rows, and what the journal has
/// beyond them. Commits go on; they are carried over to the rows once the copy is made. The file has its name once it is whole.
///
/// # Errors
/// When the copy exists already or cannot be written.
pub fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    make(&real(from)?, &real(to)?, Purpose::Backup)
}

/// Where a copy is until it is whole.
fn part_of(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

fn make(from: &Path, to: &Path, purpose: Purpose) -> Result<(), SqliteError> {
    refuse_existing(to)?;
    let part = part_of(to);
    let lock = FileLock::take(&part).map_err(|error| match error {
        SqliteError::Owned { owner, .. } => SqliteError::Unsupported(format!(
            "another copy to {} is being made{owner}; wait for it, or name another file",
            to.display()
        )),
        other => other,
    })?;
    // What is there was left by one that was killed: nobody has the lock.
    clean_up(&part);
    let made = fill(from, &part, purpose).and_then(|()| {
        refuse_existing(to)?;
        // What a lost store has left beside this name is not this one's: SQLite would take it for what was written last.
        clean_beside(to);
        let io = |source| SqliteError::Io { path: to.display().to_string(), source };
        std::fs::rename(&part, to).map_err(io)?;
        if is_planted(Bug::BackupNotSynced) { Ok(()) } else { sync_folder(to).map_err(io) }
    });
    if made.is_err() {
        clean_up(&part);
    }
    drop(std::fs::remove_file(lock_path(&part)));
    drop(lock);
    made
}

/// Removes what there is of a copy that is not whole.
fn clean_up(part: &Path) {
    drop(std::fs::remove_file(part));
    clean_beside(part);
}

/// Removes what SQLite has beside a database that is not there.
fn clean_beside(database: &Path) {
    for suffix in ["-journal", "-wal", "-shm"] {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        drop(std::fs::remove_file(PathBuf::from(name)));
    }
}

fn fill(from: &Path, part: &Path, purpose: Purpose) -> Result<(), SqliteError> {
    let (journal, last) = copy_rows(from, part, purpose)?;
    let mut copy = Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let transaction = copy.transaction()?;
    let mut insert =
        transaction.prepare("INSERT OR REPLACE INTO journal (cursor, at, payload) VALUES (?1, ?2, ?3)")?;
    let last = journal.last().map_or(last, |entry| entry.cursor);
    for entry in journal {
        let cursor = i64::try_from(entry.cursor).unwrap_or(i64::MAX);
        insert.execute(params![cursor, entry.at.as_micros(), &*entry.payload])?;
    }
    drop(insert);
    set_identity(&transaction)?;
    if purpose == Purpose::Restore {
        let chance = random::number() % NUMBERS_LEFT_OUT;
        log::leave_out(&transaction, last, last.saturating_add(NUMBERS_LEFT_OUT + chance))?;
    }
    transaction.commit()?;
    drop(copy);
    if is_planted(Bug::BackupNotSynced) {
        return Ok(());
    }
    // The copy is a promise too: it is on the disk before it is reported.
    sync_file(part).map_err(|source| SqliteError::Io { path: part.display().to_string(), source })
}

/// The rows, and what the journal has beyond them: its entries, or the last one that the rows have.
fn copy_rows(from: &Path, part: &Path, purpose: Purpose) -> Result<(Vec<Entry>, u64), SqliteError> {
    // While this one is at it nobody else writes rows, and no file of the journal is used again.
    let mut holder = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    holder.busy_timeout(PIECE_MAX)?;
    // A backup may lie where nobody can write; then nobody has to be kept from it.
    let is_fixed = purpose == Purpose::Restore && holder.is_readonly(MAIN_DB)? && !has_journal(from);
    let (hold, access) = if is_fixed {
        (None, OpenFlags::SQLITE_OPEN_READ_ONLY)
    } else {
        let hold = holder.transaction_with_behavior(TransactionBehavior::Immediate)?;
        (Some(hold), OpenFlags::SQLITE_OPEN_READ_WRITE)
    };
    let db = Connection::open_with_flags(from, access)?;
    // An empty file is written into.
    match purpose {
        Purpose::Restore => private::make(part),
        // It stays with who makes it, wherever he puts it. What stands in the way is for SQLite to say.
        Purpose::Backup => drop(private::options().create_new(true).open(part)),
    }
    db.execute("VACUUM INTO ?1", [part.to_string_lossy()])?;
    let last = last(&db)?;
    let journal = journal::beside(from, identity(&db)?, last)?;
    drop((db, hold));
    Ok((journal, last))
}

/// Makes a store at `to`, which must not exist, from a backup, after looking it over. It has its name once it is whole.
///
/// # Errors
/// When the backup is damaged or of another program, or the store exists or is in use.
pub fn restore(from: &Path, to: &Path) -> Result<(), SqliteError> {
    let (from, to) = (&real(from)?, &real(to)?);
    refuse_existing(to)?;
    let _lock = FileLock::take(to)?;
    let db = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let verdict: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(SqliteError::Unsupported(format!("{} is damaged: {verdict}", from.display())));
    }
    drop(db);
    make(from, to, Purpose::Restore)?;
    // What cannot be opened must be known now, not when it is needed.
    let db = open(to)?;
    load(&db, brought(&db, carried(&db)?)?).map(drop)
}
