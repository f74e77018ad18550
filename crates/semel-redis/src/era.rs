//! Which Redis an address led to last. A name or an address may be moved to another one by hand, and connections made before stay where they
//! were: all links go by what one of them has found, so that nobody reads where nobody writes any more.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The time in which one run of Redis is found.
#[derive(Debug, Default)]
pub struct Era {
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    /// Connections of an earlier one are given up.
    number: u64,
    /// What was found in this one: [`Server::run`](crate::durability::Server).
    run: Option<String>,
    /// When it began, if it is not the first.
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

    /// The number of the present one. Whoever connects asks for it first.
    pub fn number(&self) -> u64 {
        self.now().number
    }

    /// Somebody has found this run who began to connect in the era `since`. Answers the number of its era, which is the present one; none
    /// where others have found something else meanwhile, and it is not known which of both is newer: he is to look again.
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

    /// Somebody was told on a connection of this era that the primary is elsewhere.
    pub fn end(&self, number: u64) {
        let mut now = self.now();
        if now.number == number {
            now.begin();
        }
    }

    /// When the present one began, if it is not the first.
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
        // Who was slower has found what was there before, and looks again.
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
        // It may be the same one, which is the primary again.
        assert_eq!(era.find("one".to_owned(), second), Some(second));
        era.end(first);
        assert_eq!(era.number(), second, "others were told so before");
    }
}
