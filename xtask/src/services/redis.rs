//! A Redis of this run, with its own data and port, deleted at the end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Folder, free_port, install, on_path};

/// The variable that tells tests the address.
pub const VARIABLE: &str = "SEMEL_TEST_REDIS";
/// The variable with the program, for tests that kill a Redis of their own.
pub const PROGRAM: &str = "SEMEL_TEST_REDIS_PROGRAM";

/// The oldest version that is supported.
const OLDEST: u32 = 7;
/// How long a start may take.
const START: Duration = Duration::from_secs(60);
/// How often to check whether it is up.
const POLL: Duration = Duration::from_millis(50);
/// Settings as a store needs them: nothing that was answered is lost.
const SETTINGS: &[&str] = &[
    "--bind",
    "127.0.0.1",
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--maxmemory-policy",
    "noeviction",
    "--save",
    "",
    "--daemonize",
    "no",
];

/// A running Redis.
pub struct Redis {
    program: PathBuf,
    folder: Folder,
    port: u16,
    settings: &'static [&'static str],
    process: Option<Child>,
}

impl Redis {
    /// Finds Redis, or installs it, and starts one for tests.
    ///
    /// # Errors
    /// What is missing, and how to install it.
    pub fn start() -> Result<Self, String> {
        Self::start_with(&[])
    }

    /// Starts one with these settings in addition to those for tests, overriding them where both are given.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(settings: &'static [&'static str]) -> Result<Self, String> {
        let program = match on_path("redis-server") {
            Some(program) => program,
            None => {
                install("redis-server").map_err(|reason| format!("{}: {reason}", missing()))?;
                on_path("redis-server").ok_or_else(missing)?
            }
        };
        Self::run_program(program, settings)
    }

    /// Starts a Redis from this program, for tests.
    ///
    /// # Errors
    /// Why it does not run.
    pub fn start_program(program: PathBuf) -> Result<Self, String> {
        Self::run_program(program, &[])
    }

    fn run_program(program: PathBuf, settings: &'static [&'static str]) -> Result<Self, String> {
        let version = version(&program)?;
        if version < OLDEST {
            return Err(format!(
                "Redis {version} in {} is too old: the tests need {OLDEST} or later",
                program.display()
            ));
        }
        let port = free_port()?;
        // The port makes it unique: a run may have several.
        let folder = Folder::new(&format!("redis-{port}"))?;
        let mut server = Self { program, folder, port, settings, process: None };
        server.run()?;
        println!(
            "version {version} of {}: one of this run on port {}, {VARIABLE}={}",
            server.program.display(),
            server.port,
            server.url()
        );
        Ok(server)
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port on this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn process(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The environment variables for the tests, with their values.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        [(VARIABLE, self.url()), (PROGRAM, self.program().display().to_string())]
    }

    fn run(&mut self) -> Result<(), String> {
        let log = self.folder.path().join("log");
        let file = File::create(&log).map_err(|error| error.to_string())?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.program);
        command
            .args(SETTINGS)
            .args(self.settings)
            .arg("--port")
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(self.folder.path());
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let process = command.spawn().map_err(|error| format!("redis-server cannot be started: {error}"))?;
        self.process = Some(process);
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let started = Instant::now();
        while started.elapsed() < START {
            if said().contains("Ready to accept connections") {
                return Ok(());
            }
            if let Some(Ok(Some(status))) = self.process.as_mut().map(Child::try_wait) {
                return Err(format!("redis-server ended with {status}:\n{}", said()));
            }
            std::thread::sleep(POLL);
        }
        Err(format!("redis-server did not start in time:\n{}", said()))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // Its data is deleted with it, so it may be killed.
        drop(process.kill());
        drop(process.wait());
    }
}

fn version(program: &Path) -> Result<u32, String> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    major(&text).ok_or_else(|| format!("{} does not say its version: {text}", program.display()))
}

fn major(text: &str) -> Option<u32> {
    let number = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    number.split('.').next()?.parse().ok()
}

fn missing() -> String {
    format!(
        "Redis {OLDEST} or later is not installed, and the Redis store cannot be tested without it: install it \
         (`apt-get install redis-server`, `brew install redis`) or put redis-server on the PATH"
    )
}

#[cfg(test)]
mod tests {
    use super::major;

    #[test]
    fn the_version_is_read_from_what_the_program_says() {
        let said =
            "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=8ed9b8b0a3f6d2c1";
        assert_eq!(major(said), Some(7));
        assert_eq!(major("what?"), None);
    }
}
