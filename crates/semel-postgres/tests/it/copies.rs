//! Copying a store that stays in use, in ways that only a database allows.

use std::sync::Arc;

use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::copy::{Copied, CopyError, copy_beside};
use semel_store::memory::Memory;
use semel_testkit::make::job;
use tokio_postgres::Client;

use crate::place::{Place, client, url};

/// Copies the store into memory and runs `meanwhile` when the first record is reported.
async fn copied(store: &Postgres, mut meanwhile: impl FnMut() + Send) -> Result<Copied, CopyError> {
    let mut is_first = true;
    let mut progress = |_: &Copied| {
        if std::mem::take(&mut is_first) {
            meanwhile();
        }
    };
    copy_beside(store, Some(store), &Memory::new(semel_store::clock::SystemClock), &mut progress).await
}

fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}

/// A store with one job, and a connection to its database.
async fn filled(place: &Place) -> (Arc<Postgres>, Engine, Client) {
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    engine.enqueue(job().offer(), "").await.unwrap();
    (store, engine, client(&url()).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_into_the_outbox_meanwhile_is_noticed() {
    let place = Place::new();
    let (store, _engine, mut client) = filled(&place).await;
    copied(&store, || {}).await.unwrap();
    let insert = format!(
        "INSERT INTO \"{}\".outbox (envelope) VALUES ('{{\"type\": \"a.b\", \"args\": []}}')",
        place.schema()
    );
    let meanwhile = copied(&store, || now(client.batch_execute(&insert)).unwrap()).await;
    assert_eq!(meanwhile, Err(CopyError::OutboxWaits));
    // An entry that another transaction has locked still counts as waiting.
    let transaction = client.transaction().await.unwrap();
    transaction
        .batch_execute(&format!("SELECT FROM \"{}\".outbox FOR UPDATE", place.schema()))
        .await
        .unwrap();
    assert_eq!(copied(&store, || {}).await, Err(CopyError::OutboxWaits));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_an_open_transaction_hides_is_noticed() {
    let place = Place::new();
    let (store, engine, mut client) = filled(&place).await;
    let transaction = client.transaction().await.unwrap();
    let meanwhile = copied(&store, || {
        now(async {
            transaction.query("SELECT pg_current_xact_id()", &[]).await.unwrap();
            engine.enqueue(job().offer(), "").await.unwrap();
        });
    });
    assert_eq!(meanwhile.await, Err(CopyError::SourceMoved));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_open_before_the_last_write_keeps_a_copy_waiting() {
    let place = Place::new();
    let (store, engine, mut client) = filled(&place).await;
    let transaction = client.transaction().await.unwrap();
    transaction.query("SELECT pg_current_xact_id()", &[]).await.unwrap();
    engine.enqueue(job().offer(), "").await.unwrap();
    let is_over = std::cell::Cell::new(false);
    let copy = async {
        let copied = copied(&store, || {}).await;
        is_over.set(true);
        copied
    };
    // The transaction ends while the copy is running; nothing has been written since.
    let ended = async {
        store.events(0, 100).await.unwrap();
        assert!(!is_over.get());
        transaction.commit().await.unwrap();
    };
    let (copied, ()) = tokio::join!(copy, ended);
    assert_eq!(copied.unwrap().jobs.iter().sum::<u64>(), 2);
}
