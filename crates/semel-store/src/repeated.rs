//! Recurring failures, logged at intervals: when one first occurs, then once a minute with the number of
//! occurrences since, and once more when it has not occurred for a minute.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The interval between log lines of a recurring failure, which is over when it has not occurred for that long.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// The most texts that are told apart; all others are counted together, since each may contain something different.
const KINDS_MAX: usize = 64;

/// The recent failures, by what is logged about them.
#[derive(Debug, Default)]
pub struct RepeatedFailures(Mutex<Vec<Said>>);

#[derive(Debug)]
struct Said {
    what: &'static str,
    text: String,
    told: Instant,
    last: Instant,
    /// Occurrences since it was last logged.
    untold: u64,
    times: u64,
}

/// A failure that occurred more than once and no longer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// What happened; empty, as is `text`, for failures that were not told apart.
    pub what: &'static str,
    /// Why, as it was logged.
    pub text: String,
    /// How often it occurred.
    pub times: u64,
}

impl RepeatedFailures {
    /// Counts a failure. If it is to be logged now, returns how often it has occurred since it was last logged.
    pub fn again(&self, what: &'static str, text: &str) -> Option<u64> {
        let now = Instant::now();
        let mut all = self.lock();
        let is_full = all.len() >= KINDS_MAX;
        let place_of =
            |what: &str, text: &str| all.iter().position(|said| said.what == what && said.text == text);
        let known = place_of(what, text).or_else(|| if is_full { place_of("", "") } else { None });
        let Some(place) = known else {
            let (what, text) = if is_full { ("", "") } else { (what, text) };
            all.push(Said { what, text: text.to_owned(), told: now, last: now, untold: 0, times: 1 });
            return Some(0);
        };
        let said = &mut all[place];
        said.last = now;
        said.times = said.times.saturating_add(1);
        if now.saturating_duration_since(said.told) < TELL_EVERY {
            said.untold = said.untold.saturating_add(1);
            return None;
        }
        said.told = now;
        Some(std::mem::take(&mut said.untold))
    }

    /// Logs a warning, if one is due.
    pub fn warn(&self, what: &'static str, error: &dyn Display) {
        if let Some(repeated) = self.again(what, &error.to_string()) {
            tracing::warn!(%error, repeated, "{what}");
        }
    }

    /// Takes out the failures that were counted more than once and have not occurred for a minute.
    pub fn over(&self) -> Vec<Over> {
        let mut all = self.lock();
        if all.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let (over, left): (Vec<Said>, Vec<Said>) = std::mem::take(&mut *all)
            .into_iter()
            .partition(|said| now.saturating_duration_since(said.last) >= TELL_EVERY);
        *all = left;
        let over = over.into_iter().filter(|said| said.times > 1);
        over.map(|Said { what, text, times, .. }| Over { what, text, times }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Said>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_stays_is_told_once_a_minute_with_how_often_it_was() {
        let failures = RepeatedFailures::default();
        assert_eq!(failures.again("a request failed", "away"), Some(0));
        assert_eq!(failures.again("a request failed", "locked"), Some(0), "something else");
        assert_eq!(failures.again("a duty failed", "away"), Some(0), "of somebody else");
        let mut told = Vec::new();
        for _ in 0..120 {
            tokio::time::advance(TELL_EVERY / 60).await;
            told.extend(failures.again("a request failed", "away"));
        }
        assert_eq!(told, [59, 59]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_told_that_it_is_over() {
        let failures = RepeatedFailures::default();
        for text in ["away", "once", "away", "away"] {
            failures.again("a request failed", text);
        }
        tokio::time::advance(TELL_EVERY / 2).await;
        failures.again("a request failed", "locked");
        failures.again("a request failed", "locked");
        assert!(failures.over().is_empty());
        tokio::time::advance(TELL_EVERY / 2).await;
        let over = |text: &str, times| Over { what: "a request failed", text: text.to_owned(), times };
        assert_eq!(failures.over(), [over("away", 3)], "of what was once everything has been told");
        assert_eq!(failures.again("a request failed", "away"), Some(0), "it begins anew");
        tokio::time::advance(TELL_EVERY).await;
        assert_eq!(failures.over(), [over("locked", 2)]);
        assert!(failures.over().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn texts_that_differ_each_time_are_counted_together() {
        let failures = RepeatedFailures::default();
        let told =
            (0..1_000).filter(|number| failures.again("a job is damaged", &number.to_string()).is_some());
        assert_eq!(told.count(), KINDS_MAX + 1);
        assert_eq!(failures.again("a job is damaged", "0"), None, "that is known");
        tokio::time::advance(TELL_EVERY).await;
        let rest = u64::try_from(1_000 - KINDS_MAX - 1).unwrap();
        assert_eq!(failures.again("a job is damaged", "1000"), Some(rest));
    }
}
