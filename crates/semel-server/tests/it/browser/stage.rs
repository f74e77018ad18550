//! A server with an example of everything, made through the API.

use semel_server::Config;
use semel_server::webhooks::Rules;
use semel_store::memory::Memory;
use semel_testkit::chromium::Browser;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::harness::{Server, job};
use crate::webhooks::{Got, subscriber};

/// The server, and the ids of what is on it.
pub(crate) struct Stage {
    pub(crate) server: Server,
    /// A job that holds a key and has absorbed duplicates.
    pub(crate) held: String,
    pub(crate) key: String,
    /// A job in a queue of its own, run by a worker.
    pub(crate) active: String,
    pub(crate) pending: String,
    pub(crate) scheduled: String,
    pub(crate) completed: String,
    /// Dead letters, oldest first.
    pub(crate) dead: Vec<String>,
    pub(crate) workflow: String,
    pub(crate) hook: String,
    /// What the webhook subscriber was sent.
    pub(crate) told: UnboundedReceiver<Got>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// A request whose order number is its key.
pub(crate) fn capture(order: u32) -> Value {
    json!({
        "type": "payment.capture", "args": [{ "order": order, "amount": 1_299 }], "meta": { "shop": "north" },
        "options": { "queue": "payments", "unique": { "keys": ["args"], "args_keys": ["order"], "on_conflict": "ignore" } },
    })
}

impl Stage {
    pub(crate) async fn set() -> Self {
        let config =
            Config { allow_reset: true, webhooks: Rules { allow_private: true }, ..Config::default() };
        let server = Server::on_store(Arc::new(Memory::default()), config).await;
        let (held, key) = Self::keys(&server).await;
        let completed = Self::finished(&server).await;
        let dead = Self::dead(&server).await;
        let [active, pending, scheduled] = Self::live(&server).await;
        let workflow = Self::flows(&server).await;
        let (url, told) = subscriber(&[]).await;
        let wish = json!({ "url": url, "events": ["job.completed", "job.discarded"], "secret": "whk_stage_secret_01" });
        let hook = server.post("/ojs/v1/webhooks/subscriptions", &wish).await;
        assert_eq!(hook.status, 201, "{}", hook.body);
        let hook = text(&hook.body["subscription"]["id"]);
        Self { server, held, key, active, pending, scheduled, completed, dead, workflow, hook, told }
    }

    /// Opens a browser on this server.
    pub(crate) fn browser(&self) -> Browser {
        Browser::start(&format!("http://{}", self.server.address))
    }

    /// Creates key holders and duplicates of every outcome.
    async fn keys(server: &Server) -> (String, String) {
        let held = server.create(&capture(7)).await;
        for _ in 0..12 {
            assert_eq!(server.post("/ojs/v1/jobs", &capture(7)).await.status, 200);
        }
        for order in 100..106 {
            server.create(&capture(order)).await;
        }
        let strict = json!({
            "type": "invoice.send", "args": [{ "invoice": 1 }], "options": {
                "queue": "mail",
                "unique": { "key": "invoice-1", "on_conflict": "reject", "on_mismatch": "reject", "period": "PT1H" },
            },
        });
        server.create(&strict).await;
        assert_eq!(server.post("/ojs/v1/jobs", &strict).await.status, 409);
        let mut other = strict.clone();
        other["args"] = json!([{ "invoice": 2 }]);
        assert_eq!(server.post("/ojs/v1/jobs", &other).await.status, 422);
        let latest = json!({
            "type": "report.build", "args": [1], "options": {
                "queue": "reports", "unique": { "keys": ["type"], "on_conflict": "replace" },
            },
        });
        server.create(&latest).await;
        server.create(&latest).await;
        let id = held.job_id().to_owned();
        (id, text(&held.body["job"]["unique_key"]))
    }

