//! One process owns the file: a lock beside it, which names the owner, and on Linux one on the file itself, for whoever deletes the one
//! beside it or opens the file by another of its names.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::SqliteError;
use crate::location::{beside, real};
use crate::private;

/// The right to the file. Given up when dropped, or with the process however it ends.
#[derive(Debug)]
pub struct FileLock {
    /// The store's file, locked by `flock`, of which SQLite's own locks know nothing. To be closed after the last of SQLite's
    /// connections: closing any descriptor of a file gives up all that its process has locked of it by `fcntl`. And before the lock
    /// beside it, which whoever comes next takes first.
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

/// A file, whatever its name: its device and number.
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

/// The stores whose files this process has locked: it must not so much as open and close one of them.
#[cfg(target_os = "linux")]
fn held_here() -> MutexGuard<'static, BTreeSet<Inode>> {
    static HERE: Mutex<BTreeSet<Inode>> = Mutex::new(BTreeSet::new());
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As much of a lock is read as tells whether it is one.
const WORD_BYTES_MAX: u64 = 4_096;

impl Drop for FileLock {
    fn drop(&mut self) {
        here().remove(&self.path);
    }
}

/// The locks that this process has: its number does not tell it from one in another container.
fn here() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static HERE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the lock of a store is, by the store's [real] name.
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
        // Only a lock that is made here is given to the store's owner.
        let made = private::create_beside(&path, &store_path);
        let open = || private::options().create(true).truncate(false).open(&path);
        let mut file = made.or_else(|_| open()).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut note = String::new();
                // What the owner says of itself only helps the message.
                drop(file.read_to_string(&mut note));
                let Owner { word, .. } = Owner::of(&note);
                let owner = if word.is_empty() { String::new() } else { format!(" ({word})") };
                let is_here = here().contains(&path);
                return Err(SqliteError::Owned { path: store.display().to_string(), owner, is_here });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // Whatever else has that name is somebody's.
        let mut note = String::new();
        let read = Read::by_ref(&mut file).take(WORD_BYTES_MAX).read_to_string(&mut note);
        if read.is_err() || !is_word(&note) {
            return Err(SqliteError::Unsupported(format!(
                "{} is no lock of Semel's, and would be written over: give the store another name, or move that file away",
                path.display()
            )));
        }
        // Whoever may open the store is to find its lock, one that was there too.
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

    /// Locks the file of `store` itself, if it is there and is not locked yet.
    ///
    /// # Errors
    /// [`SqliteError::Held`] when another process has it: by another name of the file, or though the lock beside it was deleted.
    #[cfg(target_os = "linux")]
    pub fn hold(&mut self, store: &Path) -> Result<(), SqliteError> {
        use std::os::unix::fs::MetadataExt as _;
        // What is not there, or may not be looked at, is for SQLite to say.
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
            // Over NFSv4 it would be a lock of SQLite's kind, and is refused for a file that is opened to be read. It stays open all the
            // same.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, path, "the store's file has no lock of its own");
            }
        }
        held.insert(inode);
        self.itself = Some(Itself { file: Some(file), inode });
        Ok(())
    }

    /// Elsewhere the lock beside the file is all there is: these systems' locks are one kind, and SQLite's would be in each other's way.
    ///
    /// # Errors
    /// None.
    #[cfg(not(target_os = "linux"))]
    pub fn hold(&mut self, _: &Path) -> Result<(), SqliteError> {
        Ok(())
    }

    /// Leaves the word that it was taken with: which process the owner is.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn say_who(&mut self) -> Result<(), SqliteError> {
        self.say("", "")
    }

    /// Leaves a word for those who find the file taken, such as the address of a server, and by what they know it there. A word that is
    /// no address comes behind which process the owner is.
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

/// Whether that is what an owner leaves: which process it is, or the address of a server. A power cut may leave nothing of it, or zeros.
fn is_word(note: &str) -> bool {
    let is_lost = note.bytes().all(|byte| byte == 0);
    is_lost || ["process ", "http://", "https://"].iter().any(|begins| note.starts_with(begins))
}

/// What the owner of a store says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Which process it is, or the address of its server. Empty where it has said nothing yet.
    pub word: String,
    /// By what its server is known: what one that came after it, or that has the same address elsewhere, does not say.
    pub instance: Option<String>,
}

impl Owner {
    fn of(note: &str) -> Self {
        let mut lines = note.lines().map(|line| line.trim_matches(['\0', ' ']));
        let word = lines.next().unwrap_or_default().to_owned();
        Self { word, instance: lines.next().filter(|line| !line.is_empty()).map(str::to_owned) }
    }

    /// The address of its server, where it says one.
    pub fn server(&self) -> Option<&str> {
        Some(&*self.word).filter(|word| word.starts_with("http://") || word.starts_with("https://"))
    }
}

/// What the owner of `store` says of itself, if somebody owns it now.
pub fn owner(store: &Path) -> Option<Owner> {
    let path = lock_path(&real(store).ok()?);
    let mut file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    // Shared: others who only ask are in nobody's way.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let mut note = String::new();
            file.read_to_string(&mut note).ok()?;
            Some(Owner::of(&note))
        }
        // Nobody has it; dropping the file gives the lock back.
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}
