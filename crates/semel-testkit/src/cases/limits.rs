//! What a store does for limits and bounds: it keeps rows that it does not interpret, returns limited jobs
//! unclaimed in their places, and skips the limits it is told to skip.

use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::ident::QueueName;
use semel_core::job::Head;
use semel_core::lease::{Bearer, Grant, Unclaimable};
use semel_core::life::{cancel, set_paused, set_queue};
use semel_core::limit::{self, Gate, Lane, Limit, Rate, Turn};
use semel_core::settings::{Backpressure, Depth, QueueSettings};
use semel_core::settle::Settled;
use semel_core::state::{State, StateSet};
use semel_store::backend::{Claim, Verdict};

use crate::fixture::{Fixture, claim};
use crate::make::{Want, job, keyed};

fn limited(key: &str, concurrency: u32) -> Offer {
    let limit = Limit { key: key.into(), concurrency: Some(concurrency), rate: None };
    Offer { limit: Some(limit), ..job().offer() }
}

fn grant() -> Grant {
    Grant::new("w".into(), None)
}

async fn turn(f: &Fixture, head: &Head) -> Turn {
    let id = head.id;
    f.decide(move |draft| Ok(limit::claim(draft, &[id], &grant(), 1)?.remove(0).1)).await
}

async fn granted(f: &Fixture, head: &Head) -> Head {
    match turn(f, head).await {
        Turn::Granted(job) => job.0,
        other => panic!("{other:?}"),
    }
}

/// A limited job has its place in the order, and no store grants it.
pub async fn a_limited_job_comes_back_unclaimed_in_its_place(f: &Fixture) {
    let first = f.create(&limited("k", 1)).await;
    let second = f.create(&job().offer()).await;
    let claimed = f.claim("default", 1).await;
    assert_eq!((claimed.jobs.len(), claimed.unclaimable), (0, vec![(first.id, Unclaimable::Limited)]));
    let claimed = f.claim("default", 2).await;
    assert_eq!(claimed.jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [second.id]);
    assert_eq!(f.head(first.id).await.unwrap(), first, "it is as it was");
}

/// This holds also where the job in front may not be granted.
pub async fn a_limited_job_does_not_overtake(f: &Fixture) {
    let soon = Duration::from_secs(1);
    let expired = f.create(&job().expires(soon).priority(9).offer()).await;
    let free = f.create(&job().priority(5).offer()).await;
    f.create(&limited("k", 1)).await;
    f.advance(soon).await;
    let claimed = f.claim("default", 1).await;
    assert_eq!(claimed.jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [free.id]);
    assert_eq!(claimed.unclaimable, [(expired.id, Unclaimable::Expired)]);
}

/// A worker that asks for an urgent queue and then for another is first shown what is urgent.
///
/// If the other queue's job were granted beside it, the urgent job would wait for as long as that queue has
/// jobs.
pub async fn a_limited_job_goes_before_the_next_queue(f: &Fixture) {
    let other = QueueName::from_stored("other");
    let urgent = f.create(&limited("k", 1)).await;
    let next = f.create(&Offer { queue: other, ..job().offer() }).await;
    for (limit, granted) in [(1, vec![]), (2, vec![next.id])] {
        let applied = f.commit_all(Vec::new(), vec![claim(&["default", "other"], limit)]).await;
        let claimed = &applied.claims[0];
        assert_eq!(claimed.jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), granted);
        assert_eq!(claimed.unclaimable, [(urgent.id, Unclaimable::Limited)]);
    }
}

/// All of those jobs are skipped, however many there are, and no others.
pub async fn jobs_of_closed_limits_are_passed_over(f: &Fixture) {
    for _ in 0..200 {
        f.create(&Offer { priority: 9, ..limited("k", 1) }).await;
    }
    let open = f.create(&Offer { priority: 5, ..limited("other", 1) }).await;
    let free = f.create(&job().offer()).await;
    let asked = Claim { closed: vec![Lane::of("k")], ..claim(&["default"], 2) };
    let applied = f.commit_all(Vec::new(), vec![asked]).await;
    let claimed = &applied.claims[0];
    assert_eq!(claimed.jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [free.id]);
    assert_eq!(claimed.unclaimable, [(open.id, Unclaimable::Limited)]);
}

