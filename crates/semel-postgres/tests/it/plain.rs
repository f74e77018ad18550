//! New jobs with keys that nobody held are written by a shorter way than everything else: what it leaves behind is the same.

use std::sync::Arc;

use semel_core::draft::{Draft, Group, Reads};
use semel_core::enqueue::{Mode, Outcome, enqueue};
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_store::backend::{Batch, Verdict};
use semel_store::clock::ManualClock;
use semel_testkit::make::{job, keyed};
use tokio_postgres::NoTls;

use crate::place::Place;

/// Every row that a commit writes, but for what is drawn at random.
const ROWS: &str = "SELECT jsonb_build_object(
    'head', (SELECT jsonb_agg(to_jsonb(h) - 'id' ORDER BY h.key) FROM @.head h),
    'key', (SELECT jsonb_agg(to_jsonb(k) - 'live' || jsonb_build_object('held',
        (SELECT jsonb_agg(h.id = ANY (k.live)) FROM @.head h WHERE h.key = k.key)) ORDER BY k.key) FROM @.key k),
    'body', (SELECT jsonb_agg(encode(b.body, 'hex') ORDER BY h.key) FROM @.head h JOIN @.body b ON b.id = h.id),
    'tally', (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.queue, t.what) FROM @.tally t),
    'event', (SELECT jsonb_agg(to_jsonb(e) - 'tx' - 'jobs' - 'mark'
        || jsonb_build_object('told', (SELECT count(*) FROM @.head h WHERE h.id = ANY (e.jobs)))) FROM @.event e))::text";

async fn written(place: &Place, beforehand: bool) -> String {
    let clock = ManualClock::default();
    let store = Postgres::open_with_clock(place.address(), clock).await.unwrap();
    let engine = Engine::without_duties(Arc::new(store)).unwrap();
    let (client, connection) = tokio_postgres::connect(&crate::place::url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let offers = vec![keyed("a").offer(), job().offer(), keyed("b").offer()];
    if beforehand {
        // A key's row is there, held by nobody: the short way is not open.
        let keys: Vec<&[u8]> = offers
            .iter()
            .filter_map(|offer| offer.unique.as_ref())
            .map(|unique| &unique.key.as_bytes()[..])
            .collect();
        let make = format!("SELECT {}.make($1, '{{}}')", place.schema());
        client.execute(&make, &[&keys]).await.unwrap();
    }
    engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
    let rows = client.query_one(&ROWS.replace("@.", &format!("{}.", place.schema())), &[]).await.unwrap();
    engine.close().await;
    rows.get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_short_way_writes_what_the_long_way_writes() {
    let (short, long) = (Place::new(), Place::new());
    assert_eq!(written(&short, false).await, written(&long, true).await);
}

/// A decision to create a job with that key, taken now and not committed yet.
async fn decided(backend: &dyn Backend, name: &str) -> Group {
    let offer = keyed(name).offer();
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    let mut draft = Draft::new(backend.load(&reads).await.unwrap(), 7, backend.rows());
    let Ok(Outcome::Created(_)) = enqueue(&mut draft, &offer) else { panic!("not created") };
    draft.finish()
}

/// Two servers decide on one key, none of whose holders either has seen: the short way finds the other's row in its way, leaves
/// nothing behind, and the long way says which of its groups that concerns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_a_key_taken_on_the_short_way_is_told_so_and_delays_nobody() {
    let place = Place::new();
    let one: Arc<dyn Backend> = Arc::new(Postgres::open(place.address()).await.unwrap());
    let other: Arc<dyn Backend> = Arc::new(Postgres::open(place.address()).await.unwrap());
    let groups = vec![decided(&*one, "a").await, decided(&*one, "b").await, decided(&*one, "c").await];
    let before = vec![decided(&*other, "b").await];
    let applied = other.commit(Batch { groups: before, claims: Vec::new() }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied]);
    let applied = one.commit(Batch { groups, claims: Vec::new() }).await.unwrap();
    assert_eq!(applied.groups, [Verdict::Applied, Verdict::Stale, Verdict::Applied]);
    let queues = other.queues().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.created).sum::<u64>(), 3);
}
