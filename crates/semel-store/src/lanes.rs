//! Limits under which nothing may start right now, as far as this process knows. They spare claims the look; a
//! limit assumed closed is checked again soon, and at once if a job under it moves here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::draft::Map;
use semel_core::limit::Lane;
use tokio::time::Instant;

/// The longest that a limit is assumed closed without a check: another server may have ended a run.
const CLOSED_MAX: Duration = Duration::from_secs(1);
/// The shortest, so that a limit that stays full although its runs should have ended is not checked in a busy loop.
const CLOSED_MIN: Duration = Duration::from_millis(10);
/// The most limits whose last move is remembered, so that a look from before the move does not close them.
const MOVED_MAX: usize = 4_096;

/// The limits assumed closed.
#[derive(Debug, Default)]
pub struct ClosedLanes(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    closed: Map<Lane, Instant>,
    /// When the last one opened by timeout.
    opened: Option<Instant>,
    /// Counts commits that moved jobs under limits.
    moment: u64,
    moved: Map<Lane, u64>,
    /// Limits missing from `moved` may have moved at this count.
    forgotten: u64,
}

/// The count of moves when a caller began to look at limits.
#[derive(Clone, Copy, Debug)]
pub struct Look(u64);

impl ClosedLanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start of a look at limits, taken before deciding what may close them.
    pub fn look(&self) -> Look {
        Look(self.lock().moment)
    }

    /// Assumes a limit closed for `wait` (at most a second), or until a job under it moves. A limit that has
    /// moved since the look began is checked again almost at once.
    pub fn close(&self, lane: Lane, wait: Duration, look: Look) {
        let mut inner = self.lock();
        let moved = inner.moved.get(&lane).copied().unwrap_or(inner.forgotten);
        let wait = if moved > look.0 { CLOSED_MIN } else { wait.clamp(CLOSED_MIN, CLOSED_MAX) };
        inner.closed.insert(lane, Instant::now() + wait);
    }

    /// The limits that are closed now.
    pub fn now(&self) -> Vec<Lane> {
        let mut inner = self.lock();
        inner.let_open();
        let mut lanes: Vec<Lane> = inner.closed.keys().copied().collect();
        // In a fixed order, so that replaying a run repeats it exactly.
        lanes.sort_unstable();
        lanes
    }

    /// When a caller whose claim began at `since` should look again at the limits it skipped. That time is
    /// past if a limit has opened by timeout since then, which triggers no wake-up.
    pub fn opens(&self, since: Instant) -> Option<Instant> {
        let mut inner = self.lock();
        inner.let_open();
        let opened = inner.opened.filter(|opened| *opened > since);
        opened.into_iter().chain(inner.closed.values().copied()).min()
    }

    /// Assumes every limit open.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.closed.clear();
        // A look that began before this closes none of them for long.
        inner.moved.clear();
        inner.moment += 1;
        inner.forgotten = inner.moment;
    }

    /// Opens limits under which a job may start again. Returns whether any of them was closed.
    pub(crate) fn open(&self, lanes: &[Lane]) -> bool {
        if lanes.is_empty() {
            return false;
        }
        let mut inner = self.lock();
        inner.moment += 1;
        let moment = inner.moment;
        if inner.moved.len() >= MOVED_MAX {
            inner.moved.clear();
            inner.forgotten = moment;
        }
        inner.moved.extend(lanes.iter().map(|lane| (*lane, moment)));
        lanes.iter().filter(|lane| inner.closed.remove(*lane).is_some()).count() > 0
    }
}

impl Inner {
    /// Opens the limits whose time has come.
    fn let_open(&mut self) {
        if self.closed.is_empty() {
            return;
        }
        let now = Instant::now();
        let Self { closed, opened, .. } = self;
        closed.retain(|_, until| {
            let is_closed = *until > now;
            if !is_closed {
                *opened = (*opened).max(Some(*until));
            }
            is_closed
        });
    }
}

#[cfg(test)]
mod tests {
    use semel_core::limit::Lane;

    use super::{CLOSED_MAX, CLOSED_MIN, ClosedLanes};

    fn closed_for(lanes: &ClosedLanes) -> std::time::Duration {
        let now = tokio::time::Instant::now();
        lanes.opens(now).map(|until| until - now).unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_has_moved_since_the_look_is_not_closed_by_it() {
        let (lanes, lane) = (ClosedLanes::default(), Lane::from_code(7).unwrap());
        let look = lanes.look();
        lanes.close(lane, CLOSED_MAX * 9, look);
        assert_eq!(closed_for(&lanes), CLOSED_MAX);
        assert!(lanes.open(&[lane]));
        assert_eq!(lanes.now(), []);
        // The look began before the move, and its verdict comes after it.
        lanes.close(lane, CLOSED_MAX, look);
        assert_eq!(closed_for(&lanes), CLOSED_MIN);
        lanes.close(lane, CLOSED_MAX, lanes.look());
        assert_eq!(closed_for(&lanes), CLOSED_MAX);
        // Another process reports that something moved.
        let look = lanes.look();
        lanes.clear();
        lanes.close(lane, CLOSED_MAX, look);
        assert_eq!(closed_for(&lanes), CLOSED_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn of_more_limits_than_are_remembered_none_is_closed_by_an_old_look() {
        let lanes = ClosedLanes::default();
        let look = lanes.look();
        let all: Vec<Lane> = (1..6_000).filter_map(Lane::from_code).collect();
        assert!(all.iter().all(|lane| !lanes.open(&[*lane])));
        for lane in all {
            lanes.close(lane, CLOSED_MAX, look);
            assert_eq!(closed_for(&lanes), CLOSED_MIN);
            tokio::time::advance(CLOSED_MIN).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_never_looked_at_without_end() {
        let (lanes, lane) = (ClosedLanes::default(), Lane::from_code(7).unwrap());
        lanes.close(lane, std::time::Duration::ZERO, lanes.look());
        assert_eq!(lanes.now(), [lane]);
        tokio::time::advance(CLOSED_MIN).await;
        assert_eq!(lanes.now(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_opened_since_somebody_began_to_look_is_to_be_looked_at_at_once() {
        let (lanes, lane) = (ClosedLanes::default(), Lane::from_code(7).unwrap());
        let began = tokio::time::Instant::now();
        assert_eq!(lanes.opens(began), None);
        lanes.close(lane, CLOSED_MIN, lanes.look());
        tokio::time::advance(CLOSED_MIN).await;
        // Even if another caller has looked at them meanwhile.
        assert_eq!(lanes.now(), []);
        assert_eq!(lanes.opens(began), Some(began + CLOSED_MIN));
        tokio::time::advance(CLOSED_MIN).await;
        assert_eq!(lanes.opens(tokio::time::Instant::now()), None);
    }
}
