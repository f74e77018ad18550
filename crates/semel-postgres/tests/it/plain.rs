//! New jobs with keys that nobody held are written by a shorter way than everything else: what it leaves behind is the same.

use std::sync::Arc;

use semel_engine::Engine;
use semel_postgres::Postgres;
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
    engine.enqueue_batch(offers, semel_core::enqueue::Mode::Each, "").await.unwrap();
    let rows = client.query_one(&ROWS.replace("@.", &format!("{}.", place.schema())), &[]).await.unwrap();
    engine.close().await;
    rows.get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_short_way_writes_what_the_long_way_writes() {
    let (short, long) = (Place::new(), Place::new());
    assert_eq!(written(&short, false).await, written(&long, true).await);
}
