//! A PostgreSQL of a test's own, to be killed, filled up, copied and promoted, and a pooler in front of it.
//! Connections go through sockets in a folder of its own: no TCP port is chosen, so no other process can take
//! it while the server is down.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::signal::kill;

/// The variable that says where PostgreSQL's programs are.
pub const PROGRAMS: &str = "SEMEL_TEST_POSTGRES_PROGRAMS";
/// The variable that says where pgbouncer is.
pub const POOLER: &str = "SEMEL_TEST_PGBOUNCER";
/// The variable with the account that the programs run as, numeric `user:group`, when the test run is root:
/// they refuse to run as root.
pub const ACCOUNT: &str = "SEMEL_TEST_ACCOUNT";

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);
/// The port number in a socket's name.
const PORT: u16 = 5432;
/// What was committed survives the death of processes. A crash of the machine is not simulated, so nothing is
/// synced.
const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=on",
    "autovacuum=off",
    "max_connections=200",
    "shared_buffers=32MB",
    "deadlock_timeout=200ms",
    "log_min_messages=warning",
    "hot_standby=on",
    "max_wal_senders=4",
    "wal_keep_size=64MB",
    "wal_retrieve_retry_interval=100ms",
];

/// The value of an environment variable.
fn told(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set, and this test starts programs of its own: run `cargo xtask test`, or `cargo xtask services` \
             in another terminal and export what it prints"
        )
    })
}

fn account() -> Option<(u32, u32)> {
    let told = std::env::var(ACCOUNT).ok()?;
    let (user, group) = told.split_once(':').unwrap();
    Some((user.parse().unwrap(), group.parse().unwrap()))
}

/// Makes a command run as an account that is not root, with no input, the C locale and `/` as its directory.
fn as_somebody(mut command: Command) -> Command {
    command.stdin(Stdio::null()).env("LC_ALL", "C").current_dir("/");
    if let Some((user, group)) = account() {
        command.uid(user).gid(group);
    }
    command
}

/// A folder owned by the account that the programs run as.
fn own_folder(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    if let Some((user, group)) = account() {
        chown(path, Some(user), Some(group)).unwrap();
    }
}

/// The major version of the PostgreSQL programs.
pub fn version() -> u32 {
    let output = Command::new(Path::new(&told(PROGRAMS)).join("postgres")).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split(|letter: char| !letter.is_ascii_digit()).find_map(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("postgres does not say its version: {text}"))
}

/// The address of the cluster in a folder, which may be a symbolic link.
pub fn address(folder: &Path) -> String {
    url(folder, PORT)
}

/// The address of a database, given its socket's folder. Slashes in the folder's name are percent-encoded.
fn url(folder: &Path, port: u16) -> String {
    format!("postgres://postgres@{}:{port}/postgres", host(folder))
}

fn host(folder: &Path) -> String {
    folder.to_str().unwrap().replace('/', "%2F")
}

/// A PostgreSQL cluster in a folder. Dropping it stops the server.
pub struct Cluster {
    folder: PathBuf,
    process: Option<Child>,
}

impl Cluster {
    /// A fresh cluster, not started.
    pub fn new(folder: &Path) -> Self {
        Self::new_with(folder, &[])
    }

