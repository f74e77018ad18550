//! The journal: every commit is one record, appended and synced before any caller is answered. It lies beside
//! the database in files `<store>-log.0`, `<store>-log.1`, …, which are reused once the rows have their
//! contents: when existing blocks are overwritten, an fsync has only the data to write.
//!
//! A record is its payload's length, a CRC-32 over the rest, its cursor, its time, and the payload. Cursors
//! always ascend by one, so what is left in a file from earlier use is recognised by its lower cursors. A
//! file ends where no such record follows: a last record torn by a crash was never acknowledged. Whoever
//! opens the journal syncs what it read before relying on it: a process that was killed, or whose sync
//! failed, may not have done so. The checksum begins with the store's identity, so that files left behind by
//! another store of the same name are not taken for this one's.
//!
//! A file grows in steps of zeros, and records are written over them: if each write made the file longer,
//! every fsync would have to write the file's size as well.

mod files;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use semel_core::planted::{Bug, is_planted};
use semel_core::time::Timestamp;

use crate::durable::sync_folder;
use crate::error::SqliteError;
use crate::location;
use crate::private;

pub use self::files::newest;

/// Length of a record's header, in bytes.
pub const HEADER: usize = 4 + 4 + 8 + 8;
/// Bounds on how much a file grows at a time, in bytes. Within them it doubles.
const GROWTH: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 20;
/// What a file is extended with.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Size of the read buffer, in bytes. A longer record is read in a buffer of its own.
const READ: usize = 1 << 20;
/// After a failed write, this much room at most, in bytes, must be found before records are written again.
const LACKS_MAX: usize = 64 << 10;
/// A free file keeps at most this many bytes. One round's file is shorter, unless the round had to wait.
const LENGTH_MAX: u64 = 256 << 20;
/// The longest payload that is read or written, in bytes. A group of commits is far shorter
/// ([`GROUP_BYTES_MAX`](semel_store::bounds::GROUP_BYTES_MAX)), and so is what one request may bring.
const PAYLOAD_MAX: usize = 1 << 30;

/// A commit, as the journal stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The record's number.
    pub cursor: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// The encoded changes.
    pub payload: Bytes,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    file: File,
    /// Length of the file. Anything after the last record is from earlier use, or zeros.
    length: u64,
    /// The cursor of its last record; 0 when no record in it is needed.
    last: u64,
}

impl Segment {
    /// Writes a record at `offset`, and extends the file with zeros if it ends there.
    fn write(&mut self, offset: u64, record: &[u8]) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(offset))?;
        self.file.write_all(record)?;
        let end = offset + record.len() as u64;
        if end > self.length {
            let growth = self.length.clamp(*GROWTH.start(), *GROWTH.end());
            self.length = end;
            // The record is written; if there is no room to grow, a later record will report it.
            while self.length < end + growth && self.file.write_all(&ZEROS).is_ok() {
                self.length += ZEROS.len() as u64;
            }
        }
        Ok(())
    }

    /// Gives disk space back that the file took while the rows could not be written. Its contents are not
    /// needed.
    fn shorten(&mut self) {
        if self.length > LENGTH_MAX && self.file.set_len(LENGTH_MAX).is_ok() {
            self.length = LENGTH_MAX;
        }
    }

    /// Syncs what was read from the file. The last record is written again first: after a failed sync the
    /// system takes its cached pages for written, and the next sync has nothing to do. Earlier records are
    /// not in doubt, because no process goes on after a failed sync.
    fn make_sure(&mut self, contents: &Contents) -> Result<(), SqliteError> {
        let place = contents.end - contents.last.len() as u64;
        self.write(place, &contents.last).map_err(|error| io(&self.path, error))?;
        let synced = self.file.sync_all();
        synced.map_err(|error| SqliteError::Sync(format!("{}: {error}", self.path.display())))
    }
}

/// What was read from one file.
struct Contents {
    /// The records that are still needed.
    entries: Vec<Entry>,
    /// The cursor of the last record; 0 when there is none.
    cursor: u64,
    /// Where the next record goes.
    end: u64,
    /// The last record, byte for byte.
    last: Bytes,
}

/// What was read from all files.
struct Found {
    /// Files that hold needed records, the oldest first.
    needed: Vec<(Contents, Segment)>,
    free: Vec<Segment>,
    /// The needed records, in order.
    entries: Vec<Entry>,
}

