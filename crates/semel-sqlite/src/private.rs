//! Files that only their owner reads: a store holds whatever its jobs do.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use crate::location::beside;

/// How such a file is made. One that is there keeps the mode that it has.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Makes a file that belongs to a store: whoever may read or write that may do so with this one too, whatever the process' umask is.
pub fn create_beside(path: &Path, store: &Path) -> io::Result<File> {
    let file = create_new(&options(), path, store)?;
    follow_if(&file, store, |_, _| true);
    Ok(file)
}

/// Opens a file that belongs to a store, and is there.
pub fn open_beside(path: &Path, store: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    follow(&file, store);
    Ok(file)
}

/// Whether files can be made and written beside a store, by trying.
///
/// # Errors
/// Why not: there is no room, the file system is for reading only, this account may not.
pub fn find_room(store: &Path) -> io::Result<()> {
    let path = beside(store, &format!(".room-{}", std::process::id()));
    let make = || options().create_new(true).open(&path);
    // One that is there was left by who had the same number before.
    let mut file = make().or_else(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => std::fs::remove_file(&path).and_then(|()| make()),
        _ => Err(error),
    })?;
    // As much as SQLite needs for its shared memory.
    let written = file.write_all(&[1; 64 * 1024]);
    drop(std::fs::remove_file(&path));
    written
}

/// Gives a file that belongs to a store the store's mode. It keeps its own where it is another user's than the store, or has other names:
/// whoever owns the folder may have put anything there, and root may be who looks.
pub fn follow(file: &File, store: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        follow_if(file, store, |own, store| own.is_file() && own.uid() == store.uid() && own.nlink() == 1);
    }
    #[cfg(not(unix))]
    let _ = (file, store);
}

/// Gives a file the store's mode, if it `may` have it. Nothing while there is no store.
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

/// Makes the file that SQLite is about to open, if there is none: SQLite would let everybody read it, and gives the files
/// beside it the mode and the owner that this one has. What stands in the way is for SQLite to say.
pub fn make(path: &Path) {
    drop(create_new(&options(), path, path));
}

/// Makes a file of the store, which must not be there. What root makes belongs to the owner of the store, or of the folder while there is
/// no store: a server of that user is to read it.
pub fn create_new(options: &OpenOptions, path: &Path, store: &Path) -> io::Result<File> {
    let file = options.clone().create_new(true).open(path)?;
    #[cfg(unix)]
    give(&file, path, store);
    #[cfg(not(unix))]
    let _ = store;
    Ok(file)
}

/// Gives a file that was just made, and is nobody else's by any name, from root to whom it belongs.
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
        // Where even root may not, the file is root's, as any other there.
        drop(fchown(file, Some(like.uid()), Some(like.gid())));
    }
}
