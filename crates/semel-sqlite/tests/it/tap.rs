//! Starts this test program again with `tap.c` between it and its disk, and reads the record that the tap
//! made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use semel_testkit::TempDir;

/// One change of the disk, or one line that the process printed.
#[derive(Debug)]
pub enum Event {
    Create { file: u64, path: String },
    Write { file: u64, place: usize, bytes: Vec<u8> },
    Length { file: u64, length: usize },
    Sync { file: u64 },
    SyncFolder,
    Failed { file: u64 },
    Unlink { path: String },
    Rename { from: String, to: String },
    Said(String),
}

/// The tap, compiled once, and a folder whose files it watches.
pub struct Tap {
    library: Arc<TempDir>,
    dir: TempDir,
}

/// The trouble that the tap makes, besides recording.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    None,
    /// SIGKILL at the sync with this number: after it is made if `true`, and before otherwise.
    Kill(u64, bool),
    /// EIO at every sync of the journal, from the one with this number on.
    FailJournal(u64),
    /// EIO at the sync with this number alone, of those of files with this in their names.
    Fail(u64, &'static str),
    /// EDQUOT at every write to files whose names end in this, while the file [`used_up`](Tap::used_up)
    /// exists.
    Quota(&'static str),
}

impl Tap {
    /// Compiles the tap: a machine that builds SQLite has a C compiler.
    pub fn new() -> Self {
        let library = TempDir::in_memory();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tap.c");
        let built = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
            .args([library.path().join("tap.so").as_os_str(), source.as_ref()])
            .output()
            .unwrap_or_else(|error| panic!("no C compiler (CC, or cc): {error}"));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Self::watching_with(Arc::new(library))
    }

    /// The same tap with another folder.
    pub fn another(&self) -> Self {
        Self::watching_with(Arc::clone(&self.library))
    }

    fn watching_with(library: Arc<TempDir>) -> Self {
        let dir = TempDir::in_memory();
        std::fs::create_dir(dir.path().join("disk")).unwrap();
        std::fs::create_dir(dir.path().join("pages")).unwrap();
        Self { library, dir }
    }

    /// The folder that is watched.
    pub fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// A folder beside it that is not watched.
    pub fn pages(&self) -> PathBuf {
        self.dir.path().join("pages")
    }

    /// While this file exists, the quota is used up.
    pub fn used_up(&self) -> PathBuf {
        self.dir.path().join("used-up")
    }

    /// Runs a test of this program until it ends, or the trouble ends it.
    pub fn run(&self, test: &str, variable: (&str, String), trouble: Trouble) -> Output {
        let record = self.dir.path().join("record");
        drop(std::fs::remove_file(&record));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(variable.0, variable.1)
            .env("LD_PRELOAD", self.library.path().join("tap.so"))
            .env("TAP_FOLDER", self.disk())
            .env("TAP_RECORD", record)
            .env("RUST_BACKTRACE", "0");
        match trouble {
            Trouble::None => {}
            Trouble::Kill(sync, after) => {
                command.env("TAP_KILL", sync.to_string());
                if after {
                    command.env("TAP_AFTER", "1");
                }
            }
            Trouble::FailJournal(sync) => {
                command.env("TAP_FAIL", sync.to_string()).env("TAP_ONLY", "-log.");
            }
            Trouble::Fail(sync, only) => {
                command.env("TAP_FAIL", sync.to_string()).env("TAP_ONLY", only).env("TAP_ONCE", "1");
            }
            Trouble::Quota(end) => {
                command.env("TAP_QUOTA", self.used_up()).env("TAP_END", end);
            }
        }
        command.output().unwrap()
    }

    /// The events of the last run; a process that was killed may have cut the last one short.
    pub fn record(&self) -> Vec<Event> {
        let bytes = std::fs::read(self.dir.path().join("record")).unwrap();
        let (mut events, mut rest) = (Vec::new(), bytes.as_slice());
        while let Some((head, after)) = rest.split_first_chunk::<32>() {
            let number = |at: usize| u64::from_le_bytes(head[at * 8..at * 8 + 8].try_into().unwrap());
            let length = number(3) as usize;
            let Some((bytes, after)) = after.split_at_checked(length) else { break };
            events.push(event(number(0), number(1), number(2) as usize, bytes, &self.disk()));
            rest = after;
        }
        events
    }
}

fn event(kind: u64, file: u64, place: usize, bytes: &[u8], disk: &Path) -> Event {
    let text = || String::from_utf8_lossy(bytes).into_owned();
    let name = |path: &str| Path::new(path).strip_prefix(disk).unwrap().display().to_string();
    match kind {
        1 => Event::Create { file, path: name(&text()) },
        2 => Event::Write { file, place, bytes: bytes.to_vec() },
        3 => Event::Length { file, length: place },
        4 => Event::Sync { file },
        5 => Event::SyncFolder,
        6 => Event::Unlink { path: name(&text()) },
        7 => {
            let both = text();
            let (from, to) = both.split_once('\n').unwrap();
            Event::Rename { from: name(from), to: name(to) }
        }
        8 => Event::Said(text()),
        9 => Event::Failed { file },
        other => panic!("the tap told {other}"),
    }
}
