//! Where a store is, whatever name it is called by.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::SqliteError;

/// Links to a file that is yet to be made that are followed one after the other, at most.
const LINKS_MAX: u32 = 40;

/// The name of a store's own file, absolute and without links, also of one that is yet to be made. SQLite finds the file through
/// links of itself; the lock and the journal are found by name beside it, and must be the same for whoever opens the file by
/// another name, or from another folder.
///
/// # Errors
/// When there is no such folder, or it may not be looked into.
pub fn real(path: &Path) -> Result<PathBuf, SqliteError> {
    follow(path).map_err(|source| SqliteError::Io { path: path.display().to_string(), source })
}

/// The name of a file beside a store: the store's own, with something more.
pub fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The name of the log that SQLite keeps beside a store.
pub fn wal_of(store: &Path) -> PathBuf {
    beside(store, "-wal")
}

/// Refuses what other programs' URLs of files have behind the path: it would be a part of the file's name.
///
/// # Errors
/// What to write instead.
pub fn refuse_parameters(path: &str) -> Result<(), &'static str> {
    match path.split_once('?') {
        Some((_, after)) if after.contains('=') => {
            Err("a store in a file takes no parameters, and is made if it is not there; write the path alone")
        }
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
