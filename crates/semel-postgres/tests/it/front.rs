//! Queues whose index is full of jobs that are no longer ready, because some transaction can still see them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::enqueue::{Mode, Outcome};
use semel_core::slot::Due;
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_testkit::calls::{bearer, wish};
use semel_testkit::make::job;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::place::{Place, client, url};

/// More than a claim goes over without saying so.
const GONE: usize = 8;
const BATCH: usize = 1_000;
const LONG: Duration = Duration::from_secs(60);
/// Several looks.
const LOOKS: Duration = Duration::from_secs(2);

/// A transaction that sees everything as it is now, as a dump does.
async fn snapshot(client: &mut Client) -> Transaction<'_> {
    let begun = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start();
    let transaction = begun.await.unwrap();
    transaction.query("SELECT 1", &[]).await.unwrap();
    transaction
}

async fn enqueue(engine: &Engine, number: usize) {
    engine.enqueue_batch(vec![job().offer(); number], Mode::Each, "").await.unwrap();
}

/// Jobs that are claimed, and completed as well if `ends`.
async fn claimed(engine: &Engine, ends: bool) {
    for _ in 0..GONE {
        enqueue(engine, BATCH).await;
        let jobs = engine.claim(wish(BATCH as u32)).await.unwrap();
        assert_eq!(jobs.len(), BATCH);
        let mut ending = tokio::task::JoinSet::new();
        for job in jobs.into_iter().filter(|_| ends) {
            let engine = engine.clone();
            ending.spawn(async move { engine.complete(job.head.id, bearer(&job.head), None).await.unwrap() });
        }
        ending.join_all().await;
    }
}

