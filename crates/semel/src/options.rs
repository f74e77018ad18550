//! What can be said about how a job runs.

use std::time::Duration;

use semel_core::retry::Backoff;
use serde::Serialize;

use crate::codec::millis;
use crate::error::Error;
use crate::rate_limit::RateLimit;
use crate::unique::Unique;

/// How jobs of a type run; every part may be said otherwise when one is enqueued.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i8>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "timeout_ms")]
    pub(crate) timeout: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "visibility_timeout_ms")]
    pub(crate) lease: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "expires_at")]
    pub(crate) expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique: Option<Unique>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate_limit: Option<RateLimit>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    /// Goes into the envelope's `sensitive`, beside the args'.
    #[serde(skip)]
    pub(crate) sensitive_meta: Vec<String>,
}

impl Options {
    /// The defaults: queue `default`, priority 0, 3 attempts, no unique policy.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The queue the job waits in.
    #[must_use]
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queue = Some(name.into());
        self
    }

    /// -100 to 100; higher runs first.
    #[must_use]
    pub fn priority(mut self, priority: i8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Runs allowed, the first included: 1 means no retry, and so does 0.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long one attempt may run, to the millisecond; it fails then. 1 ms to 30 days; 30 minutes unless said.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(millis(timeout));
        self
    }

    /// How long a lease on the job lasts without a heartbeat, to the millisecond: a worker that died delays the job
    /// no longer than this. 1 ms to 30 days; what the worker asks for, or 2 minutes, unless said.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(millis(lease));
        self
    }

    /// The job is discarded if it has not been started so long after its admission.
    #[must_use]
    pub fn expires_after(mut self, wait: Duration) -> Self {
        self.expires = Some(format!("+{}", crate::codec::iso(wait)));
        self
    }

    /// When a failed attempt is followed by another.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Which jobs are the same, for how long, and what happens to a duplicate.
    #[must_use]
    pub fn unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// How many jobs like it run at once, and start in a stretch of time; without limit unless said.
    #[must_use]
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = Some(limit);
        self
    }

    /// Labels, at most 64.
    #[must_use]
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Members of meta that are shown to the worker and to nobody else.
    #[must_use]
    pub fn sensitive_meta<T: Into<String>>(mut self, members: impl IntoIterator<Item = T>) -> Self {
        self.sensitive_meta = members.into_iter().map(Into::into).collect();
        self
    }

    /// A length that is said is one. On the wire 0 is what says nothing, and the default would hold in its place.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, length) in [("timeout_ms", self.timeout), ("visibility_timeout_ms", self.lease)] {
            if length == Some(0) {
                return Err(Error::Invalid {
                    pointer: format!("/options/{name}"),
                    message: "is no time at all; say 1 ms or more, or leave it out for the default"
                        .to_owned(),
                });
            }
        }
        // JSON has no such number: it would be written as null, which is the default.
        if let Some(coefficient) = self.retry.as_ref().and_then(|retry| retry.coefficient)
            && !coefficient.is_finite()
        {
            return Err(Error::Invalid {
                pointer: "/options/retry/backoff_coefficient".to_owned(),
                message: format!("{coefficient} is no number to multiply a wait by; say 1 or more"),
            });
        }
        Ok(())
    }
}

/// When a failed attempt is followed by another. Unless said: after 1 s, doubling up to 5 minutes, each wait multiplied
/// by a random 0.5 to 1.5.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Retry {
    #[serde(skip_serializing_if = "Option::is_none", rename = "initial_interval_ms")]
    initial: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "max_interval_ms")]
    max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "backoff_coefficient")]
    coefficient: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "backoff_strategy")]
    backoff: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty", rename = "non_retryable_errors")]
    never: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_exhaustion: Option<&'static str>,
}

impl Retry {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The first wait.
    #[must_use]
    pub fn initial(mut self, wait: Duration) -> Self {
        self.initial = Some(millis(wait));
        self
    }

    /// The longest wait.
    #[must_use]
    pub fn max(mut self, wait: Duration) -> Self {
        self.max = Some(millis(wait));
        self
    }

    /// By how much the wait grows: at least 1.
    #[must_use]
    pub fn coefficient(mut self, coefficient: f64) -> Self {
        self.coefficient = Some(coefficient);
        self
    }

    /// How the wait grows.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff.name());
        self
    }

    /// Waits are exactly as long as computed.
    #[must_use]
    pub fn no_jitter(mut self) -> Self {
        self.jitter = Some(false);
        self
    }

    /// Errors of these types end the job at once; `Auth.*` stands for all that begin with `Auth.`. A type is what a
    /// [`Failure`](crate::Failure) says, or the name of the handler's error type: `Declined`. One that is called `Error` has its
    /// module's before it, where it is defined: `mail::Error`. A text or a `Box<dyn Error>` is a `handler_error`.
    #[must_use]
    pub fn never<T: Into<String>>(mut self, errors: impl IntoIterator<Item = T>) -> Self {
        self.never = errors.into_iter().map(Into::into).collect();
        self
    }

    /// A job whose attempts are used up is listed as a dead letter, for an operator to send back or delete.
    #[must_use]
    pub fn dead_letter(mut self) -> Self {
        self.on_exhaustion = Some("dead_letter");
        self
    }
}
