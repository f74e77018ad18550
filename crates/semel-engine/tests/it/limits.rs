//! Claims of jobs under limits, and queues with bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::draft::{Reads, Snapshot};
use semel_core::enqueue::{Offer, Outcome};
use semel_core::limit::{Lane, Limit, Rate};
use semel_core::settings::{Backpressure, Depth, QueueSettings};
use semel_engine::{Engine, Job};
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture, Claim};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_testkit::fixture::claim;
use semel_testkit::make::job;

/// The lease that fills the limit has run out and was not reaped yet, so the store says that the limit may
/// open at once.
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

/// For example, one limit per customer.
#[tokio::test]
async fn one_claim_decides_about_jobs_of_many_limits() {
    let engine = Engine::without_duties(Arc::new(Memory::default())).unwrap();
    for number in 0..200 {
        let limit = Limit { key: format!("k{number}").into(), concurrency: Some(1), rate: None };
        engine.enqueue(job().limit(limit).offer(), "test").await.unwrap();
    }
    assert_eq!(engine.claim(claim(&["default"], 200)).await.unwrap().len(), 200);
}

/// For example, a courier passing over the limits of slow subscribers.
#[tokio::test]
async fn a_claim_passes_over_the_limits_that_it_names() {
    let engine = Engine::without_duties(Arc::new(Memory::default())).unwrap();
    for key in ["a", "b"] {
        let limit = Limit { key: key.into(), concurrency: Some(1), rate: None };
        engine.enqueue(job().limit(limit).offer(), "test").await.unwrap();
    }
    let without = |key| Claim { closed: vec![Lane::of(key)], ..claim(&["default"], 2) };
    let lanes = |jobs: Vec<Job>| jobs.iter().filter_map(|job| job.head.lane).collect::<Vec<_>>();
    assert_eq!(lanes(engine.claim(without("a")).await.unwrap()), [Lane::of("b")]);
    assert_eq!(lanes(engine.claim(without("a")).await.unwrap()), []);
    assert_eq!(lanes(engine.claim(without("b")).await.unwrap()), [Lane::of("a")]);
}

/// However many limits are full, and however soon each may open: one claim looks at none of them twice.
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
    // Their leases have run out and were not reaped yet, so each limit may open at any moment.
    clock.advance(Duration::from_secs(2));
    for number in 0..LIMITS {
        engine.enqueue(offer(number), "test").await.unwrap();
    }
    let free = engine.enqueue(job().offer(), "test").await.unwrap();
    let asked = engine.claim(claim(&["default"], 1));
    let jobs = tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it ends").unwrap();
    let Outcome::Created(free) = free else { panic!("{free:?}") };
    assert_eq!(jobs.iter().map(|job| job.head.id).collect::<Vec<_>>(), [free.id]);
    // And with no job behind them the claim returns empty.
    let asked = engine.claim(claim(&["default"], 1));
    assert!(tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it ends").unwrap().is_empty());
}

/// An explanation predicts what an enqueue would do, in a full queue too.
#[tokio::test]
async fn an_explanation_says_that_the_queue_is_full() {
    let engine = Engine::without_duties(Arc::new(Memory::default())).unwrap();
    let bound = Backpressure { max_depth: 1, warning_threshold: Backpressure::WARNING_DEFAULT };
    let offer = job().offer();
    engine.set_queue(offer.queue.clone(), QueueSettings { backpressure: Some(bound) }).await.unwrap();
    let explained = engine.explain(offer.clone()).await.unwrap();
    assert!(matches!(explained.outcome, Outcome::Created(_)), "{:?}", explained.outcome);
    engine.enqueue(offer.clone(), "test").await.unwrap();
    let full = Outcome::QueueFull(Depth { waiting: 1, bound: 1 });
    assert_eq!(engine.explain(offer.clone()).await.unwrap().outcome, full);
    assert_eq!(engine.enqueue(offer, "test").await.unwrap(), full);
}

