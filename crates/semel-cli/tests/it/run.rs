//! Runs `semel` in a folder of its own, away from everybody's settings.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A folder that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("semel-it-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `semel` in this folder, with no settings but those of the test.
    pub fn semel(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.current_dir(&self.0).args(words).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SEMEL_") {
                command.env_remove(name);
            }
        }
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

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// What a run gave.
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
    out: BufReader<std::process::ChildStdout>,
    pub url: String,
}

impl Server {
    /// Starts `semel serve` on a free port.
    pub fn start(folder: &Folder, words: &[&str]) -> Self {
        Self::start_command(folder.semel(&[&["serve", "--listen", "127.0.0.1:0"], words].concat()))
    }

    pub fn start_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let Some(url) = line.trim_end().strip_prefix("listening on ") else {
            let mut err = String::new();
            child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
            panic!("it said {line:?} and {err}");
        };
        Self { url: url.to_owned(), child, out }
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Reads its log until it says this, and not a letter further.
    pub fn log_until(&mut self, part: &str) -> String {
        let (mut log, mut letter) = (Vec::new(), [0]);
        let stderr = self.child.stderr.as_mut().unwrap();
        while !log.ends_with(part.as_bytes()) {
            assert_eq!(stderr.read(&mut letter).unwrap(), 1, "{}", String::from_utf8_lossy(&log));
            log.push(letter[0]);
        }
        String::from_utf8(log).unwrap()
    }

    /// Sends SIGTERM, waits for the end; gives the status, the rest of stdout and all of stderr.
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
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status, out, err)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already when the test went well.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
