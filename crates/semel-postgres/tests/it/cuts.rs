//! All connections to the database are cut again and again while servers are under load: nothing acknowledged
//! is lost, nothing is doubled, no key is stuck. `SEMEL_CRASH_ROUNDS` sets the number of rounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use semel_core::enqueue::Outcome;
use semel_core::ident::JobId;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::backend::Filter;
use semel_testkit::make::keyed;
use semel_testkit::patience::rounds;
use tokio::task::JoinSet;

use crate::place::{Place, client, url};

const ROUNDS: u64 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_under_load_lose_and_double_nothing() {
    let place = Place::new();
    let name = place.schema();
    let address = Address::parse(&format!("{}?schema={name}&application_name={name}", url())).unwrap();
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(Engine::without_duties(Arc::new(Postgres::open(&address).await.unwrap())).unwrap());
    }
    let (next, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let acknowledged: Arc<Mutex<BTreeMap<u64, JobId>>> = Arc::default();
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let (engine, next, over) = (servers[caller % 2].clone(), Arc::clone(&next), Arc::clone(&over));
        let acknowledged = Arc::clone(&acknowledged);
        callers.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                // Two callers want each number, mostly through different servers.
                let number = next.fetch_add(1, Ordering::Relaxed) / 2;
                let offer = keyed(&format!("{number}")).on_conflict("ignore").offer();
                let id = match engine.enqueue(offer, "").await {
                    Ok(Outcome::Created(head) | Outcome::Existing(head)) => head.id,
                    // Nothing was stored, or that is unknown: no caller owns the number.
                    Err(error) if error.is_retryable() => continue,
                    other => panic!("{other:?}"),
                };
                let before = acknowledged.lock().unwrap().insert(number, id);
                assert!(before.is_none_or(|before| before == id), "two answers for {number}");
            }
        });
    }
    let client = client(&url()).await;
    for _ in 0..rounds("SEMEL_CRASH_ROUNDS", ROUNDS) {
        let enough = next.load(Ordering::Relaxed) + 60;
        while next.load(Ordering::Relaxed) < enough {
            tokio::task::yield_now().await;
        }
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        assert!(!client.query(cut, &[&name]).await.unwrap().is_empty());
    }
    over.store(true, Ordering::Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    let acknowledged = std::mem::take(&mut *acknowledged.lock().unwrap());
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    for (number, id) in &acknowledged {
        // The pool may hand out a connection that was cut.
        let outcome = loop {
            match servers[0].enqueue(keyed(&format!("{number}")).on_conflict("ignore").offer(), "").await {
                Ok(outcome) => break outcome,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        let Outcome::Existing(head) = outcome else { panic!("{number} is lost") };
        assert_eq!(head.id, *id, "{number}");
    }
    let mut keys = BTreeMap::new();
    let mut filter = Filter { limit: 500, ..Filter::default() };
    loop {
        let page = servers[1].list(filter.clone()).await.unwrap();
        for head in page.heads {
            assert!(
                keys.insert(head.key.map(|key| *key.as_bytes()), head.id).is_none(),
                "a key has two jobs"
            );
        }
        match page.next {
            Some(before) => filter.before = Some(before),
            None => break,
        }
    }
    assert!(keys.len() >= acknowledged.len());
}
