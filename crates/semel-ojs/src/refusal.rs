//! The one-word reason why a request about a job was refused: one table for requests about a single job and bulk requests.

use semel_core::settle::Refusal;
use semel_core::state::State;

/// Why a heartbeat lost a job that its own run has ended: the worker may still be finishing other things.
pub const COMPLETED: &str = State::Completed.name();
/// Why a heartbeat lost a job that was cancelled or replaced: the worker must tell the handler.
pub const CANCELLED: &str = State::Cancelled.name();

/// Why a request was refused: the `reason` in an error, and for each job that a bulk request leaves. It
/// equals the error's code, if there is a specific one.
pub const fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotFound => "not_found",
        // For any other job its state says enough.
        Refusal::NoDeadLetter(State::Discarded) => "no_dead_letter",
        Refusal::WrongState(_) | Refusal::NoDeadLetter(_) => "wrong_state",
        Refusal::StaleLease(_) => "stale_lease",
        Refusal::OtherWorker => "other_worker",
        Refusal::AwaitsRun => "awaits_run",
        Refusal::KeyReleased => "key_released",
        Refusal::TooManyHolders => "too_many_holders",
        // An error has the cause in the log instead.
        Refusal::Corrupt(_) => "damaged",
    }
}

/// Why a heartbeat lost a job, in one word. What the run must be told takes precedence over how the request
/// was refused.
pub const fn why_lost(refusal: &Refusal) -> &'static str {
    if refusal.is_cancelled() {
        return CANCELLED;
    }
    if refusal.is_ended_by_itself() {
        return COMPLETED;
    }
    match refusal {
        Refusal::WrongState(_) => "not_active",
        other => reason(other),
    }
}

#[cfg(test)]
mod tests {
    use semel_core::body::Corrupt;

    use super::*;
    use crate::Problem;

    #[test]
    fn one_of_many_is_refused_in_the_word_of_a_single_one() {
        let of_state = State::ALL.into_iter().flat_map(|state| {
            [Refusal::WrongState(state), Refusal::NoDeadLetter(state), Refusal::StaleLease(state)]
        });
        let others = [
            Refusal::OtherWorker,
            Refusal::AwaitsRun,
            Refusal::KeyReleased,
            Refusal::NotFound,
            Refusal::TooManyHolders,
        ];
        for refusal in of_state.chain(others) {
            let word = reason(&refusal);
            let mut out = String::new();
            Problem::from(refusal.clone()).write("r-1", &mut out);
            let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
            let error = &answer["error"];
            let said = error["details"]["reason"].as_str().or(error["code"].as_str());
            assert_eq!(said, Some(word), "{refusal:?}");
        }
    }

    #[test]
    fn a_job_that_was_discarded_and_not_kept_is_not_told_its_state_alone() {
        assert_eq!(reason(&Refusal::NoDeadLetter(State::Discarded)), "no_dead_letter");
        assert_eq!(reason(&Refusal::NoDeadLetter(State::Available)), "wrong_state");
    }

    /// Workers act on these words.
    #[test]
    fn a_heartbeat_says_what_a_run_is_to_be_told() {
        for (refusal, word) in [
            (Refusal::WrongState(State::Completed), "completed"),
            (Refusal::StaleLease(State::Completed), "stale_lease"),
            (Refusal::WrongState(State::Cancelled), "cancelled"),
            (Refusal::StaleLease(State::Cancelled), "cancelled"),
            (Refusal::WrongState(State::Retryable), "not_active"),
            (Refusal::StaleLease(State::Active), "stale_lease"),
            (Refusal::OtherWorker, "other_worker"),
            (Refusal::NotFound, "not_found"),
            (Refusal::Corrupt(Corrupt("no text".to_owned())), "damaged"),
        ] {
            assert_eq!(why_lost(&refusal), word, "{refusal:?}");
        }
    }
}
