//! Copies of a store: a consistent one while it is in use, and back again.

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
    /// The same, of a store's file that has lost its journal: what was committed last is given up.
    Rescue,
}

impl Purpose {
    fn is_backup(self) -> bool {
        self == Self::Backup
    }
}

/// How far a file is that is being made.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Nothing is there yet that is of this one: another copy may be being made under the same name.
    Asked,
    /// What is called `.part` is of this one, which has its lock.
    Made,
    /// It has its name.
    Named,
    /// Somebody has told it to end: it gets no name.
    Stopped,
}

/// A file that is made of a store: a backup, or a store made of one. It has its name once it is whole, and until then its own name and
/// `.part`, wherever the link lies that it was called by.
#[derive(Clone)]
pub struct Making {
    to: PathBuf,
    stage: Arc<Mutex<Stage>>,
}

impl Making {
    /// A file of that name, which must not exist. Nothing is made yet.
    ///
    /// # Errors
    /// When there is no such folder, or it may not be looked into.
    pub fn at(to: &Path) -> Result<Self, SqliteError> {
        Ok(Self { to: real(to)?, stage: Arc::new(Mutex::new(Stage::Asked)) })
    }

    /// Bytes that there are of it.
    pub fn bytes(&self) -> u64 {
        let bytes = |path: &Path| path.metadata().map(|about| about.len());
        bytes(&self.part()).or_else(|_| bytes(&self.to)).unwrap_or(0)
    }

    /// Has it end, from another thread, and removes what there is of it. Says whether it does: not where the file has its name.
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

    /// Holds [`stop`](Self::stop) up.
    fn going(&self) -> Result<MutexGuard<'_, Stage>, SqliteError> {
        let stage = self.stage();
        if *stage == Stage::Stopped {
            return Err(SqliteError::Unsupported(format!("{} was told to end", self.to.display())));
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

    /// As [`restore`](Self::restore), also of a store's file whose journal is lost: as if it were a backup, and without what was
    /// committed in the last moments. A journal that is there is read.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), but for that.
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
            // What is there was left by one that was killed: nobody has the lock.
            clean_up(&part);
        });
        let made = begun.and_then(|()| self.fill(from, &part, purpose)).and_then(|()| {
            let mut stage = self.going()?;
            check_free(to)?;
            // SQLite would take what is beside this name for what belongs to the new file.
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
            // What cannot be opened must be known now, not when it is needed.
            let going = self.going()?;
            let db = open(part)?;
            drop(going);
            load(&db, brought(&db, carried(&db)?)?)?;
        }
        if is_planted(Bug::BackupNotSynced) {
            return Ok(());
        }
        // The copy is a promise too: it is on the disk before it is reported.
        sync_file(part).map_err(|source| io(part, source))
    }

    /// The rows, and what the journal has beyond them: its entries, or the last one that the rows have.
    fn copy_rows(
        &self,
        from: &Path,
        part: &Path,
        purpose: Purpose,
    ) -> Result<(Vec<Entry>, u64), SqliteError> {
        // While this one is at it nobody else writes rows, and no file of the journal is used again.
        let of_source = |error| SqliteError::from(error).of_files(from);
        let mut holder =
            Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(of_source)?;
        holder.busy_timeout(PIECE_MAX)?;
        // A backup may lie where nobody can write; then nobody has to be kept from it.
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
        // An empty file is written into.
        match purpose {
            Purpose::Restore | Purpose::Rescue => private::make(part),
            // It stays with who makes it, wherever he puts it. What stands in the way is for SQLite to say.
            Purpose::Backup => drop(private::options().create_new(true).open(part)),
        }
        drop(going);
        // SQLite takes names as they are, such as are no text too.
        let name = part.as_os_str().as_encoded_bytes();
        db.execute("VACUUM INTO ?1", [ToSqlOutput::Borrowed(ValueRef::Text(name))])?;
        let last = last(&db)?;
        let journal = journal::beside(from, identity(&db)?, last)?;
        drop((db, hold));
        Ok((journal, last))
    }
}

/// Copies a store to a new file, consistently, whoever owns it and while it is in use: the rows, and what the journal has
/// beyond them. Commits go on; they are carried over to the rows once the copy is made. The file has its name once it is whole.
///
/// # Errors
/// When the copy exists already or cannot be written, or what another store committed last lies beside its name.
pub fn copy(from: &Path, to: &Path) -> Result<(), SqliteError> {
    Making::at(to)?.copy(from)
}

/// Makes a store at `to`, which must not exist, from a backup, after looking it over. It has its name once it is whole.
///
/// # Errors
/// When the backup is damaged or of another program, or the store exists or is in use, or what another one committed last lies
/// beside its name.
pub fn restore(from: &Path, to: &Path) -> Result<(), SqliteError> {
    Making::at(to)?.restore(from)
}

/// Refuses a name that is taken, and one beside which the files of another store are: they may be all that is left of what that one
/// committed last, and would be written over by whoever opens the new one, if not before.
fn check_free(path: &Path) -> Result<(), SqliteError> {
    let shown = path.display();
    if path.exists() {
        return Err(SqliteError::Unsupported(format!("{shown} exists already; name a new file")));
    }
    let Some(left) = left_beside(path).map_err(|source| io(path, source))? else { return Ok(()) };
    Err(SqliteError::Unsupported(format!(
        "{} is of the store that was here, and may have what it committed last; stop its server, and move {shown} and every {shown}-* \
         away, together; then try again",
        left.display()
    )))
}

/// Refuses to make a store anew where only its file is gone: what it committed last is in what lies beside.
pub(crate) fn refuse_remains(path: &Path) -> Result<(), SqliteError> {
    let shown = path.display();
    if path.exists() {
        return Ok(());
    }
    let Some(left) = left_beside(path).map_err(|source| io(path, source))? else { return Ok(()) };
    Err(SqliteError::Unsupported(format!(
        "{shown} is gone, and {} is still there, which may have what was committed last: put {shown} back beside it; or, to begin with \
         an empty store, move every {shown}-* away",
        left.display()
    )))
}

/// A file of the journal of the store that had this name, or what SQLite has in its log.
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
        // An empty one has nothing.
        let is_left = is_left && entry.metadata()?.len() > 0;
        // The same one each time.
        if is_left && first.as_ref().is_none_or(|first| entry.path() < *first) {
            first = Some(entry.path());
        }
    }
    Ok(first)
}

fn io(path: &Path, source: std::io::Error) -> SqliteError {
    SqliteError::Io { path: path.display().to_string(), source }
}

/// Removes what there is of a copy that is not whole.
fn clean_up(part: &Path) {
    drop(std::fs::remove_file(part));
    clean_beside(part);
}

/// The same of one that was told to end and has lost its lock: what is there may be of another by now.
fn clean_up_unless_locked(part: &Path) {
    if (part.exists() || lock_path(part).exists())
        && let Ok(lock) = FileLock::take(part)
    {
        clean_up(part);
        drop(std::fs::remove_file(lock_path(part)));
        drop(lock);
    }
}

/// Removes what SQLite has beside a database that is not there.
fn clean_beside(database: &Path) {
    for suffix in ["-journal", "-wal", "-shm"] {
        drop(std::fs::remove_file(beside(database, suffix)));
    }
}
