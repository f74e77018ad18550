//! Bringing to the disk what a file has, and that it is there.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes of a file that are written again in one go.
const AGAIN: u64 = 1 << 20;

/// Brings to the disk that there is a file of that name.
pub fn sync_folder(of: &Path) -> std::io::Result<()> {
    if cfg!(windows) {
        // There a folder is nothing that can be synced; NTFS keeps a log of what becomes of names.
        return Ok(());
    }
    let folder = of.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Brings to the disk what a file has. Windows lets nobody do that who may not write it.
pub fn sync_file(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().read(true).write(true).open(path)?.sync_all()
}

/// Writes everything in a file again and brings it to the disk, for the reason that the last record of a journal is.
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
