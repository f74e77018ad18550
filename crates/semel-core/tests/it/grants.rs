//! A store is told the same about grants as the core decides.

use std::time::Duration;

use semel_core::job::{Ending, Head};
use semel_core::lease::{Grant, Unclaimable, grant};
use semel_core::limit::Lane;
use semel_core::limits::VISIBILITY_DEFAULT_MS;
use semel_core::slot::Filing;
use semel_core::state::{State, StateSet};
use semel_core::unique::{Disclose, Hold, Period, PeriodFrom};

use crate::admission::{NOW, ago, head};

fn ms(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms))
}

#[test]
fn the_template_of_a_grant_is_the_grant() {
    let by = Grant::new("w".into(), Some(7_000));
    for (visibility_ms, timeout_ms, visible, run) in
        [(0, 0, 7_000, Grant::TIMEOUT_MS), (1, 0, 1, Grant::TIMEOUT_MS), (0, 2, 7_000, 2), (3, 4, 3, 4)]
    {
        let ready = Head { visibility_ms, timeout_ms, ..head(0, State::Available, 9) };
        let granted = grant(&ready, &by, NOW, false).unwrap();
        assert_eq!((granted.state, Filing::of(&granted).slot), (Grant::STATE, Grant::SLOT));
        let lease = granted.lease.unwrap();
        assert_eq!(lease.visible_until, NOW.saturating_add(ms(visible)));
        assert_eq!(lease.run_until, NOW.saturating_add(ms(run)));
    }
    assert_eq!(Grant::new("w".into(), None).visibility_ms, VISIBILITY_DEFAULT_MS);
}

#[test]
fn grants_go_together_whoever_they_are_for() {
    let by = |worker: &str, ms: Option<u32>| Grant::new(worker.into(), ms);
    assert!(by("a", None).differs_in_worker_alone(&by("b", None)));
    assert!(by("a", None).differs_in_worker_alone(&by("a", Some(VISIBILITY_DEFAULT_MS))));
    assert!(!by("a", None).differs_in_worker_alone(&by("a", Some(1))));
}

/// Scripts and SQL statements use these numbers to tell the refusals apart; they never see a job that is not
/// ready.
#[test]
fn the_numbers_of_refusals_are_frozen() {
    let told = [Unclaimable::Expired, Unclaimable::Exhausted, Unclaimable::Overlaps, Unclaimable::Limited];
    for (code, why) in (0..).zip(told) {
        assert_eq!((why.code(), Unclaimable::from_code(code)), (code, Some(why)));
    }
    for code in 4..=u8::MAX {
        assert_eq!(Unclaimable::from_code(code), None, "{code}");
    }
}

#[test]
fn what_runs_takes_a_place_of_its_own_limit_alone() {
    let (lane, other) = (Lane::of("a"), Lane::of("b"));
    for state in State::ALL {
        let under = |lane| Head { lane, ..head(0, state, 9) };
        assert_eq!(lane.is_run_by(&under(Some(lane))), state == State::Active, "{state}");
        assert!(!lane.is_run_by(&under(Some(other))) && !lane.is_run_by(&under(None)), "{state}");
    }
}

#[test]
fn a_head_is_remembered_until_its_window_ends_whenever_that_is_asked() {
    let hold = |states, period| Hold::new(states, PeriodFrom::Created, period, Disclose::Always);
    let minute = Period::new(0, 60_000_000);
    let completed = |hold, age| Head { hold, ..head(0, State::Completed, age) };
    assert_eq!(completed(Hold::NONE, 9).remembered_until(), None);
    assert_eq!(completed(hold(StateSet::LIVE, minute), 9).remembered_until(), None);
    assert_eq!(completed(hold(StateSet::ALL, minute), 9).remembered_until(), Some(ago(8)), "long over");
    let for_ever = semel_core::time::Timestamp::MAX;
    assert_eq!(completed(hold(StateSet::ALL, None), 9).remembered_until(), Some(for_ever));
    assert_eq!(head(0, State::Active, 9).remembered_until(), Some(for_ever));
    let expired = Head { ending: Some(Ending::Expired), ..completed(hold(StateSet::ALL, None), 9) };
    assert_eq!(expired.remembered_until(), None);
}

/// Open Job Spec: so the job is treated as if it had asked for one.
#[test]
fn a_job_that_asks_for_no_attempt_has_one() {
    let by = Grant::new("w".into(), None);
    let ready = Head { max_attempts: 0, ..head(0, State::Available, 9) };
    assert!(!grant(&ready, &by, NOW, false).unwrap().has_attempts_left());
    let again = Head { attempt: 1, ..ready };
    assert_eq!(grant(&again, &by, NOW, false), Err(Unclaimable::Exhausted));
}

#[test]
fn only_what_failed_and_waits_is_tried_again() {
    for state in State::ALL {
        let head = head(0, state, 9);
        let expected = (state == State::Retryable).then_some(head.available_at);
        assert_eq!(head.next_attempt(), expected, "{state}");
    }
}
