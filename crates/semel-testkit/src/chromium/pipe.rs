//! A Chromium of a test's own, and the pipe that controls it.
//!
//! It is driven by the protocol of its developer tools, over two pipes that the process inherits: no driver
//! of a matching version to install, no port to choose, no WebSocket, and no dependency. Messages are JSON,
//! each followed by a zero byte.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::TempDir;

/// The variable that says where Chromium is.
pub const VARIABLE: &str = "SEMEL_TEST_CHROMIUM";

/// How long an answer may take on a busy machine; the first one includes the start.
const ANSWER: Duration = Duration::from_secs(120);

/// Options under which Chromium contacts no server on its own, and needs neither a screen nor an account.
const FLAGS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// The running process.
pub struct Pipe {
    process: Child,
    input: ChildStdin,
    inbox: Receiver<Value>,
    last: u64,
    /// The browser's profile directory, deleted with it.
    _profile: TempDir,
}

impl Pipe {
    /// Starts Chromium.
    pub fn start() -> Self {
        let program = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!(
                "{VARIABLE} is not set, and this test looks at the dashboard in Chromium: run `cargo xtask test`, or \
                 `cargo xtask services` in another terminal and export what it prints"
            )
        });
        let profile = TempDir::new();
        let mut command = Command::new("sh");
        // Chromium reads descriptor 3 and writes descriptor 4.
        command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, &program]);
        command.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg("about:blank").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (tell, inbox) = channel();
        // The thread ends with the process, which closes its end of the pipe.
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                message.pop_if(|last| *last == 0);
                let told = serde_json::from_slice(&message);
                message.clear();
                if told.is_ok_and(|told| tell.send(told).is_err()) {
                    break;
                }
            }
        });
        Self { process, input, inbox, last: 0, _profile: profile }
    }

    /// Sends a request and returns its answer; events that arrive before it go to `hear`.
    pub fn ask(
        &mut self,
        session: Option<&str>,
        method: &str,
        parameters: &Value,
        mut hear: impl FnMut(Value),
    ) -> Result<Value, String> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.input.write_all(&text).map_err(|error| format!("{method}: {error}"))?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok(mut told) if told["id"] == self.last => {
                    return match told.get("error") {
                        Some(error) => Err(format!("{method}: {error}")),
                        None => Ok(told["result"].take()),
                    };
                }
                Ok(told) => hear(told),
                Err(RecvTimeoutError::Timeout) => return Err(format!("{method}: no answer in {ANSWER:?}")),
                Err(RecvTimeoutError::Disconnected) => return Err(format!("{method}: Chromium has ended")),
            }
        }
    }

    /// The events that have arrived, without waiting.
    pub fn told(&self) -> impl Iterator<Item = Value> {
        self.inbox.try_iter()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
