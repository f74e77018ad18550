//! Promises of the systems that people move from, where no other test covers them: see
//! docs/guide/moving-from.md.

use std::sync::Arc;

use semel_client::Method;
use semel_ojs::{Template, Templates};
use semel_server::Config;
use semel_server::auth::{Role, Token, Tokens, digest};
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};
use crate::tasks;

fn strict(context: &Value) -> Value {
    json!({ "namespace": "payments", "name": "process", "context": context })
}

async fn task(server: &Server, body: &Value) -> String {
    let told = server.post("/v1/tasks", body).await;
    assert_eq!(told.status, 201, "{}", told.body);
    told.body["task_uuid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_same_key_of_another_type_is_another_job() {
    let server = Server::in_memory().await;
    let job = |job_type: &str, options: Value| json!({ "type": job_type, "args": [], "options": options });
    let own = json!({ "unique_key": "evt_1" });
    let first = server.create(&job("a.b", own.clone())).await;
    server.create(&job("a.c", own.clone())).await;
    let again = server.post("/ojs/v1/jobs", &job("a.b", own)).await;
    assert_eq!((again.status, again.job_id()), (200, first.job_id()));
    let global = json!({ "unique": { "key": "evt_1", "scope": "global" } });
    server.create(&job("a.b", global.clone())).await;
    assert_eq!(server.post("/ojs/v1/jobs", &job("a.c", global)).await.status, 409);
    server.stop().await;
}

/// Waiting, running, completed, cancelled: the same body, without an id.
#[tokio::test]
async fn a_duplicate_of_a_task_is_told_the_same_whatever_became_of_the_other() {
    let server = tasks::server().await;
    let duplicate = async |n: u32| server.post("/v1/tasks", &strict(&json!({ "n": n }))).await;
    let (ended, cancelled) = (strict(&json!({ "n": 1 })), strict(&json!({ "n": 2 })));
    let id = task(&server, &ended).await;
    let live = duplicate(1).await;
    for queue in ["steps", "default"] {
        let job = server.take(queue, "w").await;
        let ack = json!({ "job_id": job["id"], "lease": job["lease"] });
        assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    }
    assert_eq!(server.get(&format!("/v1/tasks/{id}")).await.body["status"], "completed");
    let completed = duplicate(1).await;
    let id = task(&server, &cancelled).await;
    assert_eq!(server.delete(&format!("/v1/tasks/{id}")).await.status, 200);
    let cancelled = duplicate(2).await;
    for told in [&live, &completed, &cancelled] {
        assert_eq!((told.status, &told.body), (409, &live.body));
        assert_eq!(told.headers.len(), live.headers.len(), "{:?}", told.headers);
    }
    assert_eq!(live.body["error"].as_object().unwrap().len(), 2, "{}", live.body);
    server.stop().await;
}

/// Whatever its template says now.
#[tokio::test]
async fn a_task_keeps_the_identity_that_held_when_it_was_decided() {
    let set = tasks::templates();
    let config = Config { templates: set.clone(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let body = strict(&json!({ "n": 1 }));
    let id = task(&server, &body).await;
    let mut templates = Templates::default();
    let steps = json!([{ "name": "check", "handler": "payment.check" }]);
    let text = json!({ "namespace": "payments", "name": "process", "version": "1.0.0",
        "identity_strategy": "always_unique", "steps": steps });
    templates.add(Template::read(&text.to_string()).unwrap()).unwrap();
    set.replace(templates);
    let shown = server.get(&format!("/v1/tasks/{id}")).await.body;
    assert_eq!(shown["unique"]["keys"], json!(["type", "args", "version"]), "{shown}");
    assert_eq!(shown["unique"]["states"].as_array().unwrap().len(), 8);
    // A request that says `strict` itself conflicts with it; one that follows the new template conflicts with
    // nothing.
    let mut own = body.clone();
    own["unique"] = "strict".into();
    assert_eq!(server.post("/v1/tasks", &own).await.status, 409);
    task(&server, &body).await;
    task(&server, &body).await;
    server.stop().await;
}

#[tokio::test]
async fn a_context_is_an_object_within_bounds() {
    let server = tasks::server().await;
    let nested = |levels: usize| {
        let context = format!("{}{}", "{\"a\":".repeat(levels), format_args!("1{}", "}".repeat(levels)));
        format!(r#"{{"namespace":"payments","name":"process","context":{context}}}"#)
    };
    // The surrounding array is a level of its own.
    let mut deepest = 0;
    for levels in [62, 63, 64, 65] {
        let told = server.post_text("/v1/tasks", &nested(levels)).await;
        match told.status {
            201 => deepest = levels,
            _ => assert_eq!((told.status, told.code()), (400, "BAD_REQUEST"), "{levels}: {}", told.body),
        }
    }
    assert_eq!(deepest, 63, "64 levels with the array");
    let long = strict(&json!({ "a": "x".repeat(1024 * 1024) }));
    let told = server.post("/v1/tasks", &long).await;
    assert!([400, 413].contains(&told.status), "{}: {}", told.status, told.body);
    for context in [json!([]), json!("text"), json!(1)] {
        assert_eq!(server.post("/v1/tasks", &strict(&context)).await.status, 400, "{context}");
    }
    server.stop().await;
}

/// Its outside calls may carry the id: it is the same over retries, and differs for every other step and
/// task.
#[tokio::test]
async fn a_step_has_one_id_over_its_retries() {
    let set = tasks::templates();
    let mut templates = Templates::clone(&set.get());
    let retry = json!({ "max_attempts": 3, "initial_interval": "PT0.01S", "jitter": false });
    let steps = json!([{ "name": "check", "handler": "payment.check", "queue": "steps", "retry": retry }]);
    let text = json!({ "namespace": "payments", "name": "retried", "steps": steps });
    templates.add(Template::read(&text.to_string()).unwrap()).unwrap();
    set.replace(templates);
    let config = Config { templates: set, ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let id = task(&server, &json!({ "namespace": "payments", "name": "retried", "context": {} })).await;
    let mut attempts = Vec::new();
    for _ in 0..3 {
        let wait = json!({ "queues": ["steps"], "worker_id": "w", "wait_ms": 30_000 });
        let job = server.post("/ojs/v1/workers/fetch", &wait).await.body["jobs"][0].clone();
        let nack =
            json!({ "job_id": job["id"], "lease": job["lease"], "error": { "code": "x", "message": "m" } });
        assert_eq!(server.post("/ojs/v1/workers/nack", &nack).await.status, 200);
        attempts.push(job);
    }
    let shown = server.get(&format!("/v1/tasks/{id}")).await.body;
    for (number, job) in attempts.iter().enumerate() {
        assert_eq!((&job["id"], &job["attempt"]), (&shown["steps"][0]["step_uuid"], &(number + 1).into()));
        let again = attempts[..number].iter().any(|other| other["lease"] == job["lease"]);
        assert!(!again, "a lease is one attempt's: {job}");
    }
    server.stop().await;
}

/// A context may be confidential: a caller that may only create tasks neither sees those of others nor learns
/// of them.
#[tokio::test]
async fn a_context_is_shown_to_who_may_inspect() {
    let token = |id: &str, roles: &[Role]| Token::new(id, digest(id), roles.to_vec());
    let blind = Token { inspect: false, ..token("blind", &[Role::Producer]) };
    let tokens =
        Tokens::only(vec![token("maker", &[Role::Producer]), blind, token("reader", &[Role::Worker])]);
    let config = Config { tokens, templates: tasks::templates(), ..Config::default() };
    let server = Server::on_store(Arc::new(Memory::default()), config).await;
    let ask = async |token: &str, method: Method, path: &str, body: Option<&Value>| -> Told {
        let headers = header("authorization", &format!("Bearer {token}"));
        server.ask(method, path, body.map(Value::to_string).as_deref(), headers).await
    };
    let secret = strict(&json!({ "card": "4111" }));
    let told = ask("maker", Method::POST, "/v1/tasks", Some(&secret)).await;
    let path = format!("/v1/tasks/{}", told.body["task_uuid"].as_str().unwrap());
    for path in ["/v1/tasks", &*path] {
        assert_eq!(ask("blind", Method::GET, path, None).await.status, 403, "{path}");
        let told = ask("reader", Method::GET, path, None).await;
        assert_eq!(told.status, 200, "{path}: {}", told.body);
        assert!(told.body.to_string().contains("4111"), "{}", told.body);
    }
    assert_eq!(ask("reader", Method::POST, "/v1/tasks", Some(&secret)).await.status, 403);
    assert_eq!(ask("blind", Method::POST, "/v1/tasks", Some(&secret)).await.status, 409);
    server.stop().await;
}

#[tokio::test]
async fn duplicates_are_counted_by_type_queue_and_outcome() {
    let server = Server::in_memory().await;
    let job = |n: u32, conflict: &str| {
        let unique = json!({ "keys": ["args"], "on_conflict": conflict });
        json!({ "type": "a.b", "args": [n], "options": { "queue": "mail", "unique": unique } })
    };
    for (conflict, status) in [("reject", 201), ("reject", 409), ("ignore", 200), ("ignore", 200)] {
        assert_eq!(server.post("/ojs/v1/jobs", &job(1, conflict)).await.status, status);
    }
    let text = server.get_text("/metrics").await;
    for (outcome, count) in [("created", 1), ("rejected", 1), ("existing", 2)] {
        let line =
            format!("semel_outcomes_total{{queue=\"mail\",type=\"a.b\",outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    server.stop().await;
}

/// A flag of another system has no effect here, and is kept for whoever reads the job.
#[tokio::test]
async fn what_nobody_knows_of_is_kept_and_shown() {
    let server = Server::in_memory().await;
    let body =
        json!({ "type": "a.b", "args": [], "idempotent": true, "options": { "tags": ["idempotent"] } });
    let id = server.create(&body).await.job_id().to_owned();
    let shown = server.get(&format!("/ojs/v1/jobs/{id}")).await.body;
    assert_eq!((&shown["job"]["idempotent"], &shown["job"]["tags"]), (&true.into(), &json!(["idempotent"])));
    assert_eq!(shown["job"]["unique"], Value::Null);
    server.create(&body).await;
    server.stop().await;
}

/// A key that the caller computed is ignored.
#[tokio::test]
async fn a_key_is_computed_by_who_decides() {
    let server = Server::in_memory().await;
    let forged = "ab".repeat(32);
    let body = |n: u32| json!({ "type": "a.b", "args": [n], "unique_key": forged, "options": { "unique": { "keys": ["args"] } } });
    let first = server.create(&body(1)).await;
    let second = server.create(&body(2)).await;
    let key = |told: &Told| told.body["job"]["unique_key"].as_str().unwrap().to_owned();
    assert!(key(&first) != forged && key(&first) != key(&second), "{}", first.body);
    let explained = server.post("/ojs/v1/unique/explain", &body(1)).await.body;
    assert_eq!(explained["key"], key(&first).as_str(), "{explained}");
    server.stop().await;
}

/// Keys are shown in part, at most twenty of them, and none of an undisclosed holder.
#[tokio::test]
async fn the_hottest_keys_and_what_is_held_are_measured() {
    let server = Server::in_memory().await;
    let job = |n: u32, disclose: &str| {
        let unique = json!({ "keys": ["args"], "disclose": disclose });
        json!({ "type": "a.b", "args": [n], "options": { "unique": unique } })
    };
    let mut keys = Vec::new();
    for n in 0..25 {
        let told = server.create(&job(n, "always")).await;
        keys.push(told.body["job"]["unique_key"].as_str().unwrap()[..8].to_owned());
        // Later keys absorb more duplicates.
        for _ in 0..=n {
            assert_eq!(server.post("/ojs/v1/jobs", &job(n, "always")).await.status, 409);
        }
    }
    server.create(&job(100, "never")).await;
    for _ in 0..50 {
        assert_eq!(server.post("/ojs/v1/jobs", &job(100, "never")).await.status, 409);
    }
    server.create(&json!({ "type": "a.c", "args": [] })).await;
    // A job that has run and was offered twice.
    let options = json!({ "queue": "runs", "unique": { "keys": ["args"] } });
    let ran = json!({ "type": "a.d", "args": [], "options": options });
    let id = server.create(&ran).await.job_id().to_owned();
    assert_eq!(server.post("/ojs/v1/jobs", &ran).await.status, 409);
    let taken = server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["runs"] })).await;
    assert_eq!(taken.body["jobs"][0]["id"], id.as_str());
    assert_eq!(server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await.status, 200);
    let text = server.get_text("/metrics").await;
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("{name} is not in {text}")).parse::<f64>().unwrap()
    };
    assert_eq!(line("semel_keys_held"), 26.0);
    assert_eq!(line("semel_keys_held_whole"), 1.0);
    assert!(line("semel_key_oldest_seconds") > 0.0);
    let hot =
        |at: usize| format!("semel_key_duplicates{{queue=\"default\",type=\"a.b\",key=\"{}\"}}", keys[at]);
    assert_eq!(line(&hot(24)), 25.0);
    assert_eq!(line(&hot(5)), 6.0);
    assert!(!text.contains(&hot(4)), "the twenty hottest");
    assert_eq!(text.matches("semel_key_duplicates{").count(), 20);
    // 375 of 401 requests, and 0 of 1.
    assert_eq!(line("semel_suppressed_ratio{type=\"a.b\"}"), 0.9352);
    assert_eq!(line("semel_suppressed_ratio{type=\"a.c\"}"), 0.0);
    // 1 of 2: the end of its run is not a request.
    assert_eq!(line("semel_suppressed_ratio{type=\"a.d\"}"), 0.5);
    server.stop().await;
}
