//! Most commits take the short form (`brief`), which must leave behind the same rows as the full form.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Draft, Reads};
use semel_core::enqueue::Mode;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::{Settled, complete};
use semel_engine::{Engine, Job};
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::backend::{Batch, Verdict};
use semel_store::clock::ManualClock;
use semel_testkit::fixture::{claim, groups_of};
use semel_testkit::make::{job, keyed};
use tokio_postgres::NoTls;

use crate::place::Place;

/// Every row that a commit writes, except for values drawn at random.
const ROWS: &str = "SELECT jsonb_build_object(
    'head', (SELECT jsonb_agg(to_jsonb(h) - 'id' ORDER BY h.key, h.version) FROM @.head h),
    'key', (SELECT jsonb_agg(to_jsonb(k) - 'live' - 'done' || jsonb_build_object(
        'live', (SELECT jsonb_agg(h.version ORDER BY h.version) FROM @.head h WHERE h.id = ANY (k.live)),
        'done', (SELECT jsonb_agg(h.version ORDER BY h.version) FROM @.head h WHERE h.id = ANY (k.done))) ORDER BY k.key) FROM @.key k),
    'body', (SELECT jsonb_agg(encode(b.body, 'hex') ORDER BY h.key, h.version) FROM @.head h JOIN @.body b ON b.id = h.id),
    'note', (SELECT jsonb_agg(encode(n.text, 'hex') ORDER BY n.kind, n.text) FROM @.note n),
    'tally', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.queue, t.what, t.n) FROM @.tally t),
    'event', (SELECT jsonb_agg(to_jsonb(e) - 'tx' - 'jobs' - 'mark'
        || jsonb_build_object('told', (SELECT count(*) FROM @.head h WHERE h.id = ANY (e.jobs))) ORDER BY e.tx) FROM @.event e))::text";

/// What is stored after jobs with and without keys were enqueued, claimed, ended and enqueued again: by
/// commits all in the short form or, unless `may_be_brief`, all in the full one.
async fn written(place: &Place, may_be_brief: bool) -> String {
    let clock = ManualClock::default();
    let store = Postgres::open_with_clock(place.address(), clock.clone()).await.unwrap();
    let engine = Engine::without_duties(Arc::new(store)).unwrap();
    let (client, connection) = tokio_postgres::connect(&crate::place::url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // The other form is disabled: the full one raises an error, the short one writes nothing and reports that
    // something has moved.
    let (other, instead) =
        if may_be_brief { ("commit", "RAISE EXCEPTION 'not in short';") } else { ("brief", "RETURN;") };
    let of = format!(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = '{other}' AND pronamespace = '{}'::regnamespace",
        place.schema()
    );
    let text: String = client.query_one(&of, &[]).await.unwrap().get(0);
    let spoilt = text.replacen("\nBEGIN\n", &format!("\nBEGIN {instead}\n"), 1);
    assert_ne!(spoilt, text);
    client.batch_execute(&spoilt).await.unwrap();
    let offers = vec![keyed("a").offer(), job().offer(), keyed("b").offer(), keyed("c").offer()];
    engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
    clock.advance(Duration::from_secs(1));
    let jobs = engine.claim(claim(&["default"], 3)).await.unwrap();
    assert_eq!(jobs.len(), 3);
    let bearer = |job: &Job| Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
    for (number, job) in jobs.iter().enumerate() {
        clock.advance(Duration::from_secs(1));
        let settled = match number {
            0 => engine.complete(job.head.id, bearer(job), Some("{\"n\":1}".into())).await.unwrap(),
            1 => engine.complete(job.head.id, bearer(job), None).await.unwrap(),
            _ => engine.give_back(job.head.id, bearer(job)).await.unwrap(),
        };
        assert!(matches!(settled, Settled::Done(_)), "{settled:?}");
    }
    // No live job holds the first key any more; its row still exists.
    for _ in 0..9 {
        clock.advance(Duration::from_secs(1));
        engine.enqueue(keyed("a").offer(), "").await.unwrap();
        engine.enqueue(keyed("a").on_conflict("ignore").offer(), "").await.unwrap();
        for job in engine.claim(claim(&["default"], 9)).await.unwrap() {
            engine.complete(job.head.id, bearer(&job), None).await.unwrap();
        }
        // Once an end is answered, its housekeeping is done: a key with many ended holders has been looked
        // over.
        let longest = format!("SELECT max(cardinality(done)) FROM {}.key", place.schema());
        let longest: i32 = client.query_one(&longest, &[]).await.unwrap().get(0);
        assert!(longest < 8, "{longest}");
    }
    let rows = client.query_one(&ROWS.replace("@.", &format!("{}.", place.schema())), &[]).await.unwrap();
    engine.close().await;
    rows.get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_short_way_writes_what_the_long_way_writes() {
    let (short, long) = (Place::new(), Place::new());
    assert_eq!(written(&short, true).await, written(&long, false).await);
}

/// Two servers decide on one key, neither having seen the other's holder. The short form finds the other's
/// row in its way and leaves nothing behind, and the full form says which of the groups is stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_a_key_taken_on_the_short_way_is_told_so_and_delays_nobody() {
    let place = Place::new();
    let one: Arc<dyn Backend> = Arc::new(Postgres::open(place.address()).await.unwrap());
    let other: Arc<dyn Backend> = Arc::new(Postgres::open(place.address()).await.unwrap());
    let groups = groups_of(&*one, &["a", "b", "c"].map(|name| keyed(name).offer())).await;
    let before = groups_of(&*other, &[keyed("b").offer()]).await;
    let applied = other.commit(Batch { groups: before, claims: Vec::new() }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied]);
    let applied = one.commit(Batch { groups, claims: Vec::new() }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied, Verdict::Stale, Verdict::Applied]);
    let queues = other.queues().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.created).sum::<u64>(), 3);
}

