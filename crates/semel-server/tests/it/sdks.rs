//! What Open Job Spec's own clients send, verbatim, and what they read from the answers. One table per
//! client: its headers, its requests, and the members that its parser requires.

use semel_client::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use crate::harness::{Server, Told};

const OJS: &str = "application/openjobspec+json";

/// One client.
struct Sdk {
    version: &'static str,
    sends_request_id: bool,
}

const JS: Sdk = Sdk { version: "1.0", sends_request_id: true };
const GO: Sdk = Sdk { version: "1.0.0-rc.1", sends_request_id: false };
const RUST: Sdk = Sdk { version: "1.0", sends_request_id: false };
const PYTHON: Sdk = Sdk { version: "1.0", sends_request_id: true };
const RUBY: Sdk = Sdk { version: "1.0", sends_request_id: false };

impl Sdk {
    async fn ask(&self, server: &Server, method: Method, path: &str, body: Option<Value>) -> Told {
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str| {
            headers.insert(HeaderName::from_static(name), HeaderValue::try_from(value).unwrap());
        };
        put("content-type", OJS);
        put("accept", OJS);
        put("ojs-version", self.version);
        if self.sends_request_id {
            put("x-request-id", "0e3f7c39-4d6a-4f6f-9c3c-7d5a51c3d0aa");
        }
        let told = server.ask(method, path, body.map(|body| body.to_string()).as_deref(), headers).await;
        assert_eq!(told.headers["content-type"], OJS, "{path}");
        assert_eq!(told.headers["ojs-version"], "1.0", "{path}");
        told
    }

    async fn post(&self, server: &Server, path: &str, body: Value) -> Told {
        self.ask(server, Method::POST, path, Some(body)).await
    }

    /// Enqueues, fetches and acknowledges as all of them do: without worker or lease in the ack.
    async fn runs(&self, server: &Server, enqueue: Value, fetch: Value, ack: Value) -> Value {
        let told = self.post(server, "/ojs/v1/jobs", enqueue).await;
        assert_eq!(told.status, 201, "{}", told.body);
        let created = told.body["job"].clone();
        let told = self.post(server, "/ojs/v1/workers/fetch", fetch).await;
        assert_eq!(told.status, 200, "{}", told.body);
        let jobs = told.body["jobs"].as_array().unwrap();
        assert_eq!((jobs.len(), &jobs[0]["id"]), (1, &created["id"]), "{}", told.body);
        let mut body = json!({ "job_id": created["id"] });
        body.as_object_mut().unwrap().extend(ack.as_object().unwrap().clone());
        let told = self.post(server, "/ojs/v1/workers/ack", body).await;
        assert_eq!((told.status, &told.body["acknowledged"]), (200, &true.into()), "{}", told.body);
        assert_eq!((&told.body["id"], &told.body["job_id"]), (&created["id"], &created["id"]));
        created
    }
}

/// What the clients' error classes read.
fn assert_duplicate(told: &Told) {
    let error = &told.body["error"];
    assert_eq!((told.status, &error["code"], &error["retryable"]), (409, &"duplicate".into(), &false.into()));
    assert!(error["message"].is_string() && error["details"]["existing_job_id"].is_string(), "{error}");
}

#[tokio::test]
async fn the_js_client_is_understood() {
    let server = Server::in_memory().await;
    let enqueue = json!({
        "type": "email.send", "args": [{ "to": "a@example.com" }], "meta": { "source": "js" },
        "options": {
            "queue": "js", "priority": 5, "timeout_ms": 30_000, "tags": ["x"],
            "retry": { "max_attempts": 3, "backoff_coefficient": 2, "initial_interval": "PT1S",
                       "max_interval": "PT5M", "jitter": true, "non_retryable_errors": ["auth.*"] },
            // In this client `key` is a list of members of args.
            "unique": { "key": ["to"], "period": "PT5M", "on_conflict": "reject", "states": ["available", "active"] },
        },
    });
    let fetch =
        json!({ "queues": ["js"], "count": 1, "worker_id": "worker_js", "visibility_timeout_ms": 30_000 });
    let again = enqueue.clone();
    JS.runs(&server, enqueue, fetch, json!({ "result": "done" })).await;
    assert_eq!(
        JS.post(&server, "/ojs/v1/jobs", again.clone()).await.status,
        201,
        "completed is not in its states"
    );
    assert_duplicate(&JS.post(&server, "/ojs/v1/jobs", again).await);
    let jobs = json!({ "jobs": [{ "type": "a.b", "args": [1] }, { "type": "a.b", "args": [2] }] });
    let told = JS.post(&server, "/ojs/v1/jobs/batch", jobs).await;
    let ids: Vec<&str> =
        told.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!((told.status, ids.len()), (201, 2));
    let path = format!("/ojs/v1/jobs/{}", ids[0]);
    assert_eq!(JS.ask(&server, Method::GET, &path, None).await.body["job"]["id"], ids[0]);
    assert_eq!(JS.ask(&server, Method::DELETE, &path, None).await.body["job"]["state"], "cancelled");
    // Its heartbeat sends a count of jobs, and their ids in a member of its own.
    let beat = json!({
        "worker_id": "worker_js", "state": "running", "active_jobs": 1, "active_job_ids": [ids[1]],
        "hostname": "host", "pid": 1, "queues": ["js"], "concurrency": 10, "labels": [],
    });
    let told = JS.post(&server, "/ojs/v1/workers/heartbeat", beat).await;
    assert_eq!((told.status, &told.body["state"]), (200, &"running".into()), "{}", told.body);
    server.stop().await;
}

