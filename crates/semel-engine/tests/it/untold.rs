//! Claims that are dropped while their jobs are being leased.

use std::sync::Arc;

use semel_core::limit::Limit;
use semel_core::state::State;
use semel_engine::Engine;
use semel_store::Backend;
use semel_store::backend::Filter;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_testkit::fixture::claim;
use semel_testkit::gated::Gated;
use semel_testkit::make::job;

/// Claims one job, and one under a limit that takes a second commit. Drops the claim during commit number
/// `commit` and closes the engine. Returns the jobs' states and attempts.
async fn dropped_during(commit: usize) -> Vec<(State, u32)> {
    let inner = Memory::new(ManualClock::default());
    let store = Arc::new(Gated::new(inner, 2));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let limit = Limit { key: "k".into(), concurrency: Some(1), rate: None };
    for want in [job(), job().limit(limit)] {
        assert!(engine.enqueue(want.offer(), "test").await.unwrap().is_inserted());
        store.begun.acquire().await.unwrap().forget();
    }
    store.gate.add_permits(commit - 1);
    {
        let mut claim = std::pin::pin!(engine.claim(claim(&["default"], 2)));
        for _ in 0..commit {
            tokio::select! {
                biased;
                _ = claim.as_mut() => panic!("it has ended before"),
                begun = store.begun.acquire() => begun.unwrap().forget(),
            }
        }
    }
    store.gate.add_permits(100);
    engine.close().await;
    let listed = store.inner.list(Filter { limit: 10, ..Filter::default() }).await.unwrap();
    listed.heads.iter().map(|head| (head.state, head.attempt)).collect()
}

/// Leased to nobody, a job would be withheld from all workers and lose an attempt.
#[tokio::test]
async fn what_is_leased_for_a_claim_that_is_dropped_is_given_back_before_the_store_is_closed() {
    for commit in [1, 2] {
        assert_eq!(dropped_during(commit).await, [(State::Available, 0); 2], "commit {commit}");
    }
}
