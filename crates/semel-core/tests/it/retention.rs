//! How long an ended job is kept, on rows made by the tests.

use std::sync::Arc;
use std::time::Duration;

use semel_core::body::Body;
use semel_core::draft::{Draft, Full, Reads, Snapshot, Write};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Ending, Head, Role};
use semel_core::lease::Bearer;
use semel_core::life;
use semel_core::retention::{Keep, Retention, keep_for};
use semel_core::slot::{Filing, Slot};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{
    Disclose, Hold, Holding, Period, PeriodFrom, Remember, UniqueKey, held_until, holding, holds, is_kept,
    must_remember, outlives, until_asks_policy,
};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn at(since: Duration) -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000).saturating_add(since)
}

/// A waiting job that must mind a burned lease until an hour after its admission.
fn waiting(number: u64) -> Head {
    let created_at = at(Duration::from_secs(number));
    Head {
        id: JobId::mint(created_at, number, 7),
        key: None,
        hold: Hold::NONE,
        job_type: JobType::from_stored("a.b"),
        queue: QueueName::default(),
        lane: None,
        priority: 0,
        state: State::Available,
        role: Role::Plain,
        attempt: 0,
        max_attempts: 1,
        visibility_ms: 0,
        timeout_ms: 0,
        version: 1,
        fence: 1,
        created_at,
        available_at: created_at,
        expires_at: None,
        started_at: None,
        finished_at: None,
        renewed_at: None,
        until: Some(at(HOUR)),
        lease: None,
        follow_up: None,
        ending: None,
        awaited: false,
    }
}

fn ended(number: u64, until: Option<Timestamp>) -> Head {
    let waiting = waiting(number);
    let finished_at = Some(waiting.created_at);
    Head { state: State::Cancelled, ending: Some(Ending::Cancelled), finished_at, until, ..waiting }
}

fn draft(head: &Head, now: Timestamp, rules: Option<Duration>) -> Draft {
    let mut snapshot = Snapshot::with_room_for(now, &Reads::default());
    snapshot.add_head(head.id, Some(head.clone()));
    let mut draft = Draft::new(snapshot, 7, Arc::default());
    if let Some(time) = rules {
        let keep = Keep { cancelled: Some(keep_for(time, "").unwrap()), ..Keep::default() };
        draft.keep_by(Arc::new(Retention::new(keep)));
    }
    draft
}

#[test]
fn an_end_says_how_long_it_is_kept_in_place_of_the_lease_that_was_burned() {
    for (rules, kept_until) in [(None, None), (Some(DAY), None), (Some(HOUR * 2), Some(at(HOUR * 3)))] {
        let live = waiting(0);
        assert_eq!((live.burned_until(), live.kept_until(), live.purge_at()), (Some(at(HOUR)), None, None));
        assert_eq!(live.run_may_last_until(), Some(at(HOUR)));
        let mut draft = draft(&live, at(HOUR), rules);
        life::cancel(&mut draft, live.id, &Bearer::default()).unwrap();
        let head = draft.head(live.id).unwrap().unwrap();
        assert_eq!((head.burned_until(), head.run_may_last_until()), (None, None));
        assert_eq!(head.kept_until(), kept_until);
        let purge_at = kept_until.unwrap_or(at(HOUR + DAY));
        assert_eq!(head.purge_at(), Some(purge_at));
        assert_eq!(Filing::of(&head), Filing { slot: Slot::Done, at: purge_at, expires: None });
    }
}

#[test]
fn a_job_is_purged_when_its_time_is_over_and_filed_anew_before() {
    for until in [None, Some(at(HOUR)), Some(at(DAY * 400))] {
        let head = ended(0, until);
        let time = until.unwrap_or(at(DAY));
        let mut early = draft(&head, at(time.since(at(Duration::ZERO)) - Duration::from_micros(1)), None);
        assert!(!life::purge(&mut early, head.id).unwrap());
        let writes = early.finish().writes;
        assert!(matches!(&writes[..], [Write::Update { head: filed }] if Filing::of(filed).at == time));
        let mut due = draft(&head, time, None);
        assert!(life::purge(&mut due, head.id).unwrap());
        assert!(matches!(&due.finish().writes[..], [Write::Forget { remember: None, .. }]));
    }
}

