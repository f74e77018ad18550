//! What may be wrong with a caller's input.

use std::fmt;

/// The kind of rule that an input breaks. The server maps each to one OJS code and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidKind {
    /// The text is not JSON, or is JSON that a job cannot carry (OJS `invalid_payload`, 400).
    Payload,
    /// A value breaks a rule (OJS `invalid_request`, 400).
    Request,
    /// A retry policy breaks a rule (OJS `invalid_request` with type `validation_error`, 422).
    RetryPolicy,
    /// A limit on size, depth or number is exceeded (413).
    TooLarge,
    /// Args do not fit the schema of their template (OJS `invalid_payload`, 400).
    Schema,
}

/// A refused input: which value, why, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The kind of rule that is broken.
    pub kind: InvalidKind,
    /// JSON pointer (RFC 6901) of the value inside the job as it was sent, e.g. `/options/unique/states/0`.
    pub pointer: String,
    /// What is wrong and what to send instead. Names the place, never the caller's secret values.
    pub message: String,
    /// Further flaws of the same kind, where all are reported at once.
    pub also: Vec<Flaw>,
}

/// A flaw: where something is wrong, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// JSON pointer (RFC 6901) of the value inside the job as it was sent.
    pub pointer: String,
    /// What is wrong there, never the value.
    pub message: String,
}

impl Invalid {
    fn new(kind: InvalidKind, pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, pointer: pointer.into(), message: message.into(), also: Vec::new() }
    }

    /// A broken rule at `pointer`.
    pub fn request(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(InvalidKind::Request, pointer, message)
    }

    /// Text that is not JSON, or is JSON that a job cannot carry.
    pub fn payload(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(InvalidKind::Payload, pointer, message)
    }

    /// A broken rule of the retry policy.
    pub fn retry(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(InvalidKind::RetryPolicy, pointer, message)
    }

    /// An exceeded limit.
    pub fn too_large(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(InvalidKind::TooLarge, pointer, message)
    }

    /// Args that do not fit the schema of their template; `None` when there are no flaws.
    pub fn schema(flaws: Vec<Flaw>) -> Option<Self> {
        let mut flaws = flaws.into_iter();
        let Flaw { pointer, message } = flaws.next()?;
        Some(Self { kind: InvalidKind::Schema, pointer, message, also: flaws.collect() })
    }

    /// The same refusal seen from one level further out: `prefix` is put before the pointers.
    #[must_use]
    pub fn under(self, prefix: &str) -> Self {
        self.placed(|pointer| pointer.insert_str(0, prefix))
    }

    /// The same refusal with every pointer rewritten by `name`.
    #[must_use]
    pub fn placed(mut self, name: impl Fn(&mut String)) -> Self {
        name(&mut self.pointer);
        self.also.iter_mut().for_each(|flaw| name(&mut flaw.pointer));
        self
    }

    /// The message, followed by the further flaws with their pointers.
    pub fn whole_message(&self) -> String {
        let mut message = self.message.clone();
        for Flaw { pointer, message: also } in &self.also {
            message.push_str("; ");
            message.push_str(pointer);
            message.push(' ');
            message.push_str(also);
        }
        if self.kind == InvalidKind::Schema {
            message.push_str(" (according to the schema of the job's template)");
        }
        message
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            f.write_str(&self.whole_message())
        } else {
            write!(f, "{}: {}", self.pointer, self.whole_message())
        }
    }
}

impl std::error::Error for Invalid {}
