//! The options of a job: queue, priority, timeouts, retries, uniqueness, limits.

use std::time::Duration;

use semel_core::retry::Backoff;
use serde::Serialize;

use crate::codec::millis;
use crate::error::Error;
use crate::rate_limit::RateLimit;
use crate::unique::Unique;

/// How jobs of a type run; each option can be overridden when a job is enqueued.
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
    /// Members of meta to hide: added to the envelope's `sensitive`, beside those of the args.
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

    /// The priority, -100 to 100; higher runs first. Default: 0.
    #[must_use]
    pub fn priority(mut self, priority: i8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The number of runs allowed, including the first: 1 means no retry, and so does 0. Default: 3.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// The longest that one attempt may run before it fails, rounded up to the millisecond: 1 ms to 30 days.
    /// Default: 30 minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(millis(timeout));
        self
    }

    /// How long a lease on the job lasts without a heartbeat, rounded up to the millisecond: the longest that
    /// a dead worker delays the job. 1 ms to 30 days. Default: what the worker asks for, or 2 minutes.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(millis(lease));
        self
    }

    /// Discards the job if it has not started within this time after its admission.
    #[must_use]
    pub fn expires_after(mut self, wait: Duration) -> Self {
        self.expires = Some(format!("+{}", crate::codec::iso(wait)));
        self
    }

    /// Whether and when a failed attempt is followed by another.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Which jobs are the same, for how long, and what happens to a duplicate. Default: no unique policy.
    #[must_use]
    pub fn unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// How many jobs like it may run at once, and start within a period. Default: no limit.
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

    /// Members of meta that are shown only to the worker.
    #[must_use]
    pub fn sensitive_meta<T: Into<String>>(mut self, members: impl IntoIterator<Item = T>) -> Self {
        self.sensitive_meta = members.into_iter().map(Into::into).collect();
        self
    }

    /// Rejects values that the wire cannot express. There 0 means "not set", so the default would silently
    /// replace a duration of zero.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, length) in [("timeout_ms", self.timeout), ("visibility_timeout_ms", self.lease)] {
            if length == Some(0) {
                return Err(Error::Invalid {
                    pointer: format!("/options/{name}"),
                    message:
                        "a time of 0 ms is too short; give at least 1 ms, or leave it out for the default"
                            .to_owned(),
                });
            }
        }
        // JSON has no infinity or NaN: it would be written as null, which means the default.
        if let Some(coefficient) = self.retry.as_ref().and_then(|retry| retry.coefficient)
            && !coefficient.is_finite()
        {
            return Err(Error::Invalid {
                pointer: "/options/retry/backoff_coefficient".to_owned(),
                message: format!(
                    "{coefficient} is not a valid coefficient; give a finite number of at least 1"
                ),
            });
        }
        Ok(())
    }
}

/// Whether and when a failed attempt is followed by another. Default: after 1 s, doubling up to 5 minutes,
/// each wait multiplied by a random factor of 0.5 to 1.5.
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
    /// The default retry policy.
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

    /// The factor by which the wait grows with each attempt: at least 1.
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

    /// Switches jitter off: waits are exactly as long as computed.
    #[must_use]
    pub fn no_jitter(mut self) -> Self {
        self.jitter = Some(false);
        self
    }

    /// Error types that end the job at once, without another attempt; `Auth.*` stands for all that begin with
    /// `Auth.`. The type of an error is what a [`Failure`](crate::Failure) says, or else the name of the
    /// handler's error type, such as `Declined`. A type called `Error` is preceded by the module that defines
    /// it: `mail::Error`. A text or a `Box<dyn Error>` has the type `handler_error`.
    #[must_use]
    pub fn never<T: Into<String>>(mut self, errors: impl IntoIterator<Item = T>) -> Self {
        self.never = errors.into_iter().map(Into::into).collect();
        self
    }

    /// Lists the job as a dead letter when its attempts are used up, for an operator to send back or delete.
    #[must_use]
    pub fn dead_letter(mut self) -> Self {
        self.on_exhaustion = Some("dead_letter");
        self
    }
}
