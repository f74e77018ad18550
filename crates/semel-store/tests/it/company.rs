//! With several commits in flight, a group waits a moment for more requests to share its commit, but never in
//! vain. The clock is paused unless a test waits for something.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::enqueue::Mode;
use semel_engine::Engine;
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture, Facts};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_testkit::fixture::claim;
use semel_testkit::make::keyed;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How often other tasks get a turn while the clock is paused: far more than anything here needs.
const TURNS: usize = 1_000;

/// A store whose commits end when a test lets them.
struct Gated {
    inner: Memory,
    /// Number of decisions and claims in each commit, in order of arrival.
    seen: Mutex<Vec<usize>>,
    has_seen: Semaphore,
    lands: Semaphore,
}

impl Layer for Gated {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            self.seen.lock().unwrap().push(batch.groups.len() + batch.claims.len());
            self.has_seen.add_permits(1);
            self.lands.acquire().await.unwrap().forget();
            self.inner.commit(batch).await
        })
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: 2, ..self.inner.facts() }
    }
}

struct Scene {
    store: Arc<Gated>,
    engine: Engine,
    began: Instant,
    callers: Vec<JoinHandle<()>>,
}

impl Scene {
    fn new() -> Self {
        let store = Arc::new(Gated {
            inner: Memory::default(),
            seen: Mutex::default(),
            has_seen: Semaphore::new(0),
            lands: Semaphore::new(0),
        });
        let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
        Self { store, engine, began: Instant::now(), callers: Vec::new() }
    }

    /// A scene with a group of four in flight.
    async fn with_four_under_way() -> Self {
        let mut scene = Self::new();
        scene.offer(4);
        assert_eq!(scene.seen().await, [4]);
        scene
    }

    fn offer(&mut self, jobs: usize) {
        for _ in 0..jobs {
            let (engine, offer) = (self.engine.clone(), keyed(&format!("{}", self.callers.len())).offer());
            self.callers.push(tokio::spawn(async move {
                assert!(engine.enqueue(offer, "").await.unwrap().is_inserted());
            }));
        }
    }

    fn claim(&mut self, limit: u32) {
        let engine = self.engine.clone();
        self.callers
            .push(tokio::spawn(async move { drop(engine.claim(claim(&["default"], limit)).await.unwrap()) }));
    }

    /// Sizes of the groups that have reached their commit, asserting that no time has passed.
    async fn seen(&self) -> Vec<usize> {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        assert_eq!(self.began.elapsed(), Duration::ZERO, "the clock stands still");
        self.store.seen.lock().unwrap().clone()
    }

    /// Lets all commits end, and checks that every caller was answered.
    async fn end(self) {
        self.store.lands.add_permits(TURNS);
        for caller in self.callers {
            caller.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_alone_waits_for_nobody() {
    let mut scene = Scene::new();
    scene.offer(1);
    assert_eq!(scene.seen().await, [1]);
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_group_waits_for_as_many_as_are_under_way() {
    let mut scene = Scene::with_four_under_way().await;
    for _ in 0..3 {
        scene.offer(1);
        assert_eq!(scene.seen().await, [4], "it waits for company");
    }
    scene.offer(1);
    assert_eq!(scene.seen().await, [4, 4]);
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn it_waits_until_the_other_one_lands() {
    let mut scene = Scene::with_four_under_way().await;
    scene.offer(1);
    assert_eq!(scene.seen().await, [4], "it waits for company");
    scene.store.lands.add_permits(1);
    assert_eq!(scene.seen().await, [4, 1]);
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_a_millisecond_where_nobody_comes() {
    let mut scene = Scene::with_four_under_way().await;
    scene.store.has_seen.acquire().await.unwrap().forget();
    scene.offer(1);
    assert_eq!(scene.seen().await, [4], "it waits for company");
    // The clock advances now, since every task is idle.
    scene.store.has_seen.acquire().await.unwrap().forget();
    let waited = scene.began.elapsed();
    assert!((Duration::from_millis(1)..=Duration::from_millis(2)).contains(&waited), "{waited:?}");
    assert_eq!(*scene.store.seen.lock().unwrap(), [4, 1]);
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_counts_as_the_jobs_it_may_take() {
    let mut scene = Scene::with_four_under_way().await;
    scene.claim(1);
    assert_eq!(scene.seen().await, [4], "one job is no more than one decision");
    scene.claim(3);
    assert_eq!(scene.seen().await, [4, 2]);
    scene.end().await;
    let mut scene = Scene::with_four_under_way().await;
    scene.claim(50);
    assert_eq!(scene.seen().await, [4, 1], "it is a group by itself");
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn who_comes_no_more_is_not_waited_for_long() {
    let mut scene = Scene::with_four_under_way().await;
    scene.offer(4);
    scene.seen().await;
    scene.store.lands.add_permits(2);
    scene.seen().await;
    // Two of eight callers are left and take turns: each time the group waits for fewer.
    scene.offer(1);
    scene.seen().await;
    let mut waits = 0;
    for _ in 0..TURNS {
        let before = scene.store.seen.lock().unwrap().len();
        scene.offer(1);
        let is_off = |scene: &Scene| scene.store.seen.lock().unwrap().len() > before;
        scene.seen().await;
        scene.store.lands.add_permits(1);
        if is_off(&scene) {
            break;
        }
        waits += 1;
        scene.seen().await;
        assert!(is_off(&scene), "what was under way has landed");
    }
    assert!((1..20).contains(&waits), "{waits}");
    scene.end().await;
}

/// A shared store must not be busy with one group for long.
#[tokio::test(start_paused = true)]
async fn what_reads_much_does_not_go_with_others() {
    let mut scene = Scene::with_four_under_way().await;
    let mut offer_many = |jobs: usize| {
        let engine = scene.engine.clone();
        let first = scene.callers.len() * 10_000;
        let offers = (first..first + jobs).map(|number| keyed(&format!("many {number}")).offer()).collect();
        scene.callers.push(tokio::spawn(async move {
            drop(engine.enqueue_batch(offers, Mode::Each, "").await.unwrap());
        }));
    };
    // The third and the fourth do not fit beside the first two, and the last does not overtake them.
    for jobs in [1_000, 900, 1_500, 2_500, 40] {
        offer_many(jobs);
    }
    assert_eq!(scene.seen().await, [4, 2]);
    scene.store.lands.add_permits(1);
    assert_eq!(scene.seen().await, [4, 2, 1]);
    scene.store.lands.add_permits(1);
    assert_eq!(scene.seen().await, [4, 2, 1, 1]);
    scene.store.lands.add_permits(1);
    assert_eq!(scene.seen().await, [4, 2, 1, 1, 1]);
    scene.end().await;
}