/// Once the first is shown there is no room for the others; but it may not be startable, and then nobody
/// would have seen the others. Jobs behind them that can be granted are not skipped.
pub async fn limited_jobs_are_shown_beyond_the_room_where_nothing_is_granted(f: &Fixture) {
    let mut shown = Vec::new();
    for number in 0..20 {
        let offer = Offer { priority: 9, ..limited(&format!("k{number}"), 1) };
        shown.push((f.create(&offer).await.id, Unclaimable::Limited));
    }
    shown.sort_unstable_by_key(|(id, _)| *id);
    let free = f.create(&job().priority(5).offer()).await;
    f.create(&limited("behind", 1)).await;
    for (limit, granted) in [(1, vec![]), (21, vec![free.id])] {
        let mut claimed = f.claim("default", limit).await;
        assert_eq!(claimed.jobs.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), granted);
        claimed.unclaimable.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(claimed.unclaimable, shown);
    }
}

/// However a run ends, its place is free again.
pub async fn a_limit_counts_who_runs_and_nobody_else(f: &Fixture) {
    let jobs = [
        f.create(&limited("k", 1)).await,
        f.create(&limited("k", 1)).await,
        f.create(&limited("k", 1)).await,
    ];
    let first = granted(f, &jobs[0]).await;
    assert_eq!((first.state, first.attempt), (State::Active, 1));
    assert_eq!(f.head(first.id).await.unwrap(), first);
    assert!(
        matches!(turn(f, &jobs[1]).await, Turn::HeldBack(lane, Gate::Full(Some(_))) if lane == Lane::of("k"))
    );
    assert!(matches!(turn(f, &jobs[1]).await, Turn::HeldBack(..)), "its place is taken");
    f.complete(&first).await;
    let second = granted(f, &jobs[1]).await;
    f.cancel(second.id).await;
    let third = granted(f, &jobs[2]).await;
    assert_eq!(third.state, State::Active);
    assert!(matches!(turn(f, &first).await, Turn::Unclaimable(Unclaimable::NotReady)));
}

/// A retried job takes one place, however often it is retried.
pub async fn a_retried_job_takes_one_place_of_its_limit(f: &Fixture) {
    let jobs = [f.create(&limited("k", 2)).await, f.create(&limited("k", 2)).await];
    let run = granted(f, &jobs[0]).await;
    f.fail(&run).await;
    f.advance(Duration::from_secs(600)).await;
    f.run_duties().await;
    granted(f, &jobs[0]).await;
    granted(f, &jobs[1]).await;
}

/// A run that was counted before is counted again; runs that began in between are unknown to the limit.
pub async fn a_limit_that_has_a_concurrency_again_counts_whom_it_had_counted(f: &Fixture) {
    let rate = Some(Rate { count: 100, period_us: 1_000_000 });
    let by_rate = Limit { key: "k".into(), concurrency: None, rate };
    let by_rate = Offer { limit: Some(by_rate), ..job().offer() };
    let first = f.create(&limited("k", 1)).await;
    let first = granted(f, &first).await;
    let between = f.create(&by_rate).await;
    granted(f, &between).await;
    let next = f.create(&limited("k", 1)).await;
    assert!(matches!(turn(f, &next).await, Turn::HeldBack(_, Gate::Full(_))));
    f.complete(&first).await;
    granted(f, &next).await;
}

