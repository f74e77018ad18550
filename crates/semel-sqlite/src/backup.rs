//! Copies of a store: consistent backups while it is in use, and restoring them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, MAIN_DB, OpenFlags, TransactionBehavior, params};

use semel_core::planted::{Bug, is_planted};
use semel_store::random;

use crate::durable::{sync_file, sync_folder};
use crate::error::SqliteError;
use crate::journal::{self, Entry, has_journal};
use crate::location::{beside, real};
use crate::lock::{FileLock, lock_path};
use crate::log;
use crate::open::{brought, carried, identity, last, load, open, set_identity};
use crate::private;
use crate::whole::{note_copied, refuse_half, refuse_older};

/// How long a copy waits, at most, for a piece of a round to be written.
const PIECE_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// How many record numbers a restored store skips after those of its backup, at least: more than the lost
/// store can have used since the backup was made. A log reader whose cursor comes from the lost store is then
/// among the skipped numbers, and is told so. A random number of up to as many more is added, so that two
/// stores restored from one backup do not use the same numbers.
const NUMBERS_LEFT_OUT: u64 = 1 << 32;

/// What a copy is made for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// A backup, to be kept.
    Backup,
    /// A store to be used, in place of the one that the backup was made from.
    Restore,
    /// Like `Restore`, from a store's file that has lost its journal: the last commits are given up.
    Rescue,
}

impl Purpose {
    fn is_backup(self) -> bool {
        self == Self::Backup
    }
}

/// How far the making of a file has got.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Nothing of ours is there yet: another copy may be under way to the same name.
    Asked,
    /// The `.part` file is ours, and we hold its lock.
    Made,
    /// The file has its final name.
    Named,
    /// It was told to stop, and gets no name.
    Stopped,
}

/// A file being made from a store: a backup, or a store restored from one. It gets its name once it is
/// complete, and until then has `.part` added to it. If the given path is a link, both names are those of its
/// target.
#[derive(Clone)]
pub struct Making {
    to: PathBuf,
    stage: Arc<Mutex<Stage>>,
}

impl Making {
    /// Prepares to make a file at `to`, which must not exist. Creates nothing yet.
    ///
    /// # Errors
    /// When its folder does not exist, or may not be examined.
    pub fn at(to: &Path) -> Result<Self, SqliteError> {
        Ok(Self { to: real(to)?, stage: Arc::new(Mutex::new(Stage::Asked)) })
    }

