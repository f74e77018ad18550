//! Several servers on one database.

use std::sync::Arc;

use semel_core::draft::{DocumentKey, DocumentKind, Draft, Reads};
use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::backend::{Backend, Batch as Commit, Filter, Verdict};
use semel_testkit::make::{job, keyed};
use semel_testkit::races::at_once;
use tokio::task::JoinSet;

use crate::place::{Place, client, url};

/// `number` stores, each with its own connections, by the database's clock.
async fn stores(place: &Place, number: usize) -> Vec<Arc<Postgres>> {
    let mut opening = JoinSet::new();
    for _ in 0..number {
        // All at once, on an empty database: one of them makes the schema.
        let address = place.address().clone();
        opening.spawn(async move { Arc::new(Postgres::open(&address).await.unwrap()) });
    }
    opening.join_all().await
}

/// `number` servers, each with its own batcher.
async fn servers(place: &Place, number: usize) -> Vec<Engine> {
    let opened = stores(place, number).await;
    opened.into_iter().map(|backend| Engine::without_duties(backend).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_servers_that_start_at_once_make_one_schema() {
    let place = Place::new();
    let engines = servers(&place, 10).await;
    for engine in &engines {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    assert_eq!(engines[0].queues().await.unwrap()[0].created, 10);
    let status = Postgres::status(place.address()).await.unwrap();
    assert_eq!((status.found, status.pending.len()), (status.needed, 0));
    let secrets: Vec<_> = engines.iter().map(|engine| engine.store().secret()).collect();
    assert!(secrets.windows(2).all(|pair| pair[0] == pair[1]), "one store has one secret");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_equal_jobs_over_three_servers_one_is_created() {
    let engines = servers(&Place::new(), 3).await;
    for round in 0..30 {
        let name = format!("round {round}");
        let outcomes = at_once(48, |task| {
            let (engine, offer) = (engines[task % 3].clone(), keyed(&name).on_conflict("ignore").offer());
            async move { engine.enqueue(offer, "").await.unwrap() }
        })
        .await;
        let created: Vec<_> =
            outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Created(_))).collect();
        assert_eq!(created.len(), 1, "{outcomes:?}");
    }
    let live = engines[0].list(Filter { limit: 1_000, ..Filter::default() }).await.unwrap();
    assert_eq!(live.heads.len(), 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_with_the_same_keys_in_opposite_order_wait_for_nobody_forever() {
    let engines = servers(&Place::new(), 2).await;
    for round in 0..10 {
        let counts = at_once(4, |task| {
            let engine = engines[task % 2].clone();
            let mut offers: Vec<_> =
                (0..100).map(|key| keyed(&format!("{round}/{key}")).on_conflict("ignore").offer()).collect();
            if task % 2 == 1 {
                offers.reverse();
            }
            async move {
                let Batch::Done(outcomes) = engine.enqueue_batch(offers, Mode::Each, "").await.unwrap()
                else {
                    panic!("refused")
                };
                outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Created(_))).count()
            }
        })
        .await;
        assert_eq!(counts.iter().sum::<usize>(), 100, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_decisions_that_found_no_document_one_makes_it() {
    let stores = stores(&Place::new(), 3).await;
    for round in 0..20 {
        let key = DocumentKey::new(DocumentKind::Cron, format!("round {round}"));
        let reads = Reads { documents: vec![key.clone()], ..Reads::default() };
        let made = at_once(12, |task| {
            let (backend, key, reads) = (Arc::clone(&stores[task % 3]), key.clone(), reads.clone());
            async move {
                let mut draft = Draft::new(backend.load(&reads).await.unwrap(), 7, backend.rows());
                let is_first = draft.document(&key).unwrap().is_none();
                draft.set_document(&key, Some((format!("by {task}").into(), None)));
                let batch = Commit { groups: vec![draft.finish()], claims: Vec::new() };
                let applied = backend.commit(batch).await.unwrap();
                is_first && applied.groups == [Verdict::Applied]
            }
        })
        .await;
        assert_eq!(made.iter().filter(|made| **made).count(), 1, "{made:?}");
    }
}

/// Pages by name are sorted by bytes, whatever the locale of the database.
#[tokio::test]
async fn names_of_documents_are_compared_as_bytes() {
    let place = Place::new();
    stores(&place, 1).await;
    let client = client(&url()).await;
    let sql = "SELECT c.collname::text FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation \
               WHERE a.attrelid = $1::text::regclass AND a.attname = 'name'";
    let table = format!("{}.document", place.schema());
    let row = client.query_one(sql, &[&table]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "C");
}