/// A store that counts its loads, and the claims it serves.
#[derive(Default)]
struct Counted {
    inner: Memory,
    loads: AtomicUsize,
    claims: AtomicUsize,
}

impl Layer for Counted {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(reads)
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        self.claims.fetch_add(batch.claims.len(), Ordering::SeqCst);
        self.inner.commit(batch)
    }
}

/// One look passes many full limits, and a claim that may not wait ends after its first look.
#[tokio::test]
async fn a_claim_passes_many_full_limits_in_a_few_looks() {
    const LIMITS: usize = 300;
    let store = Arc::new(Counted::default());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let offer = |number: usize| {
        let limit = Limit { key: format!("k{number}").into(), concurrency: Some(1), rate: None };
        job().limit(limit).offer()
    };
    for number in 0..LIMITS {
        engine.enqueue(offer(number), "test").await.unwrap();
    }
    let mut running = 0;
    while running < LIMITS {
        running += engine.claim(claim(&["default"], 1_000)).await.unwrap().len();
    }
    for number in 0..LIMITS {
        engine.enqueue(offer(number), "test").await.unwrap();
    }
    let free = engine.enqueue(job().offer(), "test").await.unwrap();
    let Outcome::Created(free) = free else { panic!("{free:?}") };
    let before = store.claims.load(Ordering::SeqCst);
    let jobs = engine.claim_or_wait(claim(&["default"], 1), Duration::ZERO).await.unwrap();
    assert_eq!((jobs.len(), store.claims.load(Ordering::SeqCst) - before), (0, 1), "its time is over");
    let jobs = engine.claim(claim(&["default"], 1)).await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.head.id).collect::<Vec<_>>(), [free.id]);
    let looks = store.claims.load(Ordering::SeqCst) - before;
    assert!(looks <= 10, "{looks}");
}

/// All requests in the group wait for each load, so the loads must not grow with the number of limits that
/// let a job start.
#[tokio::test]
async fn a_claim_finds_in_a_few_loads_which_job_of_each_limit_starts() {
    let store = Arc::new(Counted::default());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for number in 0..9 {
        let limit = Limit { key: format!("k{number}").into(), concurrency: Some(1), rate: None };
        for _ in 0..8 {
            engine.enqueue(job().limit(limit.clone()).offer(), "test").await.unwrap();
        }
    }
    let before = store.loads.load(Ordering::SeqCst);
    assert_eq!(engine.claim(claim(&["default"], 8)).await.unwrap().len(), 8);
    let loads = store.loads.load(Ordering::SeqCst) - before;
    assert!(loads <= 5, "{loads}");
}

/// A store in which a claim takes longer than a limit is assumed to be closed.
#[derive(Default)]
struct Slow(Memory);

impl Layer for Slow {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.0
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            if !batch.claims.is_empty() {
                tokio::time::sleep(Duration::from_millis(1_500)).await;
            }
            self.0.commit(batch).await
        })
    }
}

/// The claim passes over the closed limit, which opens on its own before the claim ends: no hint will
/// announce it.
#[tokio::test(start_paused = true)]
async fn a_limit_that_opens_while_a_claim_is_under_way_is_not_slept_through() {
    let clock = ManualClock::default();
    let engine = Engine::without_duties(Arc::new(Slow(Memory::new(clock.clone())))).unwrap();
    let rate = Some(Rate { count: 1, period_us: 10_000_000 });
    for _ in 0..2 {
        let limit = Limit { key: "k".into(), concurrency: None, rate };
        engine.enqueue(job().limit(limit).offer(), "test").await.unwrap();
    }
    assert_eq!(engine.claim(claim(&["default"], 1)).await.unwrap().len(), 1);
    let waiting = {
        let engine = engine.clone();
        tokio::spawn(
            async move { engine.claim_or_wait(claim(&["default"], 1), Duration::from_secs(60)).await },
        )
    };
    // It has seen that nothing may start, and looks for other jobs.
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    clock.advance(Duration::from_secs(10));
    let began = tokio::time::Instant::now();
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
