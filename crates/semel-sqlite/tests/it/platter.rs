//! A disk that keeps what was synced and may lose the rest.
//!
//! Each 512-byte sector of a file that was written since the file's last sync holds what it held then, or
//! what any write since has made of it, whatever becomes of the others; so does the file's length. Data whose
//! sync failed is lost with the power, whatever is synced later, unless it is written again: the system takes
//! it for written. A name that was made, moved or removed since the last sync of its folder is changed or
//! not.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use semel_testkit::sim::dice::Dice;

use super::tap::Event;

const SECTOR: usize = 512;
type Sector = [u8; SECTOR];

/// What a power cut leaves of the unsynced changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    Nothing,
    /// Everything: the power went while all was quiet.
    Everything,
    /// Everything up to a moment, and any sectors of the write at that moment.
    Torn,
    /// Any sectors of any writes.
    Shuffled,
}

impl Cut {
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Everything, Self::Torn, Self::Shuffled];
}

#[derive(Default)]
struct File {
    synced: Vec<u8>,
    cached: Vec<u8>,
    /// What each write since the last sync made of a sector, with the write's number.
    sectors: BTreeMap<usize, Vec<(u64, Sector)>>,
    lengths: Vec<(u64, usize)>,
}

impl File {
    fn of(bytes: Vec<u8>) -> Self {
        Self { synced: bytes.clone(), cached: bytes, ..Self::default() }
    }

    fn touch(&mut self, number: u64, from: usize, to: usize) {
        for at in from / SECTOR..to.div_ceil(SECTOR) {
            let mut sector = [0; SECTOR];
            let end = (at * SECTOR + SECTOR).min(self.cached.len());
            if let Some(bytes) = self.cached.get(at * SECTOR..end) {
                sector[..bytes.len()].copy_from_slice(bytes);
            }
            self.sectors.entry(at).or_default().push((number, sector));
        }
    }

    fn write(&mut self, number: u64, place: usize, bytes: &[u8]) {
        let end = place + bytes.len();
        if end > self.cached.len() {
            self.cached.resize(end, 0);
            self.lengths.push((number, end));
        }
        self.cached[place..end].copy_from_slice(bytes);
        self.touch(number, place, end);
    }

    fn set_length(&mut self, number: u64, length: usize) {
        let before = self.cached.len();
        self.cached.resize(length, 0);
        self.lengths.push((number, length));
        self.touch(number, length, before.max(length));
    }

    fn sync(&mut self) {
        self.synced.resize(self.cached.len(), 0);
        for at in self.sectors.keys() {
            let (place, end) = (at * SECTOR, (at * SECTOR + SECTOR).min(self.cached.len()));
            if let Some(bytes) = self.cached.get(place..end) {
                self.synced[place..end].copy_from_slice(bytes);
            }
        }
        self.sectors.clear();
        self.lengths.clear();
    }

    /// The system takes what was written since the last sync for written. The length is kept elsewhere, and
    /// is not lost.
    fn fail_to_sync(&mut self) {
        self.sectors.clear();
    }

    fn after(&self, cut: Cut, moment: u64, random: &mut Dice) -> Vec<u8> {
        let mut pick = |numbers: &[u64]| match cut {
            Cut::Nothing => None,
            Cut::Everything => numbers.len().checked_sub(1),
            Cut::Torn => {
                let torn = random.below(2) == 0;
                numbers.iter().rposition(|number| *number < moment || (*number == moment && torn))
            }
            Cut::Shuffled if numbers.is_empty() || random.below(2) == 0 => None,
            Cut::Shuffled => Some(random.below(numbers.len() as u64) as usize),
        };
        let mut bytes = self.synced.clone();
        for (at, versions) in &self.sectors {
            let numbers: Vec<u64> = versions.iter().map(|(number, _)| *number).collect();
            let Some(version) = pick(&numbers) else { continue };
            let place = at * SECTOR;
            if bytes.len() < place + SECTOR {
                bytes.resize(place + SECTOR, 0);
            }
            bytes[place..place + SECTOR].copy_from_slice(&versions[version].1);
        }
        let numbers: Vec<u64> = self.lengths.iter().map(|(number, _)| *number).collect();
        let length = pick(&numbers).map_or(self.synced.len(), |at| self.lengths[at].1);
        bytes.resize(length, 0);
        bytes
    }
}

#[derive(Debug)]
enum NameChange {
    Made(String, usize),
    Gone(String),
    Moved(String, String),
}

/// The disk, which has a single folder.
#[derive(Default)]
pub struct Platter {
    files: Vec<File>,
    /// Which file an inode number stands for now.
    numbers: HashMap<u64, usize>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    changes: Vec<(u64, NameChange)>,
    now: u64,
    /// The numbers of unsynced writes and name changes.
    fresh: Vec<u64>,
}