/// Repeats `look` until the entries that each of its scans of an index goes over are few.
async fn until_short(watcher: &Client, schema: &str, index: &str, mut look: impl AsyncFnMut()) {
    let sql = format!(
        "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = '{schema}' AND indexrelname = '{index}'"
    );
    let counted = async || {
        let row = watcher.query_one(&sql, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let begun = Instant::now();
    loop {
        let before = counted().await;
        // Sessions report what they counted once a second.
        let (scans, read) = loop {
            look().await;
            let now = counted().await;
            if now.0 >= before.0 + 50 {
                break (now.0 - before.0, now.1 - before.1);
            }
            assert!(begun.elapsed() < LONG, "nothing is counted");
        };
        if read / scans < BATCH as i64 {
            return;
        }
        assert!(begun.elapsed() < LONG, "{read} entries in {scans} scans");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_begin_where_the_queue_does_and_miss_nothing() {
    let place = Place::new();
    let open =
        async || Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    let (engine, other) = (open().await, open().await);
    let (mut holding, watcher) = (client(&url()).await, client(&url()).await);
    let held = snapshot(&mut holding).await;
    claimed(&engine, false).await;
    let claim = async || engine.claim(wish(1)).await.unwrap();
    until_short(&watcher, place.schema(), "head_ready", async || assert!(claim().await.is_empty())).await;

    // Jobs of higher priorities are seen at once, whoever enqueued them.
    enqueue(&engine, 1).await;
    let first = claim().await.remove(0).head;
    enqueue(&engine, 100).await;
    engine.enqueue(job().priority(9).offer(), "").await.unwrap();
    assert_eq!(claim().await[0].head.priority, 9);
    other.enqueue(job().priority(5).offer(), "").await.unwrap();
    assert_eq!(claim().await[0].head.priority, 5);

    // So is a job of this server's that comes before others: one that it gives back. By then claims begin
    // behind it.
    tokio::time::sleep(LOOKS).await;
    engine.give_back(first.id, bearer(&first)).await.unwrap();
    let again = claim().await.remove(0).head;
    assert_eq!(again.id, first.id);

    // One of another server's is seen soon.
    tokio::time::sleep(LOOKS).await;
    other.give_back(again.id, bearer(&again)).await.unwrap();
    let begun = Instant::now();
    while claim().await[0].head.id != first.id {
        enqueue(&engine, 1).await;
        assert!(begun.elapsed() < LONG, "left behind");
    }

    // And whoever waits for one is woken.
    while !claim().await.is_empty() {}
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.claim_or_wait(wish(1), 2 * LONG).await.unwrap() }
    });
    tokio::time::sleep(LOOKS).await;
    let last = other.job(first.id).await.unwrap().unwrap().head;
    other.give_back(first.id, bearer(&last)).await.unwrap();
    assert_eq!(waiting.await.unwrap()[0].head.id, first.id);
    assert!(begun.elapsed() < LONG, "it waited to the end");

    // Once nobody sees the old entries any more, claims see everything again.
    held.rollback().await.unwrap();
    watcher.batch_execute(&format!("VACUUM {}.head", place.schema())).await.unwrap();
    let last = other.job(first.id).await.unwrap().unwrap().head;
    other.give_back(first.id, bearer(&last)).await.unwrap();
    while claim().await.is_empty() {
        assert!(begun.elapsed() < LONG, "left behind");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duties_look_at_what_falls_due_now_and_miss_nothing() {
    let place = Place::new();
    let store = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(store.clone()).unwrap();
    let (mut holding, watcher) = (client(&url()).await, client(&url()).await);
    let held = snapshot(&mut holding).await;
    claimed(&engine, true).await;
    let due = async |kind| store.due(kind, 100).await.unwrap().ids;
    until_short(&watcher, place.schema(), "head_filed", async || {
        assert!(due(Due::Lease).await.is_empty());
    })
    .await;

    enqueue(&engine, 1).await;
    let mut wish = wish(1);
    wish.grant.visibility_ms = 1_000;
    let run = engine.claim(wish).await.unwrap();
    let later = engine.enqueue(job().later(Duration::from_secs(1)).offer(), "").await.unwrap();
    let Outcome::Created(later) = later else { panic!("{later:?}") };
    let begun = Instant::now();
    while due(Due::Lease).await != [run[0].head.id] || due(Due::Timer).await != [later.id] {
        assert!(begun.elapsed() < LONG, "left behind");
    }
    held.rollback().await.unwrap();
}

/// Claims begin at any place as if the jobs of its priority before it were not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_takes_what_comes_at_its_front_or_behind() {
    let place = Place::new();
    let engine = Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    let priorities = [3, 0, -2, 0, 3, 0, -2, 1];
    let offers = (0..40).map(|number| job().priority(priorities[number % 8]).offer()).collect();
    engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
    let (mut watcher, schema) = (client(&url()).await, place.schema());
    // Some of one time.
    watcher
        .batch_execute(&format!(
            "UPDATE {schema}.head SET slot_at = slot_at - get_byte(uuid_send(id), 15) % 8"
        ))
        .await
        .unwrap();
    let sql = format!("SELECT priority::int4, slot_at FROM {schema}.head");
    let rows = watcher.query(&sql, &[]).await.unwrap();
    let places: Vec<(Option<i32>, Option<i64>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let ids = |rows: Vec<tokio_postgres::Row>| -> Vec<String> { rows.iter().map(|row| row.get(0)).collect() };
    for (priority, at) in
        places.into_iter().chain([(None, None), (Some(2), Some(0)), (Some(-2), Some(i64::MAX))])
    {
        for limit in [1, 7, 50] {
            let attempt = watcher.transaction().await.unwrap();
            let behind = format!(
                "SELECT id::text FROM {schema}.head WHERE $1::int4 IS NULL OR priority <> $1 OR slot_at >= $2::int8 \
                 ORDER BY priority DESC, slot_at, {schema}.head.id LIMIT $3::int4::int8"
            );
            let expected = ids(attempt.query(&behind, &[&priority, &at, &limit]).await.unwrap());
            let lease = format!(
                "SELECT id::text FROM {schema}.lease(NULL, 0, 0, '{{default}}', '{{w}}', ARRAY[$3::int4], 10, 60000, 60000, 3::int2, 3::int2, \
                 1::int2, '{{}}', 10, ARRAY[$1::int4], ARRAY[$2::int8]) WHERE part = 1 ORDER BY n"
            );
            let taken = ids(attempt.query(&lease, &[&priority, &at, &limit]).await.unwrap());
            assert_eq!(taken, expected, "{limit} from {priority:?}, {at:?}");
            attempt.rollback().await.unwrap();
        }
    }
}

/// Rows before the page at which folding begins stay for a later fold, and none is folded twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_folded_from_a_page_on() {
    let place = Place::new();
    let engine = Engine::without_duties(Arc::new(Postgres::open(place.address()).await.unwrap())).unwrap();
    enqueue(&engine, 3).await;
    let (watcher, schema) = (client(&url()).await, place.schema());
    let fold = async |from: i64| {
        let sql = format!("SELECT folded, page FROM {schema}.fold(1000, $1::int8)");
        let row = watcher.query_one(&sql, &[&from]).await.unwrap();
        (row.get::<_, i32>(0), row.get::<_, i64>(1))
    };
    let created = async || {
        let sql = format!("SELECT coalesce(sum(n), 0)::int8 FROM {schema}.total WHERE what = 100");
        watcher.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(fold(7).await, (0, 7), "there is nothing so far behind");
    assert_eq!(created().await, 0);
    let (folded, page) = fold(0).await;
    assert!(folded > 0);
    assert_eq!((page, created().await), (0, 3));
    assert_eq!(fold(0).await, (0, 0));
    assert_eq!(created().await, 3);
}
