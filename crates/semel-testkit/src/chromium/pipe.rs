//! A Chromium of a test's own, and the pipe over which it is told what to do.
//!
//! It is driven by the protocol of its developer tools, over two pipes that the process inherits: so there is no driver of
//! the same version to install, no port to choose, no WebSocket, and nothing to depend on. Messages are JSON, each with a
//! zero byte behind it.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::TempDir;

/// Says where Chromium is.
pub const VARIABLE: &str = "SEMEL_TEST_CHROMIUM";

/// How long an answer may take on a machine that does other things as well; the first one begins with the start.
const ANSWER: Duration = Duration::from_secs(120);

/// It asks nobody on its own, and needs neither a screen nor an account.
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
    /// Its memory, gone with it.
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
        // The descriptors that it reads and writes are 3 and 4.
        command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, &program]);
        command.args(FLAGS).arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg("about:blank").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (tell, inbox) = channel();
        // Ends with the process, which closes its end.
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

    /// Asks, and gives what was answered; what else was told before goes to `hear`.
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

    /// What was told meanwhile, without waiting.
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
