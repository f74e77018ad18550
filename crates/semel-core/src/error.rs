//! What may be wrong with a caller's input.

use std::fmt;

/// Which rule of input an offer breaks. The server maps each to one OJS code and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidKind {
    /// The text is not JSON, or not a JSON a job can carry (OJS `invalid_payload`, 400).
    Payload,
    /// A value breaks a rule (OJS `invalid_request`, 400).
    Request,
    /// A retry policy breaks a rule (OJS `invalid_request` with type `validation_error`, 422).
    RetryPolicy,
    /// A limit on size, depth or number is exceeded (413).
    TooLarge,
}

/// A refused input: which value, why, and what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Which rule.
    pub kind: InvalidKind,
    /// JSON pointer (RFC 6901) of the value inside the job as it was sent, e.g. `/options/unique/states/0`.
    pub pointer: String,
    /// What is wrong and what to send instead. Names the place, never the caller's secret values.
    pub message: String,
}

impl Invalid {
    /// A broken rule at `pointer`.
    pub fn request(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: InvalidKind::Request, pointer: pointer.into(), message: message.into() }
    }

    /// Text that is not a JSON a job can carry.
    pub fn payload(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: InvalidKind::Payload, pointer: pointer.into(), message: message.into() }
    }

    /// A broken rule of the retry policy.
    pub fn retry(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: InvalidKind::RetryPolicy, pointer: pointer.into(), message: message.into() }
    }

    /// An exceeded limit.
    pub fn too_large(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: InvalidKind::TooLarge, pointer: pointer.into(), message: message.into() }
    }

    /// The same refusal seen from one level further out: `prefix` is put before the pointer.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.pointer.insert_str(0, prefix);
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.pointer, self.message)
        }
    }
}

impl std::error::Error for Invalid {}
