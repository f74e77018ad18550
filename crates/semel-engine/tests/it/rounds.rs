//! The running duties: none of them keeps the others from running, nor the engine from stopping.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use semel_core::draft::{Draft, Reads, each};
use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_core::ident::JobId;
use semel_core::lease::Bearer;
use semel_core::life;
use semel_core::slot::Due;
use semel_core::state::State;
use semel_engine::Engine;
use semel_store::backend::{BoxFuture, DueIds, QueueStats};
use semel_store::clock::ManualClock;
use semel_store::decor::Slow;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::fixture::claim;
use semel_testkit::make::{Want, job};
use semel_testkit::warnings;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Most jobs that one run of a duty takes.
const RUN: usize = 500;

/// A store on which each load and commit of the duties takes a second, and an engine that bypasses the delay.
struct Bench {
    memory: Arc<Memory>,
    clock: ManualClock,
    engine: Engine,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Arc::new(Memory::new(clock.clone()));
        let engine = Engine::without_duties(Arc::clone(&memory) as Arc<dyn Backend>).unwrap();
        Self { memory, clock, engine }
    }

    fn start(&self) -> Engine {
        Engine::start(Arc::new(Slow::new(Arc::clone(&self.memory), SECOND))).unwrap()
    }

    async fn create(&self, number: usize, want: &Want) -> Vec<JobId> {
        let offers = vec![want.offer(); number];
        let Batch::Done(outcomes) = self.engine.enqueue_batch(offers, Mode::Each, "test").await.unwrap()
        else {
            panic!("refused")
        };
        let id = |outcome: Outcome| match outcome {
            Outcome::Created(head) => head.id,
            other => panic!("{other:?}"),
        };
        outcomes.into_iter().map(id).collect()
    }

    /// Makes `number` ended jobs that are due to be purged.
    async fn purgeable(&self, number: usize) {
        let ids = self.create(number, &job()).await;
        let reads = Reads { heads: ids.clone(), ..Reads::default() };
        let end = move |draft: &mut Draft| each(&ids, |id| life::cancel(draft, *id, &Bearer::default()));
        assert_eq!(self.engine.store().decide(reads, end).await.unwrap().len(), number);
        self.clock.advance(DAY);
    }

    async fn queue(&self) -> QueueStats {
        self.engine.store().queues().await.unwrap().remove(0)
    }

    /// Waits until the queue satisfies `is_so`; returns how long that took.
    async fn until(&self, is_so: impl Fn(&QueueStats) -> bool) -> Duration {
        let began = Instant::now();
        loop {
            let queue = self.queue().await;
            if is_so(&queue) {
                return began.elapsed();
            }
            assert!(began.elapsed() < 600 * SECOND, "{queue:?}");
            sleep(SECOND / 100).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn neither_a_timer_nor_the_end_waits_for_a_long_purge() {
    let bench = Bench::new();
    bench.purgeable(10 * RUN).await;
    let engine = bench.start();
    bench.until(|queue| queue.purged > 0).await;
    bench.create(1, &job().later(SECOND)).await;
    bench.clock.advance(SECOND);
    let late = bench.until(|queue| queue.count(State::Available) == 1).await;
    assert!(late < 10 * SECOND, "{late:?}");
    timeout(10 * SECOND, engine.stop()).await.unwrap();
    let purged = bench.queue().await.purged;
    assert!(purged < 10 * RUN as u64, "there was no more to purge: {purged}");
}

#[tokio::test(start_paused = true)]
async fn neither_housekeeping_nor_the_end_waits_for_many_timers() {
    let bench = Bench::new();
    bench.purgeable(1).await;
    bench.create(10 * RUN, &job().later(SECOND)).await;
    bench.clock.advance(SECOND);
    let engine = bench.start();
    bench.until(|queue| queue.purged == 1).await;
    timeout(10 * SECOND, engine.stop()).await.unwrap();
    let waiting = bench.queue().await.count(State::Scheduled);
    assert!(waiting > 0, "there were no more timers");
}

/// A store that looks for jobs piece by piece, and finds none to purge in the first `left` pieces.
struct Pieces {
    inner: Arc<Memory>,
    left: AtomicI64,
}

impl Layer for Pieces {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        Box::pin(async move {
            let found = self.inner.due(due, limit).await?;
            Ok(if due == Due::Purge && self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
                DueIds { now: found.now, ids: Vec::new(), next: Some(found.now) }
            } else {
                found
            })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_looks_on_where_the_first_pieces_have_nothing() {
    let bench = Bench::new();
    bench.purgeable(1).await;
    let store = Pieces { inner: Arc::clone(&bench.memory), left: AtomicI64::new(100) };
    let engine = Engine::start(Arc::new(store)).unwrap();
    let late = bench.until(|queue| queue.purged == 1).await;
    assert!(late < 2 * SECOND, "{late:?}");
    timeout(10 * SECOND, engine.stop()).await.unwrap();
}

/// A store whose housekeeping never ends, as if it waited for another client.
struct Waiting {
    inner: Memory,
    begun: Semaphore,
}

impl Layer for Waiting {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            self.begun.add_permits(1);
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn neither_a_timer_nor_the_end_waits_for_a_store_that_keeps_house() {
    let clock = ManualClock::default();
    let store = Arc::new(Waiting { inner: Memory::new(clock.clone()), begun: Semaphore::new(0) });
    let engine = Engine::start(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    store.begun.acquire().await.unwrap().forget();
    let asked = engine.enqueue(job().later(SECOND).offer(), "test").await.unwrap();
    assert!(asked.is_inserted(), "{asked:?}");
    clock.advance(SECOND);
    let jobs = engine.claim_or_wait(claim(&["default"], 1), 60 * SECOND).await.unwrap();
    assert_eq!(jobs.len(), 1);
    timeout(60 * SECOND, engine.close()).await.unwrap();
}

/// Their workers hang or are gone and cannot report it, but the counters that operators watch must show it.
#[tokio::test(start_paused = true)]
async fn runs_that_end_without_their_workers_word_are_counted_as_failed() {
    let bench = Bench::new();
    let started = bench.start();
    bench.create(2, &job().times(1_000, 0)).await;
    bench.create(1, &job().times(60_000, 1_000)).await;
    assert_eq!(bench.engine.claim(claim(&["default"], 3)).await.unwrap().len(), 3);
    bench.clock.advance(5 * SECOND);
    let failed = || {
        let all = started.counters().all();
        all.into_iter().filter(|((.., outcome), _)| *outcome == "failed").map(|(_, count)| count).sum::<u64>()
    };
    let counted = async {
        while failed() < 3 {
            sleep(SECOND).await;
        }
    };
    timeout(60 * SECOND, counted).await.unwrap();
    sleep(10 * SECOND).await;
    assert_eq!(failed(), 3, "each of them one time");
    assert_eq!(started.throughput().failed, 3);
}

/// A store that is unavailable until a test brings it back.
#[derive(Default)]
struct Away {
    inner: Memory,
    is_back: AtomicBool,
}

const AWAY: &str = "it is away for ten minutes";

impl Layer for Away {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn due(&self, due: Due, limit: u32) -> BoxFuture<'_, Result<DueIds, StoreError>> {
        if self.is_back.load(Ordering::SeqCst) {
            return self.inner.due(due, limit);
        }
        Box::pin(std::future::ready(Err(StoreError::Unavailable(AWAY.to_owned()))))
    }
}

/// The duties retry several times a second.
#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_is_told_of_once_a_minute() {
    warnings::keep();
    let store = Arc::new(Away::default());
    let engine = Engine::start(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    sleep(10 * 60 * SECOND - SECOND).await;
    let told = || {
        let all = warnings::with(AWAY).into_iter();
        all.filter(|said| said.contains("the duties could not use the store")).collect::<Vec<_>>()
    };
    let during = told();
    assert!((9..=10).contains(&during.len()), "{during:?}");
    let is_first = |said: &String| said.contains("repeated=0");
    assert_eq!(during.iter().position(is_first), Some(0), "{during:?}");
    assert!(!during[1..].iter().any(is_first), "those say how often: {during:?}");
    store.is_back.store(true, Ordering::SeqCst);
    sleep(10 * 60 * SECOND).await;
    assert_eq!(told(), during);
    assert!(engine.store().repeated_failures().over().is_empty(), "the duties have said that it is over");
}
