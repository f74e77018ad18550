//! Jobs that a claim passes over because somebody else has them locked for the moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::ident::QueueName;
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_testkit::calls::wish;
use semel_testkit::make::{job, keyed};

use crate::place::{Place, client, url};

const LONG: Duration = Duration::from_secs(60);

/// Releasing a lock on an unchanged job notifies nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_is_given_what_somebody_let_go_of_as_it_was() {
    let place = Place::new();
    let engine = Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    engine.enqueue(job().offer(), "").await.unwrap();
    engine.enqueue(keyed("k").offer(), "").await.unwrap();
    let (mut other, schema) = (client(&url()).await, place.schema());
    // The job that is left after the first round has a key.
    for table in ["head", "key"] {
        let held = other.transaction().await.unwrap();
        held.execute(&format!("SELECT 1 FROM {schema}.{table} FOR UPDATE"), &[]).await.unwrap();
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.claim_or_wait(wish(1), LONG).await.unwrap() }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!waiting.is_finished(), "{table}");
        held.rollback().await.unwrap();
        let began = Instant::now();
        let jobs = waiting.await.unwrap();
        assert_eq!(jobs.len(), 1);
        assert!(began.elapsed() < Duration::from_secs(20), "he had waited to the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_want_to_wait_is_not_told_that_there_is_nothing() {
    let place = Place::new();
    let engine = Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    let (mut other, schema) = (client(&url()).await, place.schema());
    let took = async || {
        let began = Instant::now();
        assert!(engine.claim_what_is_there(wish(1)).await.unwrap().is_empty());
        began.elapsed()
    };
    // The least of several measurements: the machine may be busy with something else now and then.
    let mut none = took().await;
    for _ in 0..5 {
        none = none.min(took().await);
    }
    engine.enqueue(job().offer(), "").await.unwrap();
    let lock = format!("SELECT 1 FROM {schema}.head FOR UPDATE");
    for round in 0..20 {
        // Another server's decision that changes nothing.
        let held = other.transaction().await.unwrap();
        held.execute(&lock, &[]).await.unwrap();
        if round == 0 {
            let kept = took().await;
            assert!(kept >= Duration::from_millis(100) && none < kept, "{none:?}, {kept:?}");
        }
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.claim_what_is_there(wish(1)).await.unwrap() }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let was_told = waiting.is_finished();
        held.rollback().await.unwrap();
        // On a busy machine the claim's time may be up before it can look again.
        if waiting.await.unwrap().len() == 1 {
            assert!(!was_told, "it was locked");
            return;
        }
    }
    panic!("nobody looked again");
}

/// A job in a paused queue does not keep claims polling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_granted_is_not_overlooked() {
    let place = Place::new();
    let engine = Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    let overlooked = async || engine.store().overlooked(vec![QueueName::default()]).await.unwrap();
    assert!(engine.store().passes_over() && !overlooked().await);
    engine.enqueue(job().offer(), "").await.unwrap();
    assert!(overlooked().await);
    engine.set_paused(QueueName::default(), true).await.unwrap();
    assert!(!overlooked().await);
    // Of many concurrent questions each is answered for its own queue.
    let asked: Vec<_> = (0..50)
        .map(|n| {
            let store = engine.store().clone();
            let queue = QueueName::parse(if n % 2 == 0 { "default" } else { "other" }, "").unwrap();
            tokio::spawn(async move { store.overlooked(vec![queue]).await.unwrap() })
        })
        .collect();
    engine.set_paused(QueueName::default(), false).await.unwrap();
    assert!(overlooked().await);
    for (n, asked) in asked.into_iter().enumerate() {
        let told = asked.await.unwrap();
        assert!(n % 2 == 0 || !told, "the other queue is empty");
    }
}
