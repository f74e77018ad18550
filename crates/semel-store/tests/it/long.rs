//! However much callers offer at once, no commit exceeds the size that every store accepts.

use std::sync::{Arc, Mutex};

use semel_core::draft::{Group, Reads};
use semel_core::enqueue::{Outcome, enqueue};
use semel_core::limits::ARGS_BYTES_MAX;
use semel_store::backend::{Applied, Batch, BoxFuture};
use semel_store::bounds::GROUP_BYTES_MAX;
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, Store, StoreError};
use semel_testkit::make::job;

/// A store that records the number of groups in each commit, and the length of their texts.
struct Weighed {
    inner: Memory,
    commits: Mutex<Vec<(usize, usize)>>,
}

impl Layer for Weighed {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        let bytes = batch.groups.iter().map(Group::text_bytes).sum();
        self.commits.lock().unwrap().push((batch.groups.len(), bytes));
        self.inner.commit(batch)
    }
}

#[tokio::test]
async fn long_requests_are_committed_in_several_pieces() {
    let weighed = Arc::new(Weighed { inner: Memory::new(ManualClock::default()), commits: Mutex::default() });
    let store = Store::open(Arc::clone(&weighed) as Arc<dyn Backend>).unwrap();
    let long = job().args(&format!("[\"{}\"]", "x".repeat(ARGS_BYTES_MAX - 4))).offer();
    let jobs = 2 * GROUP_BYTES_MAX / ARGS_BYTES_MAX + 10;
    let all = (0..jobs).map(|_| {
        let (store, offer) = (store.clone(), long.clone());
        tokio::spawn(async move {
            let mut reads = Reads::default();
            offer.reads(&mut reads);
            store.decide(reads, move |draft| enqueue(draft, &offer)).await
        })
    });
    for answer in all.collect::<Vec<_>>() {
        assert!(matches!(answer.await.unwrap(), Ok(Outcome::Created(_))));
    }
    let commits = weighed.commits.lock().unwrap();
    assert_eq!(commits.iter().map(|(groups, _)| groups).sum::<usize>(), jobs);
    // A commit may exceed the bound by one group.
    let most = commits.iter().map(|(_, bytes)| *bytes).max().unwrap();
    assert!(most < GROUP_BYTES_MAX + 2 * ARGS_BYTES_MAX, "{commits:?}");
    assert!(commits.iter().any(|(groups, _)| *groups > 1), "{commits:?}");
}
