//! Clients that hang up: every handler is polled a number of times and then dropped, as when its connection
//! ends.

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

use crate::endpoints::{self, Endpoint, Things};

/// Most polls that a handler may need.
const POLLS_MAX: u32 = 100;
const TICK: Duration = Duration::from_millis(1);

/// A server, and one of everything that its endpoints act on.
struct Scene {
    app: Router,
    engine: Engine,
    things: Things,
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

/// Makes a scene with what `path` refers to, and nothing that it does not need.
async fn scene(path: &str) -> Scene {
    let store = Arc::new(Slow::new(Arc::new(Memory::default()), 3 * TICK));
    let engine = Engine::without_duties(store).unwrap();
    let app = router(
        engine.clone(),
        Config { allow_reset: true, templates: crate::tasks::templates(), ..Config::default() },
    );
    let post = async |path: &str, body: Value| {
        let (status, told) = ask(&app, Method::POST, &format!("/ojs/v1{path}"), &body).await;
        assert!(status.is_success(), "{path}: {told}");
        told
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let fetch = json!({ "queues": ["default"], "worker_id": "w" });
    let mut things = Things { queue: "default".to_owned(), worker: "w".to_owned(), ..Things::nobodys() };
    let of_dead_letters = ["{id}/retry", "/bulk/retry", "/bulk/delete"];
    if path.contains("dead-letter") || of_dead_letters.iter().any(|end| path.ends_with(end)) {
        post("/jobs", json!({ "type": "d.d", "args": [], "options": { "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } } }))
            .await;
        let taken = post("/workers/fetch", fetch.clone()).await;
        things.dead_letter = text(&taken["jobs"][0]["id"]);
        things.job.clone_from(&things.dead_letter);
        let failure = json!({ "job_id": things.dead_letter, "error": { "code": "x", "message": "y" } });
        post("/workers/nack", failure).await;
    } else {
        let held = post("/jobs", keyed("held", "reject")).await;
        things.key = text(&held["job"]["unique_key"]);
        if path.ends_with("/activate") {
            let pending = json!({ "type": "p.p", "args": [], "options": { "pending": true } });
            things.job = text(&post("/jobs", pending).await["job"]["id"]);
        } else {
            let taken = post("/workers/fetch", fetch).await;
            things.job = text(&taken["jobs"][0]["id"]);
            things.lease = Some(text(&taken["jobs"][0]["lease"]));
        }
    }
    let template = json!({ "type": "a.b", "args": [] });
    if path.ends_with("/purge") || path.ends_with("/queues/{name}/jobs") {
        post("/jobs", template.clone()).await;
    }
    if path.contains("/cron/") || path.contains("/crons/") {
        things.cron = "tick".to_owned();
        post("/cron", json!({ "name": "tick", "expression": "0 3 1 1 *", "job_template": template })).await;
    }
    if path.contains("/workflows/") {
        let made = post("/workflows", json!({ "type": "chain", "steps": [template, template] })).await;
        things.workflow = text(&made["workflow"]["id"]);
    }
    if path.contains("/subscriptions/") {
        let wish = json!({ "url": "https://example.com", "events": ["job.failed"] });
        things.webhook = text(&post("/webhooks/subscriptions", wish).await["subscription"]["id"]);
    }
    if path.contains("/rate-limits/") {
        things.limit = "l".to_owned();
        let limited = json!({ "rate_limit": { "key": "l", "concurrency": 1 } });
        post("/jobs", json!({ "type": "a.b", "args": [], "options": limited })).await;
    }
    Scene { app, engine, things }
}

/// Requests besides those of `endpoints`: an endpoint's name and another body.
fn more() -> Vec<(&'static str, Value)> {
    let jobs = json!({ "jobs": [keyed("new", "reject"), keyed("held", "replace"), keyed("new", "ignore")] });
    vec![
        ("enqueue", keyed("new", "reject")),
        ("enqueue", keyed("held", "reject")),
        ("enqueue", keyed("held", "replace")),
        ("enqueue", keyed("held", "follow_up")),
        ("enqueueBatch", jobs.clone()),
        ("enqueueBulk", jobs),
        ("explain", keyed("held", "reject")),
    ]
}

/// Polls the handler `polls` times, then drops it. Returns whether it had answered.
async fn let_go(scene: &Scene, endpoint: &Endpoint, body: Option<&Value>, polls: u32) -> bool {
    let mut app = scene.app.clone();
    let own = scene.things.body(endpoint);
    let body = body.or(own.as_ref()).unwrap_or(&Value::Null);
    let request = request(&endpoint.method, &scene.things.path(endpoint), body);
    let mut call = std::pin::pin!(app.call(request));
    for _ in 0..polls {
        if poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_ready())).await {
            return true;
        }
        tokio::time::sleep(TICK).await;
    }
    false
}

/// Asserts that nothing is left half done, later callers are not kept waiting, and no key is stuck.
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
        // A worker that was granted the job and never heard of it only learns that it has ended.
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
    let (_, document) = ask(&scene("").await.app, Method::GET, "/openapi.json", &Value::Null).await;
    let endpoints = endpoints::of(&document);
    let more = more();
    let named = |name: &str| endpoints.iter().find(|endpoint| endpoint.name == name).unwrap();
    let asked = endpoints.iter().map(|endpoint| (endpoint, None));
    for (endpoint, body) in asked.chain(more.iter().map(|(name, body)| (named(name), Some(body)))) {
        let mut polls = 1;
        loop {
            let scene = scene(&endpoint.path).await;
            let what = format!("{} {body:?}, let go after {polls} polls", endpoint.name);
            let is_answered = let_go(&scene, endpoint, body, polls).await;
            afterwards(&scene, &what).await;
            if is_answered {
                break;
            }
            polls += 1;
            assert!(polls < POLLS_MAX, "{what}: it does not end");
        }
        // Some reads are answered from memory at once; every change waits for the store.
        assert!(polls > 1 || endpoint.method == Method::GET, "{} never waits", endpoint.name);
    }
}