/// A caller that lost the reply is answered for a day, to the moment, but no longer than the job is kept.
#[test]
fn a_dead_letter_that_answers_a_request_is_gone_a_day_after_its_end() {
    for (until, stays) in [(None, DAY), (Some(at(DAY * 9)), DAY), (Some(at(HOUR)), HOUR)] {
        let letter = Head { state: State::Discarded, ending: Some(Ending::DeadLetter), ..ended(0, until) };
        let deleted = |now| {
            let body = Body { request_digest: Some([9; 32]), ..Body::default() }.encode().unwrap();
            let mut snapshot = Snapshot::with_room_for(now, &Reads::default());
            snapshot.add_full(letter.id, Some((letter.clone(), Full { body, notes: Vec::new() })));
            let mut draft = Draft::new(snapshot, 7, Arc::default());
            life::delete_dead_letter(&mut draft, letter.id).unwrap();
            draft.finish().writes
        };
        let before = deleted(at(stays - Duration::from_micros(1)));
        assert!(
            matches!(&before[..], [Write::Update { head }] if head.until == Some(at(stays))),
            "{before:?}"
        );
        let after = deleted(at(stays));
        assert!(matches!(&after[..], [Write::Forget { .. }]), "{after:?}");
    }
}

/// A live job's time is not the time of its end: asking for the wrong one of the two yields nothing.
#[test]
fn one_time_is_never_taken_for_the_other() {
    for state in State::ALL {
        let head = Head { state, ..waiting(0) };
        let (burned, kept) = (head.burned_until(), head.kept_until());
        assert_eq!((burned.is_some(), kept.is_some()), (state.is_live(), state.is_finished()), "{state}");
    }
}

#[test]
fn a_later_holder_that_is_kept_shorter_stands_for_no_other() {
    let day = |number: u64| ended(number, None);
    let until = |number: u64, time: Duration| ended(number, Some(at(time)));
    assert!(outlives(&day(2), &day(1)));
    assert!(!outlives(&until(2, HOUR), &day(1)), "it is gone before the other");
    assert!(!outlives(&day(2), &until(1, DAY * 2)));
    assert!(outlives(&until(2, HOUR), &until(1, HOUR)));
    assert!(outlives(&until(2, DAY * 2), &day(1)));
}

/// Even if the later holder is no weaker in every other respect.
#[test]
fn a_later_holder_that_says_less_of_one_thing_stands_for_no_other() {
    type Change = fn(&mut Head);
    let long = Some(at(DAY * 9));
    let (earlier, later) = (ended(1, long), ended(2, long));
    let changed = |head: &Head, change: Change| {
        let mut head = head.clone();
        change(&mut head);
        head
    };
    let less: [(&str, Change, Change); 8] = [
        ("another key", |_| {}, |later| later.key = Some(UniqueKey::from_bytes([7; 32]))),
        ("another state", |_| {}, |later| later.state = State::Discarded),
        ("expired", |earlier| earlier.ending = None, |later| later.ending = Some(Ending::Expired)),
        ("ended before", |earlier| earlier.finished_at = Some(at(HOUR)), |_| {}),
        ("renewed before", |earlier| earlier.renewed_at = Some(at(HOUR)), |_| {}),
        ("a lower fence", |earlier| earlier.fence = 2, |_| {}),
        ("shown", |earlier| earlier.hold.disclose = Disclose::Never, |_| {}),
        ("a dead letter stays", |earlier| earlier.ending = Some(Ending::DeadLetter), |_| {}),
    ];
    assert!(outlives(&later, &earlier));
    for (what, of_earlier, of_later) in less {
        assert!(!outlives(&changed(&later, of_later), &changed(&earlier, of_earlier)), "{what}");
    }
    // Of two created at the same time, the one that an answer would name.
    let twin = Head { created_at: later.created_at, finished_at: later.finished_at, ..earlier };
    assert!(outlives(&later, &twin) && !outlives(&twin, &later));
}

#[test]
fn only_a_holder_whose_window_slides_as_far_stands_for_one_whose_window_slides() {
    let within = |number: u64, from, time: Duration| {
        let period = Period::from_duration(time, "").unwrap();
        let hold = Hold::new(StateSet::ALL, from, Some(period), Disclose::Always);
        Head { hold, ..ended(number, Some(at(DAY * 9))) }
    };
    let earlier = within(1, PeriodFrom::LastDuplicate, HOUR * 10);
    assert!(outlives(&within(2, PeriodFrom::LastDuplicate, HOUR * 10), &earlier));
    assert!(!outlives(&within(2, PeriodFrom::Created, HOUR * 10), &earlier), "it does not slide");
    assert!(!outlives(&within(2, PeriodFrom::LastDuplicate, HOUR * 9), &earlier), "it slides less far");
    let mut unheld = within(2, PeriodFrom::LastDuplicate, HOUR * 10);
    unheld.hold.states = StateSet::LIVE;
    assert!(!outlives(&unheld, &earlier), "it is not remembered, however far it would slide");
    let hold = Hold::new(StateSet::ALL, PeriodFrom::Created, None, Disclose::Always);
    let for_ever = Head { hold, ..ended(2, Some(at(DAY * 9))) };
    assert!(outlives(&for_ever, &earlier), "nothing is remembered longer");
}

