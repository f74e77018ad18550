//! A decision without writes refers to what others wrote: it is answered once that is as durable as an answer
//! must be.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::draft::{Reads, Snapshot};
use semel_core::enqueue::{Outcome, enqueue};
use semel_engine::Engine;
use semel_store::backend::{Applied, Batch, BoxFuture};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use semel_testkit::fixture::claim;
use semel_testkit::make::{Want, keyed};
use semel_testkit::transact::transact;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// A store with a lagging standby.
struct Lagging {
    inner: Memory,
    asked: AtomicUsize,
    has_come: Semaphore,
    /// The error to report instead of durability, also for commits.
    fails: Mutex<Option<StoreError>>,
}

impl Layer for Lagging {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn shows_what_is_durable(&self) -> bool {
        false
    }

    fn confirm<'a>(&'a self, _seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.has_come.acquire().await.unwrap().forget();
            self.failure().map_or(Ok(()), Err)
        })
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            let applied = self.inner.commit(batch).await?;
            self.failure().map_or(Ok(applied), Err)
        })
    }
}

impl Lagging {
    fn failure(&self) -> Option<StoreError> {
        self.fails.lock().unwrap().clone()
    }

    fn fail(&self, error: StoreError) {
        *self.fails.lock().unwrap() = Some(error);
    }
}

async fn lagging() -> (Arc<Lagging>, Engine) {
    let (inner, has_come) = (Memory::default(), Semaphore::new(0));
    let (asked, fails) = (AtomicUsize::new(0), Mutex::default());
    let store = Arc::new(Lagging { inner, asked, has_come, fails });
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    assert!(matches!(engine.enqueue(again().offer(), "").await.unwrap(), Outcome::Created(_)));
    assert_eq!(store.asked.load(Ordering::SeqCst), 0, "who wrote has waited in his commit");
    (store, engine)
}

fn again() -> Want {
    keyed("a").on_conflict("ignore")
}

async fn until_asked(store: &Lagging, times: usize) {
    while store.asked.load(Ordering::SeqCst) < times {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_duplicate_is_answered_when_its_holder_is_durable() {
    let (store, engine) = lagging().await;
    let duplicate = tokio::spawn(async move { engine.enqueue(again().offer(), "").await });
    until_asked(&store, 1).await;
    assert!(!duplicate.is_finished());
    store.has_come.add_permits(1);
    assert!(matches!(duplicate.await.unwrap(), Ok(Outcome::Existing(_))));
}

/// The rest of its group got what it needed from the commit.
#[tokio::test]
async fn a_duplicate_beside_a_claim_that_found_nothing_waits_and_the_claim_does_not() {
    let (store, engine) = lagging().await;
    let (asking, claiming) = (engine.clone(), engine);
    // Both are in the inbox before the batcher looks.
    let duplicate = tokio::spawn(async move { asking.enqueue(again().offer(), "").await });
    let claimed = tokio::spawn(async move { claiming.claim(claim(&["nothing"], 1)).await });
    assert!(claimed.await.unwrap().unwrap().is_empty());
    until_asked(&store, 1).await;
    assert!(!duplicate.is_finished());
    store.has_come.add_permits(1);
    assert!(matches!(duplicate.await.unwrap(), Ok(Outcome::Existing(_))));
}

#[tokio::test]
async fn without_the_standby_there_is_no_answer_but_an_error() {
    let (store, engine) = lagging().await;
    store.fail(StoreError::Unavailable("the standby is gone".to_owned()));
    store.has_come.add_permits(2);
    let told = engine.enqueue(again().offer(), "").await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    let offer = again().offer();
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let told = transact(&*store, &reads, |draft| enqueue(draft, &offer)).await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    assert_eq!(store.asked.load(Ordering::SeqCst), 2);
}

/// On an unknown outcome a caller repeats the request under the same id, or looks for its job: for a
/// duplicate there would be nothing to find.
#[tokio::test]
async fn of_what_wrote_nothing_nothing_is_in_doubt() {
    let (store, engine) = lagging().await;
    store.has_come.add_permits(9);
    for (name, error) in
        [("b", StoreError::Unknown(String::new())), ("c", StoreError::Lagging(String::new()))]
    {
        store.fail(error.clone());
        let alone = engine.enqueue(again().offer(), "").await.unwrap_err();
        // In one group with a request that writes.
        let other = keyed(name).offer();
        let (wrote, beside) = tokio::join!(engine.enqueue(other, ""), engine.enqueue(again().offer(), ""));
        assert_eq!(wrote.unwrap_err(), error);
        for told in [alone, beside.unwrap_err()] {
            assert!(matches!(told, StoreError::Unavailable(_) | StoreError::Behind(_)), "{told:?}");
        }
    }
}

/// A store that fails over after its first read, to one that lacks the latest jobs.
struct TakenOver {
    old: Arc<Memory>,
    new: Arc<Memory>,
    moved: Mutex<Option<Instant>>,
}

impl Layer for TakenOver {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.new
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            if self.moved.lock().unwrap().is_some() {
                return self.new.load(reads).await;
            }
            let seen = self.old.load(reads).await;
            *self.moved.lock().unwrap() = Some(Instant::now());
            // The first read's answer takes long to arrive.
            tokio::time::sleep(Duration::from_secs(60)).await;
            seen
        })
    }

    fn moved(&self) -> Option<Instant> {
        *self.moved.lock().unwrap()
    }
}

/// Even if that read was long ago.
#[tokio::test(start_paused = true)]
async fn nobody_is_a_duplicate_of_what_was_read_where_nothing_is_written_any_more() {
    let (old, new) = (Arc::new(Memory::default()), Arc::new(Memory::default()));
    let first = Engine::without_duties(Arc::clone(&old) as Arc<dyn Backend>).unwrap();
    assert!(matches!(first.enqueue(again().offer(), "").await.unwrap(), Outcome::Created(_)));
    let store =
        || Arc::new(TakenOver { old: Arc::clone(&old), new: Arc::clone(&new), moved: Mutex::default() });
    let engine = Engine::without_duties(store() as Arc<dyn Backend>).unwrap();
    let told = engine.enqueue(again().offer(), "").await.unwrap();
    assert!(matches!(told, Outcome::Created(_)), "{told:?}");
    assert_eq!(new.queues().await.unwrap()[0].created, 1);
    // The same without a batcher.
    let (offer, mut reads) = (again().offer(), Reads::default());
    offer.reads(&mut reads);
    new.clear().await.unwrap();
    let told = transact(&*store(), &reads, |draft| enqueue(draft, &offer)).await.unwrap();
    assert!(matches!(told, Outcome::Created(_)), "{told:?}");
}

/// A store whose name resolves to one of two stores in turn.
#[derive(Default)]
struct Restless {
    memory: Memory,
    loads: AtomicUsize,
}

impl Layer for Restless {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.memory
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.memory.load(reads)
    }

    fn moved(&self) -> Option<Instant> {
        Some(Instant::now())
    }
}

#[tokio::test]
async fn who_reads_where_nothing_stays_is_told_so_in_the_end() {
    let store = Arc::new(Restless::default());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    assert!(matches!(engine.enqueue(again().offer(), "").await.unwrap(), Outcome::Created(_)));
    let told = engine.enqueue(again().offer(), "").await;
    assert!(matches!(told, Err(StoreError::Contended)), "{told:?}");
    assert!(store.loads.load(Ordering::SeqCst) < 50, "it is bounded");
}
