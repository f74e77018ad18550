//! Ensures that one process owns the file: by a lock file beside it, which names the owner, and on Linux also
//! by a lock on the file itself. The latter still holds if the lock file is deleted, or the store is opened
//! by another of its names.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::SqliteError;
use crate::location::{beside, real};
use crate::private;

/// The right to use the file. Released when dropped, or when the process ends in any way.
#[derive(Debug)]
pub struct FileLock {
    /// The store's file, locked by `flock`, which is independent of SQLite's own `fcntl` locks. Must be
    /// closed after SQLite's last connection, because closing any descriptor of a file releases all `fcntl`
    /// locks that the process has on it; and before the lock file, which the next owner takes first.
    #[cfg(target_os = "linux")]
    itself: Option<Itself>,
    file: File,
    path: PathBuf,
}

#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Itself {
    file: Option<File>,
    inode: Inode,
}

/// Identifies a file whatever its name: its device and inode number.
#[cfg(target_os = "linux")]
type Inode = (u64, u64);

#[cfg(target_os = "linux")]
impl Drop for Itself {
    fn drop(&mut self) {
        let mut held = held_here();
        drop(self.file.take());
        held.remove(&self.inode);
    }
}

/// The store files that this process has locked. It must not even open and close one of them again: that
/// would release SQLite's locks.
#[cfg(target_os = "linux")]
fn held_here() -> MutexGuard<'static, BTreeSet<Inode>> {
    static HERE: Mutex<BTreeSet<Inode>> = Mutex::new(BTreeSet::new());
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many bytes of a lock file are read, at most, to tell whether it is one.
const WORD_BYTES_MAX: u64 = 4_096;

impl Drop for FileLock {
    fn drop(&mut self) {
        here().remove(&self.path);
    }
}

/// The lock files that this process holds. The process id is not enough: another container may use the same
/// one.
fn here() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static HERE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the path of the lock file, given the store's [real] path.
pub(crate) fn lock_path(store: &Path) -> PathBuf {
    beside(store, ".lock")
}

impl FileLock {
    /// Takes the lock of `store`.
    ///
    /// # Errors
    /// [`SqliteError::Owned`] when another process has it.
    pub fn take(store: &Path) -> Result<Self, SqliteError> {
        let store_path = real(store)?;
        let path = lock_path(&store_path);
        let io = |source| SqliteError::Io { path: path.display().to_string(), source };
        // Only a lock file that is created here is given to the store's owner.
        let made = private::create_beside(&path, &store_path);
        let open = || private::options().create(true).truncate(false).open(&path);
        let mut file = made.or_else(|_| open()).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut note = String::new();
                // If the note cannot be read, the error message just says less.
                drop(file.read_to_string(&mut note));
                let Owner { word, .. } = Owner::of(&note);
                let owner = if word.is_empty() { String::new() } else { format!(" ({word})") };
                let is_here = here().contains(&path);
                return Err(SqliteError::Owned { path: store.display().to_string(), owner, is_here });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // A file with other contents is not a lock file and must not be overwritten.
        let mut note = String::new();
        let read = Read::by_ref(&mut file).take(WORD_BYTES_MAX).read_to_string(&mut note);
        if read.is_err() || !is_word(&note) {
            return Err(SqliteError::Unsupported(format!(
                "{} is not a lock file of Semel's, and would be overwritten: give the store another name, or move that file away",
                path.display()
            )));
        }
        // Whoever may open the store must be able to open its lock file too, even one that already existed.
        private::follow(&file, &store_path);
        here().insert(path.clone());
        let mut lock = Self {
            file,
            path,
            #[cfg(target_os = "linux")]
            itself: None,
        };
        lock.say_who()?;
        Ok(lock)
    }

