//! What went wrong, what to do next, and the exit code that says so to a script.

use std::process::ExitCode;

use semel_client::{Bytes, ClientError, StatusCode};

/// How the program ends. The numbers are part of the interface; `semel --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The verb failed: the server or a store refused or failed.
    Failed = 1,
    /// The command line or the configuration is wrong; nothing was tried.
    Usage = 2,
    /// The job was not admitted, or cannot be changed: a duplicate, a mismatch, a conflict of states.
    Duplicate = 3,
    /// What was named does not exist: a job, a key, a cron. Never a queue: a queue without jobs is not
    /// missing.
    NotFound = 4,
    /// No server or database can be reached, or another process owns the store.
    Unreachable = 5,
    /// The demo's own check found a difference.
    Differs = 6,
}

/// The exit codes, as `--help` lists them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failure: the server refused, or the store cannot be used
  2  the command line or the configuration is wrong
  3  not admitted, or not possible now: a duplicate, a mismatch or a conflict
  4  no such job, key, cron or the like
  5  no server or database can be reached, or another process owns the store
  6  the demo's own check found a difference";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// How a user tells a verb which token to send.
const GIVE_TOKEN: &str = "--token-file FILE or SEMEL_TOKEN";

/// Why a verb did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    /// How the program ends.
    pub exit: Exit,
    /// What is wrong.
    pub what: String,
    /// What to do next.
    pub next: Option<String>,
    /// The server's answer, if it refused: `--json` prints it as it came.
    pub answer: Option<Bytes>,
    /// Whether the failure is transient, as when the server is away or busy: a later retry may succeed.
    pub passes: bool,
}

impl Failure {
    /// A failure that ends with `exit`.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), next: None, answer: None, passes: false }
    }

    /// The verb failed.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    /// The command line or the configuration is wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// A command line that does not parse: the parser's message, and its usage as what to do next.
    pub fn misspoken(said: &str) -> Self {
        let said = said.strip_prefix("error: ").unwrap_or(said).trim();
        match said.split_once("\n\n") {
            Some((what, next)) => Self::usage(what).next(next),
            None => Self::usage(said),
        }
    }

    /// The same, with what to do next.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The same, with the URL of the server inside this process replaced by the store: nobody else reaches
    /// that server, and it is gone with the verb.
    #[must_use]
    pub fn of_store(mut self, url: &str, store: &str) -> Self {
        self.what = self.what.replace(url, store);
        self.next = self.next.map(|next| next.replace(url, store));
        self
    }
}

/// Whether access was denied to this account, or the file system is read-only.
pub fn is_forbidden(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let next = match &error {
            ClientError::Status { status: StatusCode::UNAUTHORIZED, .. } => Some(format!(
                "give a token that the server accepts: {GIVE_TOKEN}; semel token create makes one"
            )),
            ClientError::Status { status: StatusCode::FORBIDDEN, hint, .. } => {
                let hint = hint.as_deref().unwrap_or("use a token that may do this").trim_end_matches('.');
                Some(format!("{hint}; give another token with {GIVE_TOKEN}"))
            }
            other => other.hint().map(str::to_owned),
        };
        let passes = error.passes();
        let (exit, what, answer) = match error {
            ClientError::Address { url, .. } => {
                (Exit::Usage, format!("{url:?} is not a URL to connect to"), None)
            }
            ClientError::Request { reason } => {
                (Exit::Usage, format!("the request cannot be sent: {reason}"), None)
            }
            ClientError::Unreachable { url, reason, .. } => {
                (Exit::Unreachable, format!("cannot reach {url}: {reason}"), None)
            }
            ClientError::NoAnswer { url, reason, .. } => {
                (Exit::Unreachable, format!("no answer from {url}: {reason}"), None)
            }
            ClientError::Status { status, code, message, body, .. } => {
                let what = match code {
                    Some(code) => format!("{code} ({}): {message}", status.as_u16()),
                    None => format!("the server answered {}: {message}", status.as_u16()),
                };
                (exit_of(status, &what), what, Some(body))
            }
            ClientError::Protocol { url, reason, .. } => {
                (Exit::Failed, format!("the answer from {url} is not OJS: {reason}"), None)
            }
            other => (Exit::Failed, other.to_string(), None),
        };
        Self { exit, what, next, answer, passes }
    }
}

/// The exit code for a refusal.
fn exit_of(status: StatusCode, what: &str) -> Exit {
    match status {
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::CONFLICT => Exit::Duplicate,
        StatusCode::UNPROCESSABLE_ENTITY if what.starts_with("payload_mismatch") => Exit::Duplicate,
        _ => Exit::Failed,
    }
}

/// Puts what failed in front of the reason.
pub trait Context<T> {
    /// Makes a [`Failure`] of an error: `what: error`.
    fn context(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::failed(format!("{what}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody answers at the server's own address any more.
    #[test]
    fn what_a_server_inside_did_not_answer_is_told_of_its_store() {
        let url = "http://127.0.0.1:35335";
        let failure =
            Failure::new(Exit::Unreachable, format!("no answer from {url}: nothing received within 65s"))
                .next(format!("look at {url}"));
        let told = failure.of_store(url, "redis://redis.example:6379/0?prefix=semel");
        assert_eq!(
            told.what,
            "no answer from redis://redis.example:6379/0?prefix=semel: nothing received within 65s"
        );
        assert_eq!(told.next.unwrap(), "look at redis://redis.example:6379/0?prefix=semel");
    }
}
