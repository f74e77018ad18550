//! What must hold of any bytes that a store finds when it is opened: it opens, or reports what is wrong; it
//! neither panics nor goes on for ever. Played on the kept inputs by `kept.rs`, on endless ones by `fuzz/`.

use std::path::{Path, PathBuf};

use semel_sqlite::Sqlite;
use semel_store::Backend;
use semel_store::backend::Filter;

/// Bytes of a record in front of its payload.
const HEADER: usize = 24;

/// A store with some jobs in its rows and some in its journal, to be damaged in a folder of its own.
pub struct Sample {
    folder: PathBuf,
    files: Vec<(String, Vec<u8>)>,
    identity: i64,
    last: u64,
}

impl Sample {
    /// Samples a store that is closed; `folder` is where damaged copies are opened.
    pub fn of(store: &Path, folder: &Path) -> Self {
        let db = rusqlite::Connection::open(store).unwrap();
        let identity =
            db.query_row("SELECT value FROM fact WHERE name = 'identity'", [], |row| row.get(0)).unwrap();
        db.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
        drop(db);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(store.parent().unwrap()).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if !name.ends_with("-shm") && !name.ends_with(".lock") {
                files.push((name, std::fs::read(entry.path()).unwrap()));
            }
        }
        files.sort();
        let journal = &files.iter().find(|(name, _)| name.ends_with("-log.0")).unwrap().1;
        let mut sample = Self { folder: folder.to_path_buf(), files: files.clone(), identity, last: 0 };
        sample.last = sample.records(journal).last().map_or(0, |(_, cursor)| *cursor);
        sample
    }

    /// Where each record of a journal ends, and its number.
    fn records(&self, bytes: &[u8]) -> Vec<(usize, u64)> {
        let (mut at, mut ends) = (0, Vec::new());
        while let Some(head) = bytes.get(at..at + HEADER) {
            let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
            let cursor = u64::from_le_bytes(head[8..16].try_into().unwrap());
            if bytes.len() < at + HEADER + length || ends.last().is_some_and(|(_, last)| cursor != last + 1) {
                break;
            }
            at += HEADER + length;
            ends.push((at, cursor));
        }
        ends
    }

    /// A record whose checksum is right.
    fn record(&self, payload: &[u8]) -> Vec<u8> {
        let mut rest = Vec::new();
        rest.extend((self.last + 1).to_le_bytes());
        rest.extend(1_767_225_700_000_000_i64.to_le_bytes());
        rest.extend(payload);
        let length = (payload.len() as u32).to_le_bytes();
        let mut sum = crc32fast::Hasher::new();
        sum.update(&self.identity.to_le_bytes());
        sum.update(&length);
        sum.update(&rest);
        [length.as_slice(), &sum.finalize().to_le_bytes(), &rest].concat()
    }

    /// Opens the sample with one of its files changed, and reads everything.
    fn open(&self, changed: &str, change: impl FnOnce(&mut Vec<u8>)) {
        drop(std::fs::remove_dir_all(&self.folder));
        std::fs::create_dir_all(&self.folder).unwrap();
        let mut change = Some(change);
        for (name, bytes) in &self.files {
            let mut bytes = bytes.clone();
            if name.ends_with(changed)
                && let Some(change) = change.take()
            {
                change(&mut bytes);
            }
            std::fs::write(self.folder.join(name), bytes).unwrap();
        }
        let Ok(store) = Sqlite::open(self.folder.join("semel.db")) else { return };
        let store = store.filing_at_once();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut filter = Filter { limit: 50, ..Filter::default() };
            for _ in 0..100 {
                let Ok(page) = store.list(filter.clone()).await else { return };
                let ids = page.heads.iter().map(|head| head.id).collect();
                let reads = semel_core::draft::Reads { fulls: ids, ..Default::default() };
                if store.load(&reads).await.is_err() {
                    return;
                }
                let Some(next) = page.next else { break };
                filter.before = Some(next);
            }
            // Whatever the store took in, it carries over, or reports why not.
            for _ in 0..100 {
                if !matches!(store.maintain().await, Ok(true)) {
                    return;
                }
            }
            panic!("it keeps house for ever");
        });
    }

    /// Makes the journal these bytes; then what it was, followed by a record with these bytes.
    pub fn journal(&self, bytes: &[u8]) {
        self.open("-log.0", |journal| *journal = bytes.to_vec());
        let record = self.record(bytes);
        self.open("-log.0", |journal| {
            let end = self.records(journal).last().map_or(0, |(end, _)| *end);
            journal.truncate(end);
            journal.extend(record);
        });
    }

    /// Changes some bytes of the database: every four bytes of `changes` say where and to what.
    pub fn database(&self, changes: &[u8]) {
        self.open(".db", |database| {
            for change in changes.chunks_exact(4) {
                let place =
                    u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % database.len();
                database[place] = change[3];
            }
        });
    }
}

/// Makes a store to be damaged, in this folder.
pub fn sample(folder: &Path) -> Sample {
    let store = folder.join("whole");
    std::fs::create_dir_all(&store).unwrap();
    let place = store.join("semel.db");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let backend = Sqlite::open(&place).unwrap().filing_at_once();
        for number in 0..8_u32 {
            let offer = semel_testkit::make::keyed(&format!("key {number}")).offer();
            let mut reads = semel_core::draft::Reads::default();
            offer.reads(&mut reads);
            semel_testkit::transact::transact(&backend, &reads, |draft| {
                semel_core::enqueue::enqueue(draft, &offer)
            })
            .await
            .unwrap();
            if number == 4 {
                while backend.maintain().await.unwrap() {}
            }
        }
    });
    Sample::of(&place, &folder.join("damaged"))
}
