//! Housekeeping that keeps up with the load.

use std::sync::Arc;
use std::time::Duration;

use semel_core::enqueue::Mode;
use semel_postgres::Postgres;
use semel_store::clock::ManualClock;
use semel_store::error::Undone;
use semel_store::{Backend, StoreError};
use semel_testkit::make::{job, keyed};
use tokio_postgres::{Client, IsolationLevel};

use crate::place::{Place, client, url};

/// More rows than one piece of housekeeping handles.
const MANY: i64 = 25_000;

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

/// Runs enough housekeeping rounds for one of them to be thorough, each until nothing is left to do.
async fn keep_house(store: &Postgres) {
    for _ in 0..66 {
        while store.maintain().await.unwrap() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_needed_no_longer_goes_as_fast_as_it_comes() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = semel_engine::Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    engine.enqueue(keyed("held").offer(), "").await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    // Keys that nobody has held for hours, one that was used just now, and entries relayed days ago.
    let fill = format!(
        "INSERT INTO {schema}.key SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), n, '{{}}', '{{}}'
             FROM generate_series(1, {MANY}) AS n;
         INSERT INTO {schema}.key SELECT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
             (extract(epoch FROM now()) * 1000000)::int8, '{{}}', '{{}}';
         INSERT INTO {schema}.outbox (envelope, outcome, relayed_at)
             SELECT '{{}}', 'created', now() - interval '9 days' FROM generate_series(1, {MANY});
         INSERT INTO {schema}.outbox (envelope, outcome, relayed_at) VALUES ('{{}}', 'created', now())"
    );
    // Few rows a page, so that the table has several stretches.
    client.batch_execute(&format!("ALTER TABLE {schema}.key SET (fillfactor = 10)")).await.unwrap();
    client.batch_execute(&fill).await.unwrap();
    while store.maintain().await.unwrap() {}
    assert_eq!(count(&client, &format!("{schema}.key")).await, 2, "without waiting for the next round");
    keep_house(&store).await;
    assert_eq!(count(&client, &format!("{schema}.key")).await, 2);
    assert_eq!(count(&client, &format!("{schema}.outbox")).await, 1);
    // Once more: a round must not stop where the previous one left off.
    client.batch_execute(&fill).await.unwrap();
    keep_house(&store).await;
    assert_eq!(count(&client, &format!("{schema}.key")).await, 3);
}

/// A transaction stricter than the store's own must start over if its snapshot is older than a key's row, and
/// must then find the row that was made for its first try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_made_to_be_locked_is_there_when_its_transaction_begins_again() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = semel_engine::Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let (mut client, keys) = (client(&url()).await, format!("{}.key", place.schema()));
    for is_first in [true, false] {
        let begin = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let transaction = begin.start().await.unwrap();
        // This fixes its snapshot.
        transaction.batch_execute("SELECT 1").await.unwrap();
        let offers = vec![keyed("a").offer()];
        let told = engine.enqueue_batch_inside(&mut store.inside(&transaction), offers, Mode::Each, "").await;
        if is_first {
            assert!(matches!(told, Err(StoreError::Undone(Undone::Serialization))), "{told:?}");
        } else {
            assert!(told.is_ok(), "{told:?}");
        }
        transaction.rollback().await.unwrap();
        store.maintain().await.unwrap();
    }
    assert_eq!(count(&client, &keys).await, 1);
    keep_house(&store).await;
    assert_eq!(count(&client, &keys).await, 0, "nobody has held it");
}

/// Inserts 201,000 events, a thousand more than are kept: a thousand for each transaction from `first` on.
async fn log(client: &Client, schema: &str, first: i64, kinds: &str) {
    let fill = format!(
        "INSERT INTO {schema}.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts)
             SELECT ({first} + n / 1000)::text::xid8, n % 1000, 0, '{kinds}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}'
             FROM generate_series(0, 200999) AS n"
    );
    assert_eq!(client.execute(&fill, &[]).await.unwrap(), 201_000);
}

/// How many records have events, how many have none, and the transaction up to which records were dropped.
async fn records(client: &Client, schema: &str) -> (i64, i64, i64) {
    let sql = format!(
        "SELECT count(*) FILTER (WHERE kinds <> '{{}}'), count(*) FILTER (WHERE kinds = '{{}}'), (SELECT dropped FROM {schema}.fact)
         FROM {schema}.event"
    );
    let row = client.query_one(&sql, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Records are not dropped while an older transaction is open, nor at once when it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_could_not_be_shown_are_kept_until_a_while_after_they_can() {
    let (place, clock) = (Place::new(), ManualClock::default());
    let open = async || Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap();
    let store = open().await;
    let (mut holder, watcher, schema) = (client(&url()).await, client(&url()).await, place.schema());
    let held = holder.transaction().await.unwrap();
    let own = held.query_one("SELECT pg_current_xact_id()::text::int8", &[]).await.unwrap();
    log(&watcher, schema, own.get::<_, i64>(0) + 1, "{1}").await;
    for _ in 0..3 {
        keep_house(&store).await;
        clock.advance(Duration::from_secs(120));
    }
    assert_eq!(records(&watcher, schema).await, (201_000, 0, 0));
    held.rollback().await.unwrap();
    watcher.batch_execute(&format!("TRUNCATE {schema}.event")).await.unwrap();
    // Of transactions that are over, as far as a server knows that has just been started.
    log(&watcher, schema, 1, "{1}").await;
    let store = open().await;
    for (seconds, kept) in [(0, (201_000, 0, 0)), (30, (201_000, 0, 0)), (30, (200_000, 0, 1))] {
        clock.advance(Duration::from_secs(seconds));
        keep_house(&store).await;
        assert_eq!(records(&watcher, schema).await, kept);
    }
}

/// Heartbeats and progress write records too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_tell_nothing_push_none_out_that_does() {
    let (place, clock) = (Place::new(), ManualClock::default());
    let store = Arc::new(Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap());
    let engine = semel_engine::Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    engine.enqueue(job().offer(), "").await.unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    let sql = format!("SELECT max(tx::text::int8) FROM {schema}.event");
    let told: i64 = client.query_one(&sql, &[]).await.unwrap().get(0);
    log(&client, schema, told + 1, "{}").await;
    for _ in 0..3 {
        keep_house(&store).await;
        clock.advance(Duration::from_secs(120));
    }
    assert_eq!(records(&client, schema).await, (1, 200_000, 0));
    assert_eq!(store.events(0, 10).await.unwrap().kept_after, 0);
}
