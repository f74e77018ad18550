//! A store that takes another's place, as the target of a copy does in the end: broken off between two of its
//! partitions, and with commits that wait for a replica.

use std::sync::Arc;
use std::time::Duration;

use semel_core::job::Head;
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::backend::Filter;
use semel_store::copy::{copy, unfinished};
use semel_store::memory::Memory;
use semel_testkit::TempDir;
use semel_testkit::make::keyed;
use semel_testkit::redis::{prefix, url};

use crate::partitions::{PARTITIONS, cut, has};
use crate::replicas::pair;

async fn original() -> Arc<Memory> {
    let store = Arc::new(Memory::default());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    for name in 0..20 {
        engine.enqueue(keyed(&name.to_string()).offer(), "").await.unwrap();
    }
    store
}

async fn jobs(store: &dyn Backend) -> Vec<Head> {
    let filter = Filter { limit: 100, ..Filter::default() };
    let mut heads = store.list(filter).await.unwrap().heads;
    heads.sort_by_key(|head| head.id);
    heads
}

/// The copy is complete.
async fn is_heir(address: &Address, original: &Memory) {
    let store = Redis::open(address).await.unwrap();
    assert!(!unfinished(&store).await.unwrap());
    assert_eq!((store.secret(), jobs(&store).await), (original.secret(), jobs(original).await));
    assert_eq!(jobs(&store).await.len(), 20);
}

/// Each partition is told whose place it takes. One of these requests is lost, or its answer, and the copying
/// process with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_broken_off_between_two_partitions_is_one_that_goes_on() {
    let original = original().await;
    for (told, loses_answer) in (0..usize::from(PARTITIONS)).flat_map(|told| [(told, false), (told, true)]) {
        let prefix = prefix();
        let at = |url: &str| {
            let address = Address::parse(url).unwrap().with_prefix(&prefix).unwrap();
            address.with_partitions(PARTITIONS).unwrap()
        };
        let (port, _) = cut(told, loses_answer, |asked| has(asked, b"\r\ninherit\r\n")).await;
        let through = at(&format!("redis://127.0.0.1:{port}")).with_patience(Duration::from_millis(300));
        let victim = Redis::open(&through).await.unwrap();
        copy(&*original, &victim, &mut |_| {}).await.unwrap_err();
        drop(victim);
        // Any later server sees it, whether or not its address gives the number of partitions.
        for address in [at(&url()), Address::parse(&url()).unwrap().with_prefix(&prefix).unwrap()] {
            let store = Redis::open(&address).await.unwrap();
            assert!(unfinished(&store).await.unwrap(), "{told} {loses_answer}");
        }
        let next = Redis::open(&at(&url())).await.unwrap();
        copy(&*original, &next, &mut |_| {}).await.unwrap();
        is_heir(&at(&url()), &original).await;
    }
}

/// Connections that wait for replicas are made on demand, one of them only after the store has taken the
/// other's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_waits_for_a_replica_with_its_last_commit_too() {
    let original = original().await;
    let (one, other) = (TempDir::new(), TempDir::new());
    let (primary, _replica) = pair([&one, &other]).await;
    for partitions in [1, PARTITIONS] {
        let address = Address::parse(&primary.url()).unwrap().with_prefix(&prefix()).unwrap();
        let address = address.with_partitions(partitions).unwrap().with_replicas(1).unwrap();
        let store = Redis::open(&address).await.unwrap();
        copy(&*original, &store, &mut |_| {}).await.unwrap();
        drop(store);
        is_heir(&address, &original).await;
    }
}
