//! Gaps in a policy that its author may not have intended, found from the policy alone, before there are any
//! jobs.

use super::policy::UniquePolicy;
use crate::state::State;

/// A hint about a policy. Nothing is refused because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// A failed job waits for its next attempt in a state that the policy does not cover. Another job of the
    /// same identity is admitted meanwhile, and both are live once the first is retried.
    OpenUnderRetry,
    /// When its worker is lost, a job returns to a claimable state that the policy does not cover. Another
    /// job of the same identity is admitted meanwhile, and both are live.
    OpenAfterLostRun,
}

impl Advice {
    /// The state that the policy lacks.
    pub const fn state(self) -> State {
        match self {
            Self::OpenUnderRetry => State::Retryable,
            Self::OpenAfterLostRun => State::Available,
        }
    }

    /// How two live jobs come to share the key, step by step, and the remedy.
    pub const fn trace(self) -> &'static str {
        match self {
            Self::OpenUnderRetry => {
                "a job is created, runs and fails: it waits in retryable, which `states` does not list; the same job is offered again and created; the first one is retried, and two live jobs share the key: add retryable to `states`"
            }
            Self::OpenAfterLostRun => {
                "a job is created and runs, and its worker is lost: it goes back to available, which `states` does not list; the same job is offered again and created, and two live jobs share the key: add available to `states`"
            }
        }
    }
}

/// The hints for a policy. A policy that does not cover `active`, only waiting or finished jobs, is taken as
/// intended.
pub fn advice(policy: &UniquePolicy) -> Vec<Advice> {
    let states = policy.states();
    let is_about_runs = states.contains(State::Active);
    let all = [Advice::OpenUnderRetry, Advice::OpenAfterLostRun];
    let is_open = |advice: &Advice| is_about_runs && !states.contains(advice.state());
    all.into_iter().filter(is_open).collect()
}
