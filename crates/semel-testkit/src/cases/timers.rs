//! The store's clock, and what falls due.

use std::time::Duration;

use semel_core::enqueue::{Offer, Start, When};
use semel_core::event::EventKind;
use semel_core::life;
use semel_core::slot::Due;
use semel_core::state::State;
use semel_core::time::Timestamp;

use crate::fixture::Fixture;
use crate::make::{job, keyed};

const SECOND: Duration = Duration::from_secs(1);

/// "Never below the last committed time", also over a restart; after that it advances with the clock.
pub async fn time_never_goes_back(f: &Fixture) {
    f.advance(SECOND * 3600).await;
    let first = f.create(&keyed("a").later(SECOND * 10).offer()).await;
    let before = f.now().await;
    f.clock.set(Timestamp::from_millis(before.as_millis() - 1_000_000));
    assert!(f.now().await >= before);
    f.create(&keyed("b").offer()).await;
    f.clock.advance(SECOND * 10);
    assert!(f.now().await >= before.saturating_add(SECOND * 10), "nothing freezes");
    f.run_duties().await;
    assert_eq!(f.head(first.id).await.unwrap().state, State::Available);
}

/// The answer also says when the next one falls due.
pub async fn what_is_due_comes_oldest_first_and_bounded(f: &Fixture) {
    let mut heads = Vec::new();
    for seconds in [7, 3, 9, 1, 5] {
        heads.push(f.create(&job().later(SECOND * seconds).offer()).await);
    }
    f.advance(SECOND * 5).await;
    heads.sort_by_key(|head| head.available_at);
    let all: Vec<_> = heads.iter().map(|head| head.id).collect();
    let due = f.backend().due(Due::Timer, 10).await.unwrap();
    assert_eq!((due.ids, due.next, due.now), (all[..3].to_vec(), Some(heads[3].available_at), f.now().await));
    let due = f.backend().due(Due::Timer, 2).await.unwrap();
    assert_eq!((due.ids, due.next), (all[..2].to_vec(), Some(heads[2].available_at)));
    let due = f.backend().due(Due::Timer, 0).await.unwrap();
    assert!(due.ids.is_empty());
}

/// Due times are exact to the microsecond.
pub async fn nothing_is_due_before_its_time(f: &Fixture) {
    let head = f.create(&job().later(SECOND).offer()).await;
    f.advance(SECOND - Duration::from_micros(1)).await;
    let due = f.backend().due(Due::Timer, 10).await.unwrap();
    assert_eq!((due.ids, due.next), (Vec::new(), Some(head.available_at)));
    f.advance(Duration::from_micros(1)).await;
    assert_eq!(f.due(Due::Timer, 10).await, [head.id]);
}

/// The kinds are timers, leases and expiries.
pub async fn each_kind_of_due_is_apart(f: &Fixture) {
    f.create(&job().times(1_000, 0).offer()).await;
    let (leased, _) = f.claim_one().await;
    let timer = f.create(&job().later(SECOND).offer()).await;
    let both = f.create(&job().later(SECOND).expires(SECOND).offer()).await;
    let expiring = f.create(&job().expires(SECOND).offer()).await;
    let held = f.create(&job().pending().expires(SECOND * 2).offer()).await;
    f.advance(SECOND * 2).await;
    let sorted = |mut ids: Vec<_>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(f.due(Due::Timer, 10).await), sorted(vec![timer.id, both.id]));
    assert_eq!(f.due(Due::Lease, 10).await, [leased.id]);
    assert_eq!(sorted(f.due(Due::Expiry, 10).await), sorted(vec![both.id, expiring.id, held.id]));
    assert!(f.due(Due::Purge, 10).await.is_empty());
}

/// A job is filed in exactly one place.
pub async fn a_job_that_moved_on_is_due_no_more(f: &Fixture) {
    let scheduled = f.create(&job().later(SECOND).expires(SECOND * 5).offer()).await;
    f.advance(SECOND).await;
    f.run_duties().await;
    assert!(f.due(Due::Timer, 10).await.is_empty());
    let (run, _) = f.claim_one().await;
    f.advance(SECOND * 10).await;
    assert!(f.due(Due::Expiry, 10).await.is_empty(), "an active job does not expire");
    f.complete(&run).await;
    f.advance(SECOND * 3600).await;
    for due in [Due::Timer, Due::Lease, Due::Expiry] {
        assert!(f.due(due, 10).await.is_empty(), "{due:?}");
    }
    assert_eq!(f.head(scheduled.id).await.unwrap().state, State::Completed);
}

/// It does not go to the end of the queue.
pub async fn a_promoted_job_takes_its_place_by_its_time(f: &Fixture) {
    let early = f.create(&job().later(SECOND).offer()).await;
    f.advance(SECOND * 2).await;
    f.create(&job().offer()).await;
    f.run_duties().await;
    assert_eq!(f.claim_one().await.0.id, early.id);
}

/// Jobs that came before its activation go first. A job with a later start time becomes available at that
/// time, and is not announced as available before.
pub async fn an_activated_job_takes_its_place_by_its_activation(f: &Fixture) {
    let first = f.create(&job().pending().offer()).await;
    let start = Start::Held(When::In(SECOND * 60));
    let later = f.create(&Offer { start, ..job().offer() }).await;
    f.advance(SECOND).await;
    let second = f.create(&job().offer()).await;
    f.advance(SECOND).await;
    for id in [first.id, later.id] {
        f.decide(|draft| life::activate(draft, id)).await;
    }
    assert_eq!(f.head(later.id).await.unwrap().state, State::Scheduled);
    let claimed = f.claim("default", 9).await.jobs;
    assert_eq!(claimed.iter().map(|(head, _)| head.id).collect::<Vec<_>>(), [second.id, first.id]);
    f.maintain().await;
    let log = f.log().await;
    let told = log.iter().filter(|recorded| recorded.event.kind == EventKind::Available);
    assert_eq!(told.map(|recorded| recorded.event.job).collect::<Vec<_>>(), [first.id]);
}

/// A time in the past counts as now: the job does not go before jobs that were already there.
pub async fn a_time_that_has_come_is_now(f: &Fixture) {
    for when in [When::At(Timestamp::from_millis(1)), When::In(Duration::ZERO)] {
        let head = f.create(&Offer { start: Start::Later(when), ..job().offer() }).await;
        assert_eq!((head.state, head.available_at), (State::Available, head.created_at), "{when:?}");
    }
}
