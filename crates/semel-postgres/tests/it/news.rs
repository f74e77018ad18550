//! How servers on one database notify one another.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel_core::enqueue::Mode;
use semel_core::ident::QueueName;
use semel_core::lease::Grant;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_store::backend::Claim;
use semel_testkit::make::job;
use semel_testkit::patience::quickest;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::place::{Place, client, url};

const LONG: Duration = Duration::from_secs(60);

async fn server(address: &Address) -> Engine {
    Engine::without_duties(Arc::new(Postgres::open(address).await.unwrap())).unwrap()
}

fn claim() -> Claim {
    let queues = vec![QueueName::from_stored("default")];
    Claim { queues, limit: 1, grant: Grant::new("w".into(), None), closed: Vec::new() }
}

/// How long a worker waiting at `there` takes to get a job stored at `here`, once for each round, shortest
/// first.
async fn waits(here: &Engine, there: &Engine, rounds: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let waiting = tokio::spawn({
            let there = there.clone();
            async move { (there.claim_or_wait(claim(), LONG).await.unwrap(), Instant::now()) }
        });
        // By then the worker is surely waiting.
        tokio::time::sleep(Duration::from_millis(150)).await;
        here.enqueue(job().offer(), "").await.unwrap();
        let begun = Instant::now();
        let (jobs, at) = waiting.await.unwrap();
        assert_eq!(jobs.len(), 1);
        took.push(at.saturating_duration_since(begun));
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_hears_of_another_servers_job_at_once() {
    let place = Place::new();
    let (here, there) = (server(place.address()).await, server(place.address()).await);
    let mut took = Vec::new();
    // Polling alone would take half a second on average; a machine under load is slow now and then.
    for _ in 0..6 {
        took = waits(&here, &there, 9).await;
        if took[7] < Duration::from_millis(300) {
            break;
        }
    }
    assert!(took[7] < Duration::from_millis(300), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_is_heard_it_is_looked_for() {
    let place = Place::new();
    let deaf = format!("{}?schema={}&listen=off", url(), place.schema());
    let (here, there) = (server(place.address()).await, server(&Address::parse(&deaf).unwrap()).await);
    let took = waits(&here, &there, 3).await;
    assert!(took[0] < LONG / 2, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_while_nobody_waits_and_seldom_otherwise() {
    let place = Place::new();
    let (here, there) = (server(place.address()).await, server(place.address()).await);
    let (client, mut connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    let messages = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&messages);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(told) = message {
                // A server that begins to listen notifies itself, to check that it hears.
                counts.fetch_add(usize::from(!told.payload().contains("probe")), Ordering::SeqCst);
            }
        }
    });
    client.batch_execute(&format!("LISTEN {}", place.schema())).await.unwrap();
    for _ in 0..20 {
        here.enqueue(job().offer(), "").await.unwrap();
    }
    client.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(messages.load(Ordering::SeqCst), 0);
    let jobs = there.claim(Claim { limit: 100, ..claim() }).await.unwrap();
    assert_eq!(jobs.len(), 20);
    let waiting = tokio::spawn(async move {
        loop {
            there.claim_or_wait(claim(), LONG).await.unwrap();
        }
    });
    let begun = Instant::now();
    let told = loop {
        let mut enqueues = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let here = here.clone();
            enqueues.spawn(async move { here.enqueue(job().offer(), "").await.unwrap() });
        }
        enqueues.join_all().await;
        client.batch_execute("SELECT 1").await.unwrap();
        let told = messages.load(Ordering::SeqCst) as u128;
        if told > 0 || begun.elapsed() > LONG {
            break told;
        }
    };
    let most = begun.elapsed().as_millis() / 5 + 2;
    assert!((1..=most).contains(&told), "{told} of at most {most}");
    waiting.abort();
}

/// A commit that nobody was notified of is looked for once a second, however many other notifications arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_told_is_found_among_many_messages() {
    const LATE: Duration = Duration::from_secs(5);
    let took = quickest(LATE, || found_among_many_messages(2 * LATE)).await;
    assert!(took < LATE, "{took:?}");
}

/// How long after its commit such a job is found by a worker that waits for `patience`.
async fn found_among_many_messages(patience: Duration) -> Duration {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let here = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let there = server(place.address()).await;
    let mut caller = client(&url()).await;
    let transaction = caller.transaction().await.unwrap();
    // Nobody listens, so its commit will notify nobody.
    let mut inside = store.inside(&transaction);
    here.enqueue_batch_inside(&mut inside, vec![job().offer()], Mode::Each, "test").await.unwrap();
    drop(inside);
    let (other, schema) = (client(&url()).await, place.schema().to_owned());
    let talking = tokio::spawn(async move {
        loop {
            other.execute("SELECT pg_notify($1, 'x l')", &[&schema]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let waiting = tokio::spawn(async move { there.claim_or_wait(claim(), patience).await.unwrap() });
    while store.company().await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    transaction.commit().await.unwrap();
    let begun = Instant::now();
    let jobs = waiting.await.unwrap();
    let took = begun.elapsed();
    talking.abort();
    // If nothing was found, it would have taken longer still.
    if jobs.len() == 1 { took } else { patience }
}

/// A server that polled again at once, after a poll that took longer than the interval, would never get to
/// listen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_database_is_slow_hears_the_others() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let there = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let (client, schema) = (client(&url()).await, place.schema());
    let slow = format!(
        "ALTER TABLE {schema}.event RENAME TO told; \
         CREATE VIEW {schema}.event AS SELECT told.* FROM pg_sleep(0.2) AS slow LEFT JOIN {schema}.told ON true"
    );
    client.batch_execute(&slow).await.unwrap();
    // The view is slow, and more than one poll interval has passed by now.
    client.query_one(&format!("SELECT count(*) FROM {schema}.event"), &[]).await.unwrap();
    let waiting = tokio::spawn(async move { there.claim_or_wait(claim(), LONG).await });
    let hears = async {
        while store.company().await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG / 2, hears).await.unwrap();
    waiting.abort();
}