/// Reads the journal files of the store with this `identity`. The rows already have everything up to
/// `carried`.
fn find(
    store: &Path,
    identity: i64,
    carried: u64,
    mut open: impl FnMut(&Path) -> std::io::Result<File>,
) -> Result<Found, SqliteError> {
    let mut found = Found { needed: Vec::new(), free: Vec::new(), entries: Vec::new() };
    for number in 0.. {
        let path = path_of(store, number);
        let file = match open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(io(&path, error)),
        };
        let contents = read(&file, identity, carried).map_err(|error| io(&path, error))?;
        let length = file.metadata().map_err(|error| io(&path, error))?.len();
        let last = contents.cursor;
        let segment = Segment { path, file, length, last };
        if last > carried { found.needed.push((contents, segment)) } else { found.free.push(segment) }
    }
    found.needed.sort_by_key(|(_, segment)| segment.last);
    let mut last = carried;
    for (contents, segment) in &mut found.needed {
        for entry in std::mem::take(&mut contents.entries) {
            if entry.cursor != last + 1 {
                return Err(SqliteError::Journal(format!(
                    "{}: record {} is missing; restore a backup",
                    segment.path.display(),
                    last + 1
                )));
            }
            last = entry.cursor;
            found.entries.push(entry);
        }
    }
    Ok(found)
}

/// Reads another owner's journal after `carried`. The caller must hold SQLite's write lock meanwhile. Writes
/// nothing, because the owner may be writing there.
///
/// # Errors
/// As [`Journal::open`].
pub fn beside(store: &Path, identity: i64, carried: u64) -> Result<Vec<Entry>, SqliteError> {
    read_beside(store, identity, carried, |path| OpenOptions::new().read(true).open(path))
}

fn read_beside(
    store: &Path,
    identity: i64,
    carried: u64,
    mut open: impl FnMut(&Path) -> std::io::Result<File>,
) -> Result<Vec<Entry>, SqliteError> {
    let found = match find(store, identity, carried, &mut open) {
        // Between the reads the owner may have filled one file and gone on in another. That happens once at
        // most: not again before a round ends, and rounds wait for SQLite's lock.
        Err(SqliteError::Journal(_)) => find(store, identity, carried, open),
        found => found,
    };
    Ok(found?.entries)
}

/// The journal's open files, and where the next record goes.
#[derive(Debug)]
pub struct Journal {
    base: PathBuf,
    identity: i64,
    /// Full files that are not carried over to the rows yet, the oldest first.
    full: Vec<Segment>,
    current: Option<Segment>,
    free: Vec<Segment>,
    offset: u64,
    last: u64,
    /// Bytes that could not be written at the last attempt, at most [`LACKS_MAX`]; 0 if it succeeded.
    lacks: usize,
}

fn path_of(store: &Path, number: usize) -> PathBuf {
    location::beside(store, &format!("-log.{number}"))
}

/// Whether `store` has a journal, which means that it has been used. An error counts as no.
pub fn has_journal(store: &Path) -> bool {
    is_there(store).unwrap_or(false)
}

/// Like [`has_journal`], but returns the error if that cannot be determined.
pub fn is_there(store: &Path) -> Result<bool, SqliteError> {
    let first = path_of(store, 0);
    first.try_exists().map_err(|error| io(&first, error))
}

impl Journal {
    /// Opens the journal of the store with this `identity`, and returns the records after `carried`, the last
    /// cursor that the rows have.
    ///
    /// # Errors
    /// When a file cannot be read, or records are missing between two files.
    pub fn open(store: &Path, identity: i64, carried: u64) -> Result<(Self, Vec<Entry>), SqliteError> {
        let open = |path: &Path| private::open_beside(path, store);
        let Found { needed, free, entries } = find(store, identity, carried, open)?;
        let mut journal = Self {
            base: store.to_path_buf(),
            identity,
            full: Vec::new(),
            current: None,
            free,
            offset: 0,
            last: entries.last().map_or(carried, |entry| entry.cursor),
            lacks: 0,
        };
        for (contents, mut segment) in needed {
            segment.make_sure(&contents)?;
            journal.offset = contents.end;
            journal.full.extend(journal.current.replace(segment));
        }
        Ok((journal, entries))
    }

