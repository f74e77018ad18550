//! Records locked by somebody else's open transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::cron::Overlap;
use semel_core::draft::{Draft, Reads};
use semel_core::enqueue::{Batch as Enqueued, Mode, Outcome};
use semel_core::ident::QueueName;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::complete;
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Reap, Tend};
use semel_postgres::Postgres;
use semel_store::backend::{Batch, Claim, Verdict};
use semel_store::clock::ManualClock;
use semel_store::{Backend, StoreError, WAIT_MAX};
use semel_testkit::fixture::claim;
use semel_testkit::flows::{cron_name, registration};
use semel_testkit::make::{Want, foreign_id, job, key, keyed};
use semel_testkit::patience::quickest;
use semel_testkit::{Fixture, Step};
use tokio_postgres::Client;

use crate::place::{Place, client, url};

/// Upper bound for an operation that waits for no lock. One that waits for a lock does so for 250 ms first.
const PROMPT: Duration = Duration::from_millis(200);

async fn other() -> Client {
    client(&url()).await
}

async fn engine(place: &Place) -> Engine {
    Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap()
}

/// Repeats a request while its key is busy; the whole may take longer than a server waits for a lock.
async fn had<T, F: Future<Output = Result<T, StoreError>>>(ask: impl Fn() -> F) -> T {
    loop {
        match ask().await {
            Err(StoreError::Contended) => {}
            told => return told.unwrap(),
        }
    }
}

fn again(name: &str) -> Want {
    keyed(name).on_conflict("replace")
}

/// A request for a queue and a key that nobody else uses.
fn strangers() -> Want {
    keyed(&semel_store::random::number().to_string()).queue("strangers")
}

/// How long it takes to store a job that has nothing to do with the locked records.
async fn stored(engine: &Engine) -> Duration {
    let begun = Instant::now();
    assert!(engine.enqueue(strangers().offer(), "").await.unwrap().is_inserted());
    begun.elapsed()
}

/// Within a single commit, too, a locked record is passed over at once and its neighbours are applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_nothing_that_somebody_holds() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as _).unwrap();
    let schema = place.schema();
    let its_key = format!("key WHERE key = (SELECT key FROM {schema}.head WHERE id::text = $1)");
    for row in ["head WHERE id::text = $1", its_key.as_str()] {
        let took = quickest(PROMPT, async || {
            let offers = vec![strangers().offer(), strangers().offer()];
            engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
            let jobs = engine.claim(claim(&["strangers"], 2)).await.unwrap();
            let mut groups = Vec::new();
            for job in &jobs {
                let reads = Reads { heads: vec![job.head.id], ..Reads::default() };
                let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
                let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
                complete(&mut draft, job.head.id, &bearer, None).unwrap();
                groups.push(draft.finish());
            }
            let mut client = other().await;
            let held = client.transaction().await.unwrap();
            let lock = format!("SELECT 1 FROM {schema}.{row} FOR UPDATE");
            held.query_one(&lock, &[&jobs[0].head.id.to_string()]).await.unwrap();
            let begun = Instant::now();
            let applied = store.commit(Batch { groups, claims: Vec::new() }).await.unwrap();
            let took = begun.elapsed();
            assert_eq!(applied.groups, [Verdict::Busy, Verdict::Applied]);
            held.rollback().await.unwrap();
            took
        })
        .await;
        assert!(took < PROMPT, "{row}: {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_somebody_holds_delays_its_own_callers_only() {
    let place = Place::new();
    let engine = engine(&place).await;
    engine.enqueue(again("held").offer(), "").await.unwrap();
    let (mut client, schema) = (other().await, place.schema());
    let held = client.transaction().await.unwrap();
    held.execute(&format!("SELECT 1 FROM {schema}.key FOR UPDATE"), &[]).await.unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move { had(|| engine.enqueue(again("held").offer(), "")).await })
        })
        .collect();
    for number in 0..20 {
        let outcome = engine.enqueue(again(&format!("{number}")).offer(), "").await.unwrap();
        assert!(matches!(outcome, Outcome::Created(_)));
    }
    let took = quickest(PROMPT, || stored(&engine)).await;
    assert!(took < PROMPT, "{took:?}");
    assert!(waiting.iter().all(|wait| !wait.is_finished()), "nobody overtakes the lock");
    held.rollback().await.unwrap();
    for wait in waiting {
        assert!(matches!(wait.await.unwrap(), Outcome::Replaced { .. }));
    }
    assert_eq!(engine.queues().await.unwrap()[0].created, 1 + 8 + 20);
}

