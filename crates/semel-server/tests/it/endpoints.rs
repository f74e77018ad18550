//! The endpoints of the server's OpenAPI document, and a request for each. Tests that cover all endpoints
//! build on this: a new endpoint is included at once, or the tests fail and say what they need to know about
//! it.

use semel_client::Method;
use serde_json::{Value, json};

/// One endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// Path, with parameters in braces.
    pub(crate) path: String,
    pub(crate) name: String,
    /// Names of the query parameters.
    pub(crate) query: Vec<String>,
    pub(crate) has_body: bool,
    /// Whether the answer is an endless stream.
    pub(crate) is_stream: bool,
    /// Whether it concerns the whole server.
    pub(crate) is_global: bool,
}

/// All endpoints, in the document's order.
pub(crate) fn of(document: &Value) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let query = parameters.iter().filter(|parameter| parameter["in"] == "query");
            endpoints.push(Endpoint {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                name: operation["operationId"].as_str().unwrap().to_owned(),
                query: query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect(),
                has_body: operation.get("requestBody").is_some(),
                is_stream: operation["responses"]["200"]["content"].get("text/event-stream").is_some(),
                is_global: operation["x-semel-whole-server"] == true,
            });
        }
    }
    assert!(endpoints.len() > 80, "{}", endpoints.len());
    endpoints
}

/// Values for path parameters and members of bodies.
#[derive(Clone, Debug)]
pub(crate) struct Things {
    pub(crate) job: String,
    pub(crate) lease: Option<String>,
    pub(crate) dead_letter: String,
    pub(crate) queue: String,
    pub(crate) key: String,
    pub(crate) cron: String,
    pub(crate) workflow: String,
    pub(crate) webhook: String,
    pub(crate) worker: String,
    pub(crate) limit: String,
}

impl Things {
    /// Ids and names that do not exist.
    pub(crate) fn nobodys() -> Self {
        let id = || "01961111-aaaa-7bbb-8ccc-dddddddddddd".to_owned();
        Self {
            job: id(),
            lease: None,
            dead_letter: id(),
            queue: "nobodys".to_owned(),
            key: "ab".repeat(32),
            cron: "nobodys".to_owned(),
            workflow: id(),
            webhook: id(),
            worker: "nobodys".to_owned(),
            limit: "nobodys".to_owned(),
        }
    }

    /// All of the values.
    pub(crate) fn all(&self) -> [&str; 9] {
        let Self { job, lease: _, dead_letter, queue, key, cron, workflow, webhook, worker, limit } = self;
        [job, dead_letter, queue, key, cron, workflow, webhook, worker, limit]
    }

    /// The endpoint's path with these values.
    pub(crate) fn path(&self, endpoint: &Endpoint) -> String {
        let stands_for = [
            ("/jobs/{id}", "{id}", &self.job),
            ("/dead-letter/{id}", "{id}", &self.dead_letter),
            ("/cron/{name}", "{name}", &self.cron),
            ("/crons/{name}", "{name}", &self.cron),
            ("/workflows/{id}", "{id}", &self.workflow),
            ("/tasks/{id}", "{id}", &self.workflow),
            ("/webhooks/subscriptions/{id}", "{id}", &self.webhook),
            ("/workers/{id}", "{id}", &self.worker),
            ("/queues/{name}", "{name}", &self.queue),
            ("/rate-limits/{key}", "{key}", &self.limit),
            ("/unique-jobs/{key}", "{key}", &self.key),
            ("/tenants/{id}", "{id}", &self.worker),
        ];
        let mut path = endpoint.path.clone();
        for (part, parameter, value) in stands_for {
            if path.contains(part) {
                path = path.replace(parameter, value);
            }
        }
        assert!(!path.contains('{'), "say here what the parameters of {path} stand for");
        path
    }

    /// A body that the endpoint accepts, with these values; `None` if it takes none.
    pub(crate) fn body(&self, endpoint: &Endpoint) -> Option<Value> {
        if !endpoint.has_body {
            return None;
        }
        let Self { job, lease, queue, .. } = self;
        let lease = lease.as_ref();
        let offered =
            json!({ "type": "a.b", "args": [1], "options": { "queue": queue, "scheduled_at": "+PT1H" } });
        let template =
            json!({ "type": "a.b", "args": [], "options": { "queue": queue, "scheduled_at": "+PT1H" } });
        let filter = json!({ "confirm": true, "filter": { "queue": queue } });
        let error = json!({ "code": "boom", "message": "x" });
        Some(match endpoint.name.as_str() {
            "enqueue" | "explain" => offered,
            "enqueueBatch" | "enqueueBulk" => {
                json!({ "jobs": [offered, { "type": "c.d", "args": [], "options": { "queue": queue, "scheduled_at": "+PT1H" } }] })
            }
            "cancelJob" | "cancelJobByPost" | "purgeQueue" => json!({}),
            "adminPurgeQueue" | "emptyQueue" => json!({ "confirm": true }),
            "ackJob" => json!({ "lease": lease }),
            "nackJob" => json!({ "lease": lease, "error": error }),
            "reportProgress" => json!({ "lease": lease, "progress": 0.5 }),
            "ack" => json!({ "job_id": job, "lease": lease }),
            "nack" => json!({ "job_id": job, "lease": lease, "error": error }),
            "reportPercent" => json!({ "job_id": job, "lease": lease, "progress": 50 }),
            "fetch" => json!({ "queues": [queue], "worker_id": "w" }),
            "heartbeat" | "beat" => json!({ "worker_id": self.worker, "active_jobs": [job] }),
            "releaseKey" => json!({ "reason": "a test" }),
            "createWebhook" => {
                json!({ "url": "https://example.com/x", "events": ["job.failed"], "secret": "a secret of many letters" })
            }
            "changeWebhook" | "putWebhook" => json!({ "events": ["job.completed"] }),
            "bulkCancel" | "bulkRetry" | "bulkDelete" | "retryDeadLetters" => filter,
            "configureQueue" => json!({ "backpressure": { "max_depth": 1_000 } }),
            "directWorker" => json!({ "directive": "quiet" }),
            "registerCron" => {
                json!({ "name": self.cron, "expression": "0 3 1 1 *", "job_template": template })
            }
            "changeCron" | "changeCronToo" => json!({ "expression": "0 4 1 1 *" }),
            "createWorkflow" => {
                json!({ "type": "chain", "steps": [template, { "type": "c.d", "args": [] }] })
            }
            "createTask" => json!({ "namespace": "payments", "name": "process", "context": { "n": 1 } }),
            name => panic!("say here what body {name} takes"),
        })
    }
}
