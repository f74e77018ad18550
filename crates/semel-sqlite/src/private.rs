//! Files that only their owner reads: a store holds whatever its jobs do.

use std::fs::OpenOptions;
use std::path::Path;

/// How such a file is made. One that is there keeps the mode that it has.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The same for a file that belongs to a store: whoever may read the store is to read it too.
pub fn beside(store: &Path) -> OpenOptions {
    let mut options = options();
    #[cfg(unix)]
    if let Ok(store) = std::fs::metadata(store) {
        let mode = std::os::unix::fs::MetadataExt::mode(&store) & 0o666;
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    }
    #[cfg(not(unix))]
    let _ = store;
    options
}

/// Makes the file that SQLite is about to open, if there is none: SQLite would let everybody read it, and gives the files
/// beside it the mode that this one has. What stands in the way is for SQLite to say.
pub fn make(path: &Path) {
    drop(options().create_new(true).open(path));
}
