//! How many jobs of one kind run at once, and how many start in a stretch of time.

use std::time::Duration;

use serde::Serialize;

use crate::codec::iso;

/// How many jobs that name the same limit run at once, and how many of them start in a stretch of time, in all programs and servers of the
/// store together. A job that is held back waits in its place in its queue, and hides nothing behind it; retries count as starts.
///
/// ```
/// # use std::time::Duration;
/// # use semel::{Envelope, RateLimit, Semel};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), semel::Error> {
/// # let semel = Semel::open("memory:").await?;
/// // Five connections to the mail server, and a hundred mails in any minute, whatever their types and queues.
/// let smtp = RateLimit::new("smtp-eu").concurrency(5).rate(100, Duration::from_secs(60));
/// semel.enqueue(Envelope::new("mail.send").arg("ada@example.com")).rate_limit(smtp).await?;
/// # Ok(())
/// # }
/// ```
///
/// The newest job of a limit says what it is, so say the same for all: as a part of the type, or by one function. One that says neither a
/// concurrency nor a rate is refused when the job is enqueued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RateLimit {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<String>,
}

impl RateLimit {
    /// The limit of that name: 1 to 255 bytes.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..Self::of_queue() }
    }

    /// The limit of the job's queue, for the jobs of it that ask for it.
    #[must_use]
    pub fn of_queue() -> Self {
        Self { key: None, concurrency: None, rate: None, period: None }
    }

    /// At most so many run at once: 1 to 1,000.
    #[must_use]
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = Some(jobs);
        self
    }

    /// At most so many start in any stretch of that length: 1 to 1,000,000, in a millisecond to a day.
    #[must_use]
    pub fn rate(mut self, starts: u32, period: Duration) -> Self {
        (self.rate, self.period) = (Some(starts), Some(iso(period)));
        self
    }

    /// As [`rate`](Self::rate), with no period said: the server's default holds. For the macro, which has no default of its own.
    #[doc(hidden)]
    #[must_use]
    pub fn starts(mut self, starts: u32) -> Self {
        (self.rate, self.period) = (Some(starts), None);
        self
    }
}