/// Housekeeping neither waits for the lock nor keeps other keys locked meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remembered_key_that_somebody_holds_is_forgotten_later() {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let place = Place::new();
    let schema = place.schema().to_owned();
    let f = Fixture::new(Step::Nothing, move |clock| place.open_with(clock));
    for name in ["held", "free"] {
        f.finished(&keyed(name).states(StateSet::ALL).period(DAY * 3, "created").offer()).await;
    }
    f.advance(DAY * 2).await;
    assert_eq!(f.purge().await, 2);
    f.advance(DAY * 2).await;
    let mut client = other().await;
    let held = client.transaction().await.unwrap();
    let lock = format!("SELECT 1 FROM {schema}.key WHERE key = $1 FOR UPDATE");
    assert_eq!(held.query(&lock, &[&key("held").as_bytes().as_slice()]).await.unwrap().len(), 1);
    let kept = format!("SELECT key FROM {schema}.head WHERE slot = -1");
    for (is_held, left) in [(true, vec![key("held")]), (false, vec![])] {
        if !is_held {
            held.execute("ROLLBACK", &[]).await.unwrap();
        }
        tokio::time::timeout(Duration::from_secs(60), f.maintain()).await.expect("it waits for the key");
        let rows = other().await.query(&kept, &[]).await.unwrap();
        let found: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(found, left.iter().map(|key| key.as_bytes().to_vec()).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_too_long_for_a_key_is_told_so() {
    let place = Place::new();
    let engine = engine(&place).await;
    engine.enqueue(again("held").offer(), "").await.unwrap();
    let (mut client, schema) = (other().await, place.schema());
    let held = client.transaction().await.unwrap();
    held.execute(&format!("SELECT 1 FROM {schema}.key FOR UPDATE"), &[]).await.unwrap();
    let answer = engine.enqueue(again("held").offer(), "").await;
    assert!(matches!(answer, Err(StoreError::Contended)), "{answer:?}");
    // A duplicate needs no lock.
    let found = engine.enqueue(keyed("held").on_conflict("ignore").offer(), "").await.unwrap();
    assert!(matches!(found, Outcome::Existing(_)));
    held.rollback().await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].created, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_somebody_holds_delays_its_own_worker_only() {
    let place = Place::new();
    let engine = engine(&place).await;
    for _ in 0..10 {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    let all = Claim {
        queues: vec![QueueName::default()],
        limit: 10,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    };
    let jobs = engine.claim(all).await.unwrap();
    let (mut client, schema) = (other().await, place.schema());
    let held = client.transaction().await.unwrap();
    let first = jobs[0].head.id;
    held.execute(
        &format!("SELECT 1 FROM {schema}.head WHERE id::text = $1 FOR UPDATE"),
        &[&first.to_string()],
    )
    .await
    .unwrap();
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { had(|| engine.complete(first, Bearer::default(), None)).await }
    });
    for job in &jobs[1..] {
        engine.complete(job.head.id, Bearer::default(), None).await.unwrap();
    }
    let took = quickest(PROMPT, async || {
        stored(&engine).await;
        let run = engine.claim(claim(&["strangers"], 1)).await.unwrap().remove(0);
        let begun = Instant::now();
        engine.complete(run.head.id, Bearer::default(), None).await.unwrap();
        begun.elapsed()
    })
    .await;
    assert!(took < PROMPT, "{took:?}");
    assert!(!waiting.is_finished());
    held.rollback().await.unwrap();
    waiting.await.unwrap();
    assert_eq!(engine.queues().await.unwrap()[0].count(semel_core::state::State::Completed), 10);
}

/// The exception: a row that another transaction is about to insert cannot be passed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_somebody_is_about_to_store_delays_its_own_callers_only() {
    let place = Place::new();
    let engine = engine(&place).await;
    let (mut client, schema) = (other().await, place.schema());
    engine.enqueue(job().offer(), "").await.unwrap();
    let held = client.transaction().await.unwrap();
    let copy = format!(
        "INSERT INTO {schema}.head SELECT (jsonb_populate_record(h, jsonb_build_object('id', $1::text))).* FROM {schema}.head h"
    );
    assert_eq!(held.execute(&copy, &[&foreign_id(7).to_string()]).await.unwrap(), 1);
    let mut running = tokio::task::JoinSet::new();
    let wait = |offer: semel_core::enqueue::Offer| {
        let engine = engine.clone();
        async move { had(|| engine.enqueue(offer.clone(), "")).await }
    };
    let waiting = tokio::spawn(wait(job().id(foreign_id(7)).offer()));
    for number in 0..40 {
        running.spawn(wait(keyed(&format!("{number}")).offer()));
    }
    let outcomes = tokio::time::timeout(Duration::from_secs(60), running.join_all()).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Created(_))));
    let took = quickest(PROMPT, || stored(&engine)).await;
    assert!(took < PROMPT, "{took:?}");
    assert!(!waiting.is_finished());
    held.rollback().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Outcome::Created(_)));
}

/// What a duty reports; it must finish before a caller would have given up waiting.
async fn unhindered<T>(duty: impl Future<Output = Result<T, StoreError>>) -> T {
    tokio::time::timeout(WAIT_MAX, duty).await.expect("it waits as a caller does").unwrap()
}