#[tokio::test]
async fn the_go_client_is_understood() {
    let server = Server::in_memory().await;
    let enqueue = json!({
        "type": "email.send", "args": [{ "to": "a" }],
        "options": {
            "queue": "go",
            "retry": { "max_attempts": 5, "initial_interval_ms": 1_000, "backoff_coefficient": 2.0,
                       "max_interval_ms": 300_000, "jitter": true },
            "unique": { "key": ["to"], "period_ms": 3_600_000, "on_conflict": "reject" },
        },
    });
    let fetch = json!({ "queues": ["go"], "count": 1, "worker_id": "worker_go" });
    let again = enqueue.clone();
    let created = GO.runs(&server, enqueue, fetch, json!({ "result": { "sent": true } })).await;
    assert_eq!(created["retry"]["max_attempts"], 5);
    GO.post(&server, "/ojs/v1/jobs", again.clone()).await;
    assert_duplicate(&GO.post(&server, "/ojs/v1/jobs", again).await);
    // A period alone means type and args.
    let period =
        |n: u8| json!({ "type": "p.q", "args": [n], "options": { "unique": { "period_ms": 60_000 } } });
    assert_eq!(GO.post(&server, "/ojs/v1/jobs", period(1)).await.status, 201);
    assert_eq!(GO.post(&server, "/ojs/v1/jobs", period(2)).await.status, 201);
    assert_duplicate(&GO.post(&server, "/ojs/v1/jobs", period(2)).await);
    // So does a period with `on_conflict`: its `UniquePolicy` without a key.
    let policy = |n: u8| json!({ "type": "r.s", "args": [n], "options": { "unique": { "period_ms": 60_000, "on_conflict": "ignore" } } });
    let first = GO.post(&server, "/ojs/v1/jobs", policy(1)).await;
    let other = GO.post(&server, "/ojs/v1/jobs", policy(2)).await;
    assert_eq!((first.status, other.status), (201, 201), "{}", other.body);
    let told = GO.post(&server, "/ojs/v1/jobs", policy(2)).await;
    assert_eq!((told.status, &told.body["job"]["id"]), (200, &other.body["job"]["id"]));
    let told =
        GO.post(&server, "/ojs/v1/jobs/batch", json!({ "jobs": [{ "type": "a.b", "args": [] }] })).await;
    assert_eq!(told.body["count"], 1);
    // What its typed parsers require.
    let manifest = GO.ask(&server, Method::GET, "/ojs/manifest", None).await.body;
    assert!(manifest["ojs_version"].is_string() && manifest["extensions"].is_array(), "{manifest}");
    assert!(manifest["capabilities"].as_object().unwrap().values().all(Value::is_boolean), "{manifest}");
    let dead = GO.ask(&server, Method::GET, "/ojs/v1/dead-letter", None).await.body;
    assert!(dead["jobs"].is_array() && dead["pagination"]["total"].is_u64(), "{dead}");
    assert!(["limit", "offset"].iter().all(|name| dead["pagination"][name].is_u64()), "{dead}");
    assert!(dead["pagination"]["has_more"].is_boolean());
    let beat = json!({ "worker_id": "w", "state": "running", "active_jobs": 0, "active_job_ids": [] });
    assert_eq!(GO.post(&server, "/ojs/v1/workers/heartbeat", beat).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn the_rust_client_is_understood() {
    let server = Server::in_memory().await;
    let enqueue = json!({
        "type": "email.send", "args": [{ "to": "a" }],
        "options": {
            "queue": "rust",
            "retry": { "max_attempts": 2, "initial_interval": "PT1S", "on_exhaustion": "discard" },
            "unique": { "keys": ["type", "queue", "args"], "args_keys": ["to"], "period": "PT1H",
                        "states": ["available", "active", "scheduled", "retryable"], "on_conflict": "ignore" },
        },
    });
    let fetch = json!({ "queues": ["rust"], "count": 1, "worker_id": "worker_rust" });
    let again = enqueue.clone();
    let created = RUST.runs(&server, enqueue, fetch, json!({ "result": null })).await;
    // It expects jobs and cancellations without a wrapper.
    let path = format!("/ojs/v1/jobs/{}", created["id"].as_str().unwrap());
    let shown = RUST.ask(&server, Method::GET, &path, None).await.body;
    for name in ["id", "type", "state", "queue", "args", "attempt", "created_at"] {
        assert!(!shown[name].is_null(), "{name} in {shown}");
    }
    let second = RUST.post(&server, "/ojs/v1/jobs", again.clone()).await;
    let third = RUST.post(&server, "/ojs/v1/jobs", again).await;
    assert_eq!((third.status, third.job_id()), (200, second.job_id()), "ignored");
    let told = RUST.ask(&server, Method::DELETE, &format!("/ojs/v1/jobs/{}", second.job_id()), None).await;
    assert_eq!(told.body["state"], "cancelled");
    // To parse a failure it needs a type and a message.
    RUST.post(&server, "/ojs/v1/jobs", json!({ "type": "f.f", "args": [], "options": { "queue": "f" } }))
        .await;
    let job = server.take("f", "w").await;
    let error = json!({ "code": "handler_error", "message": "no", "retryable": false });
    let told =
        RUST.post(&server, "/ojs/v1/workers/nack", json!({ "job_id": job["id"], "error": error })).await;
    assert_eq!(told.body["state"], "discarded", "{}", told.body);
    assert!(told.body["job"]["error"]["type"].is_string() || told.body["job"]["error"].is_null());
    let beat = json!({ "worker_id": "w", "active_jobs": [job["id"]] });
    assert_eq!(RUST.post(&server, "/ojs/v1/workers/heartbeat", beat).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn the_python_client_is_understood() {
    let server = Server::in_memory().await;
    let enqueue = json!({
        "type": "email.send", "args": ["a@example.com", 1], "meta": {},
        "options": {
            "queue": "python", "retry": { "max_attempts": 3, "initial_interval": "PT1S" },
            // In this client `key` names dimensions, and these states are always sent.
            "unique": { "key": ["type", "queue", "args"], "states": ["available", "active", "scheduled"],
                        "on_conflict": "reject" },
        },
    });
    let fetch = json!({ "queues": ["python"], "count": 1, "worker_id": "worker_python" });
    let again = enqueue.clone();
    PYTHON.runs(&server, enqueue, fetch, json!({ "result": [1, 2] })).await;
    PYTHON.post(&server, "/ojs/v1/jobs", again.clone()).await;
    assert_duplicate(&PYTHON.post(&server, "/ojs/v1/jobs", again).await);
    let beat = json!({ "worker_id": "w", "state": "running", "active_jobs": [] });
    let told = PYTHON.post(&server, "/ojs/v1/workers/heartbeat", beat).await;
    assert!(told.status == 200 && told.body["jobs_extended"].is_array(), "{}", told.body);
    for verb in ["pause", "resume"] {
        let told = PYTHON.post(&server, &format!("/ojs/v1/queues/python/{verb}"), json!({})).await;
        assert_eq!(told.status, 200);
    }
    server.stop().await;
}

/// It reads the members of an answer without a wrapper.
#[tokio::test]
async fn the_ruby_client_is_understood() {
    let server = Server::in_memory().await;
    let enqueue = json!({ "type": "email.send", "args": [1], "queue": "ruby", "unique": { "keys": ["type", "args"], "on_conflict": "ignore" } });
    let told = RUBY.post(&server, "/ojs/v1/jobs", enqueue.clone()).await;
    let id = told.body["job"]["id"].clone();
    for (told, status) in [(told, 201), (RUBY.post(&server, "/ojs/v1/jobs", enqueue).await, 200)] {
        let read = ["id", "type", "queue", "state"].map(|member| &told.body[member]);
        assert_eq!(
            (told.status, read),
            (status, [&id, &json!("email.send"), &json!("ruby"), &json!("available")])
        );
    }
    RUBY.post(&server, "/ojs/v1/jobs", json!({ "type": "a.b", "args": [2], "queue": "ruby" })).await;
    let fetch = json!({ "queues": ["ruby"], "batch_size": 2, "worker_id": "ruby_1" });
    let told = RUBY.post(&server, "/ojs/v1/workers/fetch", fetch).await;
    assert_eq!(told.body["jobs"].as_array().unwrap().len(), 2, "{}", told.body);
    let told =
        RUBY.post(&server, "/ojs/v1/workers/fetch", json!({ "queues": ["ruby"], "batch_size": 0 })).await;
    assert_eq!((told.status, &told.body["error"]["details"]["pointer"]), (400, &"/batch_size".into()));
    RUBY.post(&server, "/ojs/v1/queues/ruby/pause", json!({})).await;
    let stats = RUBY.ask(&server, Method::GET, "/ojs/v1/queues/ruby/stats", None).await.body;
    let read = ["name", "paused", "depth", "active", "completed"].map(|member| stats[member].clone());
    assert_eq!(read, [json!("ruby"), json!(true), json!(0), json!(2), json!(0)], "{stats}");
    server.stop().await;
}

/// Its parser composes its own message from these.
#[tokio::test]
async fn what_is_not_there_is_named() {
    let server = Server::in_memory().await;
    let id = "019a0000-0000-7000-8000-000000000001";
    for (method, path, body, kind, named) in [
        (Method::GET, format!("/ojs/v1/jobs/{id}"), None, "job", id),
        (Method::GET, "/ojs/v1/jobs/7".to_owned(), None, "job", "7"),
        (Method::DELETE, format!("/ojs/v1/jobs/{id}"), None, "job", id),
        (Method::POST, format!("/ojs/v1/jobs/{id}/activate"), None, "job", id),
        (Method::POST, "/ojs/v1/workers/ack".to_owned(), Some(json!({ "job_id": id })), "job", id),
        (Method::POST, format!("/ojs/v1/dead-letter/{id}/retry"), Some(json!({})), "dead_letter", id),
        (Method::GET, "/ojs/v1/cron/daily".to_owned(), None, "cron", "daily"),
        (Method::GET, "/ojs/v1/workflows/x".to_owned(), None, "workflow", "x"),
        (Method::GET, "/ojs/v1/webhooks/subscriptions/x".to_owned(), None, "webhook_subscription", "x"),
    ] {
        let told = JS.ask(&server, method, &path, body).await;
        let details = &told.body["error"]["details"];
        let read = (&details["resource_type"], &details["resource_id"]);
        assert_eq!((told.status, read), (404, (&kind.into(), &named.into())), "{path}: {}", told.body);
    }
    server.stop().await;
}

/// A client that sends the schedule as `cron` expects it there, as a string.
#[tokio::test]
async fn a_cron_is_answered_under_the_names_it_was_registered_by() {
    let server = Server::in_memory().await;
    let cron = json!({ "name": "daily", "cron": "0 9 * * *", "type": "a.b", "args": [], "meta": { "m": 1 } });
    let told = RUST.post(&server, "/ojs/v1/cron", cron).await.body;
    assert_eq!(
        ["cron", "expression", "status"].map(|member| &told[member]),
        ["0 9 * * *", "0 9 * * *", "active"]
    );
    assert_eq!((&told["cron_job"]["name"], &told["meta"]), (&"daily".into(), &json!({ "m": 1 })), "{told}");
    let cron =
        json!({ "name": "weekly", "expression": "0 9 * * 1", "type": "a.b", "args": [], "enabled": false });
    let told = JS.post(&server, "/ojs/v1/cron", cron).await.body;
    assert_eq!(
        (&told["cron"]["expression"], &told["status"]),
        (&"0 9 * * 1".into(), &"paused".into()),
        "{told}"
    );
    // An error in the schedule names the member that was sent.
    for (member, schedule) in [("cron", "bad"), ("expression", "61 * * * *")] {
        let told =
            RUST.post(&server, "/ojs/v1/cron", json!({ "name": "x", member: schedule, "type": "a.b" })).await;
        let error = &told.body["error"];
        assert_eq!(
            (told.status, &error["details"]["pointer"]),
            (400, &format!("/{member}").into()),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(&format!("/{member} ")), "{error}");
    }
    server.stop().await;
}

/// Messages about members of args in `key` do not use a name that the client did not send.
#[tokio::test]
async fn a_list_of_members_is_spoken_of_as_it_was_sent() {
    let server = Server::in_memory().await;
    let job = json!({ "type": "a.b", "args": [{ "user_id": 1 }], "options": { "unique": { "key": ["queue", "user_id"] } } });
    let told = JS.post(&server, "/ojs/v1/jobs", job).await;
    let message = told.body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("unique.key names it") && message.contains("only if every name in the list"),
        "{message}"
    );
    assert!(!message.contains("args_keys"), "{message}");
    server.stop().await;
}
