//! What a worker does when it cannot fetch jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel::{Error, JobState, Semel, Worker};
use semel_core::settings::Directive;
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use tokio::sync::Notify;

use crate::harness::{Add, add, gate, memory, soon, until_told};

/// A store that fails its next fetches, as many as given, and counts all fetches.
struct Failing {
    inner: Memory,
    error: StoreError,
    failures: u32,
    fetches: AtomicU32,
    asked: Notify,
    /// Whether every commit fails.
    is_broken: AtomicBool,
}

impl Failing {
    fn with(error: StoreError, failures: u32) -> Arc<Self> {
        let (fetches, asked) = (AtomicU32::new(0), Notify::new());
        let (inner, is_broken) = (Memory::default(), AtomicBool::new(false));
        Arc::new(Self { inner, error, failures, fetches, asked, is_broken })
    }
}

impl Layer for Failing {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(self.error.clone())));
        }
        if batch.claims.is_empty() {
            return self.inner.commit(batch);
        }
        self.asked.notify_one();
        if self.fetches.fetch_add(1, Ordering::SeqCst) < self.failures {
            return Box::pin(std::future::ready(Err(self.error.clone())));
        }
        self.inner.commit(batch)
    }
}

fn on(store: &Arc<Failing>) -> Semel {
    Semel::on(Arc::clone(store) as Arc<dyn Backend>).unwrap()
}

/// A store that is unavailable for an hour must not be asked four times a second.
#[tokio::test(start_paused = true)]
async fn fetches_that_fail_come_less_and_less_often() {
    let store = Failing::with(StoreError::Unavailable("away".to_owned()), u32::MAX);
    let working = Worker::new(&on(&store)).handle(add).start().unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let fetches = store.fetches.load(Ordering::SeqCst);
    // Every five seconds in the end, and up to a quarter more often.
    assert!((120..=170).contains(&fetches), "{fetches}");
    working.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_asked_within_seconds() {
    let store = Failing::with(StoreError::Unavailable("away".to_owned()), 100);
    let semel = on(&store);
    let working = Worker::new(&semel).handle(add).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    while store.fetches.load(Ordering::SeqCst) < 100 {
        store.asked.notified().await;
    }
    let began = tokio::time::Instant::now();
    assert_eq!(job.wait().await.unwrap().state(), JobState::Completed);
    assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
    working.stop().await;
}

/// The program can reopen the store and start another worker.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_store_must_be_opened_again_ends_and_says_so() {
    let error = StoreError::Poisoned("disk".to_owned());
    let worker = Worker::new(&on(&Failing::with(error.clone(), u32::MAX))).handle(add);
    let ended = tokio::time::timeout(Duration::from_secs(60), worker.run_until(std::future::pending()));
    let ended = ended.await.expect("it goes on");
    assert!(matches!(&ended, Err(Error::Store(said)) if *said == error), "{ended:?}");
}

#[tokio::test]
async fn a_worker_whose_queue_is_closed_ends_and_says_so() {
    let semel = memory().await;
    let working = tokio::spawn(Worker::new(&semel).handle(add).run_until(std::future::pending()));
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    assert_eq!(job.result::<i64>().await.unwrap(), 3);
    semel.close().await.unwrap();
    let ended = soon(working).await.unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
}

/// It does not fetch meanwhile, so it learns it from a heartbeat.
#[tokio::test(start_paused = true)]
async fn a_worker_that_has_no_room_hears_that_its_store_must_be_opened_again() {
    let error = StoreError::Poisoned("disk".to_owned());
    let store = Failing::with(error.clone(), 0);
    let semel = on(&store);
    let (gate, mut begun, _told) = gate();
    let worker = Worker::new(&semel).concurrency(1).state(gate).drain(Duration::ZERO).handle(until_told);
    let working = tokio::spawn(worker.run_until(std::future::pending()));
    semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    begun.recv().await.unwrap();
    store.is_broken.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(Duration::from_secs(70), working).await.expect("it goes on").unwrap();
    assert!(matches!(&ended, Err(Error::Store(said)) if *said == error), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_worker_hears_that_its_queue_is_closed() {
    let semel = memory().await;
    semel.engine().unwrap().direct("w-1", Directive::Quiet).await.unwrap();
    let working = Worker::new(&semel).name("w-1").handle(add).start().unwrap();
    tokio::time::timeout(Duration::from_secs(60), working.told_to_be_quiet()).await.expect("it is told");
    // Its fetch under way returns nothing.
    tokio::time::sleep(Duration::from_secs(1)).await;
    semel.close().await.unwrap();
    let gone = tokio::time::timeout(Duration::from_secs(60), working.store_gone()).await;
    assert!(matches!(gone, Ok(Error::Closed)), "{gone:?}");
    working.stop().await;
}
