//! What follows from a decision inside a caller's transaction.

use std::sync::Arc;

use semel_core::lease::Bearer;
use semel_core::settle::Settled;
use semel_engine::Engine;
use semel_postgres::Postgres;
use semel_store::Backend;
use semel_testkit::fixture::claim;
use semel_testkit::flows::chain;
use semel_testkit::make::job;

use crate::place::{Place, client, url};

/// As one is that follows from an end of its own commit.
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
