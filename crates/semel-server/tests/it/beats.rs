//! Which tokens may speak for a worker's id.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_client::Method;
use semel_core::draft::{Reads, Snapshot};
use semel_server::Config;
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture, Claimed, Facts, Verdict};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};

/// A server with one admin and two workers, each limited to one queue.
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

/// Otherwise any worker token could declare any worker to be draining, so that it got no more jobs.
#[tokio::test]
async fn a_worker_of_other_queues_is_not_spoken_for() {
    let server = server().await;
    let (fetch, beat) = ("/ojs/v1/workers/fetch", "/ojs/v1/workers/heartbeat");
    let take = |queue: &str| json!({ "queues": [queue], "worker_id": "w1" });
    assert_eq!(post(&server, "mail", fetch, &take("mail")).await.status, 200);
    let drains = json!({ "worker_id": "w1", "state": "draining", "active_jobs": [] });
    // Two workers may share an id unknowingly: neither is refused jobs or leases because of the other.
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

/// Before the server knows a worker, a heartbeat by another token must not decide its state either: the
/// worker would get no jobs, so the server would never learn which queues are its own.
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
    // The server knows the worker now.
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

/// A store of several parts, of which the one with the settings can become unavailable.
#[derive(Default)]
struct Parted {
    inner: Memory,
    is_away: AtomicBool,
    /// Whether that part fails at once instead of never answering.
    says_so: bool,
}

impl Layer for Parted {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        let names_away = reads.is_empty() || !reads.queues.is_empty();
        if !names_away || !self.is_away.load(Ordering::SeqCst) {
            return Backend::load_soon(&self.inner, reads);
        }
        let says_so = self.says_so;
        Box::pin(async move {
            if !says_so {
                std::future::pending::<()>().await;
            }
            Err(StoreError::Unavailable("a part of it is away".to_owned()))
        })
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: 2, ..self.inner.facts() }
    }
}

/// Without the answer the worker would assume that its leases have run out.
#[tokio::test]
async fn what_became_of_leases_is_told_whatever_else_can_be_had() {
    for says_so in [true, false] {
        let store = Arc::new(Parted { says_so, ..Parted::default() });
        let server = Server::on_store(Arc::clone(&store) as _, Config::default()).await;
        server.create(&json!({ "type": "a.b", "args": [] })).await;
        let run = server.take("default", "w1").await;
        let other = "019a0000-0000-7000-8000-000000000000";
        let path = "/ojs/v1/admin/workers/w1/directive";
        assert_eq!(server.put(path, &json!({ "directive": "quiet" })).await.status, 200);
        let beat = json!({ "worker_id": "w1", "active_jobs": [run["id"], other] });
        let told = server.post("/ojs/v1/workers/heartbeat", &beat).await;
        assert_eq!((told.status, &told.body["state"]), (200, &json!("quiet")), "{}", told.body);
        assert!(told.body["server_time"].is_string(), "{}", told.body);
        store.is_away.store(true, Ordering::SeqCst);
        let told = server.post("/ojs/v1/workers/heartbeat", &beat).await;
        assert_eq!((told.status, &told.body["jobs_extended"]), (200, &json!([run["id"]])), "{}", told.body);
        assert_eq!(told.body["jobs_lost"][0]["job_id"], other, "{}", told.body);
        // The last directive it was told stays in force.
        assert_eq!((&told.body["state"], told.body.get("server_time")), (&json!("quiet"), None));
        if says_so {
            // A heartbeat without jobs asks for the directive only.
            let idle = json!({ "worker_id": "w1", "active_jobs": [] });
            assert_eq!(server.post("/ojs/v1/workers/heartbeat", &idle).await.status, 503);
        }
        store.is_away.store(false, Ordering::SeqCst);
        server.stop().await;
    }
}

/// A store in which another client's open transaction holds all jobs.
#[derive(Default)]
struct Held {
    inner: Memory,
    is_held: AtomicBool,
}

impl Layer for Held {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        if !self.is_held.load(Ordering::SeqCst) {
            return Backend::commit(&self.inner, batch);
        }
        let groups = batch.groups.iter().map(|_| Verdict::Busy).collect();
        let claims = batch.claims.iter().map(|_| Claimed::default()).collect();
        Box::pin(async move { Ok(Applied { groups, claims }) })
    }
}

/// A job held by a transaction is reported neither as extended nor as lost: no other worker can have taken
/// it.
#[tokio::test]
async fn a_job_that_somebody_holds_is_told_apart_from_one_of_which_nothing_is_known() {
    let store = Arc::new(Held::default());
    let server = Server::on_store(Arc::clone(&store) as _, Config::default()).await;
    server.create(&json!({ "type": "a.b", "args": [] })).await;
    let run = server.take("default", "w1").await;
    let beat = json!({ "worker_id": "w1", "active_jobs": [run["id"]] });
    for (is_held, extended, held) in
        [(true, json!([]), json!([run["id"]])), (false, json!([run["id"]]), json!([]))]
    {
        store.is_held.store(is_held, Ordering::SeqCst);
        let told = server.post("/ojs/v1/workers/heartbeat", &beat).await;
        assert_eq!((told.status, &told.body["jobs_extended"]), (200, &extended), "{}", told.body);
        assert_eq!((&told.body["jobs_held"], &told.body["jobs_lost"]), (&held, &json!([])), "{}", told.body);
    }
    server.stop().await;
}
