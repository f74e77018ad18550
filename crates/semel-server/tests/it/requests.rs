//! Requests that are repeated, also in another form: by another endpoint, after their template has changed,
//! or when their result is remembered but no longer kept.

use std::sync::Arc;
use std::time::Duration;

use semel_client::{HeaderMap, Method};
use semel_core::ident::WorkflowId;
use semel_core::retention::{Keep, Retention, keep_for};
use semel_engine::Engine;
use semel_engine::duty::{Promote, Purge, Tend};
use semel_ojs::{Template, Templates};
use semel_server::auth::{Queues, Role, Token, Tokens, digest};
use semel_server::{Config, TemplateSet};
use semel_store::Backend;
use semel_store::clock::ManualClock;
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

fn templates(all: &[Value]) -> Templates {
    let mut templates = Templates::default();
    for template in all {
        templates.add(Template::read(&template.to_string()).unwrap()).unwrap();
    }
    templates
}

/// Otherwise one would be answered with something of the other kind.
#[tokio::test]
async fn a_task_and_a_job_never_answer_for_one_another() {
    let server = tasks::server().await;
    let job = json!({ "type": "a.b", "args": [1] });
    let task = json!({ "namespace": "orders", "name": "notify", "context": { "n": 1 } });
    assert_eq!(post(&server, "/ojs/v1/jobs", &job, "r-1").await.status, 201);
    let told = post(&server, "/v1/tasks", &job, "r-1").await;
    assert_eq!((told.status, told.code()), (422, "PAYLOAD_MISMATCH"), "{}", told.body);
    assert_eq!(post(&server, "/v1/tasks", &task, "r-2").await.status, 201);
    let told = post(&server, "/ojs/v1/jobs", &task, "r-2").await;
    assert_eq!((told.status, told.code()), (422, "payload_mismatch"), "{}", told.body);
    server.stop().await;
}

#[tokio::test]
async fn all_of_a_tasks_request_counts() {
    let server = tasks::server().await;
    let task = json!({ "namespace": "orders", "name": "notify", "context": { "n": 1 } });
    let with = |name: &str, value: Value| {
        let mut task = task.clone();
        task[name] = value;
        task
    };
    let first = post(&server, "/v1/tasks", &task, "r-1").await;
    for other in [with("note", Value::Null), with("options", json!({ "x": 1 })), with("options/x", json!(1))]
    {
        let told = post(&server, "/v1/tasks", &other, "r-1").await;
        assert_eq!((told.status, told.code()), (422, "PAYLOAD_MISMATCH"), "{other}: {}", told.body);
    }
    let again = post(&server, "/v1/tasks", &task, "r-1").await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    server.stop().await;
}

#[tokio::test]
async fn a_batch_that_was_stored_before_says_so() {
    let server = Server::start().await;
    let batch = json!({ "jobs": [{ "type": "a.b", "args": [1] }, { "type": "a.b", "args": [2] }] });
    let counts = json!({ "inserted": 2, "skipped": 0, "replaced": 0, "rejected": 0 });
    for (path, key) in [("/ojs/v1/jobs/batch", "r-1"), ("/ojs/v1/jobs/bulk", "r-2")] {
        for replayed in [false, true] {
            let told = post(&server, path, &batch, key).await;
            assert_eq!(is_replay(&told), replayed, "{path}: {}", told.body);
            assert_eq!(told.body["counts"], counts, "{path}: {}", told.body);
        }
    }
    // No replay when one of the items is new, or none was stored.
    let more = json!({ "jobs": [{ "type": "a.b", "args": [1] }, { "type": "a.b", "args": [3] }] });
    let told = post(&server, "/ojs/v1/jobs/bulk", &more, "r-2").await;
    assert_eq!((told.status, is_replay(&told)), (207, false), "{}", told.body);
    server.stop().await;
}

/// The header is refused where it could not be honoured.
#[tokio::test]
async fn a_workflow_is_sent_again_by_its_own_id() {
    let server = Server::start().await;
    let steps = json!({ "type": "chain", "steps": [{ "type": "a.b", "args": [] }] });
    let told = post(&server, "/ojs/v1/workflows", &steps, "r-1").await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"), "{}", told.body);
    assert!(told.body["error"]["message"].as_str().unwrap().contains("`id`"), "{}", told.body);
    let mut named = steps;
    named["id"] = json!("019a0000-0000-7000-8000-000000000001");
    for replayed in [false, true] {
        let told = post(&server, "/ojs/v1/workflows", &named, "r-1").await;
        assert_eq!((told.status, is_replay(&told)), (201, replayed), "{}", told.body);
    }
    named["name"] = json!("another");
    let told = server.post("/ojs/v1/workflows", &named).await;
    let details = &told.body["error"]["details"];
    assert_eq!((told.status, told.code(), told.pointer()), (409, "duplicate", "/id"), "{}", told.body);
    assert_eq!(details["existing_workflow_id"], named["id"], "{}", told.body);
    server.stop().await;
}

