//! Why a run is to come to its end.

use std::sync::{Arc, OnceLock};

/// Why the [token](crate::Run::token) of a run has fired: see [`Run::stopping`](crate::Run::stopping).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The job was cancelled, or another took its place. What the run reports does not count.
    Cancelled,
    /// The lease is lost, or has run out because neither store nor server said anything of it for so long. Somebody else may be at the
    /// job.
    LeaseLost,
    /// The attempt has run longer than its timeout: it has failed, and the handler is dropped. Only what it has spawned can see this.
    TimedOut,
    /// The worker stops, and the drain time is over. A failure from now on spends no attempt.
    ShuttingDown,
}

/// Why a run's token fires. It is told before the token does, and what is told first stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cause(Arc<OnceLock<Stop>>);

impl Cause {
    pub(crate) fn tell(&self, stop: Stop) {
        let _first_stays = self.0.set(stop);
    }

    pub(crate) fn told(&self) -> Option<Stop> {
        self.0.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_token_fires_for_is_what_came_first() {
        let cause = Cause::default();
        assert_eq!(cause.told(), None);
        for stop in [Stop::ShuttingDown, Stop::Cancelled] {
            cause.clone().tell(stop);
            assert_eq!(cause.told(), Some(Stop::ShuttingDown));
        }
    }
}
