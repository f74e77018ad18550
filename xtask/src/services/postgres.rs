//! A PostgreSQL cluster of this run, with its own data and port, deleted at the end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::account::Account;
use super::{Folder, free_port, install, on_path};

/// The variable that tells tests the address.
pub const VARIABLE: &str = "SEMEL_TEST_POSTGRES";
/// The variable with the folder of the programs, for tests that kill, fill up and promote clusters of their
/// own.
pub const PROGRAMS: &str = "SEMEL_TEST_POSTGRES_PROGRAMS";

/// The programs that tests start.
const PROGRAMS_NEEDED: &[&str] = &["postgres", "initdb", "pg_ctl", "pg_basebackup"];
/// Where distributions keep the programs of each version.
const VERSIONS: &[&str] = &["/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt"];
/// The oldest version that is supported.
const OLDEST: u32 = 14;
/// How long a start may take.
const START: Duration = Duration::from_secs(60);
/// How often to check whether it is up.
const POLL: Duration = Duration::from_millis(50);
/// Nothing needs to survive a crash of the machine: in these tests processes die, not the machine. Tests of
/// what survives the server's death start a cluster of their own.
const SETTINGS: &[&str] = &[
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum=off",
    "max_connections=400",
    "shared_buffers=128MB",
    "max_wal_size=4GB",
    "deadlock_timeout=200ms",
    "log_min_messages=warning",
];

/// A running cluster.
pub struct Postgres {
    programs: PathBuf,
    account: Option<Account>,
    folder: Folder,
    port: u16,
    settings: &'static [&'static str],
    process: Option<Child>,
}

impl Postgres {
    /// Finds PostgreSQL, or installs it, and starts a cluster for tests.
    ///
    /// # Errors
    /// What is missing, and how to install it.
    pub fn start() -> Result<Self, String> {
        Self::start_with(SETTINGS)
    }

    /// Starts a cluster with these settings, and the defaults for all others.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(settings: &'static [&'static str]) -> Result<Self, String> {
        let programs = match programs() {
            Some(programs) => programs,
            None => {
                install("postgresql").map_err(|reason| format!("{}: {reason}", missing()))?;
                programs().ok_or_else(missing)?
            }
        };
        let version = version(&programs)?;
        if version < OLDEST {
            return Err(format!(
                "PostgreSQL {version} in {} is too old: the tests need {OLDEST} or later",
                programs.display()
            ));
        }
        let account = Account::for_service(&["postgres", "nobody"])?;
        let folder = Folder::new("postgres")?;
        if let Some(account) = account {
            account.owns(folder.path())?;
        }
        let mut cluster = Self { programs, account, folder, port: free_port()?, settings, process: None };
        cluster.initialise()?;
        cluster.run()?;
        println!(
            "PostgreSQL {version} of {}: a cluster of this run on port {}, {VARIABLE}={}",
            cluster.programs.display(),
            cluster.port,
            cluster.url()
        );
        Ok(cluster)
    }

    /// The address of its database.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The process id of its postmaster.
    pub fn process(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The folder of its programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// The account it runs as, if not that of this process.
    pub fn account(&self) -> Option<Account> {
        self.account
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.stdin(Stdio::null()).env("LC_ALL", "C");
        if let Some(account) = self.account {
            account.runs(&mut command);
        }
        command
    }

    fn initialise(&self) -> Result<(), String> {
        let mut command = self.command("initdb");
        command.arg("-D").arg(self.data());
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]);
        let output = command.output().map_err(|error| format!("initdb cannot be started: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("initdb failed:\n{}", String::from_utf8_lossy(&output.stderr)))
    }

    fn run(&mut self) -> Result<(), String> {
        let log = self.folder.path().join("log");
        let file = File::create(&log).map_err(|error| error.to_string())?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        command.args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        command.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        command.stdout(file).stderr(errors);
        let process = command.spawn().map_err(|error| format!("postgres cannot be started: {error}"))?;
        self.process = Some(process);
        let started = Instant::now();
        while started.elapsed() < START {
            if self.answers() {
                return Ok(());
            }
            let ended = self.process.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                break_off(&log, &format!("postgres ended with {status}"))?;
            }
            std::thread::sleep(POLL);
        }
        break_off(&log, "postgres did not answer in time")
    }

    fn answers(&self) -> bool {
        let mut command = self.command("pg_ctl");
        command.arg("status").arg("-D").arg(self.data()).stdout(Stdio::null()).stderr(Stdio::null());
        let is_running = command.status().is_ok_and(|status| status.success());
        // `postmaster.pid` says `ready` once connections are accepted.
        let state = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        is_running && state.lines().any(|line| line.trim() == "ready")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let mut command = self.command("pg_ctl");
        command.args(["stop", "-s", "-m", "immediate", "-D"]).arg(self.data());
        if !command.status().is_ok_and(|status| status.success()) {
            drop(process.kill());
        }
        drop(process.wait());
    }
}

fn break_off(log: &Path, reason: &str) -> Result<(), String> {
    Err(format!("{reason}:\n{}", std::fs::read_to_string(log).unwrap_or_default()))
}

/// The folder of the newest version's programs.
fn programs() -> Option<PathBuf> {
    let has_all = |folder: &Path| PROGRAMS_NEEDED.iter().all(|program| folder.join(program).is_file());
    // The program on the path may be a link into such a folder, without the other programs beside it.
    let beside = on_path("postgres").and_then(|program| program.canonicalize().ok());
    let beside = beside.and_then(|program| program.parent().map(Path::to_owned));
    if let Some(folder) = beside.filter(|folder| has_all(folder)) {
        return Some(folder);
    }
    let mut found: Vec<PathBuf> = VERSIONS
        .iter()
        .flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten())
        .map(|entry| entry.path().join("bin"))
        .chain(VERSIONS.iter().map(|root| Path::new(root).join("bin")))
        .filter(|folder| has_all(folder))
        .collect();
    found.sort_by_key(|folder| version(folder).unwrap_or(0));
    found.pop()
}

fn version(programs: &Path) -> Result<u32, String> {
    let output = Command::new(programs.join("postgres"))
        .arg("--version")
        .output()
        .map_err(|error| format!("{}: {error}", programs.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    major(&text).ok_or_else(|| format!("{} does not say its version: {text}", programs.display()))
}

fn major(text: &str) -> Option<u32> {
    let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn missing() -> String {
    format!(
        "PostgreSQL {OLDEST} or later is not installed, and the PostgreSQL store cannot be tested without it: install it \
         (`apt-get install postgresql`, `brew install postgresql`) or put its programs on the PATH"
    )
}

#[cfg(test)]
mod tests {
    use super::major;

    #[test]
    fn the_version_is_read_from_what_the_program_says() {
        assert_eq!(major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major("what?"), None);
    }
}
