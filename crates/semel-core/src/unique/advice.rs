//! What a policy leaves open that whoever wrote it may not have meant: seen from the policy alone, before any job is
//! there.

use super::policy::UniquePolicy;
use crate::state::State;

/// Something to think about. Nothing is refused for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// A job that failed waits for its next attempt in a state that the policy does not look at: another of the same
    /// identity is admitted meanwhile, and both are live when the first is tried again.
    OpenUnderRetry,
    /// A run whose worker is lost goes back to where it can be taken, a state that the policy does not look at: another of
    /// the same identity is admitted meanwhile, and both are live.
    OpenAfterLostRun,
}

impl Advice {
    /// The state that is missing.
    pub const fn state(self) -> State {
        match self {
            Self::OpenUnderRetry => State::Retryable,
            Self::OpenAfterLostRun => State::Available,
        }
    }

    /// How two live jobs come to share the key, step by step, and what to write instead.
    pub const fn trace(self) -> &'static str {
        match self {
            Self::OpenUnderRetry => {
                "a job is created, runs and fails: it waits in retryable, which is not among the states; the same job is offered and created; the first one is tried again, and two live jobs share the key: add retryable"
            }
            Self::OpenAfterLostRun => {
                "a job is created and runs, and its worker is lost: it goes back to available, which is not among the states; the same job is offered and created, and two live jobs share the key: add available"
            }
        }
    }
}

/// What there is to think about in a policy. One that looks at no run, only at what waits or has ended, means that.
pub fn advice(policy: &UniquePolicy) -> Vec<Advice> {
    let states = policy.states();
    let is_about_runs = states.contains(State::Active);
    let all = [Advice::OpenUnderRetry, Advice::OpenAfterLostRun];
    let is_open = |advice: &Advice| is_about_runs && !states.contains(advice.state());
    all.into_iter().filter(is_open).collect()
}
