//! A Redis, or one of a store's partitions, has forgotten everything or something, while the others have not.

use std::sync::Arc;

use semel_core::draft::{QueueRow, Reads};
use semel_core::enqueue::Outcome;
use semel_core::ident::QueueName;
use semel_core::partition;
use semel_core::settings::{Backpressure, QueueSettings};
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::carry::Part;
use semel_testkit::TempDir;
use semel_testkit::crash::claim;
use semel_testkit::make::{key, keyed};
use semel_testkit::patience::PATIENCE;
use semel_testkit::redis::url;

use crate::own::{Own, patient};
use crate::partitions::{PARTITIONS, engine};
use crate::place::{Passing, Place};

async fn exists(name: &str) -> bool {
    redis::cmd("EXISTS").arg(name).query_async(&mut patient(&url()).await).await.unwrap()
}

async fn delete(name: &str) {
    let deleted: u64 = redis::cmd("DEL").arg(name).query_async(&mut patient(&url()).await).await.unwrap();
    assert_eq!(deleted, 1);
}

/// The first partition says what the store is. A server that finds it empty, and is not told the number of
/// partitions, would make an undivided store beside all that the others still have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_store_is_made_beside_partitions_that_are_still_there() {
    let place = Passing(Place::new());
    let divided = place.0.address().with_partitions(PARTITIONS).unwrap();
    let made = engine(&divided).await;
    // The key is in the last partition: nothing was ever written to those that are deleted.
    let name = "f";
    assert_eq!(partition::of_key(&key(name), PARTITIONS), PARTITIONS - 1);
    assert!(made.enqueue(keyed(name).offer(), "").await.unwrap().is_inserted());
    let fact = format!("{}!", divided.base());
    delete(&fact).await;
    // With three nodes, one has the first two partitions.
    for gone in [None, Some(1), Some(2)] {
        if let Some(gone) = gone {
            delete(&format!("{}!", divided.base_of(gone))).await;
        }
        for address in [place.0.address(), &divided] {
            let refused = Redis::open(address).await.map(drop).unwrap_err().to_string();
            assert!(refused.contains("first partition") && refused.contains("?prefix="), "{refused}");
            assert!(!exists(&fact).await, "nothing was made");
        }
    }
    // A server that has the store open knows what it was.
    let outcome = made.enqueue(keyed(name).on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(outcome, Outcome::Existing(_)), "{outcome:?}");
    made.queues().await.unwrap();
    assert_eq!(Redis::open(place.0.address()).await.unwrap().partitions(), PARTITIONS);
}

/// Emptying costs no connection, and Redis still knows the scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_emptied_under_its_users_is_made_anew_before_it_takes_anything() {
    for partitions in [1, PARTITIONS] {
        let folder = TempDir::new();
        let own = Own::start(folder.path(), &[]).await;
        let address = Address::parse(&own.url()).unwrap().with_partitions(partitions).unwrap();
        let address = address.with_away_after(PATIENCE);
        let store = Arc::new(Redis::open(&address).await.unwrap());
        let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
        let mut connection = own.connection().await;
        let mut empty = async || redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
        let first = engine.enqueue(keyed("a").offer(), "").await.unwrap();
        empty().await;
        let again = engine.enqueue(keyed("a").offer(), "").await.unwrap();
        assert!(again.is_inserted() && again.inserted() > first.inserted(), "{again:?}");
        let read = |outcome: &Outcome| match outcome {
            Outcome::Created(head) => head.version,
            outcome => panic!("{outcome:?}"),
        };
        assert!(read(&again) > read(&first), "nothing is numbered again");
        // All partitions are made anew, whichever request comes first.
        assert_eq!(engine.queues().await.unwrap()[0].created, 1);
        let other = Redis::open(&address).await.unwrap();
        assert_eq!((other.secret(), other.partitions()), (store.secret(), partitions));
        let found = engine.claim(claim(5)).await.unwrap();
        assert_eq!(found.iter().map(|run| Some(run.head.id)).collect::<Vec<_>>(), [again.inserted()]);
        for what in 0..5 {
            empty().await;
            match what {
                0 => assert!(engine.claim(claim(5)).await.unwrap().is_empty()),
                1 => assert!(engine.queues().await.unwrap().is_empty()),
                2 => drop(store.maintain().await.unwrap()),
                3 => assert!(engine.set_paused(QueueName::default(), true).await.unwrap().paused),
                _ => drop(store.load(&Reads::default()).await.unwrap()),
            }
            engine.queues().await.unwrap();
            assert_eq!(Redis::open(&address).await.unwrap().secret(), store.secret(), "after {what}");
        }
    }
}

/// Nodes may forget different last moments. The newest settings of a queue count, whichever partition has
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_first_partition_has_forgotten_of_a_queue_is_known_by_the_others() {
    let place = Passing(Place::divided(PARTITIONS));
    let store = Arc::new(Redis::open(place.0.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    let base = place.0.address().base();
    let mut connection = patient(&url()).await;
    let bound = |max_depth: u64| QueueSettings {
        backpressure: Some(Backpressure { max_depth, warning_threshold: 0.5 }),
    };
    let name = QueueName::from_stored;
    for queue in ["lost", "moved", "unbound", "same"] {
        engine.set_queue(name(queue), bound(1)).await.unwrap();
    }
    let mut before = Vec::new();
    for queue in ["moved", "unbound"] {
        let row = format!("{base}q{queue}");
        let found: Vec<u8> = redis::cmd("GET").arg(&row).query_async(&mut connection).await.unwrap();
        before.push((row, found));
    }
    engine.set_queue(name("moved"), bound(2)).await.unwrap();
    engine.set_queue(name("unbound"), QueueSettings::default()).await.unwrap();
    for (row, found) in before {
        redis::cmd("SET").arg(row).arg(found).exec_async(&mut connection).await.unwrap();
    }
    let listed = format!("{base}g");
    redis::cmd("SADD").arg(&listed).arg("unbound").exec_async(&mut connection).await.unwrap();
    redis::cmd("SREM").arg(&listed).arg("lost").exec_async(&mut connection).await.unwrap();
    delete(&format!("{base}qlost")).await;
    let told = |rows: Vec<QueueRow>| {
        let bound_of = |row: &QueueRow| {
            let settings = QueueSettings::decode(row.settings.as_deref());
            settings.backpressure.map(|bound| bound.max_depth)
        };
        let told = rows.into_iter().map(|row| (row.name.as_str().to_owned(), bound_of(&row)));
        let mut told: Vec<_> = told.filter(|(_, bound)| bound.is_some()).collect();
        told.sort();
        told
    };
    let newest = [("lost", 1), ("moved", 2), ("same", 1)].map(|(name, max)| (name.to_owned(), Some(max)));
    assert_eq!(told(store.settings().await.unwrap()), newest);
    // A copy of the store is given each of them once, too.
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let piece = store.rest(Part::Rows, after, 100).await.unwrap();
        rows.extend(piece.rows);
        after = piece.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(told(rows), newest);
}
