//! Every error of the catalogue, as a caller meets it. A new error code does not compile until it has an arm
//! here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_client::{HeaderMap, Method};
use semel_ojs::problem::CATALOGUE;
use semel_ojs::{Code, Template, Templates};
use semel_server::auth::Tokens;
use semel_server::{Config, TemplateSet};
use semel_store::StoreError;
use semel_store::backend::{Applied, Batch, BoxFuture};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, Told, header, job};

const UNKNOWN: &str = "/ojs/v1/jobs/01961111-aaaa-7bbb-8ccc-dddddddddddd";

/// A store whose commits fail or never end.
struct Broken {
    inner: Memory,
    commit: Option<StoreError>,
}

impl Layer for Broken {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, _: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        match self.commit.clone() {
            Some(error) => Box::pin(std::future::ready(Err(error))),
            None => Box::pin(std::future::pending()),
        }
    }
}

async fn on_a_broken_store(commit: Option<StoreError>) -> Told {
    let store = Broken { inner: Memory::default(), commit };
    let config = Config { request_timeout: Duration::from_millis(100), ..Config::default() };
    let server = Server::on_store(Arc::new(store), config).await;
    // Do not stop the server: its store may never answer.
    server.post("/ojs/v1/jobs", &plain()).await
}

fn plain() -> Value {
    json!({ "type": "a.b", "args": [] })
}

async fn with_a_token(role: &str) -> Server {
    let tokens = Tokens::new(["admin-token"]);
    assert!(!role.is_empty());
    Server::with(Config { tokens, ..Config::default() }).await
}

/// Provokes a refusal with this code. `Err` names the test elsewhere in the workspace that covers it.
async fn meet(code: Code) -> Result<Told, &'static str> {
    let server = Server::in_memory().await;
    let offer = async |options: Value| server.post("/ojs/v1/jobs", &job(&json!({ "n": 1 }), &options)).await;
    Ok(match code {
        Code::InvalidPayload => server.post_text("/ojs/v1/jobs", "{").await,
        Code::SchemaMismatch => {
            let template = r#"{"namespace":"a","name":"b","schema":{"maxItems":0}}"#;
            let mut templates = Templates::default();
            templates.add(Template::read(template).unwrap()).unwrap();
            let config = Config { templates: TemplateSet::new(templates), ..Config::default() };
            let server = Server::on_store(Arc::new(Memory::default()), config).await;
            server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": ["a secret"] })).await
        }
        Code::InvalidRequest => server.post("/ojs/v1/jobs", &json!({ "type": "A" })).await,
        Code::InvalidRetryPolicy => offer(json!({ "retry": { "max_attempts": -1 } })).await,
        Code::UnsupportedMediaType => {
            let headers = header("content-type", "text/plain");
            server.ask(Method::POST, "/ojs/v1/jobs", Some("{}"), headers).await
        }
        Code::UnsupportedVersion => {
            server.ask(Method::GET, UNKNOWN, None, header("ojs-version", "2.0")).await
        }
        Code::TooLarge => {
            let text = "x".repeat(Config::default().body_bytes_max + 1);
            server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [text] })).await
        }
        Code::Unauthorized => with_a_token("any").await.get(UNKNOWN).await,
        Code::NotFound => server.get(UNKNOWN).await,
        Code::MethodNotAllowed => server.ask(Method::PUT, "/ojs/v1/jobs", Some("{}"), HeaderMap::new()).await,
        Code::Conflict => {
            let id = offer(json!({})).await.job_id().to_owned();
            server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await
        }
        Code::Duplicate => {
            offer(json!({ "unique": {} })).await;
            offer(json!({ "unique": {} })).await
        }
        Code::PayloadMismatch => {
            offer(json!({ "unique": { "key": "k" } })).await;
            let other = json!({ "unique": { "key": "k", "on_mismatch": "reject" } });
            server.post("/ojs/v1/jobs", &job(&json!({ "n": 2 }), &other)).await
        }
        Code::TooManyHolders => {
            // Each considers completed jobs only, so all of them are admitted.
            let jobs: Vec<Value> = (0..1_001)
                .map(|_| job(&json!({}), &json!({ "unique": { "states": ["completed"] } })))
                .collect();
            assert_eq!(server.post("/ojs/v1/jobs/batch", &json!({ "jobs": jobs })).await.status, 201);
            offer(json!({ "unique": { "on_conflict": "replace" } })).await
        }
        Code::QueueFull => {
            let config = json!({ "backpressure": { "max_depth": 1 } });
            server.put("/ojs/v1/admin/queues/default/config", &config).await;
            offer(json!({})).await;
            offer(json!({})).await
        }
        Code::Timeout => on_a_broken_store(None).await,
        Code::Contended => on_a_broken_store(Some(StoreError::Contended)).await,
        Code::Unavailable => on_a_broken_store(Some(StoreError::Unavailable("gone".to_owned()))).await,
        Code::Unsupported => on_a_broken_store(Some(StoreError::Unsupported("never".to_owned()))).await,
        Code::Internal => on_a_broken_store(Some(StoreError::Corrupt("a secret".to_owned()))).await,
        Code::Forbidden => return Err("access::every_endpoint_asks_for_the_role_it_names"),
        Code::CursorGone => return Err("streams, and the events of the conformance kit"),
        Code::Slow | Code::TooManyRequests => return Err("semel-cli, against the real process"),
    })
}

#[tokio::test]
async fn every_error_is_met_as_the_catalogue_has_it() {
    static MET: AtomicU64 = AtomicU64::new(0);
    for entry in CATALOGUE {
        let Ok(told) = meet(entry.code).await else { continue };
        MET.fetch_add(1, Ordering::Relaxed);
        assert_eq!((told.status, told.code()), (entry.status, entry.wire), "{:?}: {}", entry.code, told.body);
        let error = &told.body["error"];
        assert_eq!(error["retryable"], entry.retryable, "{:?}", entry.code);
        assert_eq!((&error["type"], &error["hint"]), (&json!(entry.kind), &json!(entry.hint)));
        assert_eq!(error["request_id"], told.headers["x-request-id"].to_str().unwrap());
        assert_eq!(told.headers["content-type"], "application/openjobspec+json");
        assert_eq!(told.headers["ojs-version"], "1.0");
        assert_eq!(entry.status == 503 || entry.status == 429, told.headers.contains_key("retry-after"));
        assert!(!told.body.to_string().contains("secret"), "{}", told.body);
    }
    assert!(MET.load(Ordering::Relaxed) >= CATALOGUE.len() as u64 - 4);
}

/// A job without an id or a policy would be stored twice if its caller were told that it was not stored.
#[tokio::test]
async fn what_may_have_been_done_is_not_told_as_undone() {
    for lost in [StoreError::Unknown, StoreError::Poisoned] {
        let told = on_a_broken_store(Some(lost("a secret".to_owned()))).await;
        assert_eq!((told.status, told.code()), (503, "unavailable"), "{}", told.body);
        assert_eq!(told.body["error"]["retryable"], true);
        let message = told.body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("unknown") && message.contains("repeat it with the same job id"),
            "{message}"
        );
        assert!(!message.contains("secret") && !message.contains("try again shortly"), "{message}");
    }
}
