//! Slow webhook subscribers, and the subscribers beside them.

use std::time::Duration;

use semel_server::Config;
use semel_server::webhooks::{Courier, Rules};
use serde_json::json;

use crate::harness::Server;
use crate::webhooks::{NEVER, SECRET, subscribe, subscriber};

/// Enough subscribers to take all delivery slots, four each.
const DEAF: usize = 16;
/// Each still has some left when its first deliveries are given up.
const EVENTS: usize = 40;

/// The server does not know at first that they are slow, so they may take all slots. Once they have failed to
/// answer they get only a part.
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
    // They had all slots once, and not again.
    let to_the_deaf = deaf.iter_mut().map(|(_, told)| std::iter::from_fn(|| told.try_recv().ok()).count());
    let to_the_deaf: usize = to_the_deaf.sum();
    assert!((DEAF..=64 + 32).contains(&to_the_deaf), "{to_the_deaf}");
    drop(courier);
    server.stop().await;
}
