//! Resolves the path of a store, whatever name or link it is opened by.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::SqliteError;

/// How many links in a row are followed, at most, to a file that does not exist yet.
const LINKS_MAX: u32 = 40;

/// Returns the real path of a store's file, absolute and without links, even if the file does not exist yet.
/// SQLite itself follows links to the file; the lock and the journal are found by name beside it, so the name
/// must be the same for a process that opens the file by another name, or from another folder.
///
/// # Errors
/// When its folder does not exist, or may not be examined.
pub fn real(path: &Path) -> Result<PathBuf, SqliteError> {
    follow(path).map_err(|source| SqliteError::Io { path: path.display().to_string(), source })
}

/// Returns the path of a file beside a store: the store's own path with `suffix` appended.
pub fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the path of SQLite's write-ahead log.
pub fn wal_of(store: &Path) -> PathBuf {
    beside(store, "-wal")
}

/// Refuses query parameters, which other programs' file URLs have: they would become part of the file's name.
///
/// # Errors
/// A message that says what to write instead.
pub fn refuse_parameters(path: &str) -> Result<(), &'static str> {
    match path.split_once('?') {
        Some((_, after)) if after.contains('=') => Err(
            "a store in a file takes no parameters, and is created if it does not exist; write only the path",
        ),
        _ => Ok(()),
    }
}

fn follow(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match path.canonicalize() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
        let name = path.file_name().ok_or(ErrorKind::NotFound)?;
        let named = folder.join(name);
        let Ok(target) = named.read_link() else { return Ok(named) };
        path = folder.join(target);
    }
    Err(Error::other("too many links"))
}
