//! When a key has too many holders, the deciding ones are enough; and which of the holders a store found are
//! in a view.

use proptest::prelude::*;
use semel_core::draft::{KeyRead, KeyView};
use semel_core::ident::JobId;
use semel_core::job::{Ending, Head};
use semel_core::limits::HOLDERS_PER_KEY_MAX;
use semel_core::sight::Sight;
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{Admission, Disclose, Hold, PeriodFrom, UniqueKey, admit, deciding};

use crate::admission::{NOW, a_holder, a_policy, ago, head, kind};

fn ids<'a>(heads: impl IntoIterator<Item = &'a Head>) -> Vec<JobId> {
    let mut ids: Vec<JobId> = heads.into_iter().map(|head| head.id).collect();
    ids.sort_unstable();
    ids
}

/// Holders in one state, some of which expired unstarted: any of those may stand for any other of them.
fn alike() -> impl Strategy<Value = Vec<Head>> {
    prop::collection::vec((a_holder(), any::<bool>()), 1..40).prop_map(|found| {
        let state = found[0].0.state;
        let alike = found.into_iter().filter(|(holder, _)| holder.state == state);
        let numbered = (0..).zip(alike).map(|(row, (holder, expired))| {
            let unstarted = state == State::Discarded && !holder.was_started();
            let ending = (unstarted && expired).then_some(Ending::Expired);
            Head { id: JobId::mint(holder.created_at, row, 0), ending, ..holder }
        });
        numbered.collect::<Vec<Head>>()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn those_that_decide_are_enough(policy in a_policy(), holders in alike(), inspect in any::<bool>()) {
        let sight = Sight { inspect, ..Sight::everything() };
        let all = admit(&policy, &holders, NOW, sight);
        let fewer = admit(&policy, deciding(holders.iter()), NOW, sight);
        prop_assert_eq!(all == Admission::Create, fewer == Admission::Create);
        if !policy.needs_all_holders() {
            prop_assert_eq!(kind(&all), kind(&fewer));
            prop_assert_eq!(all.holder(), fewer.holder());
        }
    }
}

type Change = fn(&mut Head);

/// What remains of an older and a newer holder in `state` after these changes.
fn left(state: State, of_older: Change, of_newer: Change) -> Vec<u64> {
    let (mut older, mut newer) = (head(0, state, 9), head(1, state, 5));
    // Neither has begun, unless a change says so.
    (older.attempt, newer.attempt) = (0, 0);
    of_older(&mut older);
    of_newer(&mut newer);
    let kept = deciding([&older, &newer].into_iter());
    let mut rows: Vec<u64> = kept.iter().map(|head| head.id.row()).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn a_holder_stays_of_which_a_newer_one_says_less_of_one_thing() {
    let cases: [(&str, State, Change, Change); 8] = [
        ("another state", State::Available, |_| {}, |newer| newer.state = State::Scheduled),
        ("ended before", State::Completed, |older| older.finished_at = Some(ago(1)), |_| {}),
        ("renewed before", State::Available, |older| older.renewed_at = Some(ago(1)), |_| {}),
        (
            "shown",
            State::Available,
            |older| older.hold = Hold::new(StateSet::ALL, PeriodFrom::Created, None, Disclose::Never),
            |_| {},
        ),
        ("expires, the other never", State::Available, |_| {}, |newer| newer.expires_at = Some(ago(-9))),
        (
            "expires before",
            State::Available,
            |older| older.expires_at = Some(ago(-9)),
            |newer| newer.expires_at = Some(ago(-8)),
        ),
        ("expired", State::Discarded, |_| {}, |newer| newer.ending = Some(Ending::Expired)),
        (
            "may expire unstarted",
            State::Retryable,
            |older| (older.attempt, older.expires_at) = (1, Some(ago(1))),
            |newer| newer.expires_at = Some(ago(1)),
        ),
    ];
    for (what, state, of_older, of_newer) in cases {
        assert_eq!(left(state, of_older, of_newer), [0, 1], "{what}");
    }
    // Nor does a holder stand for another that was created after it.
    assert_eq!(left(State::Available, |older| older.created_at = ago(4), |_| {}), [0]);
}

#[test]
fn a_holder_goes_for_a_newer_one_that_says_no_less() {
    let cases: [(&str, State, Change, Change); 6] = [
        ("alike", State::Available, |_| {}, |_| {}),
        ("ended and renewed later", State::Completed, |_| {}, |newer| newer.renewed_at = Some(ago(1))),
        ("never expires", State::Available, |older| older.expires_at = Some(ago(1)), |_| {}),
        (
            "never expires, the other has begun",
            State::Retryable,
            |older| (older.attempt, older.expires_at) = (1, Some(ago(1))),
            |_| {},
        ),
        (
            "both have begun",
            State::Retryable,
            |older| (older.attempt, older.expires_at) = (1, Some(ago(1))),
            |newer| (newer.attempt, newer.expires_at) = (1, Some(ago(1))),
        ),
        (
            "both expired",
            State::Discarded,
            |older| older.ending = Some(Ending::Expired),
            |newer| newer.ending = Some(Ending::Expired),
        ),
    ];
    for (what, state, of_older, of_newer) in cases {
        assert_eq!(left(state, of_older, of_newer), [1], "{what}");
    }
}

fn view(states: StateSet, found: &[(Head, Option<Timestamp>)]) -> KeyView {
    let covered = KeyRead { key: UniqueKey::from_bytes([7; 32]), states, all: true };
    KeyView::of(3, found.iter().cloned(), &covered, NOW)
}

#[test]
fn a_view_has_no_holder_whose_time_is_over_nor_one_that_another_outlives() {
    let ended = |row, age| head(row, State::Completed, age);
    let found = [(ended(2, 1), Some(NOW)), (ended(0, 9), None), (ended(1, 5), Some(ago(-1)))];
    let whole = view(StateSet::ALL, &found);
    assert_eq!((whole.version, whole.states, whole.all, whole.too_many), (3, StateSet::ALL, true, false));
    assert_eq!(ids(&whole.holders), [found[2].0.id]);
    // A view that covers only live holders keeps finished ones as they come.
    assert_eq!(ids(&view(StateSet::LIVE, &found).holders), ids([&found[1].0, &found[2].0]));
}

#[test]
fn a_view_of_too_many_holders_has_those_that_decide() {
    let live: Vec<(Head, Option<Timestamp>)> =
        (0..1 + HOLDERS_PER_KEY_MAX as u64).map(|row| (head(row, State::Available, 9), None)).collect();
    let (most, mut more) = (view(StateSet::LIVE, &live[1..]), view(StateSet::LIVE, &live));
    assert_eq!((most.holders.len(), most.too_many), (HOLDERS_PER_KEY_MAX, false));
    assert_eq!((ids(&more.holders), more.too_many), (vec![live[HOLDERS_PER_KEY_MAX].0.id], true));
    // Once there were too many, the flag stays set, however few are left.
    more.reduce();
    assert_eq!((more.holders.len(), more.too_many), (1, true));
}
