//! Whose a worker's id is: what is said in its name by others.

use semel_client::Method;
use semel_server::Config;
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};

/// A server with an admin, and workers of one queue each.
async fn server() -> Server {
    let worker = |name: &str| Token {
        queues: Queues::Only(vec![name.to_owned()].into()),
        ..Token::new(name, digest(name), vec![Role::Worker])
    };
    let admin = Token::new("admin", digest("admin"), vec![Role::Admin]);
    let tokens = Tokens::only(vec![admin, worker("mail"), worker("pay")]);
    Server::with(Config { allow_reset: true, tokens, ..Config::default() }).await
}

async fn ask(server: &Server, token: &str, method: Method, path: &str, body: Option<&Value>) -> Told {
    let headers = header("authorization", &format!("Bearer {token}"));
    server.ask(method, path, body.map(Value::to_string).as_deref(), headers).await
}

async fn post(server: &Server, token: &str, path: &str, body: &Value) -> Told {
    ask(server, token, Method::POST, path, Some(body)).await
}

/// Whoever had a worker's token once could say of every worker that it was about to end: it got no more jobs.
#[tokio::test]
async fn a_worker_of_other_queues_is_not_spoken_for() {
    let server = server().await;
    let (fetch, beat) = ("/ojs/v1/workers/fetch", "/ojs/v1/workers/heartbeat");
    let take = |queue: &str| json!({ "queues": [queue], "worker_id": "w1" });
    assert_eq!(post(&server, "mail", fetch, &take("mail")).await.status, 200);
    let drains = json!({ "worker_id": "w1", "state": "draining", "active_jobs": [] });
    // Two may have one id without knowing of each other: neither is refused jobs or leases for it.
    let job = json!({ "type": "a.b", "args": [], "options": { "queue": "pay" } });
    assert_eq!(post(&server, "admin", "/ojs/v1/jobs", &job).await.status, 201);
    let told = post(&server, "pay", fetch, &take("pay")).await;
    let leased = &told.body["jobs"][0]["id"];
    assert!(leased.is_string(), "{}", told.body);
    let drains_too = json!({ "worker_id": "w1", "state": "draining", "active_jobs": [leased, leased] });
    let told = post(&server, "pay", beat, &drains_too).await;
    assert_eq!((told.status, &told.body["jobs_extended"]), (200, &json!([leased])), "{}", told.body);
    let health = "/ojs/v1/workers/w1/health";
    assert_eq!(ask(&server, "pay", Method::GET, health, None).await.status, 404);
    let told = ask(&server, "mail", Method::GET, health, None).await;
    assert_eq!((told.status, &told.body["state"]), (200, &json!("running")), "{}", told.body);
    assert_eq!(post(&server, "mail", beat, &drains).await.status, 200, "its own word");
    assert_eq!(ask(&server, "mail", Method::GET, health, None).await.status, 503);
    server.stop().await;
}

/// Before a server has heard of a worker, anybody's word once was taken for its own: it got no job, so nobody got to know which
/// queues are its own.
#[tokio::test]
async fn a_worker_that_nobody_knows_yet_is_not_spoken_for_either() {
    let server = server().await;
    let job = json!({ "type": "a.b", "args": [], "options": { "queue": "mail" } });
    assert_eq!(post(&server, "admin", "/ojs/v1/jobs", &job).await.status, 201);
    let drains = json!({ "worker_id": "w1", "state": "draining", "active_jobs": [] });
    assert_eq!(post(&server, "pay", "/ojs/v1/workers/heartbeat", &drains).await.status, 200);
    let fetch = json!({ "queues": ["mail"], "worker_id": "w1" });
    let told = post(&server, "mail", "/ojs/v1/workers/fetch", &fetch).await;
    assert_eq!(told.body["jobs"].as_array().unwrap().len(), 1, "{}", told.body);
    // It is known now.
    assert_eq!(post(&server, "pay", "/ojs/v1/workers/heartbeat", &drains).await.status, 200);
    let health = ask(&server, "mail", Method::GET, "/ojs/v1/workers/w1/health", None).await;
    assert_eq!((health.status, &health.body["state"]), (200, &json!("running")), "{}", health.body);
    server.stop().await;
}

#[tokio::test]
async fn who_is_told_to_go_on_takes_jobs_again() {
    let server = server().await;
    let job = json!({ "type": "a.b", "args": [], "options": { "queue": "mail" } });
    assert_eq!(post(&server, "admin", "/ojs/v1/jobs", &job).await.status, 201);
    let fetch = json!({ "queues": ["mail"], "worker_id": "w1" });
    let drains = json!({ "worker_id": "w1", "state": "draining", "active_jobs": [] });
    post(&server, "mail", "/ojs/v1/workers/heartbeat", &drains).await;
    let told = post(&server, "mail", "/ojs/v1/workers/fetch", &fetch).await;
    assert_eq!(told.body["jobs"], json!([]));
    let path = "/ojs/v1/admin/workers/w1/directive";
    let told = ask(&server, "admin", Method::PUT, path, Some(&json!({ "directive": "running" }))).await;
    assert_eq!(told.status, 200, "{}", told.body);
    let told = post(&server, "mail", "/ojs/v1/workers/fetch", &fetch).await;
    assert_eq!(told.body["jobs"].as_array().unwrap().len(), 1, "{}", told.body);
    server.stop().await;
}
