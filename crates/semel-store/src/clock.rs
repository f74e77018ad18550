//! The store's clock: the only place that reads the machine's.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::time::Timestamp;

/// Where a store that runs in this process takes its time from.
pub trait Clock: Send + Sync + 'static {
    /// The present time.
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::EPOCH.saturating_add(since)
    }
}

/// A store's time: its clock's, but it never goes back and never stands still. When the clock jumps back, time goes on
/// from where it was, at the clock's pace; so no window opens again and nothing scheduled freezes.
pub struct SteadyTime {
    clock: Box<dyn Clock>,
    shown: Mutex<Shown>,
}

/// What has been shown.
struct Shown {
    /// By how much time is ahead of the clock.
    ahead: Duration,
    last: Timestamp,
}

impl SteadyTime {
    /// Time by `clock`, never before `floor`.
    pub fn new(clock: impl Clock, floor: Timestamp) -> Self {
        let shown = Mutex::new(Shown { ahead: Duration::ZERO, last: floor });
        let time = Self { clock: Box::new(clock), shown };
        // A clock behind the floor is noticed now, so that time goes on from here and not from the first look.
        time.now();
        time
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        let mut before = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = self.clock.now().saturating_add(before.ahead);
        if shown < before.last {
            let gap = before.last.since(shown);
            before.ahead += gap;
        } else {
            before.last = shown;
        }
        before.last
    }

    /// Time is never before `floor` from now on.
    pub fn not_before(&self, floor: Timestamp) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.last = shown.last.max(floor);
    }
}

/// A clock that stands still until it is moved, for tests.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `at`.
    pub fn at(at: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(at.as_micros())))
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Sets it, backwards too.
    pub fn set(&self, at: Timestamp) {
        self.0.store(at.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

impl Default for ManualClock {
    /// A clock that shows 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::at(Timestamp::from_millis(1_767_225_600_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_neither_goes_back_nor_stands_still_when_the_clock_jumps() {
        let clock = ManualClock::default();
        let time = SteadyTime::new(clock.clone(), Timestamp::EPOCH);
        let before = time.now();
        clock.set(Timestamp::from_millis(before.as_millis() - 86_400_000));
        assert_eq!(time.now(), before);
        clock.advance(Duration::from_secs(5));
        assert_eq!(time.now(), before.saturating_add(Duration::from_secs(5)));
        // The lead stays when the clock is right again.
        clock.advance(Duration::from_secs(86_400));
        assert_eq!(time.now(), before.saturating_add(Duration::from_secs(86_405)));
    }
}