fn rename(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Made(path, file) => drop(names.insert(path.clone(), *file)),
        NameChange::Gone(path) => drop(names.remove(path)),
        NameChange::Moved(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
    }
}

/// The index of the write-ahead log and the lock need not survive on the disk.
fn is_kept(name: &str) -> bool {
    !name.ends_with("-shm") && !name.ends_with(".lock")
}

fn read(folder: &Path) -> Vec<(String, u64, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry));
    named
        .filter(|(name, _)| is_kept(name))
        .map(|(name, entry)| (name, entry.metadata().unwrap().ino(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

impl Platter {
    /// A disk with the contents of a folder, all of them synced.
    pub fn of(folder: &Path) -> Self {
        let mut platter = Self::default();
        for (name, number, bytes) in read(folder) {
            platter.numbers.insert(number, platter.files.len());
            platter.names.insert(name, platter.files.len());
            platter.files.push(File::of(bytes));
        }
        platter.synced_names = platter.names.clone();
        platter
    }

    fn file(&mut self, number: u64) -> &mut File {
        let at = self.numbers.get(&number).unwrap_or_else(|| panic!("file {number} is not known"));
        &mut self.files[*at]
    }

    fn change(&mut self, change: NameChange) {
        rename(&mut self.names, &change);
        self.changes.push((self.now, change));
        self.fresh.push(self.now);
    }

    /// Applies one event of the record.
    pub fn apply(&mut self, event: &Event) {
        self.now += 1;
        let now = self.now;
        match event {
            Event::Create { file, path } => {
                self.numbers.insert(*file, self.files.len());
                let made = NameChange::Made(path.clone(), self.files.len());
                self.files.push(File::default());
                self.change(made);
            }
            Event::Write { file, place, bytes } => {
                self.file(*file).write(now, *place, bytes);
                self.fresh.push(now);
            }
            Event::Length { file, length } => {
                self.file(*file).set_length(now, *length);
                self.fresh.push(now);
            }
            Event::Sync { file } => self.file(*file).sync(),
            Event::SyncFolder => {
                self.synced_names.clone_from(&self.names);
                self.changes.clear();
            }
            // Folders are not known by their numbers.
            Event::Failed { file } => {
                if let Some(at) = self.numbers.get(file) {
                    self.files[*at].fail_to_sync();
                }
            }
            Event::Unlink { path } => self.change(NameChange::Gone(path.clone())),
            Event::Rename { from, to } => self.change(NameChange::Moved(from.clone(), to.clone())),
            Event::Said(_) => {}
        }
        if matches!(event, Event::Sync { .. } | Event::SyncFolder | Event::Failed { .. }) {
            let files = self.files.iter();
            let written = files.flat_map(|file| file.sectors.values().flatten().map(|(number, _)| *number));
            let lengths = self.files.iter().flat_map(|file| file.lengths.iter().map(|(number, _)| *number));
            let named = self.changes.iter().map(|(number, _)| *number);
            let fresh: std::collections::BTreeSet<u64> = written.chain(lengths).chain(named).collect();
            self.fresh = fresh.into_iter().collect();
        }
    }

    /// Writes what a power cut leaves into an empty folder.
    pub fn after(&self, cut: Cut, random: &mut Dice, folder: &Path) {
        let moment = match self.fresh.len() {
            0 => u64::MAX,
            some => self.fresh[random.below(some as u64) as usize],
        };
        let mut names = self.synced_names.clone();
        for (number, change) in &self.changes {
            let is_kept = match cut {
                Cut::Nothing => false,
                Cut::Everything => true,
                Cut::Torn => *number <= moment,
                Cut::Shuffled => random.below(2) == 0,
            };
            if is_kept {
                rename(&mut names, change);
            }
        }
        for (name, file) in names {
            std::fs::write(folder.join(name), self.files[file].after(cut, moment, random)).unwrap();
        }
    }

    /// Checks that the folder is as the record of all events says, and so that none was missed.
    pub fn agrees_with(&self, folder: &Path) {
        let mut found: BTreeMap<String, Vec<u8>> =
            read(folder).into_iter().map(|(name, _, bytes)| (name, bytes)).collect();
        for (name, file) in &self.names {
            let bytes = found.remove(name).unwrap_or_else(|| panic!("{name} should be there"));
            assert!(bytes == self.files[*file].cached, "{name} is not as it was recorded");
        }
        assert!(found.is_empty(), "{:?} were not recorded", found.keys());
    }
}
