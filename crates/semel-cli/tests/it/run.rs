//! Runs `semel` in a folder of its own, isolated from the user's settings.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_testkit::TempDir;
use semel_testkit::signal::kill;
use serde_json::Value;

use crate::log::Log;
use crate::requests;

/// A folder that is removed at the end.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(TempDir::new())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// `semel` in this folder, with no settings but those of the test.
    pub fn semel(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.current_dir(self.path()).args(words).stdin(Stdio::null());
        without_settings(&mut command);
        command
    }

    /// Runs it to its end.
    pub fn run(&self, words: &[&str]) -> Ran {
        Ran::of(&mut self.semel(words))
    }

    /// Runs it with `--json`, which must go well.
    pub fn json(&self, words: &[&str]) -> Value {
        let ran = self.run(&[words, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{words:?}: {error}: {}", ran.out))
    }
}

/// Removes from a command's environment whatever would be a setting of `semel`.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SEMEL_") {
            command.env_remove(name);
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A server that is ready; killed when the test breaks off.
pub struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    log: Arc<Log>,
    pub url: String,
}

impl Server {
    /// Starts `semel serve` on a free port.
    pub fn start(folder: &Folder, words: &[&str]) -> Self {
        Self::start_command(folder.semel(&[&["serve", "--listen", "127.0.0.1:0"], words].concat()))
    }

    pub fn start_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::of(child.stderr.take().unwrap());
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let Some(url) = line.trim_end().strip_prefix("listening on ") else {
            panic!("it said {line:?} and {}", log.rest());
        };
        Self { url: url.to_owned(), child, out, log }
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        assert!(kill(name, self.child.id()).status().unwrap().success());
    }

    /// Sends a POST and returns the answer.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        requests::post(&self.url, path, body).unwrap().1
    }

    /// Reads its log up to and including this text.
    pub fn log_until(&self, part: &str) -> String {
        self.log.until(part)
    }

    /// Sends SIGTERM and waits for the end. Returns the status, and the rest of stdout and of stderr.
    pub fn stop(mut self) -> (ExitStatus, String, String) {
        self.signal("-TERM");
        self.end()
    }

    /// Waits for the end, as [`stop`](Self::stop) does, without asking for it.
    pub fn end(&mut self) -> (ExitStatus, String, String) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut out = String::new();
        self.out.read_to_string(&mut out).unwrap();
        (status, out, self.log.rest())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already when the test went well.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A server whose log no test reads goes on.
#[cfg(unix)]
#[test]
fn a_log_is_read_as_it_comes() {
    // More than a pipe holds, before it is ready.
    let mut command = Command::new("sh");
    command.args(["-c", "head -c 300000 /dev/zero | tr '\\0' a >&2; echo listening on nothing; echo bc >&2"]);
    let mut server = Server::start_command(command);
    assert_eq!(server.url, "nothing");
    assert_eq!(server.log_until("b").len(), 300_001);
    let (status, out, rest) = server.end();
    assert_eq!((status.code(), out.as_str(), rest.as_str()), (Some(0), "", "c\n"));
}
