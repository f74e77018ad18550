//! A client that stops waiting for its answer on a real connection: its next request is answered as usual,
//! and the queue is consistent.

use semel_client::{Bytes, HeaderMap, Method};
use semel_testkit::let_go::{Moment, at_every_await, let_go};
use semel_testkit::whole::is_whole;
use serde_json::{Value, json};

use crate::harness::Server;

fn keyed(key: &str, on_conflict: &str) -> Value {
    json!({ "type": "a.b", "args": [1], "unique": { "key": key, "on_conflict": on_conflict } })
}

/// Returns whether the request was answered before it was dropped.
async fn once(
    server: &Server,
    method: &Method,
    path: &str,
    body: &Value,
    (polls, at): (u32, Moment),
) -> bool {
    let what = format!("{method} {path} {body}, let go after {polls} polls, {at:?}");
    let held = server.client.post_json("/ojs/v1/jobs", &keyed("held", "reject")).await.unwrap();
    let id = held["job"]["id"].as_str().unwrap().to_owned();
    let body = (!body.is_null()).then(|| Bytes::from(body.to_string()));
    let path = path.replace("{id}", &id);
    let request = server.client.request(method.clone(), &path, body, HeaderMap::new());
    let answer = let_go(request, polls, at).await;
    // The same client, while the dropped request may still be under way.
    let stored = server.client.get_json(&format!("/ojs/v1/jobs/{id}")).await.unwrap();
    assert_eq!(stored["job"]["id"], Value::from(id), "{what}");
    // A grant counts as delivered once its answer is written, whether or not it is read.
    is_whole(&server.engine, &what, None).await;
    for key in ["held", "new"] {
        let created = server.client.post_json("/ojs/v1/jobs", &keyed(key, "reject")).await;
        assert!(created.is_ok(), "{what}: {key} is stuck: {created:?}");
    }
    is_whole(&server.engine, &what, None).await;
    answer.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_let_go_at_every_await_of_its_client() {
    let server = Server::start().await;
    let jobs = json!({ "jobs": [keyed("new", "reject"), keyed("held", "replace"), keyed("new", "ignore")] });
    for (method, path, body) in [
        (Method::POST, "/ojs/v1/jobs", keyed("new", "reject")),
        (Method::POST, "/ojs/v1/jobs", keyed("held", "ignore")),
        (Method::POST, "/ojs/v1/jobs", keyed("held", "replace")),
        (Method::POST, "/ojs/v1/jobs/bulk", jobs),
        (Method::POST, "/ojs/v1/workers/fetch", json!({ "queues": ["default"], "worker_id": "w" })),
        (Method::GET, "/ojs/v1/jobs/{id}", Value::Null),
        (Method::DELETE, "/ojs/v1/jobs/{id}", Value::Null),
    ] {
        let dropped =
            at_every_await(path, async |polls, at| once(&server, &method, path, &body, (polls, at)).await)
                .await;
        // A thread that was delayed may find the answer there at its first poll.
        assert!(dropped >= 1, "{method} {path} {body}: {dropped}");
    }
    server.stop().await;
}