/// Two servers start jobs of one limit at once.
pub async fn two_starts_of_one_limit_meet_at_its_record(f: &Fixture) {
    let jobs = [f.create(&limited("k", 1)).await, f.create(&limited("k", 1)).await];
    let row = Lane::of("k").row();
    let reads = Reads {
        fulls: jobs.iter().map(|head| head.id).collect(),
        queues: vec![row, QueueName::default()],
        ..Reads::default()
    };
    let mut groups = Vec::new();
    for head in &jobs {
        let mut draft = f.draft(&reads).await;
        let turns = limit::claim(&mut draft, &[head.id], &grant(), 1).unwrap();
        assert!(matches!(turns[0].1, Turn::Granted(_)), "{turns:?}");
        groups.push(draft.finish());
    }
    assert_eq!(f.commit(groups).await, [Verdict::Applied, Verdict::Stale]);
    assert!(matches!(turn(f, &jobs[1]).await, Turn::HeldBack(..)));
}

/// The rate's period is measured by the store's clock.
pub async fn a_rate_counts_starts_by_the_stores_time(f: &Fixture) {
    let rate = Some(Rate { count: 1, period_us: 10_000_000 });
    let limit = Limit { key: "k".into(), concurrency: None, rate };
    let offer = Offer { limit: Some(limit), ..job().offer() };
    let jobs = [f.create(&offer).await, f.create(&offer).await];
    let began = granted(f, &jobs[0]).await.started_at.unwrap();
    f.complete(&f.head(jobs[0].id).await.unwrap()).await;
    f.maintain().await;
    let opens = began.saturating_add(Duration::from_secs(10));
    assert!(matches!(turn(f, &jobs[1]).await, Turn::HeldBack(_, Gate::Until(at)) if at == opens));
    f.advance(Duration::from_secs(10)).await;
    granted(f, &jobs[1]).await;
}

/// Settings are stored with the queue's version. A fixture that reopens its store at each step shows that
/// they are durable.
pub async fn settings_are_kept_with_their_queue(f: &Fixture) {
    let name = QueueName::from_stored("bounded");
    let bound = Backpressure { max_depth: 2, warning_threshold: 0.5 };
    let set = QueueSettings { backpressure: Some(bound) };
    let before = f.decide(|draft| draft.queue(&name)).await;
    assert_eq!((before.settings.clone(), before.version), (None, 0));
    let row = f.decide(|draft| set_queue(draft, &name, &set)).await;
    for _ in 0..2 {
        let now = f.decide(|draft| draft.queue(&name)).await;
        assert_eq!(QueueSettings::decode(now.settings.as_deref()), set);
        assert_eq!((now.paused, now.version > 0, now.settings == row.settings), (false, true, true));
        f.maintain().await;
    }
    let row = f.decide(|draft| set_queue(draft, &name, &QueueSettings::default())).await;
    assert_eq!(row.settings, None);
    assert_eq!(f.decide(|draft| draft.queue(&name)).await.settings, None);
}

/// The bound counts jobs in the store and jobs of the same group, and no others.
pub async fn a_bound_counts_the_jobs_that_wait(f: &Fixture) {
    let name = QueueName::default();
    let set = QueueSettings { backpressure: Some(Backpressure { max_depth: 3, warning_threshold: 1.0 }) };
    f.decide(|draft| set_queue(draft, &name, &set)).await;
    f.create(&job().offer()).await;
    f.claim_one().await;
    f.create(&job().later(Duration::from_secs(60)).offer()).await;
    let offer = Offer { bounded: true, ..job().offer() };
    let outcomes = f
        .decide(|draft| {
            let mut outcomes = Vec::new();
            for _ in 0..3 {
                outcomes.push(enqueue(draft, &offer)?);
            }
            Ok(outcomes)
        })
        .await;
    assert!(outcomes[..2].iter().all(Outcome::is_inserted), "{outcomes:?}");
    assert_eq!(outcomes[2], Outcome::QueueFull(Depth { waiting: 3, bound: 3 }));
    // A duplicate needs no room.
    f.create(&keyed("a").offer()).await;
    let again = Offer { bounded: true, ..keyed("a").on_conflict("ignore").offer() };
    assert!(matches!(f.enqueue(&again).await, Outcome::Existing(_)));
}

fn into(want: &Want, queue: &str) -> Offer {
    Offer { bounded: true, queue: QueueName::from_stored(queue), ..want.offer() }
}

