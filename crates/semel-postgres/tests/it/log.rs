//! The event log when a caller's transaction writes many records.

use std::sync::Arc;

use semel_core::enqueue::Mode;
use semel_core::event::{Event, EventKind};
use semel_core::time::Timestamp;
use semel_core::webhook::{Subscription, Wish};
use semel_engine::Engine;
use semel_engine::follow::Wanted;
use semel_engine::webhooks::{Relayed, Webhooks, Wording};
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_testkit::make::job;

use crate::contention::inside;
use crate::place::{Place, client, url};

/// Jobs enqueued one by one in one transaction have a record each, and a page may end between any two.
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
    // An older transaction of another test may hold the log up; each read waits for it for a while.
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

/// A record may have as many events as a batch has jobs; records behind a full page are not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_reads_no_more_records_than_fill_it() {
    const EVENTS: usize = 10;
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let offers = || vec![job().offer(); EVENTS];
    engine.enqueue_batch(offers(), Mode::Each, "").await.unwrap();
    let mut caller = client(&url()).await;
    let transaction = caller.transaction().await.unwrap();
    for _ in 0..2 {
        inside(&engine, &store, &transaction, offers()).await.unwrap();
    }
    transaction.commit().await.unwrap();
    engine.enqueue_batch(offers(), Mode::Each, "").await.unwrap();
    let mut all = Vec::new();
    for _ in 0..300 {
        // A transaction of another test may hold the log up.
        all = store.events(0, 100).await.unwrap().events;
        if all.len() == 4 * EVENTS {
            break;
        }
    }
    assert_eq!(all.len(), 4 * EVENTS);
    let cursor_of = |read: usize| read.checked_sub(1).map_or(0, |last| all[last].cursor);
    for limit in [1, 4, 10, 11, 100] {
        for read in 0..=all.len() {
            let page = store.events(cursor_of(read), u32::try_from(limit).unwrap()).await.unwrap();
            assert_eq!(page.events, all[read..all.len().min(read + limit)], "{limit} after {read}");
        }
    }
    let (client, event) = (client(&url()).await, format!("{}.event", place.schema()));
    // Starting from the newest, the records are made unreadable one by one.
    let spoil = format!(
        "UPDATE {event} SET amounts = ARRAY[NULL]::int8[] \
         WHERE (tx, first) = (SELECT tx, first FROM {event} ORDER BY tx, first OFFSET $1 LIMIT 1)"
    );
    for record in [3, 2, 1_usize] {
        assert_eq!(client.execute(&spoil, &[&i64::try_from(record).unwrap()]).await.unwrap(), 1);
        let end = record * EVENTS;
        for read in end - EVENTS..end {
            let left = end - read;
            let page = store.events(cursor_of(read), u32::try_from(left).unwrap()).await.unwrap();
            assert_eq!(page.events, all[read..end]);
            assert!(store.events(cursor_of(read), u32::try_from(left + 1).unwrap()).await.is_err());
        }
    }
}

struct Words;

impl Wording for Words {
    fn name(&self, _: EventKind) -> &'static str {
        "job.enqueued"
    }

    fn event(&self, cursor: u64, _: Timestamp, _: &Event) -> String {
        cursor.to_string()
    }
}

/// Relays until `wanted` deliveries exist. A transaction of another test may hold the log up.
async fn deliver(webhooks: &mut Webhooks, client: &tokio_postgres::Client, schema: &str, wanted: i64) {
    let sql = format!("SELECT count(*) FROM \"{schema}\".head WHERE type LIKE '%semel.delivery'");
    for _ in 0..300 {
        webhooks.relay_once().await.unwrap();
        if client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) == wanted {
            return;
        }
    }
    panic!("no delivery");
}

async fn subscribe(webhooks: &Webhooks) {
    let events = vec!["job.enqueued".into()];
    let wish = Wish { url: "https://example.com".into(), events, active: true, ..Wish::default() };
    let of = Subscription { id: "s".into(), tenant: String::new(), wish, created_at: 0, after: 0, epoch: 0 };
    webhooks.change(move |known, _| known.push(of.clone())).await.unwrap();
}

/// Empty records may be dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_seen_the_end_of_the_log_misses_nothing_that_is_dropped_before_it() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let mut webhooks = engine.webhooks(Arc::new(Words));
    subscribe(&webhooks).await;
    engine.enqueue(job().offer(), "").await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    deliver(&mut webhooks, &client, schema, 1).await;
    let mut end = None;
    for _ in 0..300 {
        // A transaction of another test may hold the log up.
        let page = store.events(0, 1_000).await.unwrap();
        if webhooks.relay_once().await.unwrap() == Relayed::Nothing && !page.waits {
            end = Some(page.newest);
            break;
        }
    }
    let dropped = (end.expect("the log has an end") >> 24).cast_signed();
    client.execute(&format!("UPDATE \"{schema}\".fact SET dropped = $1"), &[&dropped]).await.unwrap();
    assert_eq!(webhooks.relay_once().await.unwrap(), Relayed::Nothing);
}

/// What `pg_dump` of an older cluster restores: events, and a bound of what was dropped, with transaction ids
/// that this cluster has yet to assign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_restored_from_another_cluster_begins_anew() {
    let place = Place::new();
    let open = async || Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine =
        |store: &Arc<Postgres>| Engine::without_duties(Arc::clone(store) as Arc<dyn Backend>).unwrap();
    let store = open().await;
    let mut webhooks = engine(&store).webhooks(Arc::new(Words));
    subscribe(&webhooks).await;
    engine(&store).enqueue(job().offer(), "").await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    deliver(&mut webhooks, &client, schema, 1).await;
    let known = store.events(0, 100).await.unwrap().events[0].cursor;
    drop((webhooks, store));
    let ahead = 1_000_000_000;
    let moved = format!(
        "UPDATE \"{schema}\".event SET tx = (tx::text::int8 + {ahead})::text::xid8;
         UPDATE \"{schema}\".fact SET dropped = {ahead};
         UPDATE \"{schema}\".note SET text = convert_to((convert_from(text, 'UTF8')::int8 + ({ahead}::int8 << 24))::text, 'UTF8')
         WHERE convert_from(text, 'UTF8') ~ '^[0-9]+$'"
    );
    client.batch_execute(&moved).await.unwrap();
    let store = open().await;
    let far = known + (ahead << 24);
    assert_eq!(store.events(far, 100).await.unwrap().place(far), semel_core::event::Place::Ahead);
    let page = store.events(known, 100).await.unwrap();
    assert_eq!(page.place(known), semel_core::event::Place::TooOld);
    let mut webhooks = engine(&store).webhooks(Arc::new(Words));
    webhooks.relay_once().await.unwrap();
    engine(&store).enqueue(job().offer(), "").await.unwrap();
    deliver(&mut webhooks, &client, schema, 2).await;
    assert!(!store.events(page.kept_after, 100).await.unwrap().events.is_empty(), "what is new is told");
}