    /// Creates the first file, if there is none, and syncs its name.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn make_first(&mut self) -> Result<(), SqliteError> {
        if !has_journal(&self.base) {
            let first = self.fresh()?;
            self.free.push(first);
        }
        Ok(())
    }

    fn path(&self, number: usize) -> PathBuf {
        path_of(&self.base, number)
    }

    /// The cursor of the last record.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Appends a record and syncs it. `record` has [`HEADER`] bytes of room before its payload.
    ///
    /// # Errors
    /// When the record was not written and does not count; or, fatal, when it is unknown what reached the
    /// disk.
    pub fn append(&mut self, at: Timestamp, record: &mut [u8]) -> Result<(), SqliteError> {
        // A record that would be refused when it is read must not be acknowledged.
        let size = record.len() - HEADER;
        if size > PAYLOAD_MAX {
            return Err(SqliteError::TooLong { size, most: PAYLOAD_MAX });
        }
        let cursor = self.last + 1;
        fill_in(self.identity, cursor, at, record);
        self.lacks = record.len().min(LACKS_MAX);
        self.write(record)?;
        self.lacks = 0;
        let Some(current) = &mut self.current else { return Ok(()) };
        if let Err(error) = sync(&current.file) {
            return Err(SqliteError::Sync(format!("{}: {error}", current.path.display())));
        }
        current.last = cursor;
        self.last = cursor;
        self.offset += record.len() as u64;
        Ok(())
    }

    /// Checks after a failed write whether there is room again, at least for a small record. Without this
    /// check every commit on a full disk would fail after changing memory, and all of memory would have to be
    /// read again.
    ///
    /// # Errors
    /// When there is still no room.
    pub fn find_room(&mut self) -> Result<(), SqliteError> {
        if self.lacks > 0 {
            // Zeros are not a valid record, and the next record overwrites them.
            self.write(&vec![0; self.lacks])?;
            self.lacks = 0;
        }
        Ok(())
    }

    /// Writes bytes at the place of the next record.
    fn write(&mut self, bytes: &[u8]) -> Result<(), SqliteError> {
        if self.current.is_none() {
            self.current = Some(self.fresh()?);
            self.offset = 0;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        if is_planted(Bug::SyncBeforeWrite) {
            drop(current.file.sync_data());
        }
        current.write(self.offset, bytes).map_err(|error| io(&current.path, error))
    }

    /// Makes writes to the current file fail, or succeed again.
    #[cfg(test)]
    pub fn block(&mut self, is_blocked: bool) {
        if let Some(current) = &mut self.current {
            let file = OpenOptions::new().read(true).write(!is_blocked).open(&current.path);
            current.file = file.expect("a journal's file can be opened");
        }
    }

    /// Makes the next record's cursor higher than `cursor`.
    pub fn go_on_behind(&mut self, cursor: u64) {
        self.last = self.last.max(cursor);
    }

    /// Makes the next record go to another file. Returns the last cursor before it.
    pub fn rotate(&mut self) -> u64 {
        self.full.extend(self.current.take());
        self.last
    }

    /// Frees the files that hold nothing after `cursor`. The rows must have everything up to there, durably.
    pub fn carried(&mut self, cursor: u64) {
        let (mut done, full): (Vec<_>, _) =
            std::mem::take(&mut self.full).into_iter().partition(|segment| segment.last <= cursor);
        self.full = full;
        done.iter_mut().for_each(Segment::shorten);
        self.free.append(&mut done);
    }

    /// Reads all records after `carried` again.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn entries(&self, carried: u64) -> Result<Vec<Entry>, SqliteError> {
        let mut entries = Vec::new();
        for segment in self.full.iter().chain(&self.current) {
            let read =
                read(&segment.file, self.identity, carried).map_err(|error| io(&segment.path, error))?;
            entries.extend(read.entries.into_iter().filter(|entry| entry.cursor <= self.last));
        }
        Ok(entries)
    }

    /// Returns a free or new file, to be written from its beginning.
    fn fresh(&mut self) -> Result<Segment, SqliteError> {
        if let Some(segment) = self.free.pop() {
            return Ok(segment);
        }
        let path = self.path(self.full.len());
        let new = || {
            let file = private::create_beside(&path, &self.base)?;
            // The file's name must be synced before anything in it is acknowledged.
            if is_planted(Bug::FolderNotSynced) {
                return Ok(file);
            }
            if let Err(error) = sync_folder(&path) {
                // The next attempt creates the file anew: only a new name gives a folder's sync anything to
                // do.
                drop(std::fs::remove_file(&path));
                return Err(error);
            }
            Ok(file)
        };
        let file = new().map_err(|error| io(&path, error))?;
        Ok(Segment { path, file, length: 0, last: 0 })
    }
}