    /// Creates completed and cancelled jobs.
    async fn finished(server: &Server) -> String {
        server.create(&job(&json!({ "to": "a@example.org" }), &json!({ "queue": "done" }))).await;
        let taken = server.take("done", "worker-1").await;
        let ack = json!({ "job_id": taken["id"], "lease": taken["lease"], "result": { "sent": true } });
        assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
        let cancelled =
            server.create(&job(&json!({ "to": "b@example.org" }), &json!({ "queue": "done" }))).await;
        assert_eq!(server.delete(&format!("/ojs/v1/jobs/{}", cancelled.job_id())).await.status, 200);
        text(&taken["id"])
    }

    /// Creates dead letters.
    async fn dead(server: &Server) -> Vec<String> {
        let mut dead = Vec::new();
        for number in 0..4 {
            let retry = json!({ "max_attempts": 1, "on_exhaustion": "dead_letter" });
            let made = job(&json!({ "n": number }), &json!({ "queue": "broken", "retry": retry }));
            dead.push(server.create(&made).await.job_id().to_owned());
            Self::fail(server, "broken").await;
        }
        dead
    }

    async fn fail(server: &Server, queue: &str) {
        let taken = server.take(queue, "worker-1").await;
        let error = json!({ "code": "handler_error", "message": "the printer is on fire" });
        let nack = json!({ "job_id": taken["id"], "lease": taken["lease"], "error": error });
        let told = server.post("/ojs/v1/workers/nack", &nack).await;
        assert_eq!(told.status, 200, "{}", told.body);
    }

    /// Creates one job in each live state.
    async fn live(server: &Server) -> [String; 3] {
        let options = |queue: &str| json!({ "queue": queue });
        let active = server.create(&job(&json!({ "file": "a.mp4" }), &options("media"))).await;
        // A lease longer than any test.
        let wish =
            json!({ "queues": ["media"], "worker_id": "worker-2", "visibility_timeout_ms": 3_600_000 });
        let taken = server.post("/ojs/v1/workers/fetch", &wish).await;
        assert_eq!(taken.status, 200, "{}", taken.body);
        let beat = json!({ "worker_id": "worker-2", "active_jobs": [active.job_id()] });
        assert_eq!(server.post("/ojs/v1/workers/heartbeat", &beat).await.status, 200);
        let half = json!({ "job_id": active.job_id(), "progress": 0.5 });
        assert_eq!(server.post("/ojs/v1/workers/progress", &half).await.status, 200);
        let retry = json!({ "max_attempts": 5, "initial_interval": "PT1H" });
        server.create(&job(&json!({ "n": 9 }), &json!({ "queue": "again", "retry": retry }))).await;
        Self::fail(server, "again").await;
        let late = json!({ "queue": "mail", "delay_until": "2099-01-01T00:00:00Z" });
        let scheduled = server.create(&job(&json!({ "n": 10 }), &late)).await;
        let pending =
            server.create(&job(&json!({ "n": 11 }), &json!({ "queue": "mail", "pending": true }))).await;
        [active, pending, scheduled].map(|made| made.job_id().to_owned())
    }

    /// Creates a running workflow and a cron.
    async fn flows(server: &Server) -> String {
        let step = |n: u32| json!({ "type": "order.step", "args": [n], "options": { "queue": "flow" } });
        let chain = json!({ "type": "chain", "name": "order", "steps": [step(1), step(2), step(3)] });
        let flow = server.post("/ojs/v1/workflows", &chain).await;
        assert_eq!(flow.status, 201, "{}", flow.body);
        let first = server.take("flow", "worker-1").await;
        let ack = json!({ "job_id": first["id"], "lease": first["lease"] });
        assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
        let template = json!({ "type": "night.report", "args": [], "options": { "queue": "night" } });
        let cron = json!({ "name": "nightly", "expression": "0 3 1 1 *", "job_template": template });
        assert_eq!(server.post("/ojs/v1/cron", &cron).await.status, 201);
        assert_eq!(server.post("/ojs/v1/cron/nightly/trigger", &json!({})).await.status, 200);
        text(&flow.body["workflow"]["id"])
    }
}
