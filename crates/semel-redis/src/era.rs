//! The era: which run of Redis an address led to last.
//!
//! A name or address may be pointed at another Redis by hand, while existing connections stay where they
//! were. All links go by what one of them has found, so that none reads from a Redis that nobody writes to
//! any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The period in which an address leads to one run of Redis.
#[derive(Debug, Default)]
pub struct Era {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// The era's number. Connections made in an earlier era are given up.
    number: u64,
    /// The run that was found in this era: [`Server::run`](crate::durability::Server).
    run: Option<String>,
    /// When this era began; none for the first.
    begun: Option<Instant>,
}

impl Now {
    fn begin(&mut self) {
        self.number += 1;
        self.run = None;
        self.begun = Some(Instant::now());
    }
}

impl Era {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the present era. A link reads it before it connects.
    pub fn number(&self) -> u64 {
        self.now().number
    }

    /// Reports that a link which began to connect in the era `since` has found `run`. Answers the number of
    /// the run's era, which is then the present one; `None` where another link has found a different run
    /// meanwhile, since which of the two is newer is unknown: the caller must look again.
    pub fn find(&self, run: String, since: u64) -> Option<u64> {
        let mut now = self.now();
        let is_known = now.run.as_ref() == Some(&run);
        if now.number != since && !is_known {
            return None;
        }
        if !is_known {
            if now.run.is_some() {
                now.begin();
            }
            now.run = Some(run);
        }
        Some(now.number)
    }

    /// Ends this era, if it is still the present one: Redis said on one of its connections that the primary
    /// is elsewhere.
    pub fn end(&self, number: u64) {
        let mut now = self.now();
        if now.number == number {
            now.begin();
        }
    }

    /// When the present era began; none for the first.
    pub fn begun(&self) -> Option<Instant> {
        self.now().begun
    }
}

#[cfg(test)]
mod tests {
    use super::Era;

    #[test]
    fn who_finds_another_run_ends_the_era_of_all_others() {
        let era = Era::default();
        let first = era.number();
        assert_eq!(era.find("one".to_owned(), first), Some(first));
        assert_eq!((era.find("one".to_owned(), first), era.begun()), (Some(first), None));
        let second = era.find("two".to_owned(), first).unwrap();
        assert!(second != first && era.number() == second && era.begun().is_some());
        // A slower link has found the earlier run, and must look again.
        assert_eq!(era.find("one".to_owned(), first), None);
        assert_eq!(era.find("two".to_owned(), first), Some(second), "or the same");
    }

    #[test]
    fn an_era_is_ended_once() {
        let era = Era::default();
        let first = era.find("one".to_owned(), era.number()).unwrap();
        era.end(first);
        let second = era.number();
        assert!(second != first && era.begun().is_some());
        assert_eq!(era.find("one".to_owned(), first), None, "it may have been found before that");
        // It may be the same Redis, which is the primary again.
        assert_eq!(era.find("one".to_owned(), second), Some(second));
        era.end(first);
        assert_eq!(era.number(), second, "others were told so before");
    }
}