/// Syncs written data.
fn sync(file: &File) -> std::io::Result<()> {
    if is_planted(Bug::AckBeforeFsync) || is_planted(Bug::SyncBeforeWrite) {
        return Ok(());
    }
    let synced = file.sync_data();
    if is_planted(Bug::FailedSyncIgnored) { Ok(()) } else { synced }
}

fn io(path: &Path, source: std::io::Error) -> SqliteError {
    SqliteError::Io { path: path.display().to_string(), source }
}

fn fill_in(identity: i64, cursor: u64, at: Timestamp, record: &mut [u8]) {
    let length = u32::try_from(record.len() - HEADER).unwrap_or(u32::MAX);
    record[8..16].copy_from_slice(&cursor.to_le_bytes());
    record[16..24].copy_from_slice(&at.as_micros().to_le_bytes());
    record[..4].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(identity, length, &record[8..]);
    record[4..8].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(identity: i64, length: u32, rest: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&identity.to_le_bytes());
    sum.update(&length.to_le_bytes());
    sum.update(rest);
    sum.finalize()
}

/// Reads a file record by record. Records up to `carried`, which the rows have, are not kept in memory.
fn read(mut file: &File, identity: i64, carried: u64) -> std::io::Result<Contents> {
    file.seek(SeekFrom::Start(0))?;
    let mut left = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(READ, file);
    let mut contents = Contents { entries: Vec::new(), cursor: 0, end: 0, last: Bytes::new() };
    while let Some(record) = next(&mut reader, &mut left)?
        && let Some(entry) = parse(&record, identity)
    {
        let is_first = contents.cursor == 0;
        if !is_first && entry.cursor != contents.cursor + 1 && !is_planted(Bug::StaleRecordRead) {
            break;
        }
        contents.cursor = entry.cursor;
        contents.end += record.len() as u64;
        contents.last = record;
        if entry.cursor > carried {
            contents.entries.push(entry);
        }
    }
    Ok(contents)
}

/// Reads the next record's bytes, if all that its header announces are there. `left` counts the bytes that
/// the file has from here on.
fn next(reader: &mut impl Read, left: &mut u64) -> std::io::Result<Option<Bytes>> {
    let mut record = vec![0_u8; HEADER];
    if !fill(reader, &mut record)? {
        return Ok(None);
    }
    let length = record.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length));
    let size = HEADER + length as usize;
    // Checked before memory is allocated: what follows the last record may announce any length.
    if length as usize > PAYLOAD_MAX || size as u64 > *left {
        return Ok(None);
    }
    *left -= size as u64;
    record.resize(size, 0);
    Ok(if fill(reader, &mut record[HEADER..])? { Some(record.into()) } else { None })
}

/// Fills `room`. Returns `false` if the file ends before that: its owner may shorten a free file meanwhile.
fn fill(reader: &mut impl Read, room: &mut [u8]) -> std::io::Result<bool> {
    match reader.read_exact(room) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

fn parse(bytes: &Bytes, identity: i64) -> Option<Entry> {
    let header = bytes.first_chunk::<HEADER>()?;
    let (length, rest) = header.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (cursor, rest) = rest.split_first_chunk::<8>()?;
    let (at, _) = rest.split_first_chunk::<8>()?;
    let length = u32::from_le_bytes(*length);
    let size = length as usize;
    if size > PAYLOAD_MAX || bytes.len() < HEADER + size {
        return None;
    }
    let cursor = u64::from_le_bytes(*cursor);
    let is_whole = checksum(identity, length, &bytes[8..HEADER + size]) == u32::from_le_bytes(*sum);
    // Zeros are not a record, even if the checksum fits.
    if cursor == 0 || (!is_whole && !is_planted(Bug::SumNotChecked)) {
        return None;
    }
    Some(Entry {
        cursor,
        at: Timestamp::from_micros(i64::from_le_bytes(*at)),
        payload: bytes.slice(HEADER..HEADER + size),
    })
}

#[cfg(test)]
mod tests;
