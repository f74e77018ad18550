//! Connections that are lost in the middle of a commit: what was applied is answered as applied, what was not never is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::StoreError;
use semel_testkit::make::keyed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::place::{Place, url};

/// Something between a server and the database that hands everything on, until it is told to swallow the answer to the next
/// commit and hang up. New connections are handed on again.
struct Between {
    port: u16,
    swallows: Arc<AtomicBool>,
}

/// How a commit is known on its way.
const COMMIT: &[u8] = b".commit(";

impl Between {
    async fn start(database: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallows = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&swallows);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = TcpStream::connect(&database).await.unwrap();
                tokio::spawn(hand_on(client, upstream, Arc::clone(&told)));
            }
        });
        Self { port, swallows }
    }

    fn swallow_the_answer_to_the_next_commit(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }
}

async fn hand_on(client: TcpStream, upstream: TcpStream, swallows: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_upstream, mut to_upstream) = upstream.into_split();
    let is_commit = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_commit);
    let asks = tokio::spawn(async move {
        let mut buffer = vec![0; 256 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            let asked = &buffer[..read];
            if asked.windows(COMMIT.len()).any(|part| part == COMMIT)
                && swallows.swap(false, Ordering::SeqCst)
            {
                seen.store(true, Ordering::SeqCst);
            }
            if to_upstream.write_all(asked).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(read @ 1..) = from_upstream.read(&mut buffer).await {
        if is_commit.load(Ordering::SeqCst) || to_client.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    asks.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_answered_as_what_became_of_it() {
    let place = Place::new();
    let database = url().split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let between = Between::start(database).await;
    let address =
        Address::parse(&format!("postgres://postgres@127.0.0.1:{}/postgres", between.port)).unwrap();
    let address = address.with_schema(place.address().schema()).unwrap();
    let backend = Arc::new(Postgres::open(&address).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("before").offer(), "").await.unwrap();
    between.swallow_the_answer_to_the_next_commit();
    let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
        panic!("not created")
    };
    assert!(!between.swallows.load(Ordering::SeqCst), "it was swallowed");
    assert!(engine.job(head.id).await.unwrap().is_some());
    assert_eq!(engine.queues().await.unwrap()[0].created, 2, "and it was done once");
    // And everything goes on.
    assert!(matches!(engine.enqueue(keyed("b").offer(), "").await.unwrap(), Outcome::Created(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_database_gave_up_is_not_applied_and_frees_its_keys() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    engine.enqueue(keyed("a").on_conflict("replace").offer(), "").await.unwrap();
    let schema = place.address().schema();
    // Somebody's transaction holds a table, so that the commit waits in the middle.
    let (mut holder, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let held = holder.transaction().await.unwrap();
    held.execute(&format!("LOCK TABLE {schema}.body IN SHARE MODE"), &[]).await.unwrap();
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.enqueue(keyed("a").on_conflict("replace").offer(), "").await }
    });
    let (watcher, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let ends = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%\"{schema}\".commit%'"
    );
    while watcher.query(&ends, &[]).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let answer = waiting.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    held.rollback().await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, 1, "nothing of it was applied");
    let again = engine.enqueue(keyed("a").on_conflict("replace").offer(), "").await.unwrap();
    assert!(matches!(again, Outcome::Replaced { .. }), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_dropped_leaves_neither_a_transaction_nor_a_poisoned_connection() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(backend).unwrap();
    for round in 0..200_u32 {
        let asked = engine.enqueue(keyed(&format!("{round}")).offer(), "");
        // Dropped at another await each time.
        drop(tokio::time::timeout(std::time::Duration::from_micros(u64::from(round) * 10), asked).await);
    }
    let Outcome::Created(last) = engine.enqueue(keyed("last").offer(), "").await.unwrap() else {
        panic!("not created")
    };
    // Seen by another connection than those that were used: it is committed.
    let (client, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = place.address().schema();
    let seen = client
        .query_one(
            &format!("SELECT count(*) FROM {schema}.head WHERE id::text = $1"),
            &[&last.id.to_string()],
        )
        .await
        .unwrap();
    assert_eq!(seen.get::<_, i64>(0), 1);
    let idle = client
        .query_one(
            &format!("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%{schema}%'"),
            &[],
        )
        .await
        .unwrap();
    assert_eq!(idle.get::<_, i64>(0), 0);
}
