//! The store's clock: the only code that reads the machine's clock.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::time::Timestamp;

/// The time source of a store that runs in this process.
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

/// The difference between a store's time and a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Microseconds by which the store is ahead; negative if it is behind.
    micros: i64,
}

impl Offset {
    /// Less than this is no sign of a wrong clock: answers take time, and a freshly started Redis is up to
    /// four seconds ahead for a while.
    const NOTABLE: Duration = Duration::from_secs(10);

    /// The offset of a store that showed `time` when the clock showed `clock`.
    pub const fn between(time: Timestamp, clock: Timestamp) -> Self {
        Self { micros: time.as_micros().saturating_sub(clock.as_micros()) }
    }

    /// Milliseconds by which the store is ahead; negative if it is behind.
    pub const fn as_millis(self) -> i64 {
        self.micros / 1_000
    }

    /// An offset of that many [milliseconds](Self::as_millis).
    pub const fn from_millis(millis: i64) -> Self {
        Self { micros: millis.saturating_mul(1_000) }
    }

    /// Whether it is ten seconds or more, either way: then one of the clocks is or was wrong, and operators
    /// should know.
    pub const fn is_notable(self) -> bool {
        self.micros.unsigned_abs() as u128 >= Self::NOTABLE.as_micros()
    }
}

/// Prints whole seconds, like `3600 s ahead of`.
impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.micros < 0 { "behind" } else { "ahead of" };
        write!(f, "{} s {side}", self.micros.unsigned_abs() / 1_000_000)
    }
}

/// A store's time: its clock's, except that it never goes back and never stands still.
///
/// When the clock jumps back, time continues from where it was, at the clock's pace; so no window reopens and
/// no schedule freezes.
pub struct SteadyTime {
    clock: Box<dyn Clock>,
    shown: Mutex<Shown>,
}

/// The times handed out so far.
struct Shown {
    /// How far time is ahead of the clock.
    ahead: Duration,
    last: Timestamp,
}

impl SteadyTime {
    /// A time that follows `clock`, but never starts before `floor`.
    pub fn new(clock: impl Clock, floor: Timestamp) -> Self {
        let shown = Mutex::new(Shown { ahead: Duration::ZERO, last: floor });
        let time = Self { clock: Box::new(clock), shown };
        // A clock behind the floor is noticed now, so that time runs from here and not from the first reading.
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

    /// Ensures that time is never before `floor` from now on.
    pub fn not_before(&self, floor: Timestamp) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.last = shown.last.max(floor);
    }
}

/// A clock for tests that stands still until it is moved.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows `at`.
    pub fn at(at: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(at.as_micros())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Sets the clock, backwards too.
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
    fn an_offset_of_ten_seconds_is_notable_either_way() {
        let clock = Timestamp::from_millis(100_000);
        let of = |millis| Offset::between(Timestamp::from_millis(millis), clock);
        assert_eq!(
            [90_000, 90_001, 109_999, 110_000].map(|at| of(at).is_notable()),
            [true, false, false, true]
        );
        assert_eq!(
            (of(89_000).to_string(), of(3_700_999).to_string()),
            ("11 s behind".into(), "3600 s ahead of".into())
        );
        assert_eq!(Offset::from_millis(of(89_000).as_millis()), of(89_000));
        assert!(Offset::between(Timestamp::from_micros(i64::MIN), clock).is_notable());
    }

    #[test]
    fn time_neither_goes_back_nor_stands_still_when_the_clock_jumps() {
        let clock = ManualClock::default();
        let time = SteadyTime::new(clock.clone(), Timestamp::EPOCH);
        let before = time.now();
        clock.set(Timestamp::from_millis(before.as_millis() - 86_400_000));
        assert_eq!(time.now(), before);
        clock.advance(Duration::from_secs(5));
        assert_eq!(time.now(), before.saturating_add(Duration::from_secs(5)));
        // The lead remains when the clock is right again.
        clock.advance(Duration::from_secs(86_400));
        let last = time.now();
        assert_eq!(last, before.saturating_add(Duration::from_secs(86_405)));
        // A restart continues from the last time shown, and is ahead by what the clock has not caught up meanwhile.
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(SteadyTime::new(clock.clone(), last).now(), last);
        clock.advance(Duration::from_secs(86_400));
        assert_eq!(SteadyTime::new(clock.clone(), last).now(), clock.now());
    }
}
