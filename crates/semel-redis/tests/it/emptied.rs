//! A Redis that has lost everything: the store goes on, empty, and reports that to its operator once.

use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::draft::Reads;
use semel_engine::Engine;
use semel_redis::{Address, Redis, RedisError};
use semel_store::StoreError;
use semel_testkit::make::{job, keyed};
use semel_testkit::redis::{prefix, url};
use semel_testkit::{TempDir, warnings};

use crate::own::{Own, patient};
use crate::place::Place;

/// Servers on a store of `partitions` partitions, and how their log lines name each partition.
async fn servers(own: &Own, partitions: u16) -> (Vec<Engine>, Vec<String>) {
    warnings::keep();
    let address = Address::parse(&own.url()).unwrap().with_prefix(&prefix()).unwrap();
    let address = address.with_partitions(partitions).unwrap();
    let mut engines = Vec::new();
    for _ in 0..2 {
        engines.push(Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap());
    }
    (engines, (0..partitions).map(|partition| format!("store={}", address.base_of(partition))).collect())
}

/// Makes requests so that each server visits each partition several times.
async fn go_on(engines: &[Engine], round: u32) {
    for engine in engines {
        let offers = (0..40).map(|number| keyed(&format!("{round}-{number}")).on_conflict("ignore").offer());
        for outcome in join_all(offers.map(|offer| engine.enqueue(offer, ""))).await {
            outcome.unwrap();
        }
        engine.queues().await.unwrap();
        engine.store().load(Reads::default()).await.unwrap();
    }
}

async fn is_told_once_in_each_partition(settings: &[&str], empty: impl AsyncFn(&mut Own)) {
    for partitions in [1, 3] {
        let folder = TempDir::new();
        let mut own = Own::start(folder.path(), settings).await;
        let (engines, stores) = servers(&own, partitions).await;
        let told = || stores.iter().map(|store| warnings::with(store)).collect::<Vec<_>>();
        go_on(&engines, 0).await;
        assert!(told().iter().all(Vec::is_empty), "a store that is new has lost nothing: {:?}", told());
        for round in 1..=2 {
            empty(&mut own).await;
            go_on(&engines, round).await;
            for said in told() {
                assert_eq!(said.len(), round as usize, "{said:?}");
                let says = |what: &str| said.iter().all(|said| said.contains(what));
                assert!(
                    says("ERROR Redis has lost all") && says("enqueue the missing jobs again"),
                    "{said:?}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_empties_a_redis_is_heard_of() {
    is_told_once_in_each_partition(&[], async |own| {
        redis::cmd("FLUSHALL").exec_async(&mut own.connection().await).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_with_nothing_is_heard_of() {
    is_told_once_in_each_partition(&["--appendonly", "no"], async |own| own.kill().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_comes_back_with_everything_has_lost_nothing() {
    let folder = TempDir::new();
    let mut own = Own::start(folder.path(), &["--appendfsync", "always"]).await;
    let (engines, stores) = servers(&own, 3).await;
    for round in 0..3 {
        go_on(&engines, round).await;
        own.kill().await;
    }
    go_on(&engines, 3).await;
    assert!(stores.iter().all(|store| warnings::with(store).is_empty()));
}

/// The store's own record is gone, as after an eviction or a deletion by hand. A new one would count from the
/// beginning, and every write would be refused for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_has_lost_what_it_says_of_itself_is_not_begun_anew_beside_the_rest() {
    warnings::keep();
    let place = Place::new();
    let base = place.address().base();
    let (own, kept, lost_all) = (format!("{base}!"), format!("{base}-kept"), format!("store={base}"));
    let engine = Engine::without_duties(Arc::new(Redis::open(place.address()).await.unwrap())).unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    let mut connection = patient(&url()).await;
    redis::cmd("RENAME").arg(&own).arg(&kept).exec_async(&mut connection).await.unwrap();
    for _ in 0..2 {
        let told = [
            engine.enqueue(job().offer(), "").await.map(drop),
            engine.enqueue(keyed("b").offer(), "").await.map(drop),
            engine.queues().await.map(drop),
            engine.takes_writes().await,
        ];
        for told in &told {
            let says = |why: &str| why.contains("noeviction") && why.contains("empty store");
            assert!(matches!(told, Err(StoreError::Unavailable(why)) if says(why)), "{told:?}");
        }
        assert!(matches!(Redis::open(place.address()).await.err(), Some(RedisError::Beheaded)));
    }
    assert_eq!(warnings::with(&lost_all), [""; 0], "not all is lost");
    // With its record back, the store goes on.
    redis::cmd("RENAME").arg(&kept).arg(&own).exec_async(&mut connection).await.unwrap();
    engine.takes_writes().await.unwrap();
    engine.enqueue(keyed("b").offer(), "").await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, 2);
    let left: Vec<Vec<u8>> =
        redis::cmd("KEYS").arg(format!("{base}*")).query_async(&mut connection).await.unwrap();
    redis::cmd("DEL").arg(left).exec_async(&mut connection).await.unwrap();
    engine.enqueue(keyed("a").offer(), "").await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, 1);
    assert_eq!(warnings::with(&lost_all).len(), 1);
}
