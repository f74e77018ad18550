//! A partition that comes back with less than it had.

use semel_core::ident::{JobId, QueueName};
use semel_core::partition;
use semel_testkit::make::{key, keyed};
use semel_testkit::redis::url;

use crate::own::patient;
use crate::partitions::{engine, head_of};
use crate::place::Place;

/// A node that loses its last moment may lose its row of a queue's settings. The newest row counts, and the
/// next change of the queue, even to what it is already, gives it to all partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_has_lost_what_was_set_of_a_queue_hears_of_it_again() {
    let place = Place::divided(2);
    let engine = engine(place.address()).await;
    let mut connection = patient(&url()).await;
    let rows = [0, 1].map(|partition| format!("{}qdefault", place.address().base_of(partition)));
    for (lost, wanted) in [(0, false), (0, true), (1, false), (1, true)] {
        engine.set_paused(QueueName::default(), false).await.unwrap();
        let before: Option<Vec<u8>> =
            redis::cmd("GET").arg(&rows[lost]).query_async(&mut connection).await.unwrap();
        engine.set_paused(QueueName::default(), true).await.unwrap();
        let lose = match before {
            Some(row) => redis::cmd("SET").arg(&rows[lost]).arg(row).clone(),
            None => redis::cmd("DEL").arg(&rows[lost]).clone(),
        };
        lose.exec_async(&mut connection).await.unwrap();
        let told = engine.set_paused(QueueName::default(), wanted).await.unwrap();
        assert_eq!(told.paused, wanted);
        let said: Vec<Vec<u8>> = redis::cmd("MGET").arg(&rows).query_async(&mut connection).await.unwrap();
        // The flag follows the row's version.
        assert_eq!((&said[0], said[0][8]), (&said[1], u8::from(wanted)), "{lost} {wanted}");
    }
}

/// A node that loses its last moment, or everything, has reported more than it knows. It counts on from
/// there: a reader of the log hears that something is missing, and gets everything that comes afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_partition_tells_that_has_lost_records_is_in_the_log() {
    for is_emptied in [false, true] {
        let place = Place::divided(2);
        let engine = engine(place.address()).await;
        let base = place.address().base_of(1);
        let (fact, log) = (format!("{base}!"), format!("{base}e"));
        let mut connection = patient(&url()).await;
        let in_it: Vec<String> = (0_u32..)
            .map(|number| number.to_string())
            .filter(|name| partition::of_key(&key(name), 2) == 1)
            .take(8)
            .collect();
        let enqueue = async |name: &str| {
            let outcome = engine.enqueue(keyed(name).offer(), "").await.unwrap();
            head_of(&outcome)
        };
        enqueue(&in_it[0]).await;
        let kept: u64 =
            redis::cmd("HGET").arg(&fact).arg("records").query_async(&mut connection).await.unwrap();
        for name in &in_it[1..5] {
            enqueue(name).await;
        }
        let read = engine.store().events(0, 1_000).await.unwrap();
        assert_eq!(read.events.len(), 5);
        if is_emptied {
            let keys: Vec<Vec<u8>> =
                redis::cmd("KEYS").arg(format!("{base}*")).query_async(&mut connection).await.unwrap();
            redis::cmd("DEL").arg(keys).exec_async(&mut connection).await.unwrap();
        } else {
            let gone: Vec<String> = (kept + 1..=kept + 4).map(|number| format!("{number}-1")).collect();
            let mut goes_back = redis::pipe();
            goes_back.cmd("XDEL").arg(&log).arg(gone);
            goes_back.cmd("XSETID").arg(&log).arg(format!("{kept}-1"));
            goes_back.cmd("HSET").arg(&fact).arg("records").arg(kept);
            goes_back.exec_async(&mut connection).await.unwrap();
        }
        enqueue(&in_it[5]).await;
        let page = engine.store().events(read.newest, 1_000).await.unwrap();
        assert!(page.kept_after > read.newest, "emptied: {is_emptied}, {page:?}");
        let id = enqueue(&in_it[6]).await;
        let page = engine.store().events(page.newest, 1_000).await.unwrap();
        let told: Vec<JobId> = page.events.iter().map(|recorded| recorded.event.job).collect();
        assert_eq!(told, [id], "emptied: {is_emptied}");
    }
}
