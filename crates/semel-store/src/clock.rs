//! The store's clock: the only place that reads the machine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
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
