//! Admission: what must hold for any policy, any holders, at any time.

use std::sync::Arc;

use proptest::prelude::*;
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::job::{Head, Lease, Role};
use semel_core::limits::PERIOD_DAYS_MAX;
use semel_core::sight::{Queues, Sight};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{
    Admission, Blocking, Disclose, Hold, OnConflict, PROFILE, Period, PeriodFrom, RejectReason, Remember,
    UniquePolicy, Unreadable, admit, blocks, mismatch, must_remember,
};

use crate::{policy, spec};

/// 2026-02-28T12:00:00Z: the months before it have days that February lacks.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_772_280_000_000);
const MINUTE: i64 = 60_000_000;

pub(crate) const fn ago(minutes: i64) -> Timestamp {
    Timestamp::from_micros(NOW.as_micros() - minutes * MINUTE)
}

/// A holder in `state`, created `age` minutes ago; its row number is its place in the tables.
pub(crate) fn head(row: u64, state: State, age: i64) -> Head {
    Head {
        id: JobId::mint(ago(age), row, 0),
        key: None,
        hold: Hold::NONE,
        job_type: JobType::from_stored("email.send"),
        queue: QueueName::default(),
        priority: 0,
        state,
        role: Role::Plain,
        attempt: u32::from(matches!(state, State::Active | State::Retryable | State::Completed)),
        max_attempts: 3,
        visibility_ms: 0,
        timeout_ms: 0,
        version: 1,
        fence: 1,
        created_at: ago(age),
        available_at: if state == State::Scheduled { ago(-30) } else { ago(age) },
        expires_at: None,
        started_at: None,
        finished_at: state.is_finished().then_some(ago(age / 2)),
        renewed_at: None,
        until: None,
        lane: None,
        lease: (state == State::Active)
            .then(|| Box::new(Lease { worker: "w".into(), visible_until: ago(-2), run_until: ago(-30) })),
        follow_up: None,
        ending: None,
        awaited: false,
    }
}

pub(crate) fn a_follow_up(row: u64, state: State, age: i64) -> Head {
    Head { role: Role::FollowUp, attempt: 0, ..head(row, state, age) }
}

pub(crate) type MakeHolders = fn() -> Vec<Head>;

/// Sets of holders for the golden table; rows are shown as letters.
pub(crate) const HOLDERS: [(&str, MakeHolders); 21] = [
    ("none", Vec::new),
    ("a scheduled", || vec![head(0, State::Scheduled, 9)]),
    ("a available", || vec![head(0, State::Available, 9)]),
    ("a pending", || vec![head(0, State::Pending, 9)]),
    ("a active", || vec![head(0, State::Active, 9)]),
    ("a retryable", || vec![head(0, State::Retryable, 9)]),
    ("a completed", || vec![head(0, State::Completed, 9)]),
    ("a cancelled", || vec![head(0, State::Cancelled, 9)]),
    ("a discarded", || vec![head(0, State::Discarded, 9)]),
    ("a available, expired", || vec![Head { expires_at: Some(NOW), ..head(0, State::Available, 9) }]),
    ("a active, expired", || vec![Head { expires_at: Some(NOW), ..head(0, State::Active, 9) }]),
    ("a available, redelivered", || vec![Head { attempt: 1, ..head(0, State::Available, 9) }]),
    ("a scheduled, started", || vec![Head { attempt: 1, ..head(0, State::Scheduled, 9) }]),
    ("a active, undisclosed", || {
        let hold = Hold::new(StateSet::LIVE, PeriodFrom::Created, None, Disclose::Never);
        vec![Head { hold, ..head(0, State::Active, 9) }]
    }),
    ("a active, b pending", || vec![head(0, State::Active, 9), head(1, State::Pending, 1)]),
    ("a active, b follow-up", || vec![head(0, State::Active, 9), a_follow_up(1, State::Pending, 1)]),
    ("a completed, b follow-up", || vec![head(0, State::Completed, 9), a_follow_up(1, State::Available, 1)]),
    ("a follow-up active", || vec![Head { role: Role::FollowUp, ..head(0, State::Active, 9) }]),
    ("a active, b retryable, c sched.", || {
        vec![head(0, State::Active, 9), head(1, State::Retryable, 5), head(2, State::Scheduled, 1)]
    }),
    ("a scheduled, b scheduled later", || {
        vec![head(0, State::Scheduled, 9), Head { available_at: ago(-99), ..head(1, State::Scheduled, 1) }]
    }),
    ("a available, b completed", || vec![head(0, State::Available, 9), head(1, State::Completed, 1)]),
];

