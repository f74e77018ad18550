//! A client that hangs up: every handler is polled so many times and dropped, as the connection's end drops it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use semel_core::ident::QueueName;
use semel_core::lease::{Bearer, Grant};
use semel_engine::Engine;
use semel_server::{Config, router};
use semel_store::backend::Claim;
use semel_store::decor::Slow;
use semel_store::memory::Memory;
use serde_json::{Value, json};
use tower_service::Service;

/// A handler may wait so often at most.
const POLLS_MAX: u32 = 100;
const TICK: Duration = Duration::from_millis(1);

/// The job's ids and lease, for the paths and bodies of requests.
struct Scene {
    app: Router,
    engine: Engine,
    id: String,
    lease: String,
}

fn request(method: &Method, path: &str, body: &Value) -> Request<Body> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    request.body(Body::from(text)).unwrap()
}

async fn ask(app: &Router, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let response = app.clone().call(request(&method, path, body)).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn keyed(key: &str, on_conflict: &str) -> Value {
    json!({ "type": "a.b", "args": [1], "unique": { "key": key, "on_conflict": on_conflict } })
}

async fn scene() -> Scene {
    let store = Arc::new(Slow::new(Arc::new(Memory::default()), 3 * TICK));
    let engine = Engine::without_duties(store).unwrap();
    let app = router(engine.clone(), Config::default());
    let (status, _) = ask(&app, Method::POST, "/ojs/v1/jobs", &keyed("held", "reject")).await;
    assert_eq!(status, 201);
    let fetch = json!({ "queues": ["default"], "worker_id": "w" });
    let (_, taken) = ask(&app, Method::POST, "/ojs/v1/workers/fetch", &fetch).await;
    let job = &taken["jobs"][0];
    let text = |name: &str| job[name].as_str().unwrap_or_else(|| panic!("no {name} in {job}")).to_owned();
    Scene { id: text("id"), lease: text("lease"), app, engine }
}

/// Every handler that waits for the store.
fn requests(scene: &Scene) -> Vec<(Method, String, Value)> {
    let run = json!({ "job_id": scene.id, "lease": scene.lease });
    let error =
        json!({ "job_id": scene.id, "lease": scene.lease, "error": { "code": "boom", "message": "x" } });
    let beat = json!({ "worker_id": "w", "active_jobs": [scene.id] });
    let jobs = json!({ "jobs": [keyed("new", "reject"), keyed("held", "replace"), keyed("new", "ignore")] });
    let post = |path: &str, body: Value| (Method::POST, format!("/ojs/v1{path}"), body);
    let get = |path: &str| (Method::GET, format!("/ojs/v1{path}"), Value::Null);
    vec![
        post("/jobs", keyed("new", "reject")),
        post("/jobs", keyed("held", "reject")),
        post("/jobs", keyed("held", "replace")),
        post("/jobs", keyed("held", "follow_up")),
        post("/jobs/batch", jobs.clone()),
        post("/jobs/bulk", jobs),
        post("/workers/fetch", json!({ "queues": ["default"], "worker_id": "w" })),
        post("/workers/ack", run),
        post("/workers/nack", error),
        post("/workers/heartbeat", beat),
        post("/queues/default/pause", json!({})),
        post("/unique/explain", keyed("held", "reject")),
        (Method::DELETE, format!("/ojs/v1/jobs/{}", scene.id), Value::Null),
        get(&format!("/jobs/{}", scene.id)),
        get("/jobs"),
        get("/queues"),
        get("/dead-letter"),
        get("/unique-jobs"),
        get("/events"),
    ]
}

/// Whether it was answered before it was dropped.
async fn let_go(scene: &Scene, (method, path, body): &(Method, String, Value), polls: u32) -> bool {
    let mut app = scene.app.clone();
    let mut call = std::pin::pin!(app.call(request(method, path, body)));
    for _ in 0..polls {
        if poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await {
            return true;
        }
        tokio::time::sleep(TICK).await;
    }
    false
}

/// Nothing is half there, nobody after it is kept waiting, no key is stuck.
async fn afterwards(scene: &Scene, what: &str) {
    tokio::time::sleep(100 * TICK).await;
    let engine = &scene.engine;
    engine.set_paused(QueueName::default(), false).await.unwrap();
    let nobody = Bearer::default();
    let grant = Grant::new("w".into(), None);
    let claim = Claim { queues: vec![QueueName::default()], limit: 10, grant, closed: Vec::new() };
    let (_, listed) = ask(&scene.app, Method::GET, "/ojs/v1/jobs?limit=100", &Value::Null).await;
    for job in listed["jobs"].as_array().unwrap() {
        let id = semel_core::ident::JobId::parse(job["id"].as_str().unwrap(), "").unwrap();
        // Whoever was granted it and never heard is told no more than that it ended.
        if !matches!(job["state"].as_str(), Some("completed" | "cancelled" | "discarded")) {
            drop(engine.cancel(id, nobody.clone()).await.unwrap());
        }
    }
    assert!(engine.claim(claim).await.unwrap().is_empty(), "{what}: something was not listed");
    for queue in engine.queues().await.unwrap() {
        let counted = queue.counts.iter().sum::<u64>() + queue.purged;
        assert_eq!(queue.created, counted, "{what}");
    }
    for key in ["held", "new"] {
        let (status, told) = ask(&scene.app, Method::POST, "/ojs/v1/jobs", &keyed(key, "reject")).await;
        assert_eq!(status, 201, "{what}: {key} is stuck: {told}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_handler_is_dropped_at_every_await() {
    let count = requests(&scene().await).len();
    for at in 0..count {
        let mut polls = 1;
        loop {
            let scene = scene().await;
            let asked = &requests(&scene)[at];
            let what = format!("{} {}, let go after {polls} polls", asked.0, asked.1);
            let is_answered = let_go(&scene, asked, polls).await;
            afterwards(&scene, &what).await;
            if is_answered {
                break;
            }
            polls += 1;
            assert!(polls < POLLS_MAX, "{what}: it does not end");
        }
        assert!(polls > 1, "request {at} never waits: it cannot be dropped");
    }
}
