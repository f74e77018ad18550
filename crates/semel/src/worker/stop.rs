//! Why a run is asked to stop.

use std::sync::{Arc, OnceLock};

/// Why the [token](crate::Run::token) of a run has fired; see [`Run::stopping`](crate::Run::stopping).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The job was cancelled or replaced. What the run reports does not count.
    Cancelled,
    /// The lease is lost, or has run out because neither store nor server confirmed it for so long. Another
    /// worker may be running the job.
    LeaseLost,
    /// The attempt has run longer than its timeout: it has failed, and the handler is dropped. Only tasks
    /// that it spawned can see this.
    TimedOut,
    /// The worker is stopping, and the drain time is over. A failure from now on spends no attempt.
    ShuttingDown,
}

/// The reason for which a run's token fires. It is set before the token fires, and the first reason stays.
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
