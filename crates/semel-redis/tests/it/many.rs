//! Very many of one thing: what a script does for one caller does not grow with what others have made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::ident::QueueName;
use semel_core::lease::Bearer;
use semel_core::limit::Limit;
use semel_core::settings::{Backpressure, Directive, QueueSettings};
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_testkit::TempDir;
use semel_testkit::crash::claim;
use semel_testkit::make::{Want, job, key, keyed};
use semel_testkit::redis::url;

use crate::own::{Own, calls, patient};
use crate::place::Place;

async fn opened(address: &Address) -> (Arc<Redis>, Engine) {
    let store = Arc::new(Redis::open(address).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    (store, engine)
}

fn limited(number: usize) -> Want {
    job().limit(Limit { key: format!("k{number}").into(), concurrency: Some(1), rate: None })
}

/// Enqueues a job under each of `limits` limits, many at once.
async fn enqueue_limited(engine: &Engine, limits: usize) {
    let mut made = tokio::task::JoinSet::new();
    for number in 0..limits {
        let engine = engine.clone();
        made.spawn(async move { engine.enqueue(limited(number).offer(), "").await.unwrap() });
    }
    made.join_all().await;
}

/// Workers and limits have rows like queues, and these are never forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_looks_at_queues_does_not_look_at_workers_and_limits() {
    let place = Place::new();
    let (store, engine) = opened(place.address()).await;
    for number in 0..5 {
        engine.enqueue(limited(number).queue("mail").offer(), "").await.unwrap();
        engine.direct(&format!("worker {number}"), Directive::Quiet).await.unwrap();
    }
    engine.set_paused(QueueName::parse("post", "").unwrap(), true).await.unwrap();
    let names: Vec<String> =
        store.queues().await.unwrap().iter().map(|queue| queue.row.name.to_string()).collect();
    assert_eq!(names, ["mail", "post"]);
    let base = place.address().base();
    let mut connection = patient(&url()).await;
    let listed: u64 = redis::cmd("SCARD").arg(format!("{base}w")).query_async(&mut connection).await.unwrap();
    assert_eq!(listed, 2, "nothing else is listed with them");
    // The question that is asked every second names only the queues that have settings.
    let mail = QueueName::parse("mail", "").unwrap();
    let bound = QueueSettings { backpressure: Some(Backpressure { max_depth: 9, warning_threshold: 0.5 }) };
    engine.set_queue(mail.clone(), bound).await.unwrap();
    let rows = store.settings().await.unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0].name, mail);
    assert_eq!(QueueSettings::decode(rows[0].settings.as_deref()), bound);
    engine.set_queue(mail, QueueSettings::default()).await.unwrap();
    assert!(store.settings().await.unwrap().is_empty());
}

/// Callers may name any number of limits, but a claim reads only as many as the jobs it looks at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_does_not_ask_every_limit_that_has_jobs() {
    const LIMITS: usize = 300;
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let (store, engine) = opened(&Address::parse(&own.url()).unwrap()).await;
    enqueue_limited(&engine, LIMITS).await;
    let mut connection = own.connection().await;
    let mut asked = async |closed: &[usize]| -> (usize, u64) {
        let mut claim = claim(2);
        claim.closed =
            closed.iter().map(|number| semel_core::limit::Lane::of(&format!("k{number}"))).collect();
        claim.closed.sort_unstable();
        let before = calls(&mut connection, "zrange").await;
        let batch = semel_store::backend::Batch { groups: Vec::new(), claims: vec![claim] };
        let applied = store.commit(batch).await.unwrap();
        let after = calls(&mut connection, "zrange").await;
        (applied.claims[0].unclaimable.len(), after - before)
    };
    let looks = 2 + usize::from(semel_store::bounds::CLAIM_LOOKS_EXTRA);
    let (found, calls) = asked(&[]).await;
    assert_eq!(found, looks, "as many as are looked at");
    assert!(calls < 80, "{calls}");
    // Closed limits are passed over, and what is behind them is found.
    let closed: Vec<usize> = (0..LIMITS - 10).collect();
    let (found, calls) = asked(&closed).await;
    assert_eq!(found, 10);
    assert!(calls < 20, "{calls}");
    // A started job is no longer the first of its limit.
    let taken = engine.claim(claim(200)).await.unwrap();
    assert_eq!(taken.len(), 200);
    assert_eq!(asked(&[]).await.0, looks);
    assert_eq!(engine.claim(claim(LIMITS as u32)).await.unwrap().len(), LIMITS - 200);
    assert_eq!(asked(&[]).await.0, 0);
}

/// Nor does a read of the queues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_queues_does_not_ask_every_limit_that_has_jobs() {
    const LIMITS: usize = 300;
    let folder = TempDir::new();
    let own = Own::start(folder.path(), &[]).await;
    let (store, engine) = opened(&Address::parse(&own.url()).unwrap()).await;
    let first = engine.enqueue(limited(LIMITS).priority(-1).offer(), "").await.unwrap().inserted().unwrap();
    enqueue_limited(&engine, LIMITS).await;
    let mut connection = own.connection().await;
    let before = calls(&mut connection, "zrange").await;
    let queues = store.queues().await.unwrap();
    let asked = calls(&mut connection, "zrange").await - before;
    assert!(asked < LIMITS as u64, "{asked}");
    let head = engine.job(first).await.unwrap().unwrap().head;
    assert_eq!(queues[0].oldest_ready, Some(head.available_at), "whatever its priority");
}

/// Ended holders that others outlive are removed from the list of their key, soon after an answer has found
/// many there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ended_holders_of_a_key_are_looked_over() {
    let place = Place::new();
    let (_, engine) = opened(place.address()).await;
    for _ in 0..8 {
        let made = engine.enqueue(keyed("a").offer(), "").await.unwrap();
        engine.claim(claim(1)).await.unwrap();
        engine.complete(made.inserted().unwrap(), Bearer::default(), None).await.unwrap();
    }
    let mut name = format!("{}k", place.address().base()).into_bytes();
    name.extend_from_slice(key("a").as_bytes());
    let mut connection = patient(&url()).await;
    let begun = Instant::now();
    // The record is then a version, a number and one holder.
    while redis::cmd("STRLEN").arg(&name).query_async::<usize>(&mut connection).await.unwrap() != 12 + 16 {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody looks it over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
