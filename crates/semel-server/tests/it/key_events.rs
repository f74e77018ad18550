//! The history of a key: holders come and go, and the log still knows which ones held it.

use std::sync::Arc;
use std::time::Duration;

use semel_engine::duty::Purge;
use semel_server::Config;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, header};

const LONG: Duration = Duration::from_secs(2 * 24 * 3600);

fn offer(n: u32, unique: &Value) -> Value {
    json!({ "type": "a.b", "args": [n], "unique": unique })
}

fn newest_wins() -> Value {
    json!({ "keys": ["type"], "on_conflict": "replace" })
}

/// Type and job of each event.
fn told(body: &Value) -> Vec<(String, String)> {
    let events = body["events"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    events.iter().map(|event| (text(&event["type"]), text(&event["data"]["job_id"]))).collect()
}

#[tokio::test]
async fn former_holders_are_told_of_when_they_are_gone() {
    let clock = ManualClock::default();
    let server = Server::on_store(Arc::new(Memory::new(clock.clone())), Config::default()).await;
    let first = server.create(&offer(1, &newest_wins())).await;
    // Another key's job, in between.
    server.create(&json!({ "type": "c.d", "args": [], "unique": { "keys": ["type"] } })).await;
    let second = server.create(&offer(2, &newest_wins())).await;
    clock.advance(LONG);
    for _ in 0..20 {
        Purge.run_once(server.engine.store()).await.unwrap();
    }
    assert_eq!(server.get(&format!("/ojs/v1/jobs/{}", first.job_id())).await.status, 404);
    let middle = server.engine.now().await.unwrap();
    clock.advance(LONG);
    let run = server.take("default", "w").await;
    assert_eq!(run["type"], "c.d");
    let run = server.take("default", "w").await;
    server.post("/ojs/v1/workers/ack", &json!({ "job_id": run["id"], "lease": run["lease"] })).await;
    let third = server.create(&offer(3, &newest_wins())).await;

    let path = format!("/ojs/v1/unique-jobs/{}/events", third.body["job"]["unique_key"].as_str().unwrap());
    let all = server.get(&path).await;
    assert_eq!(all.status, 200, "{}", all.body);
    let event = |name: &str, job: &str| (format!("job.{name}"), job.to_owned());
    let expected = [
        event("enqueued", first.job_id()),
        event("cancelled", first.job_id()),
        event("enqueued", second.job_id()),
        event("started", second.job_id()),
        event("completed", second.job_id()),
        event("enqueued", third.job_id()),
    ];
    assert_eq!(told(&all.body), expected);
    assert_eq!(all.body["events"][1]["data"]["reason"], "replaced");
    assert_eq!(all.body["events"][0]["data"]["attempt"], 0);
    assert_eq!(all.body["has_more"], false);

    // Page by page it is the same, although later pages hold events of jobs that were admitted on earlier
    // ones.
    let (mut one_by_one, mut query) = (Vec::new(), "limit=1".to_owned());
    loop {
        let page = server.get(&format!("{path}?{query}")).await;
        assert!(page.body["events"].as_array().unwrap().len() <= 1);
        one_by_one.extend(told(&page.body));
        query = format!("limit=1&cursor={}", page.body["cursor"].as_str().unwrap());
        if page.body["has_more"] == false {
            break;
        }
    }
    assert_eq!(one_by_one, expected);
    // With `since`, a job that ended before is left out, and later events are complete.
    let late = server.get(&format!("{path}?since={middle}")).await;
    assert_eq!(told(&late.body), expected[3..]);
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_is_not_disclosed_and_one_of_another_tenant_have_no_events() {
    let server = Server::start().await;
    let hidden = server.create(&offer(1, &json!({ "keys": ["type"], "disclose": "never" }))).await;
    let body = offer(1, &json!({ "keys": ["type"], "on_conflict": "ignore" })).to_string();
    let tenant = |name| header("x-ojs-tenant", name);
    let method = semel_client::Method::POST;
    let theirs = server.ask(method, "/ojs/v1/jobs", Some(&body), tenant("acme")).await;
    assert_eq!(theirs.status, 201, "{}", theirs.body);
    assert_eq!(hidden.status, 201);
    let path = format!("/ojs/v1/unique-jobs/{}/events", theirs.body["job"]["unique_key"].as_str().unwrap());
    let mine = server.get(&path).await;
    assert_eq!(told(&mine.body), []);
    // Nor with a cursor that names the other's stored id, which the default tenant could use as its own.
    let stored = server.engine.store().events(0, 9).await.unwrap().events.last().unwrap().event.job;
    let mine = server.get(&format!("{path}?cursor=evt_0.{stored}")).await;
    assert_eq!((mine.status, told(&mine.body)), (200, vec![]));
    let seen = server.ask(semel_client::Method::GET, &path, None, tenant("acme")).await;
    assert_eq!(told(&seen.body), [("job.enqueued".to_owned(), theirs.job_id().to_owned())]);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_key_no_cursor_and_no_time_is_refused() {
    let server = Server::in_memory().await;
    let path = format!("/ojs/v1/unique-jobs/{}/events", "ab".repeat(32));
    assert_eq!(told(&server.get(&path).await.body), []);
    for (query, status, code) in [
        ("?cursor=evt_1.x", 400, "invalid_request"),
        ("?cursor=evt_9", 410, "cursor_gone"),
        ("?since=yesterday", 400, "invalid_request"),
        ("?limit=1001", 400, "invalid_request"),
    ] {
        let refused = server.get(&format!("{path}{query}")).await;
        assert_eq!((refused.status, refused.code()), (status, code), "{query}: {}", refused.body);
    }
    assert_eq!(server.get("/ojs/v1/unique-jobs/xyz/events").await.status, 400);
    server.stop().await;
}
