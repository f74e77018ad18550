//! Effects of a decision made inside a caller's transaction.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::enqueue::{Mode, Outcome};
use semel_core::lease::Bearer;
use semel_core::settle::Settled;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::bounds::LOADS_PER_DECISION_MAX;
use semel_store::inside::Inside;
use semel_store::{Backend, StoreError};
use semel_testkit::fixture::claim;
use semel_testkit::flows::chain;
use semel_testkit::make::{job, keyed};
use semel_testkit::transact::asking;

use crate::place::{Place, client, url};

/// It is counted like a step that follows from an end in a commit of the store's own.
#[tokio::test]
async fn a_step_that_follows_from_an_end_inside_is_counted() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    engine
        .create_workflow(chain(["a.first", "a.next"].map(|name| job().of_type(name).offer())))
        .await
        .unwrap();
    let created = |name: &str| {
        let all = engine.counters().all().into_iter();
        let of_name = all.filter(|((its, _, outcome), _)| its.as_str() == name && *outcome == "created");
        of_name.map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!((created("a.first"), created("a.next")), (1, 0));
    let run = engine.claim(claim(&["default"], 1)).await.unwrap().remove(0).head.id;
    let mut caller = client(&url()).await;
    let transaction = caller.transaction().await.unwrap();
    let mut inside = backend.inside(&transaction);
    let settled = engine.complete_inside(&mut inside, run, Bearer::default(), None).await.unwrap();
    assert!(matches!(settled, Settled::Done(_)));
    drop(inside);
    transaction.commit().await.unwrap();
    assert_eq!((created("a.first"), created("a.next")), (1, 1));
}

/// All sessions of a database share one lock table: a transaction that fills it has everybody else refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_many_calls_holds_no_more_locks_than_one_of_a_few() {
    const FEW: i64 = 4;
    const MANY: i64 = 64;
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    let (mut caller, watcher) = (client(&url()).await, client(&url()).await);
    let pid: i32 = caller.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let transaction = caller.transaction().await.unwrap();
    let mut held = Vec::new();
    for number in 1..=MANY {
        let offers = vec![keyed(&format!("{number}")).offer()];
        let mut inside = backend.inside(&transaction);
        engine.enqueue_batch_inside(&mut inside, offers, Mode::Each, "").await.unwrap();
        if number == FEW || number == MANY {
            let locks = "SELECT count(*) FROM pg_locks WHERE pid = $1";
            held.push(watcher.query_one(locks, &[&pid]).await.unwrap().get::<_, i64>(0));
        }
    }
    assert_eq!(held[0], held[1]);
    let stranger = engine.enqueue(keyed("another").offer(), "");
    let outcome = tokio::time::timeout(Duration::from_secs(60), stranger).await;
    assert!(matches!(outcome, Ok(Ok(Outcome::Created(_)))), "{outcome:?}");
    transaction.commit().await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, MANY.unsigned_abs() + 1);
    // Each call wrote its events at positions of its own.
    let places = format!(
        "SELECT count(DISTINCT first), max(first) FROM {}.event GROUP BY tx ORDER BY 1 DESC LIMIT 1",
        place.schema()
    );
    let row = watcher.query_one(&places, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (MANY, i32::try_from(MANY).unwrap() - 1));
}

