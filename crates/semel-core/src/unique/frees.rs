//! When a key becomes free: what has to happen before the next job with it is admitted.

use super::admit::{Blocking, blocks};
use super::hold::anchor;
use super::policy::UniquePolicy;
use crate::job::Head;
use crate::state::StateSet;
use crate::time::Timestamp;

/// When a holder stops blocking the jobs of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frees {
    /// The holder does not block them.
    Now,
    /// When the holder ends, or leaves the states that the policy names.
    AtEnd,
    /// When the holder ends, if its end state is not one of the policy's; the policy names other end states.
    /// Otherwise not by itself.
    DependsOnEnd,
    /// At that time. Or at the holder's end: if it ends earlier in a state that is not one of the policy's,
    /// or if it ends later and the policy says `while_active`.
    At(Timestamp),
    /// When the policy's period has passed since the holder's end, which is still to come; at its end, if its
    /// end state is not one of the policy's.
    AfterEnd,
    /// Not by itself: its key has to be released, or the record of it forgotten.
    OnRelease,
}

/// When `holder` stops blocking jobs offered under `policy`, as things stand at `now`.
pub fn frees(policy: &UniquePolicy, holder: &Head, now: Timestamp) -> Frees {
    let stays = holder.state.is_finished() || policy.states().contains_all(StateSet::FINISHED);
    let may_stay = policy.states().intersects(StateSet::FINISHED);
    match blocks(policy, holder, now) {
        Blocking::OtherState | Blocking::Expired | Blocking::WindowOver { .. } => Frees::Now,
        Blocking::InState if stays => Frees::OnRelease,
        Blocking::InState if may_stay => Frees::DependsOnEnd,
        Blocking::WhileActive if may_stay => at_window_end(policy, holder, now),
        Blocking::InState | Blocking::WhileActive => Frees::AtEnd,
        Blocking::InWindow { until } => Frees::At(until),
        Blocking::Unfinished => Frees::AfterEnd,
    }
}

/// For an unfinished holder that blocks regardless of its window (`while_active`): what is left of the window
/// outlasts its end.
fn at_window_end(policy: &UniquePolicy, holder: &Head, now: Timestamp) -> Frees {
    let Some(anchor) = anchor(policy.period_from(), holder) else { return Frees::AfterEnd };
    match policy.period().map(|period| period.after(anchor)) {
        Some(until) if until > now => Frees::At(until),
        _ => Frees::AtEnd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::{JobId, JobType, QueueName};
    use crate::job::{Ending, Role};
    use crate::state::State;
    use crate::unique::{Hold, PolicySpec};

    fn head(state: State) -> Head {
        let at = Timestamp::from_millis(1_000);
        Head {
            id: JobId::mint(at, 1, 0),
            key: None,
            hold: Hold::NONE,
            job_type: JobType::from_stored("a"),
            queue: QueueName::default(),
            priority: 0,
            state,
            lane: None,
            role: Role::Plain,
            attempt: 0,
            max_attempts: 3,
            visibility_ms: 0,
            timeout_ms: 0,
            version: 1,
            fence: 0,
            created_at: at,
            available_at: at,
            expires_at: None,
            started_at: None,
            finished_at: state.is_finished().then_some(at),
            renewed_at: None,
            until: None,
            lease: None,
            follow_up: None,
            awaited: false,
            ending: (state == State::Completed).then_some(Ending::Completed),
        }
    }

    fn check(change: impl FnOnce(&mut PolicySpec), state: State, expected: Frees) {
        let mut spec = PolicySpec::default();
        change(&mut spec);
        let policy = UniquePolicy::build(&spec, "").unwrap();
        assert_eq!(frees(&policy, &head(state), Timestamp::from_millis(1_500)), expected, "{spec:?}");
    }

    #[test]
    fn each_policy_frees_its_key_in_its_own_way() {
        let all = || Some(State::ALL.iter().map(|state| state.name().to_owned()).collect());
        let period = || Some("PT1S".to_owned());
        check(|_| {}, State::Available, Frees::AtEnd);
        check(|_| {}, State::Completed, Frees::Now);
        check(|spec| spec.states = all(), State::Active, Frees::OnRelease);
        check(|spec| spec.states = all(), State::Completed, Frees::OnRelease);
        check(|spec| spec.period = period(), State::Active, Frees::At(Timestamp::from_millis(2_000)));
        let from_the_end = |spec: &mut PolicySpec| {
            (spec.period, spec.period_from, spec.states) = (period(), Some("finished".to_owned()), all());
        };
        check(from_the_end, State::Active, Frees::AfterEnd);
        let while_active = |spec: &mut PolicySpec| {
            (spec.period, spec.while_active) = (period(), Some(true));
        };
        check(while_active, State::Active, Frees::AtEnd);
        let beyond = |period: &str, from: &str| {
            let (period, from) = (Some(period.to_owned()), Some(from.to_owned()));
            move |spec: &mut PolicySpec| {
                (spec.period, spec.period_from, spec.while_active) = (period, from, Some(true));
                spec.states = all();
            }
        };
        check(beyond("PT1S", "created"), State::Active, Frees::At(Timestamp::from_millis(2_000)));
        for over in ["PT0.2S", "PT0.5S"] {
            check(beyond(over, "created"), State::Active, Frees::AtEnd);
        }
        check(beyond("PT1S", "finished"), State::Active, Frees::AfterEnd);
        let but_cancelled = |spec: &mut PolicySpec| {
            let states = StateSet::LIVE.with(State::Completed).iter();
            spec.states = Some(states.map(|state| state.name().to_owned()).collect());
        };
        check(but_cancelled, State::Active, Frees::DependsOnEnd);
        check(but_cancelled, State::Completed, Frees::OnRelease);
    }
}