    /// Locks the file of `store` itself, if it exists and is not locked yet.
    ///
    /// # Errors
    /// [`SqliteError::Held`] when another process has it locked: by another name of the file, or because the
    /// lock file beside it was deleted. [`SqliteError::Owned`] when this process has it locked already.
    #[cfg(target_os = "linux")]
    pub fn hold(&mut self, store: &Path) -> Result<(), SqliteError> {
        use std::os::unix::fs::MetadataExt as _;
        // If the file does not exist or cannot be examined, SQLite reports it.
        let Ok(seen) = std::fs::metadata(store) else { return Ok(()) };
        if self.itself.is_some() {
            return Ok(());
        }
        let inode = (seen.dev(), seen.ino());
        let path = store.display().to_string();
        let mut held = held_here();
        if held.contains(&inode) {
            return Err(SqliteError::Owned { path, owner: String::new(), is_here: true });
        }
        let Ok(file) = File::open(store) else { return Ok(()) };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SqliteError::Held { path }),
            // Over NFSv4, `flock` becomes an `fcntl` lock like SQLite's, and fails on a file opened for
            // reading. The file is kept open regardless.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, path, "the store's file itself cannot be locked");
            }
        }
        held.insert(inode);
        self.itself = Some(Itself { file: Some(file), inode });
        Ok(())
    }

    /// Does nothing on other systems: they have only one kind of lock, which would conflict with SQLite's.
    /// The lock file is all there is.
    ///
    /// # Errors
    /// None.
    #[cfg(not(target_os = "linux"))]
    pub fn hold(&mut self, _: &Path) -> Result<(), SqliteError> {
        Ok(())
    }

    /// Writes the note that the lock was taken with: which process the owner is.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn say_who(&mut self) -> Result<(), SqliteError> {
        self.say("", "")
    }

    /// Writes a note for processes that find the store taken: `word`, such as the address of a server, and
    /// the `instance` by which clients recognise that server. A word that is not an address follows the
    /// owner's process id.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn say(&mut self, word: &str, instance: &str) -> Result<(), SqliteError> {
        let mut word = if !word.is_empty() && is_word(word) {
            word.to_owned()
        } else {
            format!("process {} {word}", std::process::id()).trim_end().to_owned()
        };
        if !instance.is_empty() {
            word = format!("{word}\n{instance}\n");
        }
        let io = |source| SqliteError::Io { path: self.path.display().to_string(), source };
        self.file.set_len(0).map_err(io)?;
        self.file.seek(SeekFrom::Start(0)).map_err(io)?;
        self.file.write_all(word.as_bytes()).map_err(io)
    }
}

/// Whether `note` looks like an owner's: its process id, or the address of a server. After a power cut the
/// note may be empty, or zeros.
fn is_word(note: &str) -> bool {
    let is_lost = note.bytes().all(|byte| byte == 0);
    is_lost || ["process ", "http://", "https://"].iter().any(|begins| note.starts_with(begins))
}

/// What the owner of a store says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its process id, or the address of its server. Empty if it has written nothing yet.
    pub word: String,
    /// Identifies its server: one started later, or with the same address elsewhere, has another value.
    pub instance: Option<String>,
}

impl Owner {
    fn of(note: &str) -> Self {
        let mut lines = note.lines().map(|line| line.trim_matches(['\0', ' ']));
        let word = lines.next().unwrap_or_default().to_owned();
        Self { word, instance: lines.next().filter(|line| !line.is_empty()).map(str::to_owned) }
    }

    /// Returns the address of its server, if it has given one.
    pub fn server(&self) -> Option<&str> {
        Some(&*self.word).filter(|word| word.starts_with("http://") || word.starts_with("https://"))
    }
}

/// Returns what the owner of `store` says about itself; `None` if nobody owns the store now.
pub fn owner(store: &Path) -> Option<Owner> {
    let path = lock_path(&real(store).ok()?);
    let mut file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    // A shared lock, so that processes which only ask do not get in each other's way.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let mut note = String::new();
            file.read_to_string(&mut note).ok()?;
            Some(Owner::of(&note))
        }
        // Nobody owns it; dropping the file releases the lock.
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}