/// An admission with letters for ids and minutes from now for times.
pub(crate) fn show(admission: &Admission, holders: &[Head]) -> String {
    let one = |id: &JobId| {
        let place = holders.iter().position(|holder| holder.id == *id).unwrap();
        char::from(b'a' + u8::try_from(place).unwrap()).to_string()
    };
    let all = |ids: &[JobId]| ids.iter().map(one).collect::<String>();
    let when = |at: &Option<Timestamp>| match at {
        Some(at) => format!("now+{}min", at.since(NOW).as_secs() / 60),
        None => "-".to_owned(),
    };
    let renewed =
        |ids: &[JobId]| if ids.is_empty() { String::new() } else { format!(", renews {}", all(ids)) };
    match admission {
        Admission::Create => "create".to_owned(),
        Admission::Existing { holder, renew } => format!("existing {}{}", one(holder), renewed(renew)),
        Admission::Reject { holder, why, disclose, renew } => {
            format!("reject {}: {why:?}, disclose {disclose}{}", one(holder), renewed(renew))
        }
        Admission::Replace { holders, scheduled_at, wait_until, disclose } => format!(
            "replace {}, start {}, wait {}, disclose {disclose}",
            all(holders),
            when(scheduled_at),
            when(wait_until)
        ),
        Admission::AmendFollowUp { follow_up } => format!("amend follow-up {}", one(follow_up)),
        Admission::CreateFollowUp { after } => format!("create follow-up after {}", all(after)),
        Admission::AmendWaiting { holder } => format!("amend waiting {}", one(holder)),
    }
}

