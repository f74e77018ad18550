//! The log where a caller's transaction tells in many pieces.

use std::sync::Arc;

use semel_engine::Engine;
use semel_engine::follow::Wanted;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_testkit::make::job;

use crate::contention::inside;
use crate::place::{Place, client, url};

/// Enqueued one by one in one transaction, each is a record of its own, and a page may end between any two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_with_many_records_hides_nothing_behind_it() {
    const RECORDS: usize = 8;
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let mut caller = client(&url()).await;
    let transaction = caller.transaction().await.unwrap();
    for _ in 0..RECORDS {
        inside(&engine, &store, &transaction, vec![job().offer()]).await.unwrap();
    }
    transaction.commit().await.unwrap();
    for _ in 0..4 {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    // Somebody else's transaction, older than these, may hold the log up; each look waits for it for a while.
    for _ in 0..300 {
        if store.events(0, 100).await.unwrap().events.len() == RECORDS + 4 {
            break;
        }
    }
    let (mut cursor, mut read) = (0, 0);
    loop {
        let page = store.events(cursor, 3).await.unwrap();
        read += page.events.len();
        let Some(last) = page.events.last() else { break };
        assert!(page.events.len() == 3 || read == RECORDS + 4, "a page is short before the end, at {read}");
        cursor = last.cursor;
    }
    assert_eq!(read, RECORDS + 4);
    let mut place_of_reader = 0;
    let mut read = 0;
    loop {
        let reading = engine.read_log(place_of_reader, &Wanted::default(), 3).await.unwrap();
        read += reading.events.len();
        place_of_reader = reading.cursor;
        if !reading.more {
            break;
        }
    }
    assert_eq!(read, RECORDS + 4);
}