/// The token covered the job's queue when it was created; whether it covers the template's new queue does not
/// matter.
#[tokio::test]
async fn a_template_that_has_moved_its_queue_does_not_change_what_was_answered() {
    let template =
        |queue: &str| json!({ "namespace": "a", "name": "b", "unique": "always_unique", "queue": queue });
    let set = TemplateSet::new(templates(&[template("one")]));
    let mut token = Token::new("t", digest("t"), vec![Role::Producer]);
    token.queues = Queues::Only(vec!["one".to_owned(), "default".to_owned()].into());
    let config = Config { tokens: Tokens::only(vec![token]), templates: set.clone(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let post = async |path: &str, body: &Value| {
        let mut headers = header("idempotency-key", "r-1");
        headers.insert("authorization", "Bearer t".parse().unwrap());
        server.ask(Method::POST, path, Some(&body.to_string()), headers).await
    };
    let job = json!({ "type": "a.b", "args": [1] });
    let bulk = json!({ "jobs": [job, { "type": "c.d", "args": [] }] });
    let first = post("/ojs/v1/jobs", &job).await;
    assert_eq!(post("/ojs/v1/jobs/bulk", &bulk).await.status, 200);
    set.replace(templates(&[template("two")]));
    let again = post("/ojs/v1/jobs", &job).await;
    assert_eq!((again.status, again.job_id()), (201, first.job_id()), "{}", again.body);
    let again = post("/ojs/v1/jobs/bulk", &bulk).await;
    assert_eq!((again.status, again.body["succeeded"].as_u64()), (200, Some(2)), "{}", again.body);
    let other = json!({ "jobs": [{ "type": "c.d", "args": [1] }, { "type": "a.b", "args": [2] }] });
    let mut headers = header("authorization", "Bearer t");
    headers.insert("idempotency-key", "r-2".parse().unwrap());
    let told = server.ask(Method::POST, "/ojs/v1/jobs/bulk", Some(&other.to_string()), headers).await;
    assert_eq!((told.status, told.body["failed"].as_u64()), (207, Some(1)), "{}", told.body);
    server.stop().await;
}

/// The task's head still holds its key for as long as the policy says; only its results are gone.
#[tokio::test]
async fn a_task_that_is_only_remembered_is_still_the_answer() {
    let clock = ManualClock::default();
    let states: Vec<&str> =
        ["scheduled", "available", "pending", "active", "retryable", "completed"].to_vec();
    let identity = json!({ "keys": ["args"], "states": states, "period": "P7D", "on_conflict": "ignore" });
    let steps = json!([{ "name": "one", "handler": "a.step", "queue": "steps" }]);
    let template = json!({ "namespace": "a", "name": "b", "unique": identity, "steps": steps });
    let config = Config { templates: TemplateSet::new(templates(&[template])), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::new(clock.clone())), config).await;
    let task = json!({ "namespace": "a", "name": "b", "context": { "n": 1 } });
    let first = server.post("/v1/tasks", &task).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let step = server.take("steps", "w").await;
    let ack = json!({ "job_id": step["id"], "lease": step["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    let store = server.engine.store();
    let duties = async || {
        for _ in 0..20 {
            Promote.run_once(store).await.unwrap();
            Tend.run_once(store).await.unwrap();
            Purge.run_once(store).await.unwrap();
        }
    };
    duties().await;
    let same = server.post("/v1/tasks", &task).await;
    assert_eq!((same.status, &same.body["task_uuid"]), (200, &first.body["task_uuid"]), "{}", same.body);
    clock.advance(Duration::from_secs(2 * 24 * 3600));
    duties().await;
    assert_eq!(
        server.get(&format!("/v1/tasks/{}", first.body["task_uuid"].as_str().unwrap())).await.status,
        404
    );
    let later = server.post("/v1/tasks", &task).await;
    assert_eq!((later.status, &later.body), (200, &same.body));
    server.stop().await;
}

/// The task was purged before the key's window was over: that is no reason to create it twice.
#[tokio::test]
async fn a_key_whose_task_is_gone_is_refused_in_the_words_of_tasks() {
    let clock = ManualClock::default();
    let store: Arc<dyn Backend> = Arc::new(Memory::new(clock.clone()));
    let config = Config { templates: tasks::templates(), ..Config::default() };
    let server = Server::on_store(Arc::clone(&store), config).await;
    let task = json!({ "namespace": "orders", "name": "notify", "context": { "n": 1 } });
    let first = post(&server, "/v1/tasks", &task, "r-1").await;
    // Another server on the store keeps ended work for one hour.
    let hour = Some(keep_for(Duration::from_secs(3_600), "").unwrap());
    let rules = Retention::new(Keep { completed: hour, cancelled: hour, discarded: hour });
    let other = Engine::keeping(store, rules).unwrap();
    let id = WorkflowId::parse(first.body["task_uuid"].as_str().unwrap(), "").unwrap();
    other.cancel_task(id).await.unwrap();
    clock.advance(Duration::from_secs(2 * 3_600));
    for _ in 0..20 {
        Tend.run_once(server.engine.store()).await.unwrap();
        Purge.run_once(server.engine.store()).await.unwrap();
    }
    let told = post(&server, "/v1/tasks", &task, "r-1").await;
    assert_eq!((told.status, told.code()), (409, "CONFLICT"), "{}", told.body);
    assert!(told.body["error"]["message"].as_str().unwrap().contains("Idempotency-Key"), "{}", told.body);
    server.stop().await;
}

/// The identity is the same by either member, and an explanation says what a request would get.
#[tokio::test]
async fn a_policy_that_is_only_a_key_is_the_request_s_key() {
    let server = tasks::server().await;
    let body = |members: Value| {
        let mut body = json!({ "namespace": "orders", "name": "fulfil", "context": { "order": 1 } });
        body.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        body
    };
    let told = server.post("/v1/tasks", &body(json!({ "idempotency_key": "ORD-1" }))).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let told = server.post("/v1/tasks", &body(json!({ "unique": { "key": "ORD-1" } }))).await;
    assert_eq!((told.status, told.code()), (409, "CONFLICT"), "{}", told.body);
    let asked = json!({ "type": "orders.fulfil", "args": [{}], "unique": { "key": "ORD-1" } });
    let told = server.post("/ojs/v1/unique/explain", &asked).await;
    assert_eq!((told.status, told.body["decision"].as_str()), (200, Some("reject")), "{}", told.body);
    let asked = json!({ "type": "orders.fulfil", "args": [{}], "unique": { "key": "k", "on_conflict": "follow_up" } });
    let told = server.post("/ojs/v1/unique/explain", &asked).await;
    assert_eq!((told.status, told.pointer()), (400, "/unique/on_conflict"), "{}", told.body);
    server.stop().await;
}

/// Clients of tasks parse one format of errors.
#[tokio::test]
async fn what_is_wrong_with_a_request_for_tasks_is_told_in_their_words() {
    let server = tasks::server().await;
    let task = json!({ "namespace": "orders", "name": "notify", "context": {} });
    let mut told = vec![post(&server, "/v1/tasks", &task, " ").await];
    for query in ["limit=0", "limit=x", "cursor=x", "limit=1&limit=2"] {
        told.push(server.get(&format!("/v1/tasks?{query}")).await);
    }
    told.push(server.post("/v1/tasks?strict=true", &task).await);
    let id = "019a0000-0000-7000-8000-000000000001";
    for query in ["force=1", "a=1&a=2"] {
        let path = format!("/v1/tasks/{id}?{query}");
        told.push(server.ask(Method::DELETE, &path, None, HeaderMap::new()).await);
    }
    for told in told {
        assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{}", told.body);
    }
    server.stop().await;
}

/// The same strategy for a plain job.
#[tokio::test]
async fn a_plain_job_whose_identity_is_its_callers_asks_for_the_key() {
    let template = json!({ "namespace": "a", "name": "b", "unique": "caller_provided" });
    let config = Config { templates: TemplateSet::new(templates(&[template])), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let told = server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [] })).await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"), "{}", told.body);
    assert_eq!(told.pointer(), "/options/unique_key", "{}", told.body);
    let with_key = json!({ "type": "a.b", "args": [], "options": { "unique_key": "k" } });
    assert_eq!(server.post("/ojs/v1/jobs", &with_key).await.status, 201);
    assert_eq!(server.post("/ojs/v1/jobs", &with_key).await.status, 409);
    server.stop().await;
}
