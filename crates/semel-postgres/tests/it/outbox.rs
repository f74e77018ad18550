//! Outbox entries larger than any job may be, and many entries that wait for a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::enqueue::Mode;
use semel_core::ident::JobId;
use semel_core::limit::Limit;
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::outbox::{Outbox, Read};
use semel_testkit::make::{Want, job, keyed};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::place::{Place, client, relayed, url};

const MEGABYTE: i32 = 1024 * 1024;

async fn opened(place: &Place) -> (Arc<Postgres>, Engine, Client) {
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    (store, engine, client(&url()).await)
}

fn insert(place: &Place) -> String {
    format!(
        "INSERT INTO {}.outbox (envelope) SELECT to_json(repeat('x', $1)) FROM generate_series(1, $2)",
        place.schema()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_is_too_long_is_refused_where_it_is_put_in() {
    let place = Place::new();
    let (_store, _engine, client) = opened(&place).await;
    let refused = client.execute(&insert(&place), &[&(9 * MEGABYTE), &1_i32]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::CHECK_VIOLATION));
    client.execute(&insert(&place), &[&MEGABYTE, &1_i32]).await.unwrap();
}

/// The entry may be older than the table's length check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_is_too_long_is_not_read_and_told_so() {
    let place = Place::new();
    let (store, engine, client) = opened(&place).await;
    let unchecked =
        format!("ALTER TABLE {}.outbox DROP CONSTRAINT IF EXISTS outbox_envelope_length", place.schema());
    client.batch_execute(&unchecked).await.unwrap();
    for size in [10, 9 * MEGABYTE, 20] {
        client.execute(&insert(&place), &[&size, &1_i32]).await.unwrap();
    }
    let read: Read = Arc::new(|_, text| Err(format!("{} bytes", text.len())));
    relayed(&engine, &store, &read, 3).await;
    let told = format!("SELECT outcome, reason FROM {}.outbox ORDER BY place", place.schema());
    let rows = client.query(&told, &[]).await.unwrap();
    assert!(rows.iter().all(|row| row.get::<_, &str>(0) == "invalid"));
    let reasons: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
    assert_eq!((&*reasons[0], &*reasons[2]), ("12 bytes", "22 bytes"));
    assert!(reasons[1].contains("longer than"), "{}", reasons[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_of_large_entries_is_a_small_one() {
    let place = Place::new();
    let (store, engine, client) = opened(&place).await;
    client.execute(&insert(&place), &[&MEGABYTE, &40_i32]).await.unwrap();
    let taken = store.take(200, 0).await.unwrap().unwrap();
    let bytes: usize = taken.entries().iter().map(|(_, text)| text.len()).sum();
    assert!((1..=16 * 1024 * 1024).contains(&bytes), "{bytes} bytes at once");
    drop(taken);
    let read: Read = Arc::new(|_, _| Err("no".to_owned()));
    let mut relayed = 0;
    while relayed < 40 {
        relayed += engine.relay_once(&*store, &read).await.unwrap();
    }
    assert!(store.take(200, 0).await.unwrap().is_none());
}

/// Relays an entry behind many that wait for what an open transaction holds; retrying those costs no new
/// connections. Returns the outcomes of all entries, counted.
async fn relayed_behind(
    held_by: &Want,
    waits: impl Fn(JobId) -> Want + Send + Sync + 'static,
) -> Vec<(String, i64)> {
    let name = semel_testkit::database::schema_name();
    let place = Place::at(&format!("{}?application_name={name}", url()));
    let (store, engine, mut client) = opened(&place).await;
    let read: Read = Arc::new(move |id, text| {
        let want = if text == "\"held\"" { waits(id) } else { job() };
        Ok(want.id(id).offer())
    });
    let held = client.transaction().await.unwrap();
    let mut inside = store.inside(&held);
    let offers = vec![held_by.offer()];
    engine.enqueue_batch_inside(&mut inside, offers, Mode::Each, "test").await.unwrap();
    let other = crate::place::client(&url()).await;
    let insert = format!(
        "INSERT INTO {}.outbox (envelope) SELECT to_json($1::text) FROM generate_series(1, $2)",
        place.schema()
    );
    other.execute(&insert, &[&"held", &1_050_i32]).await.unwrap();
    other.execute(&insert, &[&"other", &1_i32]).await.unwrap();
    let begun = Instant::now();
    relayed(&engine, &store, &read, 1).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let open = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND backend_start > $1::text::timestamptz"
    );
    let now: String = other.query_one("SELECT clock_timestamp()::text", &[]).await.unwrap().get(0);
    for _ in 0..5 {
        assert_eq!(engine.relay_once(&*store, &read).await.unwrap(), 0);
    }
    let begun: i64 = other.query_one(&open, &[&now]).await.unwrap().get(0);
    assert_eq!(begun, 0, "a try costs a connection");
    drop(inside);
    held.commit().await.unwrap();
    relayed(&engine, &store, &read, 1_050).await;
    let told = format!("SELECT outcome, count(*) FROM {}.outbox GROUP BY 1 ORDER BY 1", place.schema());
    let rows = other.query(&told, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_behind_many_of_a_key_that_is_held_are_relayed() {
    let told = relayed_behind(&keyed("held"), |_| keyed("held").on_conflict("ignore")).await;
    assert_eq!(told, [("created".to_owned(), 1), ("existing".to_owned(), 1_050)]);
}

fn limited(want: Want) -> Want {
    want.limit(Limit { key: "held".into(), concurrency: Some(1), rate: None })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_behind_many_of_a_limit_that_is_held_are_relayed() {
    let told = relayed_behind(&limited(job()), |_| limited(job())).await;
    assert_eq!(told, [("created".to_owned(), 1_051)]);
}

/// Each entry has a key of its own, which nobody holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_behind_many_keys_under_a_limit_that_is_held_are_relayed() {
    let told = relayed_behind(&limited(job()), |id| limited(keyed(&id.to_string()))).await;
    assert_eq!(told, [("created".to_owned(), 1_051)]);
}

/// Each waiting entry costs an attempt; a duplicate between two of them says nothing about the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_between_entries_of_a_limit_that_is_held_do_not_have_each_tried() {
    let place = Place::new();
    let (store, engine, mut client) = opened(&place).await;
    engine.enqueue(keyed("there").offer(), "test").await.unwrap();
    let read: Read = Arc::new(|id, text| {
        let want =
            if text == "\"there\"" { keyed("there").on_conflict("ignore") } else { keyed(&id.to_string()) };
        Ok(limited(want).id(id).offer())
    });
    let held = client.transaction().await.unwrap();
    let mut inside = store.inside(&held);
    engine.enqueue_batch_inside(&mut inside, vec![limited(job()).offer()], Mode::Each, "test").await.unwrap();
    let other = crate::place::client(&url()).await;
    let insert = format!(
        "INSERT INTO {}.outbox (envelope) SELECT to_json(text) \
         FROM generate_series(1, 100), LATERAL (VALUES ('there'), ('new')) AS entry (text)",
        place.schema()
    );
    other.execute(&insert, &[]).await.unwrap();
    let mut first = 0;
    while first == 0 {
        first = engine.relay_once(&*store, &read).await.unwrap();
    }
    assert!((1..20).contains(&first), "{first} of 100 duplicates: all others were tried as well");
    drop(inside);
    held.commit().await.unwrap();
    relayed(&engine, &store, &read, 200 - first).await;
}

/// The limit itself is free, so an entry that needs it and another key goes ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_held_does_not_hold_the_limit_that_an_entry_has_beside_it() {
    let place = Place::new();
    let (store, engine, mut client) = opened(&place).await;
    let read: Read = Arc::new(|id, text| Ok(limited(keyed(text)).id(id).offer()));
    let held = client.transaction().await.unwrap();
    let mut inside = store.inside(&held);
    let offers = vec![keyed("\"held\"").offer()];
    engine.enqueue_batch_inside(&mut inside, offers, Mode::Each, "test").await.unwrap();
    let other = crate::place::client(&url()).await;
    let insert = format!("INSERT INTO {}.outbox (envelope) SELECT to_json($1::text)", place.schema());
    for text in ["held", "free"] {
        other.execute(&insert, &[&text]).await.unwrap();
    }
    relayed(&engine, &store, &read, 1).await;
    drop(inside);
    held.rollback().await.unwrap();
    relayed(&engine, &store, &read, 1).await;
}