/// The duties of all servers do not wait either: they leave locked records for later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_somebody_holds_keeps_no_other_from_its_time() {
    let place = Place::new();
    let engine = engine(&place).await;
    let soon = Duration::from_millis(1);
    let offers = [job().later(soon), job().queue("expires").expires(soon), job().queue("runs").times(1, 0)];
    let mut ids = Vec::new();
    for want in &offers {
        for _ in 0..4 {
            match engine.enqueue(want.offer(), "").await.unwrap() {
                Outcome::Created(head) => ids.push(head.id),
                other => panic!("{other:?}"),
            }
        }
    }
    let runs = claim(&["runs"], 4);
    assert_eq!(engine.claim(runs).await.unwrap().len(), 4);
    for name in ["a", "b", "c", "d"] {
        let every_second = registration("* * * * * *", Overlap::Allow, job().queue("ticks").offer());
        engine.register_cron(cron_name(name), every_second).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut client, schema) = (other().await, place.schema());
    let held = client.transaction().await.unwrap();
    let some: Vec<String> = [ids[1], ids[5], ids[9]].iter().map(ToString::to_string).collect();
    let lock = format!("SELECT 1 FROM {schema}.head WHERE id::text = ANY ($1) FOR UPDATE");
    assert_eq!(held.query(&lock, &[&some]).await.unwrap().len(), 3);
    let lock = format!("SELECT 1 FROM {schema}.document WHERE name = 'b' FOR UPDATE");
    assert_eq!(held.query(&lock, &[]).await.unwrap().len(), 1);
    for is_held in [true, false] {
        let ran = [
            unhindered(Promote.run_once(engine.store())).await,
            unhindered(Expire.run_once(engine.store())).await,
            unhindered(Reap.run_once(engine.store())).await,
        ];
        let expected = if is_held { (3, 1) } else { (1, 0) };
        assert_eq!(ran.map(|ran| (ran.moved, ran.held_up)), [expected; 3]);
        let tended = unhindered(Tend.run_once(engine.store())).await;
        assert_eq!(tended.held_up, usize::from(is_held));
        assert!(tended.moved >= if is_held { 3 } else { 1 });
        if is_held {
            held.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

/// An open transaction that enqueues duplicates beside a new job keeps no locks on their holders, so workers
/// do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_beside_a_new_job_hold_nothing() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for name in ["a", "b", "c"] {
        engine.enqueue(keyed(name).offer(), "").await.unwrap();
    }
    engine.enqueue(job().offer(), "").await.unwrap();
    let mut caller = other().await;
    let transaction = caller.transaction().await.unwrap();
    let names = ["c", "new", "a", "new", "b"];
    let offers = names.iter().map(|name| keyed(name).on_conflict("ignore").offer()).collect();
    let mut inside = store.inside(&transaction);
    let told = engine.enqueue_batch_inside(&mut inside, offers, Mode::Each, "").await.unwrap();
    let Enqueued::Done(outcomes) = told else { panic!("{told:?}") };
    let are_new: Vec<bool> = outcomes.iter().map(Outcome::is_inserted).collect();
    assert_eq!(are_new, [false, true, false, false, false]);
    let claimed = engine.claim(claim(&["default"], 10)).await.unwrap();
    assert_eq!(claimed.len(), 4, "the holders, and the stranger behind them");
    for run in claimed {
        engine.complete(run.head.id, Bearer::default(), None).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let claimed = engine.claim(claim(&["default"], 10)).await.unwrap();
    assert_eq!(claimed.len(), 1, "what was new is there once");
}

/// This holds however many keys are locked, for claims and for promotion alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_behind_many_whose_keys_somebody_holds_have_their_turn() {
    const HELD: usize = 600;
    let (place, clock) = (Place::new(), ManualClock::default());
    let store = Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap();
    let engine = Engine::without_duties(Arc::new(store)).unwrap();
    let moment = Duration::from_millis(1);
    let ready = (0..HELD).map(|number| keyed(&format!("{number}")).offer());
    let later = (0..HELD).map(|number| keyed(&format!("later {number}")).queue("q").later(moment).offer());
    engine.enqueue_batch(ready.chain(later).collect(), Mode::Each, "").await.unwrap();
    clock.advance(moment);
    for stranger in [job(), job().queue("q").later(moment)] {
        engine.enqueue(stranger.offer(), "").await.unwrap();
    }
    let (mut client, schema) = (other().await, place.schema());
    let held = client.transaction().await.unwrap();
    let lock = format!("SELECT 1 FROM {schema}.key FOR UPDATE");
    assert_eq!(held.query(&lock, &[]).await.unwrap().len(), 2 * HELD);
    for left in [1, 0] {
        let claimed = engine.claim(claim(&["default"], 1)).await.unwrap();
        assert_eq!(claimed.iter().filter(|run| run.head.key.is_none()).count(), left);
        assert_eq!(claimed.len(), left);
    }
    clock.advance(moment);
    let ran = Promote.run_once(engine.store()).await.unwrap();
    assert_eq!((ran.moved, ran.held_up), (1, HELD));
    held.rollback().await.unwrap();
    assert_eq!(engine.claim(claim(&["default"], 1_000)).await.unwrap().len(), HELD);
    assert!(Promote.run_once(engine.store()).await.unwrap().moved > 1);
}