#[test]
fn what_expired_or_is_past_its_window_holds_no_key() {
    let hour = Some(Period::from_duration(HOUR, "").unwrap());
    let hold = |period| Hold::new(StateSet::ALL, PeriodFrom::Created, period, Disclose::Always);
    let discarded = Head { state: State::Discarded, hold: hold(None), ..ended(0, None) };
    let expired = Head { ending: Some(Ending::Expired), ..discarded.clone() };
    assert_eq!(must_remember(&discarded, at(DAY)), Remember::Forever);
    assert_eq!(must_remember(&expired, at(DAY)), Remember::Forget);
    let (over, live) =
        (Head { hold: hold(hour), ..discarded }, Head { hold: hold(hour), until: None, ..waiting(0) });
    assert_eq!(
        [holding(&over, at(DAY)), holding(&live, at(DAY))],
        [Holding::Known(false), Holding::AskPolicy]
    );
    // Only its policy tells whether the live job holds the key for longer.
    assert_eq!(held_until(None, &over, at(Duration::ZERO)), Some(at(HOUR)));
    assert_eq!(held_until(None, &live, at(Duration::ZERO)), None);
    assert!(is_kept(at(HOUR), at(Duration::ZERO)) && !is_kept(at(HOUR), at(HOUR)));
}

#[test]
fn a_policy_is_asked_only_of_a_job_that_goes_on_past_its_window() {
    let bare = crate::policy("{}");
    let window = crate::policy(r#"{"period":"PT1H"}"#);
    let on = crate::policy(r#"{"period":"PT1H","while_active":true}"#);
    let from_end =
        crate::policy(r#"{"period":"PT1H","period_from":"finished","states":["active","completed"]}"#);
    let failed = crate::policy(r#"{"period":"PT1H","while_active":true,"states":["retryable","discarded"]}"#);
    let (within, past, expires_at) = (at(Duration::ZERO), at(DAY), Some(at(HOUR * 2)));
    let live = || Head { until: None, ..waiting(0) };
    let active = Head { state: State::Active, ..live() };
    let done = || Head { state: State::Completed, ..ended(0, None) };
    let expired = Head { expires_at, ..live() };
    let tried =
        Head { state: State::Retryable, attempt: 1, started_at: Some(at(HOUR)), expires_at, ..live() };
    // What the head tells; whether the job holds its key, by the head alone and by its policy;
    // `until_asks_policy`.
    let (held, free) = (Holding::Known(true), Holding::Known(false));
    let rows = [
        ("no window", &bare, live(), past, held, [true, true], false),
        ("no window, ended", &bare, done(), past, free, [false, false], false),
        ("within", &window, live(), within, held, [true, true], true),
        ("within, while active", &on, live(), within, held, [true, true], true),
        ("past", &window, live(), past, Holding::AskPolicy, [false, false], true),
        ("past, while active", &on, live(), past, Holding::AskPolicy, [false, true], true),
        ("past, while active, ended", &on, done(), past, free, [false, false], false),
        ("past, while active, expired", &on, expired, past, free, [false, false], true),
        (
            "past, while active, expired after a run",
            &failed,
            tried,
            past,
            Holding::AskPolicy,
            [false, false],
            true,
        ),
        ("before its end, when it begins", &from_end, active, past, held, [true, true], true),
        ("within, from its end", &from_end, done(), within, held, [true, true], false),
        ("past, from its end", &from_end, done(), past, free, [false, false], false),
    ];
    for (what, policy, head, now, told, by, asks) in rows {
        let head = Head { hold: policy.hold(), ..head };
        assert_eq!(holding(&head, now), told, "{what}");
        assert_eq!([holds(None, &head, now), holds(Some(policy), &head, now)], by, "{what}");
        assert_eq!(until_asks_policy(&head), asks, "{what}");
        assert!(told != Holding::AskPolicy || asks, "{what}");
        // Whatever the head makes certain agrees with the policy.
        if !asks {
            assert_eq!(held_until(None, &head, now), held_until(Some(policy), &head, now), "{what}");
        }
    }
}

#[test]
fn only_a_policy_that_never_discloses_hides_its_job() {
    assert!(Hold::NONE.is_disclosed() && crate::policy("{}").hold().is_disclosed());
    assert!(!crate::policy(r#"{"disclose":"never"}"#).hold().is_disclosed());
}
