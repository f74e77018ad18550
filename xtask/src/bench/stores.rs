//! The servers that the queues run on: started for this run alone, set up so that acknowledged writes are
//! kept, and emptied before each measurement.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::services::{Folder, Postgres, Redis};

/// The defaults except for memory and WAL size: what is acknowledged is on disk.
const POSTGRES: &[&str] =
    &["max_connections=400", "shared_buffers=1GB", "max_wal_size=4GB", "log_min_messages=warning"];
const EVERYSEC: &[&str] = &["--appendfsync", "everysec"];
const DATABASE: &str = "bench";
const TICKS_PER_SECOND: f64 = 100.0;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A file of the queue's own.
    File,
    /// PostgreSQL.
    Postgres,
    /// Redis with an fsync before each answer.
    RedisAlways,
    /// Redis with an fsync every second.
    RedisEverysec,
}

impl Store {
    /// All kinds of stores.
    pub const ALL: [Self; 4] = [Self::File, Self::Postgres, Self::RedisAlways, Self::RedisEverysec];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Postgres => "PostgreSQL",
            Self::RedisAlways => "Redis (always)",
            Self::RedisEverysec => "Redis (everysec)",
        }
    }

    /// What an acknowledged write survives, and the settings that decide it.
    pub const fn durability(self) -> &'static str {
        match self {
            Self::File => "an fsync before every answer",
            Self::Postgres => {
                "fsync, synchronous_commit and full_page_writes on; shared_buffers 1 GB, max_wal_size 4 GB"
            }
            Self::RedisAlways => "appendonly yes, appendfsync always",
            Self::RedisEverysec => {
                "appendonly yes, appendfsync everysec: a machine crash may lose the last second or two"
            }
        }
    }
}

/// The running servers.
pub struct Stores {
    postgres: Option<Postgres>,
    always: Option<Redis>,
    everysec: Option<Redis>,
    files: Folder,
}

/// The place where a program finds its store.
pub struct Place {
    store: Store,
    /// The address.
    pub url: String,
}

impl Stores {
    /// Starts the servers of these stores.
    ///
    /// # Errors
    /// What is missing, and how to install it.
    pub fn start(wanted: &[Store]) -> Result<Self, String> {
        let is_wanted = |store: Store| wanted.contains(&store);
        let postgres = is_wanted(Store::Postgres).then(|| Postgres::start_with(POSTGRES)).transpose()?;
        let always = is_wanted(Store::RedisAlways).then(|| Redis::start_with(&[])).transpose()?;
        let everysec = is_wanted(Store::RedisEverysec).then(|| Redis::start_with(EVERYSEC)).transpose()?;
        Ok(Self { postgres, always, everysec, files: Folder::new("bench-peers")? })
    }

    /// The versions of the servers.
    pub fn versions(&self) -> Vec<String> {
        let postgres = self.postgres.as_ref().map(|server| said(&server.programs().join("postgres")));
        let redis = self.always.as_ref().or(self.everysec.as_ref()).map(|server| said(server.program()));
        postgres.into_iter().chain(redis).collect()
    }

    /// An empty store.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn empty(&self, store: Store) -> Result<Place, String> {
        let url = match store {
            Store::File => {
                let folder = self.files.path().join("store");
                drop(std::fs::remove_dir_all(&folder));
                std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
                format!("sqlite:{}", folder.join("jobs.db").display())
            }
            Store::Postgres => {
                let server = self.postgres()?;
                self.sql("postgres", &format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"))?;
                self.sql("postgres", &format!("CREATE DATABASE {DATABASE}"))?;
                // So that no measurement pays for pages that the one before left to be written.
                self.sql("postgres", "CHECKPOINT")?;
                server
                    .url()
                    .replace("/postgres", &format!("/{DATABASE}"))
                    .replace(&format!("/{DATABASE}@"), "/postgres@")
            }
            Store::RedisAlways | Store::RedisEverysec => {
                let server = self.redis(store)?;
                redis(server, "FLUSHALL")?;
                server.url()
            }
        };
        Ok(Place { store, url })
    }

