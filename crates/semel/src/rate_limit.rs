//! Limits on how many jobs of one kind run at once, and how many start within a period.

use std::time::Duration;

use serde::Serialize;

use crate::codec::iso;

/// A limit on how many jobs that name it run at once, and on how many of them start within a period.
///
/// It holds across all programs and servers of the store. A job that is held back keeps its place in its
/// queue and does not block the jobs behind it; retries count as starts.
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
/// The newest job of a limit defines it, so declare the same limit for all its jobs: as part of the type, or
/// through one function. A limit with neither a concurrency nor a rate is refused when the job is enqueued.
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
    /// A limit by name, of 1 to 255 bytes.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..Self::of_queue() }
    }

    /// The limit of the job's queue, shared by those jobs of the queue that ask for it.
    #[must_use]
    pub fn of_queue() -> Self {
        Self { key: None, concurrency: None, rate: None, period: None }
    }

    /// The most jobs that run at once: 1 to 1,000.
    #[must_use]
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = Some(jobs);
        self
    }

    /// The most jobs that start within any period of this length: 1 to 1,000,000 starts, in a millisecond to
    /// a day.
    #[must_use]
    pub fn rate(mut self, starts: u32, period: Duration) -> Self {
        (self.rate, self.period) = (Some(starts), Some(iso(period)));
        self
    }

    /// The same as [`rate`](Self::rate) without a period, so that the server's default holds. For the macro,
    /// which has no default of its own.
    #[doc(hidden)]
    #[must_use]
    pub fn starts(mut self, starts: u32) -> Self {
        (self.rate, self.period) = (Some(starts), None);
        self
    }
}