    /// The number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        let bytes = |path: &Path| path.metadata().map(|about| about.len());
        bytes(&self.part()).or_else(|_| bytes(&self.to)).unwrap_or(0)
    }

    /// Stops it from another thread, and removes what was written. Returns `false` if the file already has
    /// its final name and stays.
    pub fn stop(&self) -> bool {
        let mut stage = self.stage();
        match *stage {
            Stage::Named => return false,
            Stage::Asked | Stage::Stopped => {}
            Stage::Made => {
                clean_up(&self.part());
                drop(std::fs::remove_file(lock_path(&self.part())));
            }
        }
        *stage = Stage::Stopped;
        true
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stage, locked, if it was not stopped; [`stop`](Self::stop) waits until the guard is
    /// dropped.
    fn going(&self) -> Result<MutexGuard<'_, Stage>, SqliteError> {
        let stage = self.stage();
        if *stage == Stage::Stopped {
            return Err(SqliteError::Unsupported(format!(
                "the copy to {} was told to stop",
                self.to.display()
            )));
        }
        Ok(stage)
    }

    fn part(&self) -> PathBuf {
        beside(&self.to, ".part")
    }

    /// As [`copy`].
    ///
    /// # Errors
    /// As [`copy`], and when it was [told to end](Self::stop).
    pub fn copy(&self, from: &Path) -> Result<(), SqliteError> {
        self.make(&real(from)?, Purpose::Backup)
    }

    /// As [`restore`].
    ///
    /// # Errors
    /// As [`restore`], and when it was [told to end](Self::stop).
    pub fn restore(&self, from: &Path) -> Result<(), SqliteError> {
        self.look_over_and_make(from, Purpose::Restore)
    }

    /// Like [`restore`](Self::restore), but also accepts a store's file whose journal is lost: it is treated
    /// as a backup, and the last commits are missing. A journal that exists is read.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), except for a missing journal.
    pub fn restore_without_journal(&self, from: &Path) -> Result<(), SqliteError> {
        self.look_over_and_make(from, Purpose::Rescue)
    }

    fn look_over_and_make(&self, from: &Path, purpose: Purpose) -> Result<(), SqliteError> {
        let from = &real(from)?;
        check_free(&self.to)?;
        let _lock = FileLock::take(&self.to)?;
        let of_source = |error| SqliteError::from(error).of_files(from);
        let db = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(of_source)?;
        let verdict: String =
            db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(of_source)?;
        if verdict != "ok" {
            return Err(SqliteError::Unsupported(format!("{} is damaged: {verdict}", from.display())));
        }
        drop(db);
        self.make(from, purpose)
    }

    fn make(&self, from: &Path, purpose: Purpose) -> Result<(), SqliteError> {
        let (to, part) = (&*self.to, self.part());
        check_free(to)?;
        let lock = FileLock::take(&part).map_err(|error| match error {
            SqliteError::Owned { owner, .. } => SqliteError::Unsupported(format!(
                "another copy to {} is being made{owner}; wait for it, or name another file",
                to.display()
            )),
            other => other,
        })?;
        let begun = self.going().map(|mut stage| {
            *stage = Stage::Made;
            // Nobody held the lock, so what is there was left by a process that was killed.
            clean_up(&part);
        });
        let made = begun.and_then(|()| self.fill(from, &part, purpose)).and_then(|()| {
            let mut stage = self.going()?;
            check_free(to)?;
            // SQLite would take files beside this name for parts of the new database.
            clean_beside(to);
            std::fs::rename(&part, to).map_err(|source| io(to, source))?;
            *stage = Stage::Named;
            drop(stage);
            if is_planted(Bug::BackupNotSynced) {
                Ok(())
            } else {
                sync_folder(to).map_err(|source| io(to, source))
            }
        });
        let mut stage = self.stage();
        if *stage == Stage::Stopped {
            drop((stage, lock));
            clean_up_unless_locked(&part);
            return made;
        }
        if made.is_err() {
            clean_up(&part);
            *stage = Stage::Asked;
        }
        drop(std::fs::remove_file(lock_path(&part)));
        drop((stage, lock));
        made
    }

    fn fill(&self, from: &Path, part: &Path, purpose: Purpose) -> Result<(), SqliteError> {
        let (journal, last) = self.copy_rows(from, part, purpose)?;
        let going = self.going()?;
        let mut copy = Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        drop(going);
        let transaction = copy.transaction()?;
        let mut insert = transaction
            .prepare("INSERT OR REPLACE INTO journal (cursor, at, payload) VALUES (?1, ?2, ?3)")?;
        let last = journal.last().map_or(last, |entry| entry.cursor);
        for entry in journal {
            let cursor = i64::try_from(entry.cursor).unwrap_or(i64::MAX);
            insert.execute(params![cursor, entry.at.as_micros(), &*entry.payload])?;
        }
        drop(insert);
        note_copied(&transaction)?;
        set_identity(&transaction)?;
        if !purpose.is_backup() {
            let chance = random::number() % NUMBERS_LEFT_OUT;
            log::leave_out(&transaction, last, last.saturating_add(NUMBERS_LEFT_OUT + chance))?;
        }
        transaction.commit()?;
        drop(copy);
        if !purpose.is_backup() {
            // A store that cannot be opened must be noticed now, not when it is needed.
            let going = self.going()?;
            let db = open(part)?;
            drop(going);
            load(&db, brought(&db, carried(&db)?)?)?;
        }
        if is_planted(Bug::BackupNotSynced) {
            return Ok(());
        }
        // Reporting the copy is a promise too: it must be on the disk before that.
        sync_file(part).map_err(|source| io(part, source))
    }

    /// Copies the rows. Returns the journal's records beyond them, and the number of the last record the rows
    /// have.
    fn copy_rows(
        &self,
        from: &Path,
        part: &Path,
        purpose: Purpose,
    ) -> Result<(Vec<Entry>, u64), SqliteError> {
        // While this lock is held nobody else writes rows, and no journal file is reused.
        let of_source = |error| SqliteError::from(error).of_files(from);
        let mut holder =
            Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(of_source)?;
        holder.busy_timeout(PIECE_MAX)?;
        // A backup may be on read-only media; then there are no writers to keep out.
        let is_fixed = !purpose.is_backup() && holder.is_readonly(MAIN_DB)? && !has_journal(from);
        let (hold, access) = if is_fixed {
            (None, OpenFlags::SQLITE_OPEN_READ_ONLY)
        } else {
            let hold = holder.transaction_with_behavior(TransactionBehavior::Immediate).map_err(of_source)?;
            (Some(hold), OpenFlags::SQLITE_OPEN_READ_WRITE)
        };
        let db = Connection::open_with_flags(from, access).map_err(of_source)?;
        if purpose != Purpose::Rescue {
            refuse_half(&db, from)?;
            refuse_older(&db, from)?;
        }
        let going = self.going()?;
        // The copy is written into an empty file.
        match purpose {
            Purpose::Restore | Purpose::Rescue => private::make(part),
            // It stays its maker's, wherever it is put. If it cannot be created, SQLite reports why.
            Purpose::Backup => drop(private::options().create_new(true).open(part)),
        }
        drop(going);
        // SQLite takes the name as bytes, even if it is not valid UTF-8.
        let name = part.as_os_str().as_encoded_bytes();
        db.execute("VACUUM INTO ?1", [ToSqlOutput::Borrowed(ValueRef::Text(name))])?;
        let last = last(&db)?;
        let journal = journal::beside(from, identity(&db)?, last)?;
        drop((db, hold));
        Ok((journal, last))
    }
}

