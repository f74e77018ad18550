//! An error answer: an entry of the [catalogue](CATALOGUE), and the particulars of the case.

mod catalogue;

use std::fmt::{self, Display};

use semel_core::enqueue::{Holder, Outcome};
use semel_core::error::{Invalid, InvalidKind};
use semel_core::settle::Refusal;
use semel_core::state::State;

use crate::refusal::reason;
use crate::write::{Object, object};

pub use self::catalogue::{CATALOGUE, Code, Entry};

/// The path where a server explains its errors; each code is an anchor there.
pub const DOCS_PATH: &str = "/docs/errors";

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    code: Code,
    message: String,
    /// For a full queue: the number of waiting jobs, unless that is withheld from the caller, and the bound.
    depth: Option<u64>,
    bound: Option<u64>,
    /// What to do next, if it differs from the catalogue's hint.
    hint: Option<&'static str>,
    /// The details: an object's text.
    details: String,
}

impl Problem {
    /// An error whose message says what is wrong and what to do.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let details = "{}".to_owned();
        Self { code, message: message.into(), depth: None, bound: None, hint: None, details }
    }

    /// Adds details.
    #[must_use]
    pub fn with_details(mut self, write: impl FnOnce(&mut Object<'_>)) -> Self {
        let before = std::mem::take(&mut self.details);
        object(&mut self.details, |object| {
            object.members_of(&before);
            write(object);
        });
        self
    }

    /// Replaces the catalogue's hint.
    #[must_use]
    pub fn with_hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Adds the index of the batch item that it is about.
    #[must_use]
    pub fn at_index(self, index: usize) -> Self {
        self.with_details(|object| object.number("index", index))
    }

    /// How many jobs wait in the full queue.
    pub const fn depth(&self) -> Option<u64> {
        self.depth
    }

    /// How many jobs may wait in the full queue.
    pub const fn bound(&self) -> Option<u64> {
        self.bound
    }

    /// Removes the number of waiting jobs, for a caller who may not know about others' jobs.
    #[must_use]
    pub fn without_depth(self) -> Self {
        match self.bound {
            Some(bound) => Self { depth: None, details: "{}".to_owned(), ..self }
                .with_details(|object| object.number("queue_bound", bound)),
            None => self,
        }
    }

    /// The error's code.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The HTTP status.
    pub const fn status(&self) -> u16 {
        self.code.entry().status
    }

    /// What is wrong, and what to do.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Adds the cause to the answer, for a client that owns the store and has no log to look into.
    #[must_use]
    pub fn because(mut self, cause: &str) -> Self {
        self.message = format!("{}: {cause}", self.message);
        self
    }

    /// The error for something that was not found.
    pub fn not_found(what: &str) -> Self {
        let message = format!("there is no such {what}; check its id or name, or list what there is");
        Self::nothing_of(what, message)
    }

    /// The error for a text that is no job's id.
    pub fn no_id(sent: &str) -> Self {
        Self::nothing_of("job", "there is no such job; ids are lower-case UUIDv7").naming(sent)
    }

    fn nothing_of(what: &str, message: impl Into<String>) -> Self {
        let resource = what.replace(' ', "_");
        Self::new(Code::NotFound, message).with_details(|object| object.plain("resource_type", resource))
    }

    /// Adds the id that was looked for, if the error is that it was not found.
    #[must_use]
    pub fn naming(self, id: impl Display) -> Self {
        if self.code != Code::NotFound {
            return self;
        }
        self.with_details(|object| object.text("resource_id", &id.to_string()))
    }

    /// Writes the body of the answer.
    pub fn write(&self, request_id: &str, out: &mut String) {
        object(out, |object| {
            self.put(object, Some(request_id));
        });
    }

    /// Writes the `error` member into an object.
    pub fn put(&self, outer: &mut Object<'_>, request_id: Option<&str>) {
        let entry = self.code.entry();
        object(outer.member("error"), |object| {
            object.plain("code", entry.wire);
            object.text("message", &self.message);
            object.flag("retryable", entry.retryable);
            object.plain("type", entry.kind);
            object.raw("details", &self.details);
            object.text("hint", self.hint.unwrap_or(entry.hint));
            object.plain("docs_url", format_args!("{DOCS_PATH}#{}", entry.wire));
            if let Some(id) = request_id {
                object.text("request_id", id);
            }
        });
    }

    /// The error for a refused admission; `None` if it was not refused.
    pub fn of_outcome(outcome: &Outcome) -> Option<Self> {
        Some(match outcome {
            Outcome::Rejected { holder, .. } => {
                // One sentence whatever the reason, because it must not reveal an undisclosed holder's state.
                let problem = Self::new(
                    Code::Duplicate,
                    "the job is a duplicate: another one holds its unique key, so it was not created",
                );
                problem.with_holder(holder)
            }
            Outcome::Mismatch { holder, pointers } => {
                let problem = Self::new(
                    Code::PayloadMismatch,
                    "the unique key is already used for different work: the job's type or args differ from the existing job's, so it was not created",
                );
                let problem = problem.with_holder(holder);
                if pointers.is_empty() {
                    problem
                } else {
                    problem.with_details(|object| object.texts("pointers", pointers))
                }
            }
            Outcome::KeyReused(holder) => Self::new(
                Code::PayloadMismatch,
                "the Idempotency-Key was used for another request within the last day; nothing was created, so send this one under a key of its own",
            )
            .with_holder(holder),
            Outcome::KeySpent => Self::new(
                Code::Duplicate,
                "the Idempotency-Key was used within the last day, and the job created under it has since been deleted; nothing was created, so send new work under a key of its own",
            ),
            Outcome::IdTaken(id) => Self::new(
                Code::Duplicate,
                "another request with different content has used this job id; leave `id` out, or use a new one",
            )
            .with_details(|object| {
                object.plain("existing_job_id", id);
                object.plain("pointer", "/id");
            }),
            Outcome::TooManyHolders => Self::new(
                Code::TooManyHolders,
                "more jobs hold this unique key, or wait for those that do to end, than one request may replace or follow; nothing was changed",
            ),
            Outcome::QueueFull(depth) => Self {
                depth: Some(depth.waiting),
                bound: Some(depth.bound),
                ..Self::new(
                    Code::QueueFull,
                    "the queue is full: as many jobs wait in it as the operator allows; nothing was stored",
                )
            }
            .with_details(|object| {
                object.number("queue_depth", depth.waiting);
                object.number("queue_bound", depth.bound);
            }),
            Outcome::Corrupt(_) => Self::internal(),
            Outcome::Created(_)
            | Outcome::Repeated(_)
            | Outcome::Replaced { .. }
            | Outcome::FollowUp(_)
            | Outcome::Amended(_)
            | Outcome::Existing(_) => return None,
        })
    }

    /// The server failed. The cause is in its log, not in the answer.
    pub fn internal() -> Self {
        Self::new(Code::Internal, "the server failed on this request; tell the operator its request_id")
    }

    fn with_holder(self, holder: &Holder) -> Self {
        let Some(head) = holder.named() else { return self };
        self.with_details(|object| {
            object.plain("existing_job_id", head.id);
            object.plain("existing_job_state", head.state);
            if let Some(key) = &head.key {
                object.plain("unique_key", key);
                object.plain("uniqueness_key", key);
            }
        })
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let code = match invalid.kind {
            InvalidKind::Payload => Code::InvalidPayload,
            InvalidKind::RetryPolicy => Code::InvalidRetryPolicy,
            InvalidKind::TooLarge => Code::TooLarge,
            InvalidKind::Schema => Code::SchemaMismatch,
            // Refusals that the core adds later are a broken rule until this table names them.
            _ => Code::InvalidRequest,
        };
        let place = if invalid.pointer.is_empty() { "the request body" } else { &*invalid.pointer };
        let problem = Self::new(code, format!("{place} {}", invalid.whole_message()))
            .with_details(|object| object.text("pointer", &invalid.pointer));
        if invalid.kind != InvalidKind::Schema {
            return problem;
        }
        let also = invalid.also.iter().map(|flaw| &flaw.pointer);
        let pointers: Vec<&String> = std::iter::once(&invalid.pointer).chain(also).collect();
        problem.with_details(|object| object.texts("pointers", pointers))
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let why = reason(&refusal);
        let conflict = |message: &str| {
            Self::new(Code::Conflict, message).with_details(|object| object.plain("reason", why))
        };
        let in_state = |state: State, message: &str| {
            conflict(message).with_details(|object| object.plain("current_state", state))
        };
        match refusal {
            Refusal::NotFound => Self::not_found("job"),
            // The state alone would not say why it cannot be revived.
            Refusal::NoDeadLetter(state @ State::Discarded) => in_state(
                state,
                "the job is discarded but is not a dead letter: only a job whose retry policy says on_exhaustion: dead_letter, and that nobody has deleted, can be sent back; enqueue its work again",
            ),
            Refusal::WrongState(state) | Refusal::NoDeadLetter(state) => in_state(
                state,
                &format!(
                    "the job is {state}, and in that state this cannot be done; read the job to see what became of it"
                ),
            ),
            Refusal::StaleLease(state) => in_state(
                state,
                "the lease is no longer valid: it ran out, or the job was cancelled or replaced; stop working on it",
            ),
            Refusal::OtherWorker => conflict("another worker holds the job's lease; stop working on it"),
            Refusal::AwaitsRun => conflict(
                "the job is a follow-up and starts by itself when the run it follows has ended; wait, or cancel it",
            ),
            Refusal::KeyReleased => conflict(
                "the dead letter's unique key was released, so there is no telling whether its work has been enqueued since; enqueue it again",
            ),
            Refusal::TooManyHolders => Self::new(
                Code::TooManyHolders,
                "more jobs hold the dead letter's unique key than one request may read; nothing was changed",
            ),
            Refusal::Corrupt(_) => Self::internal(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.entry().wire, self.message)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_an_object_with_all_its_members() {
        let problem = Problem::from(Invalid::request("/a", "is \"wrong\"; send b")).at_index(3);
        let mut out = String::new();
        problem.write("r-1", &mut out);
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        let error = &value["error"];
        assert_eq!(error["details"]["pointer"], "/a");
        assert_eq!(error["details"]["index"], 3);
        assert_eq!(error["message"], "/a is \"wrong\"; send b");
        for member in ["code", "type", "hint", "docs_url", "request_id"] {
            assert!(error[member].is_string(), "{member}");
        }
    }
}