/// Other sessions see its jobs, and are notified of them, as soon as it commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_stored_something_is_on_the_disk_before_it_is_seen() {
    let place = Place::new();
    for (own, callers, with_job, without) in [
        ("on", "off", "on", "off"),
        ("on", "local", "local", "local"),
        ("on", "remote_apply", "remote_apply", "remote_apply"),
        ("off", "off", "off", "off"),
    ] {
        let text = format!("{}?options=-c%20synchronous_commit={own}", url());
        let address = Address::parse(&text).unwrap().with_schema(place.schema()).unwrap();
        let backend = Arc::new(Postgres::open(&address).await.unwrap());
        let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
        let mut caller = client(&url()).await;
        caller.batch_execute(&format!("SET synchronous_commit = {callers}")).await.unwrap();
        // The second time the job exists already.
        let offer = keyed(&format!("{own} {callers}")).on_conflict("ignore");
        for expected in [with_job, without] {
            let transaction = caller.transaction().await.unwrap();
            let mut inside = backend.inside(&transaction);
            let told = engine.enqueue_batch_inside(&mut inside, vec![offer.offer()], Mode::Each, "").await;
            drop(inside);
            let is = transaction.query_one("SHOW synchronous_commit", &[]).await.unwrap();
            assert_eq!(is.get::<_, &str>(0), expected, "{own} {callers} {told:?}");
            transaction.commit().await.unwrap();
            let is = caller.query_one("SHOW synchronous_commit", &[]).await.unwrap();
            assert_eq!(is.get::<_, &str>(0), callers, "it is the transaction's alone");
        }
    }
}

/// The rows are locked by this transaction, so nobody else can look them over, and the next caller may be
/// inside one too.
#[tokio::test]
async fn the_ended_holders_of_a_key_are_looked_over_by_the_transaction_that_adds_one() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    let mut caller = client(&url()).await;
    let mut counts = Vec::new();
    for _ in 0..9 {
        assert!(engine.enqueue(keyed("a").offer(), "").await.unwrap().is_inserted());
        let run = engine.claim(claim(&["default"], 1)).await.unwrap().remove(0).head.id;
        let transaction = caller.transaction().await.unwrap();
        transaction.batch_execute("SET LOCAL synchronous_commit = on").await.unwrap();
        let mut inside = backend.inside(&transaction);
        let settled = engine.complete_inside(&mut inside, run, Bearer::default(), None).await.unwrap();
        assert!(matches!(settled, Settled::Done(_)));
        drop(inside);
        // Durability is the decision of the caller, who owns the transaction.
        let durable = transaction.query_one("SHOW synchronous_commit", &[]).await.unwrap();
        assert_eq!(durable.get::<_, &str>(0), "on");
        transaction.commit().await.unwrap();
        let done = format!("SELECT cardinality(done) FROM {}.key", place.schema());
        counts.push(caller.query_one(&done, &[]).await.unwrap().get::<_, i32>(0));
    }
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 1, 2]);
}

/// This is housekeeping: completing a run has nothing to do with what is wrong with an older one.
#[tokio::test]
async fn an_ended_holder_that_cannot_be_read_is_in_nobodys_way() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    let mut caller = client(&url()).await;
    for round in 0..9 {
        let id = engine.enqueue(keyed("a").offer(), "").await.unwrap().inserted().unwrap();
        assert_eq!(engine.claim(claim(&["default"], 1)).await.unwrap().len(), 1);
        let transaction = caller.transaction().await.unwrap();
        let mut inside = backend.inside(&transaction);
        let settled = engine.complete_inside(&mut inside, id, Bearer::default(), None).await;
        assert!(matches!(settled, Ok(Settled::Done(_))), "round {round}: {settled:?}");
        drop(inside);
        transaction.commit().await.unwrap();
        if round == 0 {
            let damage = format!("UPDATE {}.head SET state = 99 WHERE state = 5", place.schema());
            assert_eq!(caller.execute(&damage, &[]).await.unwrap(), 1);
        }
    }
}

/// The limit on loads per decision is the same as outside.
#[tokio::test]
async fn a_decision_inside_has_as_many_loads_as_there_may_be() {
    let place = Place::new();
    let backend = Postgres::open(place.address()).await.unwrap();
    let mut caller = client(&url()).await;
    for (jobs, is_taken) in [(LOADS_PER_DECISION_MAX, true), (LOADS_PER_DECISION_MAX + 1, false)] {
        let transaction = caller.transaction().await.unwrap();
        let (mut inside, mut decide) = (backend.inside(&transaction), asking(jobs));
        let told = inside.decide(Reads::default(), &mut decide).await;
        let is_refused = matches!(told, Err(StoreError::Contended));
        assert_eq!((told.is_ok(), is_refused), (is_taken, !is_taken), "{jobs}: {told:?}");
    }
}
