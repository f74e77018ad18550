//! Errors before and after the commit, and what a caller can conclude from them.

use std::sync::Arc;

use semel_core::draft::Reads;
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_store::Backend;
use semel_store::backend::Batch;
use semel_store::clock::ManualClock;
use semel_store::decor::{Fault, Faulty};
use semel_store::memory::Memory;
use semel_store::{Store, StoreError};
use semel_testkit::fixture::claim;
use semel_testkit::make::{foreign_id, job, keyed};

fn faulty() -> Arc<Faulty<Memory>> {
    Arc::new(Faulty::new(Arc::new(Memory::new(ManualClock::default()))))
}

async fn offer(store: &Store, offer: &Offer) -> Result<Outcome, StoreError> {
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let offer = offer.clone();
    store.decide(reads, move |draft| enqueue(draft, &offer)).await
}

#[tokio::test]
async fn an_error_before_the_act_leaves_nothing() {
    let backend = faulty();
    let store = Store::open(backend.clone() as Arc<dyn Backend>).unwrap();
    for on_load in [true, false] {
        if on_load {
            backend.script_loads([Fault::Before]);
        } else {
            backend.script_commits([Fault::Before]);
        }
        assert!(offer(&store, &keyed("a").offer()).await.unwrap_err().is_retryable());
        assert!(store.queues().await.unwrap().is_empty());
    }
    assert!(matches!(offer(&store, &keyed("a").offer()).await, Ok(Outcome::Created(_))));
}

#[tokio::test]
async fn an_error_after_the_act_is_resolved_by_sending_the_same_id_again() {
    let backend = faulty();
    let store = Store::open(backend.clone() as Arc<dyn Backend>).unwrap();
    backend.script_commits([Fault::After]);
    let mine = keyed("a").id(foreign_id(1)).offer();
    assert!(offer(&store, &mine).await.unwrap_err().is_retryable());
    assert!(matches!(offer(&store, &mine).await, Ok(Outcome::Repeated(head)) if head.id == foreign_id(1)));
    // Without an id of its own, the key gives the answer: rejected, because of the job whose reply was lost.
    backend.script_commits([Fault::After]);
    assert!(offer(&store, &keyed("b").offer()).await.is_err());
    assert!(matches!(offer(&store, &keyed("b").offer()).await, Ok(Outcome::Rejected { .. })));
    assert_eq!(store.queues().await.unwrap()[0].created, 2);
}

#[tokio::test]
async fn a_claim_whose_reply_is_lost_comes_back_with_its_lease() {
    let backend = faulty();
    let store = Store::open(backend.clone() as Arc<dyn Backend>).unwrap();
    offer(&store, &job().offer()).await.unwrap();
    backend.script_commits([Fault::Before, Fault::After]);
    assert!(store.claim(claim(&["default"], 1)).await.is_err());
    assert!(store.claim(claim(&["default"], 1)).await.is_err());
    assert!(
        store.claim(claim(&["default"], 1)).await.unwrap().jobs.is_empty(),
        "it is leased to nobody who knows"
    );
}

#[tokio::test]
async fn at_any_rate_of_faults_nothing_is_doubled_and_nothing_acknowledged_is_lost() {
    let inner = Arc::new(Memory::new(ManualClock::default()));
    let backend = Arc::new(Faulty::at_rate(inner.clone(), 7, 300));
    let store = Store::open(backend as Arc<dyn Backend>).unwrap();
    let mut failures = 0;
    for number in 0..200 {
        let mine = keyed(&format!("key {number}")).id(foreign_id(number)).offer();
        loop {
            match offer(&store, &mine).await {
                Ok(Outcome::Created(_) | Outcome::Repeated(_)) => break,
                Ok(other) => panic!("{other:?}"),
                Err(_) => failures += 1,
            }
        }
    }
    assert!(failures > 50, "{failures}");
    assert_eq!(inner.queues().await.unwrap()[0].created, 200);
}

#[tokio::test]
async fn all_who_shared_a_failed_group_are_told() {
    let backend = faulty();
    let store = Store::open(backend.clone() as Arc<dyn Backend>).unwrap();
    backend.script_commits([Fault::Before]);
    let offers: Vec<Offer> = (0..50).map(|number| keyed(&format!("key {number}")).offer()).collect();
    let mut running = tokio::task::JoinSet::new();
    for one in offers {
        let store = store.clone();
        running.spawn(async move { offer(&store, &one).await });
    }
    let told = running.join_all().await;
    let created = told.iter().filter(|answer| matches!(answer, Ok(Outcome::Created(_)))).count();
    assert!(created < 50 && told.iter().all(|answer| matches!(answer, Ok(Outcome::Created(_)) | Err(_))));
    let stored = store.queues().await.unwrap().first().map_or(0, |queue| queue.created);
    assert_eq!(stored as usize, created);
    backend.commit(Batch::default()).await.unwrap();
}