async fn bound(f: &Fixture, queue: &str, max_depth: u64) {
    let set = QueueSettings { backpressure: Some(Backpressure { max_depth, warning_threshold: 1.0 }) };
    f.decide(|draft| set_queue(draft, &QueueName::from_stored(queue), &set)).await;
}

/// Load, load, commit, commit: as two servers do.
pub async fn two_who_see_the_last_place_of_a_queue_meet(f: &Fixture) {
    bound(f, "q", 2).await;
    let offer = into(&job(), "q");
    assert!(f.enqueue(&offer).await.is_inserted());
    for name in ["plain", "keyed"] {
        let offer = if name == "keyed" { into(&keyed(name), "q") } else { offer.clone() };
        let mut groups = Vec::new();
        for _ in 0..2 {
            let (outcome, group) = f.decided(&Reads::default(), |draft| enqueue(draft, &offer)).await;
            assert!(outcome.is_inserted(), "{outcome:?}");
            groups.push(group);
        }
        let second = groups.pop().unwrap();
        assert_eq!(f.commit(groups).await, [Verdict::Applied]);
        assert_eq!(f.commit(vec![second]).await, [Verdict::Stale]);
        let other = into(&job(), "q");
        assert_eq!(f.enqueue(&other).await, Outcome::QueueFull(Depth { waiting: 2, bound: 2 }));
        assert_eq!(f.claim("q", 1).await.jobs.len(), 1);
    }
    // Additions to other queues do not conflict.
    bound(f, "r", 2).await;
    let mut groups = Vec::new();
    for queue in ["q", "r"] {
        let offer = into(&job(), queue);
        groups.push(f.decided(&Reads::default(), |draft| enqueue(draft, &offer)).await.1);
    }
    assert_eq!(f.commit(groups).await, [Verdict::Applied, Verdict::Applied]);
}

/// What another decision of the same group removes may not be committed, so its place must not be given away
/// yet.
pub async fn a_place_that_a_neighbour_leaves_is_not_given_away_with_it(f: &Fixture) {
    bound(f, "q", 1).await;
    let offer = into(&job(), "q");
    let Outcome::Created(head) = f.enqueue(&offer).await else { panic!("not created") };
    let mut reads = Reads { fulls: vec![head.id], ..Reads::default() };
    offer.reads(&mut reads);
    let mut draft = f.draft(&reads).await;
    assert!(matches!(cancel(&mut draft, head.id, &Bearer::default()).unwrap(), Settled::Done(_)));
    let neighbours = draft.finish();
    let full = Outcome::QueueFull(Depth { waiting: 1, bound: 1 });
    assert_eq!(enqueue(&mut draft, &offer).unwrap(), full);
    assert_eq!(f.commit(vec![neighbours]).await, [Verdict::Applied]);
    assert!(f.enqueue(&offer).await.is_inserted());
}

/// A replaced job that waited in another queue, or was running, leaves no place; then nothing is ended.
pub async fn a_replacement_needs_room_unless_it_takes_the_place_of_one_that_waited_there(f: &Fixture) {
    bound(f, "a", 1).await;
    bound(f, "b", 1).await;
    let replacing = keyed("k").on_conflict("replace");
    assert!(f.enqueue(&into(&job(), "b")).await.is_inserted());
    let Outcome::Created(first) = f.enqueue(&into(&replacing, "a")).await else { panic!("not created") };
    let full = Outcome::QueueFull(Depth { waiting: 1, bound: 1 });
    assert_eq!(f.enqueue(&into(&replacing, "b")).await, full);
    assert_eq!(f.head(first.id).await.unwrap(), *first, "it is as it was");
    let Outcome::Replaced { head: second, .. } = f.enqueue(&into(&replacing, "a")).await else {
        panic!("not replaced")
    };
    assert_eq!(f.claim("a", 1).await.jobs[0].0.id, second.id);
    assert!(f.enqueue(&into(&job(), "a")).await.is_inserted());
    assert_eq!(f.enqueue(&into(&replacing, "a")).await, full);
    assert_eq!(f.head(second.id).await.unwrap().state, State::Active);
    assert_eq!(f.claim("b", 1).await.jobs.len(), 1);
    assert!(matches!(f.enqueue(&into(&replacing, "b")).await, Outcome::Replaced { .. }));
    assert_eq!(f.head(second.id).await.unwrap().state, State::Cancelled);
    // This holds also where the bound has been lowered since.
    bound(f, "b", 0).await;
    assert!(matches!(f.enqueue(&into(&replacing, "b")).await, Outcome::Replaced { .. }));
}

