//! Files that only their owner may read: a store contains whatever its jobs do.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use crate::location::beside;

/// Options for creating such a file. An existing file keeps its mode.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Creates a file that belongs to a store, with the store's read and write permissions, whatever the
/// process's umask.
pub fn create_beside(path: &Path, store: &Path) -> io::Result<File> {
    let file = create_new(&options(), path, store)?;
    follow_if(&file, store, |_, _| true);
    Ok(file)
}

/// Opens an existing file that belongs to a store.
pub fn open_beside(path: &Path, store: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    follow(&file, store);
    Ok(file)
}

/// Checks by trying whether files can be created and written beside a store.
///
/// # Errors
/// When there is no room, the file system is read-only, or this account lacks permission.
pub fn find_room(store: &Path) -> io::Result<()> {
    let path = beside(store, &format!(".room-{}", std::process::id()));
    let make = || options().create_new(true).open(&path);
    // An existing file was left by an earlier process with the same id.
    let mut file = make().or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => std::fs::remove_file(&path).and_then(|()| make()),
        _ => Err(error),
    })?;
    // As much as SQLite needs for its shared memory.
    let written = file.write_all(&[1; 64 * 1024]);
    drop(std::fs::remove_file(&path));
    written
}

/// Gives a store's file the store's mode. Not if the file has another owner than the store, or other hard
/// links: whoever owns the folder may have put any file there, and this process may run as root.
pub fn follow(file: &File, store: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        follow_if(file, store, |own, store| own.is_file() && own.uid() == store.uid() && own.nlink() == 1);
    }
    #[cfg(not(unix))]
    let _ = (file, store);
}

/// Gives a file the store's mode, if `may` allows it. Does nothing while there is no store.
fn follow_if(file: &File, store: &Path, may: impl FnOnce(&Metadata, &Metadata) -> bool) {
    #[cfg(unix)]
    if let (Ok(store), Ok(own)) = (std::fs::metadata(store), file.metadata()) {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let mode = store.mode() & 0o666;
        if own.mode() & 0o777 != mode && may(&own, &store) {
            drop(file.set_permissions(std::fs::Permissions::from_mode(mode)));
        }
    }
    #[cfg(not(unix))]
    let _ = (file, store, may);
}

/// Creates the file that SQLite is about to open, if it does not exist: SQLite would make it readable to
/// everybody, and gives the files beside it the mode and owner of this one. If this fails, SQLite reports
/// why.
pub fn make(path: &Path) {
    drop(create_new(&options(), path, path));
}

/// Creates a new file of the store; it must not exist. If root creates it, its owner becomes that of the
/// store, or of the folder while there is no store, so that a server of that user can read it.
pub fn create_new(options: &OpenOptions, path: &Path, store: &Path) -> io::Result<File> {
    let file = options.clone().create_new(true).open(path)?;
    #[cfg(unix)]
    give(&file, path, store);
    #[cfg(not(unix))]
    let _ = store;
    Ok(file)
}

/// Hands a file from root to the owner it belongs to. The file was just created, so it has no other name.
#[cfg(unix)]
fn give(file: &File, path: &Path, store: &Path) {
    use std::os::unix::fs::{MetadataExt as _, fchown};
    const ROOT: u32 = 0;
    if !file.metadata().is_ok_and(|made| made.uid() == ROOT) {
        return;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let like = if path == store { std::fs::metadata(folder) } else { std::fs::metadata(store) };
    if let Ok(like) = like.or_else(|_| std::fs::metadata(folder))
        && like.uid() != ROOT
    {
        // Where even root may not change the owner, the file stays root's.
        drop(fchown(file, Some(like.uid()), Some(like.gid())));
    }
}
