//! Callers that give up before they are answered.

use std::sync::Arc;
use std::task::Poll;

use semel_core::draft::Reads;
use semel_core::enqueue::enqueue;
use semel_core::retention::Retention;
use semel_core::state::State;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_store::{Backend, Store};
use semel_testkit::fixture::claim;
use semel_testkit::make::job;
use semel_testkit::transact::transact;

/// While a store is unavailable, callers give up and ask again: each abandoned claim would lease jobs to
/// nobody.
#[tokio::test]
async fn a_claim_whose_caller_is_gone_is_not_carried_out() {
    let memory = Arc::new(Memory::new(ManualClock::default()));
    let (store, batcher) =
        Store::with_batcher(Arc::clone(&memory) as Arc<dyn Backend>, Retention::default(), 7);
    let offer = job().offer();
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let outcome = transact(&*memory, &reads, |draft| enqueue(draft, &offer)).await.unwrap();
    assert!(outcome.is_inserted());
    {
        let mut gone = std::pin::pin!(store.claim(claim(&["default"], 1)));
        let is_pending =
            std::future::poll_fn(|context| Poll::Ready(gone.as_mut().poll(context).is_pending()));
        assert!(is_pending.await, "it is in the inbox");
    }
    // In the same group, behind the claim.
    let behind = store.decide(Reads::default(), |_| Ok(()));
    tokio::select! {
        biased;
        decided = behind => decided.unwrap(),
        () = batcher => panic!("the batcher has ended"),
    }
    let queue = memory.queues().await.unwrap().remove(0);
    assert_eq!((queue.count(State::Available), queue.count(State::Active)), (1, 0));
}