/// An end is refused if it was decided before somebody else ended the job, or if the job's key is locked. A
/// claim in the same batch stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_said_in_short_is_said_at_length_and_claims_beside_it_stand() {
    let place = Place::new();
    let backend: Arc<dyn Backend> = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend)).unwrap();
    let offers = (0..4).map(|number| keyed(&number.to_string()).offer()).collect();
    engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
    let jobs = engine.claim(claim(&["default"], 2)).await.unwrap();
    let mut ends = Vec::new();
    for job in &jobs {
        let reads = Reads { heads: vec![job.head.id], ..Reads::default() };
        let mut draft = Draft::new(backend.load(&reads).await.unwrap(), 7, backend.rows());
        let bearer = Bearer { lease: Some(LeaseToken(job.head.fence)), worker: None };
        complete(&mut draft, job.head.id, &bearer, None).unwrap();
        ends.push(draft.finish());
    }
    let bearer = Bearer { lease: Some(LeaseToken(jobs[0].head.fence)), worker: None };
    engine.complete(jobs[0].head.id, bearer, None).await.unwrap();
    let batch = || Batch { groups: ends.clone(), claims: vec![claim(&["default"], 1)] };
    let mut holder = crate::place::client(&crate::place::url()).await;
    let held = holder.transaction().await.unwrap();
    let key = jobs[1].head.key.unwrap();
    let lock = format!("SELECT 1 FROM {}.key WHERE key = $1 FOR UPDATE", place.schema());
    held.query_one(&lock, &[&&key.as_bytes()[..]]).await.unwrap();
    let applied = backend.commit(batch()).await.unwrap();
    assert_eq!((applied.groups, applied.claims[0].jobs.len()), (vec![Verdict::Stale, Verdict::Busy], 1));
    held.rollback().await.unwrap();
    let applied = backend.commit(batch()).await.unwrap();
    assert_eq!((applied.groups, applied.claims[0].jobs.len()), (vec![Verdict::Stale, Verdict::Applied], 1));
}

/// A key whose row an open transaction is about to hold is passed over: the group that wants it gets its turn
/// later, and the others are committed at once, together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_an_open_transaction_is_about_to_hold_delays_nobody() {
    let place = Place::new();
    let backend: Arc<dyn Backend> = Arc::new(Postgres::open(place.address()).await.unwrap());
    let mut holder = crate::place::client(&crate::place::url()).await;
    let schema = place.schema();
    let key = semel_testkit::make::key("b");
    let make = format!("INSERT INTO {schema}.key (key, version, live, done) VALUES ($1, 0, '{{}}', '{{}}')");
    holder.execute(&make, &[&&key.as_bytes()[..]]).await.unwrap();
    let groups = groups_of(&*backend, &["a", "b", "c", "d"].map(|name| keyed(name).offer())).await;
    let held = holder.transaction().await.unwrap();
    let hold = format!("UPDATE {schema}.key SET version = 7 WHERE key = $1");
    held.execute(&hold, &[&&key.as_bytes()[..]]).await.unwrap();
    let applied = backend.commit(Batch { groups, claims: Vec::new() }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied, Verdict::Busy, Verdict::Applied, Verdict::Applied]);
    let records = format!("SELECT count(*) FROM {schema}.event WHERE kinds <> '{{}}'");
    let records: i64 = held.query_one(&records, &[]).await.unwrap().get(0);
    assert_eq!(records, 1, "they were told one after the other");
    held.rollback().await.unwrap();
}
