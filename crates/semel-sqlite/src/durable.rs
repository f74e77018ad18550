//! Syncing files and their names to the disk.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes of a file that are rewritten at a time.
const AGAIN: u64 = 1 << 20;

/// Syncs the folder of a file, so that the file's name is on the disk.
pub fn sync_folder(of: &Path) -> std::io::Result<()> {
    if cfg!(windows) {
        // Folders cannot be synced on Windows; NTFS logs changes of names.
        return Ok(());
    }
    let folder = of.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Syncs a file's contents. It is opened for writing, because Windows syncs no file otherwise.
pub fn sync_file(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().read(true).write(true).open(path)?.sync_all()
}

/// Rewrites a whole file and syncs it, because after a failed sync the system takes its cached pages for
/// written.
pub fn write_again(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let (mut place, mut piece) = (0, Vec::new());
    loop {
        file.seek(SeekFrom::Start(place))?;
        piece.clear();
        let size = Read::take(&file, AGAIN).read_to_end(&mut piece)?;
        if size == 0 {
            return file.sync_all();
        }
        file.seek(SeekFrom::Start(place))?;
        file.write_all(&piece)?;
        place += size as u64;
    }
}
