//! Decisions whose records another open transaction has locked. They are retried, apart from all others, until
//! they have waited too long; no other decision waits for them.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;
use crate::flight::Tried;

/// How long a decision waits for another transaction before its caller is told that the key is busy.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a decision pauses before a retry, at first and at most.
const REST_MIN: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_millis(32);

/// When a waiting decision must be given up. None for one whose records are unreachable: it waits for no
/// transaction; the store itself bounds its search for them, and fails every decision on them together.
fn patience_ends(tried: &Tried) -> Option<Instant> {
    tried.waits.filter(|_| !tried.is_away).map(|(since, _)| since + tried.decision.patience())
}

/// The waiting decisions, and when each is retried.
#[derive(Default)]
pub(crate) struct Waitlist(Vec<(Instant, Tried)>);

impl Waitlist {
    /// Adds decisions; those that have waited too long are answered instead.
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

    /// When the first of them will have waited too long.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.0.iter().filter_map(|(_, tried)| patience_ends(tried)).min()
    }

    /// Answers those that have waited too long, as `add` does, in case `add` is not called for a while.
    pub(crate) fn let_go(&mut self, now: Instant) {
        let is_over = |tried: &Tried| patience_ends(tried).is_some_and(|end| end <= now);
        for (_, tried) in self.0.extract_if(.., |(_, tried)| is_over(tried)) {
            tried.decision.answer(Err(StoreError::Contended));
        }
    }

    /// Whether no decision waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out the decisions whose retry is due.
    pub(crate) fn due(&mut self) -> Option<Vec<Tried>> {
        let now = Instant::now();
        let due: Vec<Tried> = self.0.extract_if(.., |(at, _)| *at <= now).map(|(_, tried)| tried).collect();
        (!due.is_empty()).then_some(due)
    }

    /// Waits until a retry is due: forever, if no decision waits or some are in flight.
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
