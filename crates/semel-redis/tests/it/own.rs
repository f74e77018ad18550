//! A Redis of a test's own, to be killed and configured as the test likes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use semel_testkit::redis::program;
use semel_testkit::signal::kill;

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(120);

/// A Redis in a folder, reached by a socket there. It ends when this is dropped.
pub struct Own {
    folder: PathBuf,
    settings: Vec<String>,
    process: Child,
}

impl Own {
    /// Starts one with these settings beside those of every test.
    pub async fn start(folder: &Path, settings: &[&str]) -> Self {
        Self::try_start(folder, settings).await.unwrap()
    }

    /// The same; `None` if the process ends at once.
    pub async fn try_start(folder: &Path, settings: &[&str]) -> Option<Self> {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let process = run(folder, &settings);
        let mut own = Self { folder: folder.to_owned(), settings, process };
        own.answers().await.then_some(own)
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.join("sock").display())
    }

    /// A connection of the test's own.
    pub async fn connection(&self) -> MultiplexedConnection {
        patient(&self.url()).await
    }

    /// Waits until it serves requests, with its data loaded. Returns false if the process has ended.
    async fn answers(&mut self) -> bool {
        let begun = Instant::now();
        let client = redis::Client::open(self.url()).unwrap();
        loop {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await
                && match redis::cmd("PING").exec_async(&mut connection).await {
                    Ok(()) => true,
                    // It is up, and asks for a password.
                    Err(error) => error.code() == Some("NOAUTH"),
                }
            {
                return true;
            }
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(begun.elapsed() < START, "it does not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGSTOP: the process stays, and does nothing.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let sent = kill(name, self.process.id()).status().unwrap();
        assert!(sent.success());
    }

    /// SIGKILL, and a restart on what was left.
    pub async fn kill(&mut self) {
        self.end();
        self.start_again().await;
    }

    /// SIGKILL, and a restart with additional settings that is not waited for.
    pub fn restart_with(&mut self, more: &[&str]) {
        self.end();
        self.settings.extend(more.iter().map(|setting| (*setting).to_owned()));
        self.process = run(&self.folder, &self.settings);
    }

    /// SIGKILL.
    pub fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Restarts it on what was left; if its port is taken by then, waits until it is free.
    pub async fn start_again(&mut self) {
        let begun = Instant::now();
        loop {
            self.process = run(&self.folder, &self.settings);
            if self.answers().await {
                return;
            }
            assert!(begun.elapsed() < START, "it does not start again");
        }
    }
}

/// A connection without timeouts.
pub async fn patient(url: &str) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// How often a command of Redis was called.
pub async fn calls(connection: &mut MultiplexedConnection, name: &str) -> u64 {
    let said: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
    let name = format!("cmdstat_{name}:calls=");
    let of = said.lines().find_map(|line| line.strip_prefix(&name));
    of.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The configuration file of a sentinel, if there is one.
pub const SENTINEL: &str = "sentinel.conf";

fn run(folder: &Path, settings: &[String]) -> Child {
    let mut command = Command::new(program());
    let sentinel = folder.join(SENTINEL);
    if sentinel.exists() {
        command.arg(sentinel).arg("--sentinel").arg("--unixsocket").arg(folder.join("sock"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        return command.spawn().unwrap();
    }
    command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"]);
    command.args(settings).arg("--unixsocket").arg(folder.join("sock")).arg("--dir").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}
