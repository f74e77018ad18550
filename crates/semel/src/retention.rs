//! Retention: how long ended jobs are kept.

use std::time::Duration;

use semel_core::ident::{JobType, QueueName};
use semel_core::retention::{self, Retention};

use crate::error::Error;

/// How long ended jobs are kept with everything known of them, by how they ended; see
/// [`Open::keep`](crate::Open::keep).
///
/// Each time is more than zero and at most 36,525 days. A time that is not set here is taken from the next
/// wider rule, and finally from the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    completed: Option<Duration>,
    cancelled: Option<Duration>,
    discarded: Option<Duration>,
}

impl Keep {
    /// A rule that sets no time yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to keep jobs that completed. Default: 24 hours.
    #[must_use]
    pub fn completed(mut self, time: Duration) -> Self {
        self.completed = Some(time);
        self
    }

    /// How long to keep jobs that were cancelled, or replaced by others. Default: 24 hours.
    #[must_use]
    pub fn cancelled(mut self, time: Duration) -> Self {
        self.cancelled = Some(time);
        self
    }

    /// How long to keep jobs that failed for good or expired, dead letters included. Default: 180 days.
    #[must_use]
    pub fn discarded(mut self, time: Duration) -> Self {
        self.discarded = Some(time);
        self
    }

    fn checked(self, place: &str) -> Result<retention::Keep, Error> {
        let period = |time: Option<Duration>, name: &str| {
            time.map(|time| retention::keep_for(time, &format!("{place}/{name}"))).transpose()
        };
        Ok(retention::Keep {
            completed: period(self.completed, "completed")?,
            cancelled: period(self.cancelled, "cancelled")?,
            discarded: period(self.discarded, "discarded")?,
        })
    }
}

/// The program's retention rules as it gave them, unchecked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) all: Keep,
    pub(crate) types: Vec<(String, Keep)>,
    pub(crate) queues: Vec<(String, Keep)>,
}

impl Rules {
    /// Checks and converts all rules.
    pub(crate) fn checked(self) -> Result<Retention, Error> {
        let mut rules = Retention::new(self.all.checked("/retention")?);
        for (name, keep) in self.types {
            let place = format!("/retention/types/{name}");
            rules.keep_type(&JobType::parse(&name, &place)?, keep.checked(&place)?);
        }
        for (name, keep) in self.queues {
            let place = format!("/retention/queues/{name}");
            rules.keep_queue(&QueueName::parse(&name, &place)?, keep.checked(&place)?);
        }
        Ok(rules)
    }
}
