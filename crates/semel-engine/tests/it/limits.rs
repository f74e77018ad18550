//! Claims of jobs under a limit.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::{Offer, Outcome};
use semel_core::limit::Limit;
use semel_engine::Engine;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::fixture::claim;
use semel_testkit::make::job;

/// The lease of the run that fills the limit is over, and nobody has ended it yet: the store's own time says to look at once.
#[tokio::test]
async fn a_full_limit_whose_run_should_be_over_is_not_looked_at_without_end() {
    let clock = ManualClock::default();
    let engine = Engine::without_duties(Arc::new(Memory::new(clock.clone()))).unwrap();
    for _ in 0..2 {
        let limit = Some(Limit { key: "k".into(), concurrency: Some(1), rate: None });
        let made = engine.enqueue(Offer { limit, ..job().times(1_000, 1_000).offer() }, "test").await;
        assert!(matches!(made, Ok(Outcome::Created(_))), "{made:?}");
    }
    assert_eq!(engine.claim(claim(&["default"], 1)).await.unwrap().len(), 1);
    clock.advance(Duration::from_secs(10));
    let claimed = tokio::time::timeout(Duration::from_secs(60), engine.claim(claim(&["default"], 1))).await;
    assert_eq!(claimed.unwrap().unwrap().len(), 0);
}

/// As for customers with a limit each.
#[tokio::test]
async fn one_claim_decides_about_jobs_of_many_limits() {
    let engine = Engine::without_duties(Arc::new(Memory::default())).unwrap();
    for number in 0..200 {
        let limit = Limit { key: format!("k{number}").into(), concurrency: Some(1), rate: None };
        engine.enqueue(job().limit(limit).offer(), "test").await.unwrap();
    }
    assert_eq!(engine.claim(claim(&["default"], 200)).await.unwrap().len(), 200);
}

/// However many limits are full, and however soon each says that it may open: none is looked at twice by one claim.
#[tokio::test]
async fn a_claim_goes_around_hundreds_of_full_limits() {
    const LIMITS: usize = 700;
    let clock = ManualClock::default();
    let engine = Engine::without_duties(Arc::new(Memory::new(clock.clone()))).unwrap();
    let offer = |number: usize| {
        let limit = Limit { key: format!("k{number}").into(), concurrency: Some(1), rate: None };
        Offer { limit: Some(limit), ..job().times(1_000, 1_000).offer() }
    };
    for number in 0..LIMITS {
        engine.enqueue(offer(number), "test").await.unwrap();
    }
    let mut running = 0;
    while running < LIMITS {
        running += engine.claim(claim(&["default"], 1_000)).await.unwrap().len();
    }
    // Their leases are over and nobody has ended them: each is to be looked at again soon.
    clock.advance(Duration::from_secs(2));
    for number in 0..LIMITS {
        engine.enqueue(offer(number), "test").await.unwrap();
    }
    let free = engine.enqueue(job().offer(), "test").await.unwrap();
    let asked = engine.claim(claim(&["default"], 1));
    let jobs = tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it ends").unwrap();
    let Outcome::Created(free) = free else { panic!("{free:?}") };
    assert_eq!(jobs.iter().map(|job| job.head.id).collect::<Vec<_>>(), [free.id]);
    // And where there is nothing behind them it says so.
    let asked = engine.claim(claim(&["default"], 1));
    assert!(tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it ends").unwrap().is_empty());
}
