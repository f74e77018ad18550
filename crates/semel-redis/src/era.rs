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
    /// What the run calls itself (`run_id` of `INFO server`), once one was found.
    run: Option<String>,
    /// When another one was found than before.
    begun: Option<Instant>,
}

impl Era {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the present one.
    pub fn number(&self) -> u64 {
        self.now().number
    }

    /// Somebody has connected, and found this run. Answers the number of its era, which is the present one now.
    pub fn find(&self, run: &str) -> u64 {
        let mut now = self.now();
        if now.run.as_deref() != Some(run) {
            // The first one ends nothing.
            if now.run.replace(run.to_owned()).is_some() {
                now.number += 1;
                now.begun = Some(Instant::now());
            }
        }
        now.number
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
        let first = era.find("one");
        assert_eq!((era.find("one"), era.number(), era.begun()), (first, first, None));
        let second = era.find("two");
        assert!(second != first && era.number() == second && era.begun().is_some());
        // Who was slower has found what was there before: the others look again, and find one in the end.
        let third = era.find("one");
        assert_ne!(third, second);
        assert_eq!((era.find("two"), era.number()), (third + 1, third + 1));
    }
}
