//! Which limits let nothing start just now, as far as this process knows. Spares claims the look; a limit that is taken
//! for closed is looked at again soon, and at once when a job under it moves here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::draft::Map;
use semel_core::limit::Lane;
use tokio::time::Instant;

/// The longest a limit is taken for closed without a look: another server may have ended a run.
const CLOSED_MAX: Duration = Duration::from_secs(1);

/// Limits that let nothing start.
#[derive(Debug, Default)]
pub struct ClosedLanes(Mutex<Map<Lane, Instant>>);

impl ClosedLanes {
    fn lock(&self) -> MutexGuard<'_, Map<Lane, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A limit lets nothing start for so long, or until a job under it moves.
    pub fn close(&self, lane: Lane, wait: Duration) {
        self.lock().insert(lane, Instant::now() + wait.min(CLOSED_MAX));
    }

    /// The limits that are closed now, and when the first of them is to be looked at again.
    pub fn now(&self) -> (Vec<Lane>, Option<Instant>) {
        let mut closed = self.lock();
        if closed.is_empty() {
            return (Vec::new(), None);
        }
        let now = Instant::now();
        closed.retain(|_, until| *until > now);
        let mut lanes: Vec<Lane> = closed.keys().copied().collect();
        // In a fixed order, so that a run that is played again is the same run.
        lanes.sort_unstable();
        (lanes, closed.values().min().copied())
    }

    /// Takes every limit for open.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Whether any limit is taken for closed.
    pub(crate) fn is_any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// These may let something start again. Says whether one of them was closed.
    pub(crate) fn open(&self, lanes: &[Lane]) -> bool {
        let mut closed = self.lock();
        lanes.iter().filter(|lane| closed.remove(*lane).is_some()).count() > 0
    }
}
