//! Decisions whose records somebody else's open transaction has locked. They are tried again, apart from all others, until
//! they have waited too long; nobody else waits for them.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;
use crate::flight::Tried;

/// How long a decision waits for somebody else's transaction before its caller is told that the key is busy.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long it rests before it is tried again, at first and at most.
const REST_MIN: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_millis(32);

/// When a decision that waits has waited too long. One whose records are away waits for nobody's transaction: the store itself knows
/// for how long it looks for them, and says so to all who go on to them together.
fn patience_ends(tried: &Tried) -> Option<Instant> {
    tried.waits.filter(|_| !tried.is_away).map(|(since, _)| since + tried.decision.patience())
}

/// The decisions that wait, and when each is tried again.
#[derive(Default)]
pub(crate) struct Waitlist(Vec<(Instant, Tried)>);

impl Waitlist {
    /// Adds decisions; those that have waited too long are answered.
    pub(crate) fn add(&mut self, busy: Vec<Tried>) {
        if busy.is_empty() {
            return;
        }
        let now = Instant::now();
        for mut tried in busy {
            let (since, rested) = tried.waits.unwrap_or((now, Duration::ZERO));
            if now.duration_since(since) >= tried.decision.patience() {
                tried.decision.answer(Err(StoreError::Contended));
                continue;
            }
            let rest = (rested * 2).clamp(REST_MIN, REST_MAX);
            tried.waits = Some((since, rest));
            self.0.push((now + rest, tried));
        }
    }

    /// When the first of them has waited too long.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.0.iter().filter_map(|(_, tried)| patience_ends(tried)).min()
    }

    /// Answers those that have waited too long, as `add` does: for when that is long in coming.
    pub(crate) fn let_go(&mut self, now: Instant) {
        let is_over = |tried: &Tried| patience_ends(tried).is_some_and(|end| end <= now);
        for (_, tried) in self.0.extract_if(.., |(_, tried)| is_over(tried)) {
            tried.decision.answer(Err(StoreError::Contended));
        }
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are to be tried again now.
    pub(crate) fn due(&mut self) -> Option<Vec<Tried>> {
        let now = Instant::now();
        let due: Vec<Tried> = self.0.extract_if(.., |(at, _)| *at <= now).map(|(_, tried)| tried).collect();
        (!due.is_empty()).then_some(due)
    }

    /// Waits until one is to be tried again: forever, when none waits or some are under way.
    pub(crate) fn rest(&self, is_under_way: bool) -> impl Future<Output = ()> + use<> {
        let at = self.0.iter().map(|(at, _)| *at).min().filter(|_| !is_under_way);
        async move {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        }
    }
}