#[test]
fn a_window_ends_when_it_says() {
    let hour = policy(r#"{"period":"PT1H"}"#);
    let at = |age| blocks(&hour, &head(0, State::Available, age), NOW);
    assert_eq!(at(59), Blocking::InWindow { until: ago(-1) });
    assert_eq!(at(60), Blocking::WindowOver { since: NOW });
    let active = policy(r#"{"period":"PT1H","while_active":true,"states":["active","completed"]}"#);
    assert_eq!(blocks(&active, &head(0, State::Active, 999), NOW), Blocking::WhileActive);
    assert_eq!(
        blocks(&active, &head(0, State::Completed, 999), NOW),
        Blocking::WindowOver { since: ago(939) }
    );
    assert_eq!(blocks(&active, &head(0, State::Available, 1), NOW), Blocking::OtherState);
    // An expired holder counts as discarded, and a discarded one is past its window.
    let failed = policy(r#"{"period":"PT1H","while_active":true,"states":["retryable","discarded"]}"#);
    let expired = Head { expires_at: Some(NOW), ..head(0, State::Retryable, 999) };
    assert_eq!(blocks(&failed, &expired, NOW), Blocking::WindowOver { since: ago(939) });
}

#[test]
fn all_the_runs_that_are_replaced_are_waited_for() {
    let runs = [(0, 2), (1, 9), (2, 4)].map(|(row, minutes)| {
        let lease = Lease { worker: "w".into(), visible_until: ago(-minutes), run_until: ago(-30) };
        Head { lease: Some(Box::new(lease)), ..head(row, State::Active, 5) }
    });
    let waits = policy(r#"{"on_conflict":"replace","when_active":"wait"}"#);
    let told = admit(&waits, &runs, NOW, Sight::everything());
    assert!(matches!(told, Admission::Replace { wait_until: Some(at), .. } if at == ago(-9)), "{told:?}");
}

/// Whether or not a store still has the outlived holder.
#[test]
fn a_holder_that_another_outlives_is_not_renewed() {
    let sliding = policy(r#"{"period":"PT1H","period_from":"last_duplicate","states":["completed"]}"#);
    let of = |row, age| Head { hold: sliding.hold(), ..head(row, State::Completed, age) };
    let (older, newer) = (of(0, 9), of(1, 5));
    let Admission::Reject { renew, .. } = admit(&sliding, [&older, &newer], NOW, Sight::everything()) else {
        panic!()
    };
    assert_eq!(renew, [newer.id]);
}

#[test]
fn each_anchor_starts_the_window_at_its_own_time() {
    let from = |from: &str, holder: &Head| {
        let policy = policy(&format!(
            r#"{{"period":"PT1H","period_from":"{from}","states":["available","completed"]}}"#
        ));
        blocks(&policy, holder, NOW)
    };
    // Created 100 minutes ago, ended 50 minutes ago.
    let done = head(0, State::Completed, 100);
    assert_eq!(from("created", &done), Blocking::WindowOver { since: ago(40) });
    assert_eq!(from("finished", &done), Blocking::InWindow { until: ago(-10) });
    assert_eq!(from("last_duplicate", &done), Blocking::WindowOver { since: ago(40) });
    assert_eq!(
        from("last_duplicate", &Head { renewed_at: Some(ago(5)), ..done }),
        Blocking::InWindow { until: ago(-55) }
    );
    assert_eq!(from("finished", &head(0, State::Available, 1_000)), Blocking::Unfinished);
}

#[test]
fn the_strictest_word_on_disclosure_counts() {
    let hidden = Hold::new(StateSet::LIVE, PeriodFrom::Created, None, Disclose::Never);
    let open = head(0, State::Available, 1);
    // Not the one that an answer names, but it blocks too.
    let closed = Head { hold: hidden, ..head(1, State::Available, 9) };
    let expired = Head { expires_at: Some(NOW), ..closed.clone() };
    let ignore = policy(r#"{"on_conflict":"ignore"}"#);
    let undisclosed = Admission::Reject {
        holder: open.id,
        why: RejectReason::Undisclosed,
        disclose: Disclose::Never,
        renew: Vec::new(),
    };
    let existing = Admission::Existing { holder: open.id, renew: Vec::new() };
    assert_eq!(admit(&ignore, [&open], NOW, Sight::everything()), existing);
    assert_eq!(admit(&ignore, [&open], NOW, Sight { inspect: false, ..Sight::everything() }), undisclosed);
    assert_eq!(admit(&ignore, [&open, &closed], NOW, Sight::everything()), undisclosed);
    assert_eq!(admit(&ignore, [&open, &expired], NOW, Sight::everything()), existing);
    let replace = policy(r#"{"on_conflict":"replace","disclose":"never"}"#);
    assert!(matches!(
        admit(&replace, [&open], NOW, Sight::everything()),
        Admission::Replace { disclose: Disclose::Never, .. }
    ));
}

#[test]
fn a_mismatch_is_another_type_or_other_args() {
    let (a, b) = (JobType::from_stored("a"), JobType::from_stored("b"));
    let strict = policy(r#"{"on_mismatch":"reject"}"#);
    assert!(!mismatch(&strict, &a, &[0; 32], &a, &[0; 32]));
    assert!(mismatch(&strict, &a, &[0; 32], &b, &[0; 32]));
    assert!(mismatch(&strict, &a, &[0; 32], &a, &[1; 32]));
    assert!(!mismatch(&policy("{}"), &a, &[0; 32], &b, &[1; 32]));
}

#[test]
fn a_hold_is_small_and_its_bytes_are_read_back() {
    assert!(size_of::<Hold>() <= 24);
    assert_eq!(Hold::from_bytes(&Hold::NONE.to_bytes()), Ok(Hold::NONE));
    assert_eq!(Hold::from_bytes(&[0; 15]), Err(Unreadable::Hold));
    assert_eq!(Hold::from_bytes(&[0; 17]), Err(Unreadable::Hold));
    for (place, bad) in [(1, 3), (2, 2), (7, 0xff), (15, 0xff)] {
        let mut bytes = Hold::NONE.to_bytes();
        bytes[place] = bad;
        assert_eq!(Hold::from_bytes(&bytes), Err(Unreadable::Hold), "{place}");
    }
}

/// The profile's number is part of the stored form: 0 is `c1`.
#[test]
fn a_key_of_an_unknown_profile_is_not_taken_for_one_of_ours() {
    let strict = policy(r#"{"states":["available","completed"]}"#).hold();
    let mut bytes = strict.to_bytes();
    assert_eq!((PROFILE, bytes[3]), ("c1", 0));
    bytes[3] = 1;
    let unreadable = Hold::from_bytes(&bytes).unwrap_err();
    assert_eq!(unreadable, Unreadable::Profile(1));
    assert!(unreadable.to_string().contains("profile"), "{unreadable}");
}

fn period() -> impl Strategy<Value = Option<Period>> {
    prop_oneof![
        Just(None),
        (1..200_u64).prop_map(|minutes| Period::new(0, minutes * MINUTE.unsigned_abs())),
        (1..3_u32, 0..100_u64)
            .prop_map(|(months, minutes)| Period::new(months, minutes * MINUTE.unsigned_abs())),
    ]
}

pub(crate) fn a_policy() -> impl Strategy<Value = UniquePolicy> {
    let choices = (0..OnConflict::ALL.len(), 0..PeriodFrom::ALL.len(), 0..Disclose::ALL.len());
    let states =
        prop_oneof![3 => any::<u8>(), 1 => Just(StateSet::ALL.bits()), 1 => Just(StateSet::LIVE.bits())];
    (choices, period(), states, any::<bool>(), any::<bool>()).prop_filter_map(
        "contradicts itself",
        |((conflict, from, disclose), period, states, while_active, waits)| {
            let mut spec = spec("{}");
            spec.on_conflict = Some(OnConflict::ALL[conflict].name().to_owned());
            spec.period_from = Some(PeriodFrom::ALL[from].name().to_owned());
            spec.disclose = Some(Disclose::ALL[disclose].name().to_owned());
            spec.period = period.map(|period| period.to_string());
            spec.states =
                Some(StateSet::from_bits(states).iter().map(|state| state.name().to_owned()).collect());
            spec.while_active = Some(while_active);
            spec.when_active = Some(if waits { "wait" } else { "now" }.to_owned());
            UniquePolicy::build(&spec, "").ok()
        },
    )
}

/// Ages of up to three months, many of them close to the ends of windows and months.
fn age() -> impl Strategy<Value = i64> {
    prop_oneof![
        0..240_i64,
        (27..33_i64, 0..1_440_i64).prop_map(|(days, rest)| days * 1_440 + rest),
        0..130_000_i64
    ]
}

pub(crate) fn a_holder() -> impl Strategy<Value = Head> {
    let times = (age(), age(), prop::option::of(age()), prop::option::of(-50..50_i64));
    (
        times,
        0..8_u8,
        0..3_u32,
        any::<bool>(),
        0..Disclose::ALL.len(),
        period(),
        any::<u8>(),
        0..PeriodFrom::ALL.len(),
    )
        .prop_map(
            |((age, end, renewed, expires), state, attempt, follows, disclose, period, states, from)| {
                let state = State::from_code(state).unwrap();
                Head {
                    hold: Hold::new(
                        StateSet::from_bits(states),
                        PeriodFrom::ALL[from],
                        period,
                        Disclose::ALL[disclose],
                    ),
                    role: if follows { Role::FollowUp } else { Role::Plain },
                    attempt: if state == State::Active { attempt + 1 } else { attempt },
                    finished_at: state.is_finished().then(|| ago(end.min(age))),
                    renewed_at: renewed.map(|renewed| ago(renewed.min(age))),
                    expires_at: expires.map(|minutes| ago(-minutes)),
                    ..head(0, state, age)
                }
            },
        )
}

fn holders() -> impl Strategy<Value = Vec<Head>> {
    prop::collection::vec(a_holder(), 0..12).prop_map(|mut holders| {
        for (row, holder) in (0..).zip(&mut holders) {
            holder.id = JobId::mint(holder.created_at, row, 0);
        }
        holders
    })
}

/// What a store may give when it need not give every holder: see `UniquePolicy::needs_all_holders`.
fn newest_of_each(holders: &[Head]) -> Vec<&Head> {
    let times: [fn(&Head) -> Timestamp; 3] = [
        |head| head.created_at,
        |head| head.finished_at.unwrap_or(head.created_at),
        |head| head.renewed_at.unwrap_or(head.created_at),
    ];
    let is_needed = |head: &&Head| {
        let alike = |other: &&Head| other.state == head.state && other.hold.disclose == head.hold.disclose;
        head.state.is_live()
            || times.iter().any(|time| {
                holders.iter().filter(alike).all(|other| (time(other), other.id) <= (time(head), head.id))
            })
    };
    holders.iter().filter(is_needed).collect()
}

/// The kind of an answer: everything except which of several blocking holders it names.
pub(crate) fn kind(admission: &Admission) -> (u8, Option<(RejectReason, Disclose)>) {
    match admission {
        Admission::Create => (0, None),
        Admission::Existing { .. } => (1, None),
        Admission::Reject { why, disclose, .. } => (2, Some((*why, *disclose))),
        Admission::Replace { .. } => (3, None),
        Admission::AmendFollowUp { .. } => (4, None),
        Admission::CreateFollowUp { .. } => (5, None),
        Admission::AmendWaiting { .. } => (6, None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_job_is_created_exactly_when_nobody_blocks(policy in a_policy(), holders in holders(), inspect in any::<bool>()) {
        let admission = admit(&policy, &holders, NOW, Sight { inspect, ..Sight::everything() });
        let is_blocked = holders.iter().any(|holder| blocks(&policy, holder, NOW).is_blocking());
        prop_assert_eq!(admission == Admission::Create, !is_blocked);
        if let Some(named) = admission.holder() {
            let named = holders.iter().find(|holder| holder.id == named).unwrap();
            prop_assert!(blocks(&policy, named, NOW).is_blocking());
        }
        if let Admission::Existing { .. } = admission {
            let hides = |holder: &Head| blocks(&policy, holder, NOW).is_blocking() && holder.hold.disclose == Disclose::Never;
            prop_assert!(inspect && !holders.iter().any(hides));
        }
    }

    #[test]
    fn nobody_is_told_of_another_queue_or_acts_on_it(policy in a_policy(), mut holders in holders()) {
        for holder in &mut holders {
            let queue = if holder.id.row() % 2 == 0 { "mail" } else { "billing" };
            holder.queue = QueueName::from_stored(queue);
        }
        let queues = Queues::Only(Arc::from(["mail".to_owned()]));
        let admission = admit(&policy, &holders, NOW, Sight { inspect: true, queues: &queues });
        let acted_on = match &admission {
            Admission::Replace { holders, .. } => holders.clone(),
            Admission::CreateFollowUp { after } => after.clone(),
            other => other.holder().into_iter().filter(|_| other.disclose() == Disclose::Always).collect(),
        };
        for holder in holders.iter().filter(|holder| acted_on.contains(&holder.id)) {
            prop_assert_eq!(holder.queue.name(), "mail");
        }
        // The holder blocks nevertheless.
        let seen = admit(&policy, &holders, NOW, Sight::everything());
        prop_assert_eq!(admission == Admission::Create, seen == Admission::Create);
    }

    #[test]
    fn after_a_replacement_nobody_else_blocks(policy in a_policy(), holders in holders()) {
        let admission = admit(&policy, &holders, NOW, Sight::everything());
        if let Admission::Replace { holders: replaced, scheduled_at, wait_until, .. } = admission {
            let mut after = holders.clone();
            for holder in after.iter_mut().filter(|holder| replaced.contains(&holder.id)) {
                prop_assert!(holder.state.is_live());
                holder.state = State::Cancelled;
                holder.finished_at = Some(NOW);
                holder.lease = None;
            }
            prop_assert_eq!(admit(&policy, &after, NOW, Sight::everything()), Admission::Create);
            let kept = holders.iter().any(|holder| replaced.contains(&holder.id) && holder.state == State::Scheduled);
            prop_assert_eq!(scheduled_at.is_some(), kept && policy.on_conflict() == OnConflict::ReplaceExceptSchedule);
            prop_assert!(wait_until.is_none() || policy.when_active() == semel_core::unique::WhenActive::Wait);
        }
    }

    #[test]
    fn the_order_of_holders_does_not_matter(policy in a_policy(), holders in holders(), turn in 0..12_usize) {
        let mut turned = holders.clone();
        turned.reverse();
        if !turned.is_empty() {
            let by = turn % turned.len();
            turned.rotate_left(by);
        }
        let told = [&holders, &turned].map(|holders| admit(&policy, holders, NOW, Sight::everything()));
        prop_assert_eq!(&told[0], &told[1]);
    }

    #[test]
    fn live_holders_and_the_newest_finished_are_enough(policy in a_policy(), holders in holders(), inspect in any::<bool>()) {
        let all = admit(&policy, &holders, NOW, Sight { inspect, ..Sight::everything() });
        if !policy.needs_all_holders() {
            let fewer = admit(&policy, newest_of_each(&holders), NOW, Sight { inspect, ..Sight::everything() });
            prop_assert_eq!(kind(&all), kind(&fewer));
            if policy.period().is_none() || policy.period_from() == PeriodFrom::Created {
                prop_assert_eq!(all, fewer);
            }
        }
    }

    #[test]
    fn a_head_is_forgotten_only_when_its_own_policy_has_ended(policy in a_policy(), mut holder in a_holder(), later in 0..200_000_i64) {
        if holder.state.is_live() {
            holder.finished_at = Some(holder.created_at);
            holder.state = State::Completed;
        }
        let later = ago(-later);
        let own = policy.hold();
        prop_assert_eq!(Hold::from_bytes(&own.to_bytes()), Ok(own));
        holder.hold = own;
        match must_remember(&holder, NOW) {
            Remember::Forget => {
                prop_assert!(!blocks(&policy, &holder, NOW).is_blocking());
                prop_assert!(!blocks(&policy, &holder, later).is_blocking());
            }
            Remember::Forever => prop_assert!(blocks(&policy, &holder, later).is_blocking()),
            Remember::Until(end) => {
                prop_assert_eq!(blocks(&policy, &holder, NOW).until(), Some(end));
                prop_assert_eq!(blocks(&policy, &holder, later).is_blocking(), later < end);
            }
        }
    }

    #[test]
    fn a_policy_written_out_is_the_same_policy(policy in a_policy()) {
        prop_assert_eq!(UniquePolicy::build(&policy.to_spec(), "").unwrap(), policy);
    }
}

/// By the calendar alone the older holder, ended in the evening of 30 January, would hold until the evening
/// of 28 February, and the newer one, ended in the morning of 31 January, only until that morning.
#[test]
fn a_month_s_end_does_not_let_an_older_holder_outlive_a_newer_one() {
    let month = policy(r#"{"period":"P1M","period_from":"finished","states":["completed"]}"#);
    let ended = |row, at| Head {
        finished_at: Some(Timestamp::parse(at, "").unwrap()),
        ..head(row, State::Completed, 60 * 24 * 60)
    };
    let holders = [ended(0, "2026-01-30T23:00:00Z"), ended(1, "2026-01-31T01:00:00Z")];
    assert_eq!(
        kind(&admit(&month, &holders, NOW, Sight::everything())),
        kind(&admit(&month, &holders[1..], NOW, Sight::everything()))
    );
}

#[test]
fn a_live_job_is_never_forgotten() {
    assert_eq!(must_remember(&head(0, State::Active, PERIOD_DAYS_MAX), NOW), Remember::Forever);
    assert_eq!(must_remember(&head(0, State::Completed, 1), NOW), Remember::Forget);
}
