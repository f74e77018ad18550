//! When a delivery that failed is sent again.

use std::sync::Arc;
use std::time::Duration;

use semel_core::event::EventKind;
use semel_engine::duty::Promote;
use semel_engine::follow::Wanted;
use semel_server::Config;
use semel_server::webhooks::{Courier, Rules};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde_json::json;

use crate::harness::{Server, job};
use crate::webhooks::{SECRET, next, subscribe, subscriber};

/// The store's clock stands until it is put forward, so each wait is over when the test says so.
#[tokio::test]
async fn it_is_sent_again_as_the_same_after_the_policys_wait_and_after_retry_after() {
    let clock = ManualClock::default();
    let webhooks = Rules { allow_private: true };
    let store = Arc::new(Memory::new(clock.clone()));
    let server = Server::on_store(store, Config { webhooks, ..Config::default() }).await;
    let courier = Courier::start(&server.engine, webhooks);
    // 5, 10 and 20 seconds by the policy, times a half to one and a half; what is put off for longer than an hour waits for one.
    let answers = [
        ("503 Busy\r\nretry-after: 0", 2_500..=7_500),
        ("503 Busy\r\nretry-after: 1", 5_000..=15_000),
        ("429 Busy\r\nretry-after: 9999", 3_600_000..=3_600_000),
        // Only of these two it is heard.
        ("500 Broken\r\nretry-after: 1800", 20_000..=60_000),
    ];
    let (url, mut told) = subscriber(&answers.each_ref().map(|(answer, _)| *answer)).await;
    subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    server.create(&job(&json!(1), &json!({}))).await;
    let own = server.engine.webhooks_tenant();
    let kinds = Some(vec![EventKind::Retrying]);
    let mut follow = own.follow(0, Wanted { kinds, ..Wanted::default() });
    let mut ids = Vec::new();
    for (answer, expected) in answers {
        ids.push(next(&mut told).await.header("x-ojs-delivery-id").to_owned());
        let wait = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                let told = follow.next(1, Duration::from_secs(60)).await.unwrap().events;
                if let Some(told) = told.first() {
                    return told.event.amount;
                }
            }
        });
        let wait = wait.await.expect("a delivery that is to be sent again");
        assert!(expected.contains(&wait), "{answer:?}: {wait} ms");
        clock.advance(Duration::from_millis(u64::from(wait) + 1));
        Promote.run_once(server.engine.store()).await.unwrap();
    }
    ids.push(next(&mut told).await.header("x-ojs-delivery-id").to_owned());
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    courier.stop().await;
    server.stop().await;
}