    /// As [`new`](Self::new), with additional arguments for `initdb`.
    pub fn new_with(folder: &Path, more: &[&str]) -> Self {
        let cluster = Self::at(folder);
        let mut command = cluster.command("initdb");
        command.arg("-D").arg(cluster.data());
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]).args(more);
        run(command);
        cluster
    }

    /// A standby of this cluster in another folder, whose contents are deleted first; not started.
    pub fn standby(&self, folder: &Path) -> Self {
        // Processes of an earlier cluster in that folder may still be ending.
        let begun = Instant::now();
        while folder.exists() && std::fs::remove_dir_all(folder).is_err() {
            assert!(begun.elapsed() < START, "{} cannot be removed", folder.display());
            std::thread::sleep(POLL);
        }
        let standby = Self::at(folder);
        let mut command = self.command("pg_basebackup");
        command.arg("-D").arg(standby.data()).arg("-h").arg(&self.folder);
        command.args([
            "-p",
            &PORT.to_string(),
            "-U",
            "postgres",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        ]);
        run(command);
        standby
    }

    fn at(folder: &Path) -> Self {
        own_folder(folder);
        Self { folder: folder.to_owned(), process: None }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The address of the cluster's database.
    pub fn url(&self) -> String {
        url(&self.folder, PORT)
    }

    /// The address of whichever of two clusters takes writes: this one, or one that is or will be in the
    /// folder `other`.
    pub fn url_with(&self, other: &Path) -> String {
        format!("postgres://postgres@{}:{PORT},{}:{PORT}/postgres", host(&self.folder), host(other))
    }

    /// The server's log, over all its starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn command(&self, program: &str) -> Command {
        as_somebody(Command::new(Path::new(&told(PROGRAMS)).join(program)))
    }

    /// Starts the server with additional settings, and waits until it takes connections.
    pub fn start(&mut self, settings: &[&str]) {
        self.start_by(self.command("postgres"), settings);
    }

    /// Starts the server with a limit on the length of each of its files, in blocks of 512 bytes: a full disk
    /// without needing one.
    ///
    /// Unless `blocks` is a whole number of pages, a page gets partly written, as on a full disk.
    pub fn start_within(&mut self, blocks: u32) {
        let mut command = as_somebody(Command::new("sh"));
        let postgres = Path::new(&told(PROGRAMS)).join("postgres");
        command.args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")]).arg(postgres);
        self.start_by(command, &[]);
    }

    fn start_by(&mut self, mut command: Command, settings: &[&str]) {
        assert!(self.process.is_none(), "it is running");
        let file: File = OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.folder).args(["-p", &PORT.to_string()]);
        command.args(SETTINGS.iter().chain(settings).flat_map(|setting| ["-c", setting]));
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let begun = Instant::now();
        loop {
            self.process = Some(command.spawn().unwrap());
            // Processes of the previous start may still be ending; until then the server does not start.
            while !self.has_ended() {
                if self.answers() {
                    return;
                }
                assert!(begun.elapsed() < START, "PostgreSQL does not answer:\n{}", self.log());
                std::thread::sleep(POLL);
            }
            assert!(begun.elapsed() < START, "PostgreSQL does not start:\n{}", self.log());
            std::thread::sleep(POLL);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    /// Whether `postmaster.pid` says that the server is ready. A file left by an earlier process names
    /// another pid.
    fn answers(&self) -> bool {
        let Some(pid) = self.process.as_ref().map(|process| process.id().to_string()) else { return false };
        let state = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = state.lines().map(str::trim);
        lines.next() == Some(&pid) && lines.any(|line| line == "ready" || line == "standby")
    }

    /// Sends SIGKILL to the postmaster, on which all other processes depend.
    pub fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Stops the server as a power cut does: nothing is finished.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let mut command = self.command("pg_ctl");
        command.args(["stop", "-s", "-m", "immediate", "-D"]).arg(self.data());
        if !command.status().is_ok_and(|status| status.success()) {
            drop(process.kill());
        }
        drop(process.wait());
    }

    /// Promotes a standby: it takes writes from now on.
    pub fn promote(&self) {
        let mut command = self.command("pg_ctl");
        command.args(["promote", "-s", "-w", "-t", "120", "-D"]).arg(self.data());
        run(command);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Sends SIGKILL to one process of a cluster. Returns whether it still existed.
pub fn kill_process(pid: i32) -> bool {
    let mut command = as_somebody(kill("-KILL", pid));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().unwrap().success()
}

fn run(mut command: Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A pgbouncer that assigns server connections per transaction. Dropping it stops it.
pub struct Pooler {
    folder: PathBuf,
    process: Child,
}

impl Pooler {
    /// Starts a pooler in a folder, for a database at `postgres://postgres@HOST:PORT/…` or that of a cluster,
    /// with this many connections.
    pub fn start(folder: &Path, database: &str, connections: u32) -> Self {
        own_folder(folder);
        let place = database.split('@').nth(1).unwrap().split('/').next().unwrap();
        let (host, port) = place.rsplit_once(':').unwrap();
        let host = host.replace("%2F", "/");
        let text = format!(
            "[databases]\n* = host={host} port={port} user=postgres\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n\
             unix_socket_dir = {0}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {connections}\n\
             max_client_conn = 1000\nlogfile = {0}/log\npidfile = {0}/pid\n",
            folder.display()
        );
        let settings = folder.join("pgbouncer.ini");
        std::fs::write(&settings, text).unwrap();
        let mut command = as_somebody(Command::new(told(POOLER)));
        command.arg("-q").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let socket = folder.join(format!(".s.PGSQL.{PORT}"));
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(process.try_wait().unwrap().is_none(), "pgbouncer has ended: {}", log());
            assert!(begun.elapsed() < START, "pgbouncer does not start: {}", log());
            std::thread::sleep(POLL);
        }
        Self { folder: folder.to_owned(), process }
    }

    /// The address of the database through the pooler.
    pub fn url(&self) -> String {
        url(&self.folder, PORT)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
