//! The `Idempotency-Key` header: a repeated request gets the first answer, a different one is refused,
//! whatever the job's own policy says.

use std::sync::Arc;

use semel_client::{HeaderMap, HeaderValue, Method};
use semel_ojs::{Template, Templates};
use semel_server::Config;
use semel_server::auth::{Role, Token, Tokens, digest};
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};
use crate::tasks;

async fn post(server: &Server, path: &str, body: &Value, key: &str) -> Told {
    server.ask(Method::POST, path, Some(&body.to_string()), header("idempotency-key", key)).await
}

fn is_replay(told: &Told) -> bool {
    told.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
}

#[tokio::test]
async fn the_same_request_again_is_answered_as_the_first_time() {
    let server = Server::start().await;
    let body = json!({ "type": "a.b", "args": [{ "n": 1 }] });
    let first = post(&server, "/ojs/v1/jobs", &body, "r-1").await;
    assert_eq!((first.status, is_replay(&first)), (201, false));
    let again = post(&server, "/ojs/v1/jobs", &body, "r-1").await;
    assert_eq!((again.status, is_replay(&again), again.job_id()), (201, true, first.job_id()));
    // Also after the job has ended: all eight states hold the key.
    let job = server.take("default", "w").await;
    let ack = json!({ "job_id": job["id"], "lease": job["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    let again = post(&server, "/ojs/v1/jobs", &body, "r-1").await;
    assert_eq!((again.status, again.job_id()), (201, first.job_id()));
    let other = post(&server, "/ojs/v1/jobs", &body, "r-2").await;
    assert_eq!((other.status, is_replay(&other)), (201, false));
    assert_eq!(server.stored().await, 2);
    server.stop().await;
}

#[tokio::test]
async fn another_request_under_the_key_is_refused() {
    let server = Server::start().await;
    let body = |n: u32| json!({ "type": "a.b", "args": [{ "n": n }] });
    let first = post(&server, "/ojs/v1/jobs", &body(1), "r-1").await;
    let told = post(&server, "/ojs/v1/jobs", &body(2), "r-1").await;
    assert_eq!((told.status, told.code()), (422, "payload_mismatch"), "{}", told.body);
    assert_eq!(told.body["error"]["details"]["existing_job_id"], first.job_id());
    assert_eq!(server.stored().await, 1);
    server.stop().await;
}

/// The header is checked first, then the policy; they are separate keys.
#[tokio::test]
async fn a_policy_in_the_body_holds_beside_the_header() {
    let server = Server::start().await;
    let body = json!({ "type": "a.b", "args": [1], "options": { "unique": { "keys": ["args"] } } });
    let first = post(&server, "/ojs/v1/jobs", &body, "r-1").await;
    assert_eq!(first.status, 201);
    assert_eq!(post(&server, "/ojs/v1/jobs", &body, "r-1").await.job_id(), first.job_id());
    let told = post(&server, "/ojs/v1/jobs", &body, "r-2").await;
    assert_eq!((told.status, told.code()), (409, "duplicate"));
    // A request that stored nothing is decided again.
    let told = post(&server, "/ojs/v1/jobs", &body, "r-2").await;
    assert_eq!((told.status, told.code()), (409, "duplicate"));
    // A unique key of the same text is another key.
    let own =
        json!({ "type": "a.b", "args": [1], "options": { "unique": { "key": "r-1", "scope": "global" } } });
    assert_eq!(server.post("/ojs/v1/jobs", &own).await.status, 201);
    server.stop().await;
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_part_of_the_key() {
    let server = Server::start().await;
    let batch = |n: u32| json!({ "jobs": [{ "type": "a.b", "args": [n] }, { "type": "a.b", "args": [n] }] });
    for path in ["/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk"] {
        let before = server.stored().await;
        let first = post(&server, path, &batch(1), path).await;
        assert!(first.status < 300, "{}", first.body);
        let again = post(&server, path, &batch(1), path).await;
        assert!(again.status < 300, "{}", again.body);
        assert_eq!(server.stored().await, before + 2);
        let other = post(&server, path, &batch(2), path).await;
        assert_eq!(other.status, 422, "{}", other.body);
        assert_eq!(server.stored().await, before + 2);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_task_may_be_asked_for_again() {
    let server = tasks::server().await;
    let body = json!({ "namespace": "orders", "name": "notify", "context": { "n": 1 } });
    let first = post(&server, "/v1/tasks", &body, "r-1").await;
    let again = post(&server, "/v1/tasks", &body, "r-1").await;
    assert_eq!((again.status, is_replay(&again)), (201, true), "{}", again.body);
    assert_eq!(again.body, first.body);
    let strict = json!({ "namespace": "payments", "name": "process", "context": { "n": 1 } });
    let first = post(&server, "/v1/tasks", &strict, "r-2").await;
    let again = post(&server, "/v1/tasks", &strict, "r-2").await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    // Without the header nobody learns which task it is.
    assert_eq!(server.post("/v1/tasks", &strict).await.status, 409);
    server.stop().await;
}

/// Two programs that both number their requests from one do not collide.
#[tokio::test]
async fn a_key_is_its_credentials_and_its_tenants_own() {
    let token = |id: &str| {
        let mut token = Token::new(id, digest(id), vec![Role::Producer]);
        token.inspect = false;
        token
    };
    let tokens = Tokens::only(vec![token("one"), token("two"), Token::all("all", "all")]);
    let config = Config { tokens, ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let post = async |token: &str, tenant: Option<&str>, n: u32| {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("1"));
        headers.insert("authorization", HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        if let Some(tenant) = tenant {
            headers.insert("x-ojs-tenant", HeaderValue::try_from(tenant).unwrap());
        }
        let body = json!({ "type": "a.b", "args": [n] }).to_string();
        server.ask(Method::POST, "/ojs/v1/jobs", Some(&body), headers).await
    };
    assert_eq!(post("one", None, 1).await.status, 201);
    assert_eq!(post("two", None, 2).await.status, 201);
    assert_eq!(post("all", None, 3).await.status, 201);
    assert_eq!(post("all", Some("acme"), 4).await.status, 201);
    // A caller that may not inspect learns nothing of the existing job.
    let told = post("one", None, 5).await;
    assert_eq!((told.status, told.code()), (422, "payload_mismatch"));
    assert_eq!(told.body["error"]["details"]["existing_job_id"], Value::Null);
    server.stop().await;
}

/// A plain token's id is its line number, which changes as lines come and go, so no key may
/// depend on it.
#[tokio::test]
async fn a_key_stays_its_credentials_when_others_are_taken_away() {
    let tokens = Tokens::new(["first", "second"]);
    let config = Config { tokens: tokens.clone(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let post = async |token: &str, n: u32| {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("1"));
        headers.insert("authorization", HeaderValue::try_from(format!("Bearer {token}")).unwrap());
        let body = json!({ "type": "a.b", "args": [n] }).to_string();
        server.ask(Method::POST, "/ojs/v1/jobs", Some(&body), headers).await
    };
    let (one, two) = (post("first", 1).await, post("second", 2).await);
    assert_eq!((one.status, two.status), (201, 201));
    tokens.replace(vec![Token::all("line-1", "second")]);
    let again = post("second", 2).await;
    assert_eq!((again.status, again.job_id(), is_replay(&again)), (201, two.job_id(), true));
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_is_none_is_refused() {
    let server = Server::start().await;
    let body = json!({ "type": "a.b", "args": [] });
    for key in [" ", &"x".repeat(256)] {
        let told = post(&server, "/ojs/v1/jobs", &body, key).await;
        assert_eq!((told.status, told.code()), (400, "invalid_request"), "{key}");
        assert_eq!(told.body["error"]["details"]["header"], "Idempotency-Key");
    }
    server.stop().await;
}

/// Also when the template that it was read by has gone: the answer is kept with the job.
#[tokio::test]
async fn a_request_that_cannot_be_read_any_more_is_answered_as_the_first_time() {
    let set = tasks::templates();
    let config = Config { templates: set.clone(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let task = json!({ "namespace": "orders", "name": "notify", "context": { "n": 1 } });
    let job = json!({ "type": "email.send", "version": "1.0.0", "args": [{ "to": "a" }] });
    let batch = json!({ "jobs": [{ "type": "a.b", "args": [] }, { "type": "email.send", "version": "1.0.0", "args": [{ "to": "b" }] }] });
    let first_task = post(&server, "/v1/tasks", &task, "r-1").await;
    let first_job = post(&server, "/ojs/v1/jobs", &job, "r-2").await;
    let first_batch = post(&server, "/ojs/v1/jobs/batch", &batch, "r-3").await;
    assert_eq!((first_task.status, first_job.status, first_batch.status), (201, 201, 201));
    let stored = server.stored().await;
    let mut templates = Templates::default();
    let newer = json!({ "namespace": "email", "name": "send", "version": "2.0.0" });
    templates.add(Template::read(&newer.to_string()).unwrap()).unwrap();
    set.replace(templates);
    assert_eq!(server.post("/v1/tasks", &task).await.status, 404);
    assert_eq!(server.post("/ojs/v1/jobs", &job).await.status, 400);
    let again = post(&server, "/v1/tasks", &task, "r-1").await;
    assert_eq!((again.status, is_replay(&again), &again.body), (201, true, &first_task.body));
    let again = post(&server, "/ojs/v1/jobs", &job, "r-2").await;
    assert_eq!((again.status, is_replay(&again), again.job_id()), (201, true, first_job.job_id()));
    let again = post(&server, "/ojs/v1/jobs/batch", &batch, "r-3").await;
    assert_eq!(again.status, 201, "{}", again.body);
    let ids = |told: &Told| -> Vec<Value> {
        told.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].clone()).collect()
    };
    assert_eq!(ids(&again), ids(&first_batch));
    let again = post(&server, "/ojs/v1/jobs/bulk", &batch, "r-3").await;
    assert_eq!((again.status, &again.body["succeeded"]), (200, &2.into()), "{}", again.body);
    // A different request under a used key is refused as such, whatever else is wrong with it; under a new
    // key its own fault is reported.
    let other = json!({ "type": "email.send", "version": "1.0.0", "args": [{ "to": "c" }] });
    let told = post(&server, "/ojs/v1/jobs", &other, "r-2").await;
    assert_eq!((told.status, told.code()), (422, "payload_mismatch"), "{}", told.body);
    let told = post(&server, "/ojs/v1/jobs", &other, "r-4").await;
    assert_eq!((told.status, told.pointer()), (400, "/version"), "{}", told.body);
    assert_eq!(server.stored().await, stored);
    server.stop().await;
}

/// For a task, members that the server sets on jobs are ordinary members, and make two requests differ.
#[tokio::test]
async fn every_member_of_a_task_counts() {
    let server = tasks::server().await;
    let body =
        |state: &str| json!({ "namespace": "orders", "name": "notify", "context": {}, "state": state });
    let first = post(&server, "/v1/tasks", &body("CA"), "r-1").await;
    assert_eq!(first.status, 201);
    let told = post(&server, "/v1/tasks", &body("NY"), "r-1").await;
    assert_eq!(told.status, 422, "{}", told.body);
    assert_eq!(post(&server, "/v1/tasks", &body("CA"), "r-1").await.body, first.body);
    server.stop().await;
}

/// Accepting the header would promise something that is not kept: a repetition would act on what has come
/// since.
#[tokio::test]
async fn what_is_done_to_many_jobs_or_to_dead_letters_takes_no_key() {
    let server = Server::in_memory().await;
    let retry = json!({ "max_attempts": 1, "on_exhaustion": "dead_letter" });
    let dead = json!({ "type": "a.b", "args": [], "options": { "queue": "dead", "retry": retry } });
    let dead = server.create(&dead).await.job_id().to_owned();
    server.take("dead", "w").await;
    let failure = json!({ "job_id": dead, "error": { "code": "x", "message": "y" } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &failure).await.body["state"], "discarded");
    let waits = server.create(&json!({ "type": "a.b", "args": [] })).await.job_id().to_owned();
    let confirm = json!({ "confirm": true });
    let all = [
        "admin/jobs/bulk/cancel",
        "admin/jobs/bulk/retry",
        "admin/jobs/bulk/delete",
        "admin/dead-letter/retry",
    ];
    let mut asked: Vec<_> =
        all.iter().map(|path| (Method::POST, format!("/ojs/v1/{path}"), &confirm)).collect();
    let none = json!({});
    for path in ["dead-letter", "admin/dead-letter", "admin/jobs"] {
        asked.push((Method::POST, format!("/ojs/v1/{path}/{dead}/retry"), &none));
    }
    for path in ["queues/default/purge", "admin/queues/default/purge"] {
        asked.push((Method::POST, format!("/ojs/v1/{path}"), &none));
    }
    asked.push((Method::DELETE, "/ojs/v1/admin/queues/default/jobs".to_owned(), &none));
    for (method, path, body) in asked {
        let told =
            server.ask(method, &path, Some(&body.to_string()), header("idempotency-key", "once")).await;
        assert_eq!((told.status, told.code()), (400, "invalid_request"), "{path}: {}", told.body);
        assert_eq!(told.body["error"]["details"]["header"], "Idempotency-Key", "{path}");
    }
    for (id, state) in [(&dead, "discarded"), (&waits, "available")] {
        assert_eq!(server.get(&format!("/ojs/v1/jobs/{id}")).await.body["state"], state);
    }
    assert_eq!(server.post("/ojs/v1/admin/jobs/bulk/retry", &confirm).await.body["retried"], 1);
    assert_eq!(server.post("/ojs/v1/queues/default/purge", &none).await.body["purged"], 1);
    server.stop().await;
}
