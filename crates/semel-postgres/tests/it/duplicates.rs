//! What duplicates leave behind in the database.

use std::sync::Arc;

use semel_core::enqueue::{Batch, Mode, Offer, Outcome};
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::backend::Filter;
use semel_testkit::TempDir;
use semel_testkit::cluster::Cluster;
use semel_testkit::make::keyed;
use semel_testkit::races::at_once;
use tokio_postgres::Client;

use crate::place::{client, until};

const HOLDERS: usize = 10;
const BATCHES: usize = 10;
/// Duplicates of each holder in a batch.
const IN_A_BATCH: usize = 10;
const DUPLICATES: u64 = (HOLDERS * BATCHES * IN_A_BATCH) as u64;
const ALONE: u64 = 100;
/// Upper bound for the WAL of one short record of changes, in bytes.
const RECORD_MAX: i64 = 128;

/// Bytes of WAL written since the cluster was made.
async fn written(watcher: &Client) -> i64 {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8";
    watcher.query_one(sql, &[]).await.unwrap().get(0)
}

fn offers() -> Vec<Offer> {
    (0..HOLDERS).map(|number| keyed(&format!("{number}")).on_conflict("ignore").offer()).collect()
}

/// Duplicates are recorded at their holder, many in one write, and nothing else is written for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_duplicates_leave_no_more_behind_than_their_holders_are() {
    let folder = TempDir::new();
    let mut cluster = Cluster::new(&folder.path().join("a"));
    cluster.start(&[]);
    let watcher = client(&cluster.url()).await;
    let address = Address::parse(&format!("{}?application_name=counted", cluster.url())).unwrap();
    let engine = Engine::without_duties(Arc::new(Postgres::open(&address).await.unwrap())).unwrap();
    engine.enqueue_batch(offers(), Mode::Each, "").await.unwrap();
    let before = written(&watcher).await;
    for _ in 0..BATCHES {
        let many = std::iter::repeat_with(offers).take(IN_A_BATCH).flatten().collect();
        let told = engine.enqueue_batch(many, Mode::Each, "").await.unwrap();
        let Batch::Done(outcomes) = told else { panic!("{told:?}") };
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Existing(_))), "{outcomes:?}");
    }
    let bytes = written(&watcher).await - before;
    assert!(bytes <= RECORD_MAX * BATCHES as i64, "{bytes} bytes in {BATCHES} batches");
    let before = written(&watcher).await;
    let told = at_once(ALONE as usize, |number| {
        let (engine, offer) = (engine.clone(), offers().swap_remove(number % HOLDERS));
        async move { engine.enqueue(offer, "").await.unwrap() }
    });
    assert!(told.await.iter().all(|outcome| matches!(outcome, Outcome::Existing(_))));
    let bytes = written(&watcher).await - before;
    assert!(bytes <= 10 * RECORD_MAX, "{bytes} bytes for those who ask alone");
    engine.stop().await;
    let listing = engine.list(Filter { limit: 100, ..Filter::default() }).await.unwrap();
    let mut counted = 0;
    for head in listing.heads {
        counted += engine.job(head.id).await.unwrap().unwrap().duplicates.count;
    }
    assert_eq!(counted, DUPLICATES + ALONE, "all are on record");
    drop(engine);
    // A session reports its row counts when it ends.
    until(&watcher, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'counted'").await;
    until(&watcher, "SELECT n_tup_ins >= 10 FROM pg_stat_user_tables WHERE relname = 'head'").await;
    let dead = "SELECT sum(n_tup_upd + n_tup_del)::int8, sum(n_dead_tup)::int8 FROM pg_stat_user_tables";
    let row = watcher.query_one(dead, &[]).await.unwrap();
    let (replaced, dead): (i64, i64) = (row.get(0), row.get(1));
    // Each key once when its job came, and each holder and its key with the records of duplicates.
    let most = 3 * HOLDERS as i64;
    assert!((1..=most).contains(&replaced) && dead <= most, "{replaced} rows were replaced, {dead} are dead");
}
