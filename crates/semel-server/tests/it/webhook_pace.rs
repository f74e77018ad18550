//! Subscribers who are slow, and those beside them.

use std::time::Duration;

use semel_server::Config;
use semel_server::webhooks::{Courier, Rules};
use serde_json::json;

use crate::harness::Server;
use crate::webhooks::{NEVER, SECRET, subscribe, subscriber};

/// As many as have all the places, four each.
const DEAF: usize = 16;
/// Each of them has some left when the first are given up.
const EVENTS: usize = 40;

/// Nobody knows of them at first, so they may have all the places. Once they were not answered they have a part.
#[tokio::test]
async fn many_who_do_not_answer_keep_the_others_waiting_once() {
    let webhooks = Rules { allow_private: true };
    let server = Server::with(Config { webhooks, ..Config::default() }).await;
    let mut deaf = Vec::new();
    for _ in 0..DEAF {
        deaf.push(subscriber(&[NEVER; EVENTS]).await);
    }
    let (url, mut told) = subscriber(&[]).await;
    for url in deaf.iter().map(|(url, _)| url).chain([&url]) {
        subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    }
    let jobs = json!({ "jobs": vec![json!({ "type": "a.b", "args": [] }); EVENTS] });
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &jobs).await.status, 200);
    let courier = Courier::start(&server.engine, webhooks);
    let all = tokio::time::timeout(Duration::from_secs(120), async {
        for _ in 0..EVENTS {
            told.recv().await.unwrap();
        }
    });
    all.await.expect("deliveries to the one who answers");
    // They had all the places once, and not all of them again.
    let to_the_deaf = deaf.iter_mut().map(|(_, told)| std::iter::from_fn(|| told.try_recv().ok()).count());
    let to_the_deaf: usize = to_the_deaf.sum();
    assert!((DEAF..=64 + 32).contains(&to_the_deaf), "{to_the_deaf}");
    drop(courier);
    server.stop().await;
}