    /// The size of the store in bytes.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn bytes(&self, place: &Place) -> Result<u64, String> {
        match place.store {
            Store::File => Ok(bytes_in(&self.files.path().join("store"))),
            Store::Postgres => {
                let size = self.sql(DATABASE, "SELECT pg_database_size(current_database())")?;
                size.trim()
                    .parse()
                    .map_err(|_| format!("PostgreSQL reported a size that is not a number: {size}"))
            }
            Store::RedisAlways | Store::RedisEverysec => {
                let info = redis(self.redis(place.store)?, "INFO memory")?;
                let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
                used.and_then(|text| text.trim().parse().ok())
                    .ok_or_else(|| "Redis did not report its size".to_owned())
            }
        }
    }

    /// The processor seconds that the server has used since its start, including its connections' processes.
    pub fn processor_seconds(&self, store: Store) -> f64 {
        let process = match store {
            Store::File => None,
            Store::Postgres => self.postgres.as_ref().and_then(Postgres::process),
            Store::RedisAlways => self.always.as_ref().and_then(Redis::process),
            Store::RedisEverysec => self.everysec.as_ref().and_then(Redis::process),
        };
        process.map_or(0.0, spent)
    }

    fn postgres(&self) -> Result<&Postgres, String> {
        self.postgres.as_ref().ok_or_else(|| "PostgreSQL was not started".to_owned())
    }

    fn redis(&self, store: Store) -> Result<&Redis, String> {
        let server = if store == Store::RedisAlways { &self.always } else { &self.everysec };
        server.as_ref().ok_or_else(|| "Redis was not started".to_owned())
    }

    fn sql(&self, database: &str, statement: &str) -> Result<String, String> {
        let server = self.postgres()?;
        let url = server.url();
        let address = url.rsplit_once('/').map_or(url.as_str(), |(address, _)| address);
        let output = Command::new(server.programs().join("psql"))
            .args(["-X", "-q", "-t", "-A", "-d", &format!("{address}/{database}"), "-c", statement])
            .output()
            .map_err(|error| format!("psql cannot be started: {error}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("{statement}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

fn said(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    output.map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .filter(std::fs::Metadata::is_file)
        .map(|file| file.len())
        .sum()
}

/// Sends one command to Redis, and returns the answer.
fn redis(server: &Redis, command: &str) -> Result<String, String> {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some(length) = line.strip_prefix('$').and_then(|text| text.trim().parse::<u64>().ok()) else {
            return Ok(line);
        };
        let mut text = String::new();
        reader.take(length).read_to_string(&mut text)?;
        Ok(text)
    };
    let answer = asked().map_err(|error| format!("Redis: {error}"))?;
    if answer.starts_with('-') { Err(format!("Redis: {}", answer.trim())) } else { Ok(answer) }
}

/// The processor seconds of a process, its ended children, and its live ones.
fn spent(process: u32) -> f64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(|stat| ticks(&stat, process)).sum::<f64>() / TICKS_PER_SECOND
}

/// The ticks in a line of `/proc/PID/stat`, if it is this process or a child of it (proc(5)).
fn ticks(stat: &str, process: u32) -> Option<f64> {
    let (id, rest) = stat.split_once(" (")?;
    // The name may contain anything; only numbers come after it.
    let fields: Vec<&str> = rest.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok());
    let is_itself = id.parse() == Ok(process);
    let is_child = fields.get(1).and_then(|text| text.parse().ok()) == Some(process);
    let own = number(11)? + number(12)?;
    match (is_itself, is_child) {
        (true, _) => Some(own + number(13)? + number(14)?),
        (_, true) => Some(own),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn what_a_server_spent_is_its_own_and_its_childrens() {
        let line = |id: u32, parent: u32| {
            format!("{id} (post gres) x) S {parent} 1 1 0 -1 0 0 0 0 0 100 20 3000 400 20 0 1 0 5 0 0")
        };
        assert_eq!(ticks(&line(7, 1), 7), Some(3_520.0));
        assert_eq!(ticks(&line(8, 7), 7), Some(120.0));
        assert_eq!(ticks(&line(9, 8), 7), None);
        assert_eq!(ticks("nonsense", 7), None);
    }
}
