//! Which of its pooled connections a store uses next.

use std::sync::Arc;

use semel_core::draft::Reads;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;

use crate::place::{Place, client, until, url};

/// How many open connections there are to choose from.
const CHOICE: usize = 4;

/// The most recently used connection goes first: each is a PostgreSQL process, which is slow after a long
/// idle time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_next_is_given_the_connection_that_was_used_last() {
    let place = Place::new();
    let name = place.schema();
    let address = Address::parse(&format!("{}?schema={name}&application_name={name}", url())).unwrap();
    let store = Arc::new(Postgres::open(&address).await.unwrap());
    // Concurrent loads, blocked by a table lock until all have begun: no two can share a connection.
    let (mut holder, watcher) = (client(&url()).await, client(&url()).await);
    let held = holder.transaction().await.unwrap();
    held.batch_execute(&format!("LOCK TABLE {name}.fact IN ACCESS EXCLUSIVE MODE")).await.unwrap();
    let loads: Vec<_> = (0..CHOICE)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { drop(store.load(&Reads::default()).await.unwrap()) })
        })
        .collect();
    let ours = format!("FROM pg_stat_activity WHERE application_name = '{name}'");
    until(&watcher, &format!("SELECT count(*) = {CHOICE} {ours} AND wait_event_type = 'Lock'")).await;
    held.rollback().await.unwrap();
    for load in loads {
        load.await.unwrap();
    }
    let since: String = watcher.query_one("SELECT clock_timestamp()::text", &[]).await.unwrap().get(0);
    for _ in 0..3 * CHOICE {
        store.load(&Reads::default()).await.unwrap();
    }
    let used = format!("SELECT count(*) {ours} AND query_start > '{since}'");
    let used: i64 = watcher.query_one(&used, &[]).await.unwrap().get(0);
    assert_eq!(used, 1);
}
