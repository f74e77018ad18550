//! A duplicate of a durable job is answered without the batcher, and nothing else is.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use semel_core::draft::Reads;
use semel_core::enqueue::{Batch, Mode, Outcome, enqueue};
use semel_core::retention::Retention;
use semel_engine::Engine;
use semel_store::decor::Faulty;
use semel_store::memory::Memory;
use semel_store::{Backend, Store, StoreError};
use semel_testkit::make::{Want, keyed};
use semel_testkit::transact::transact;

async fn put(backend: &dyn Backend, want: Want) {
    let (mut reads, offer) = (Reads::default(), want.offer());
    offer.reads(&mut reads);
    let outcome = transact(backend, &reads, |draft| enqueue(draft, &offer)).await.unwrap();
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
}

/// The answer that comes although the batcher is not running. Polled often enough for a task that only
/// yields.
async fn is_answered(engine: &Engine, want: Want) -> Option<Outcome> {
    answered(&mut Box::pin(engine.enqueue(want.offer(), ""))).await
}

async fn answered<T>(asked: &mut (impl Future<Output = Result<T, StoreError>> + Unpin)) -> Option<T> {
    for _ in 0..10 {
        let polled = std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *asked).poll(context))).await;
        if let Poll::Ready(answer) = polled {
            return Some(answer.unwrap());
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test]
async fn only_a_duplicate_that_writes_nothing_is_answered_past_the_batcher() {
    let backend: Arc<dyn Backend> = Arc::new(Memory::default());
    put(&*backend, keyed("a")).await;
    let (store, batcher) = Store::with_batcher(Arc::clone(&backend), Retention::default(), 1);
    let engine = Engine::on(store);
    for on_conflict in ["ignore", "reject"] {
        let told = is_answered(&engine, keyed("a").on_conflict(on_conflict)).await;
        assert!(matches!(told, Some(Outcome::Existing(_) | Outcome::Rejected { .. })), "{told:?}");
    }
    let batch = async |names: &[&str]| {
        let offers = names.iter().map(|name| keyed(name).on_conflict("ignore").offer()).collect();
        answered(&mut Box::pin(engine.enqueue_batch(offers, Mode::Each, ""))).await
    };
    assert!(matches!(batch(&["a", "a"]).await, Some(Batch::Done(told)) if told.len() == 2));
    assert!(batch(&["a", "b"]).await.is_none(), "one of them is new");
    assert!(is_answered(&engine, keyed("b").on_conflict("ignore")).await.is_none(), "a new job");
    for on_conflict in ["replace", "follow_up"] {
        assert!(is_answered(&engine, keyed("a").on_conflict(on_conflict)).await.is_none(), "{on_conflict}");
    }
    // The requests that were only polled had no effect.
    assert_eq!(backend.queues().await.unwrap()[0].created, 1);
    drop(batcher);
    let told = engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await;
    assert!(matches!(told, Err(StoreError::Closed)), "a store that is closed says nothing: {told:?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_not_gone_past() {
    let memory: Arc<dyn Backend> = Arc::new(Memory::default());
    put(&*memory, keyed("a")).await;
    let engine = Engine::without_duties(Arc::new(Faulty::at_rate(memory, 1, 1024))).unwrap();
    let told = engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
}