/// It has that room and no more.
pub async fn a_batch_has_the_room_that_its_replacements_leave(f: &Fixture) {
    bound(f, "a", 2).await;
    bound(f, "b", 9).await;
    let replacing = keyed("k").on_conflict("replace");
    let outcomes = f
        .decide(|draft| {
            [
                into(&replacing, "a"),
                into(&replacing, "a"),
                into(&job(), "a"),
                into(&job(), "a"),
                into(&replacing, "b"),
                into(&job(), "a"),
                into(&job(), "a"),
            ]
            .iter()
            .map(|offer| enqueue(draft, offer))
            .collect::<Result<Vec<_>, _>>()
        })
        .await;
    let inserted: Vec<bool> = outcomes.iter().map(Outcome::is_inserted).collect();
    assert_eq!(inserted, [true, true, true, false, true, true, false], "{outcomes:?}");
}

/// From that time on it is worth asking again.
pub async fn a_full_limit_says_when_the_first_of_its_runs_ends(f: &Fixture) {
    for visibility_ms in [60_000, 5_000, 30_000] {
        let head = f.create(&Offer { visibility_ms, ..limited("k", 3) }).await;
        granted(f, &head).await;
    }
    let first = f.now().await.saturating_add(Duration::from_secs(6));
    let next = f.create(&limited("k", 3)).await;
    let turn = turn(f, &next).await;
    assert!(matches!(turn, Turn::HeldBack(_, Gate::Full(Some(at))) if at < first), "{turn:?}");
}

/// The store may have found the job before the queue was paused.
pub async fn a_limited_job_of_a_paused_queue_is_not_started(f: &Fixture) {
    let head = f.create(&limited("k", 1)).await;
    f.decide(|draft| set_paused(draft, &head.queue, true)).await;
    assert!(matches!(turn(f, &head).await, Turn::Gone));
    f.decide(|draft| set_paused(draft, &head.queue, false)).await;
    granted(f, &head).await;
}

/// A job that only waits is not a run.
pub async fn a_limited_follow_up_is_not_started_beside_a_run_of_its_key(f: &Fixture) {
    let by = |want: Want| Offer { limit: limited("k", 9).limit, ..want.offer() };
    let wish = by(keyed("a").on_conflict("follow_up"));
    let first = granted(f, &f.create(&wish).await).await;
    let next = f.create(&wish).await;
    f.complete(&first).await;
    let beside = by(keyed("a").states(StateSet::EMPTY.with(State::Scheduled)));
    let run = granted(f, &f.create(&beside).await).await;
    assert!(matches!(turn(f, &next).await, Turn::Unclaimable(Unclaimable::Overlaps)));
    f.complete(&run).await;
    f.create(&beside).await;
    granted(f, &next).await;
}

/// A follow-up waits in its queue like any other job.
pub async fn a_follow_up_needs_room(f: &Fixture) {
    bound(f, "a", 0).await;
    let wish = keyed("k").on_conflict("follow_up");
    f.create(&wish.clone().queue("a").offer()).await;
    f.claim("a", 1).await;
    assert_eq!(f.enqueue(&into(&wish, "a")).await, Outcome::QueueFull(Depth { waiting: 0, bound: 0 }));
    bound(f, "a", 1).await;
    assert!(matches!(f.enqueue(&into(&wish, "a")).await, Outcome::FollowUp(_)));
}