/// Copies a store to a new file, consistently, whoever owns the store and while it is in use: the rows, and
/// the journal's records beyond them. Commits go on meanwhile; they are carried over to the rows once the
/// copy is made. The file gets its name once it is complete.
///
/// # Errors
/// When the copy exists already or cannot be written, or files with another store's last commits lie beside
/// its name.
pub fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    Making::at(to)?.copy(from)
}

/// Makes a store at `to`, which must not exist, from a backup, after an integrity check. It gets its name
/// once it is complete.
///
/// # Errors
/// When the backup is damaged or not a Semel store, when the store exists or is in use, or when files with
/// another store's last commits lie beside its name.
pub fn restore(from: &Path, to: &Path) -> Result<(), SqliteError> {
    Making::at(to)?.restore(from)
}

/// Refuses a name that is taken, or that has files of another store beside it: they may be all that is left
/// of that store's last commits, and would be overwritten when the new one is opened, if not before.
fn check_free(path: &Path) -> Result<(), SqliteError> {
    let shown = path.display();
    if path.exists() {
        return Err(SqliteError::Unsupported(format!("{shown} already exists; name a new file")));
    }
    let Some(left) = left_beside(path).map_err(|source| io(path, source))? else { return Ok(()) };
    Err(SqliteError::Unsupported(format!(
        "{} belongs to the store that was here, and may hold its last commits; stop its server, move {shown} and every \
         {shown}-* away together, and try again",
        left.display()
    )))
}

/// Refuses to create a store where only the database file is gone: the files beside it have its last commits.
pub(crate) fn refuse_remains(path: &Path) -> Result<(), SqliteError> {
    let shown = path.display();
    if path.exists() {
        return Ok(());
    }
    let Some(left) = left_beside(path).map_err(|source| io(path, source))? else { return Ok(()) };
    Err(SqliteError::Unsupported(format!(
        "{shown} is gone, but {} is still there and may hold the last commits: put {shown} back beside it; or, to start with \
         an empty store, move every {shown}-* away",
        left.display()
    )))
}

/// Returns a journal file, or SQLite's log, left by a store that had this name; `None` if all are empty or
/// gone.
fn left_beside(store: &Path) -> std::io::Result<Option<PathBuf>> {
    let Some(name) = store.file_name() else { return Ok(None) };
    let folder = store.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut first: Option<PathBuf> = None;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.file_name();
        let Some(suffix) = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()) else { continue };
        let is_left = match suffix.strip_prefix(b"-log.") {
            Some(number) => !number.is_empty() && number.iter().all(u8::is_ascii_digit),
            None => suffix == b"-wal",
        };
        // An empty file holds nothing.
        let is_left = is_left && entry.metadata()?.len() > 0;
        // The first by name, so that the answer is always the same.
        if is_left && first.as_ref().is_none_or(|first| entry.path() < *first) {
            first = Some(entry.path());
        }
    }
    Ok(first)
}

fn io(path: &Path, source: std::io::Error) -> SqliteError {
    SqliteError::Io { path: path.display().to_string(), source }
}

/// Removes what there is of an incomplete copy.
fn clean_up(part: &Path) {
    drop(std::fs::remove_file(part));
    clean_beside(part);
}

/// Like [`clean_up`], for a copy that was stopped and has lost its lock: the files may be another copy's by
/// now.
fn clean_up_unless_locked(part: &Path) {
    if (part.exists() || lock_path(part).exists())
        && let Ok(lock) = FileLock::take(part)
    {
        clean_up(part);
        drop(std::fs::remove_file(lock_path(part)));
        drop(lock);
    }
}

/// Removes the files that SQLite keeps beside a database, where the database itself is gone.
fn clean_beside(database: &Path) {
    for suffix in ["-journal", "-wal", "-shm"] {
        drop(std::fs::remove_file(beside(database, suffix)));
    }
}
