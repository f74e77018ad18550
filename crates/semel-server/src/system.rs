//! The manifest, and health checks.

use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Duration;

use axum::extract::Request;
use http::StatusCode;
use semel_core::limits;
use semel_core::state::State;
use semel_ojs::write::object;
use semel_store::clock::Offset;
use semel_store::random;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::App;
use crate::edge::identify;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// Extensions of Open Job Spec that this server supports; tests check the list against the spec's suites. Clients
/// rely on it, so an extension whose members are accepted but whose purpose is not fulfilled is not listed.
const EXTENSIONS: [&str; 9] = [
    "admin-api",
    "backpressure",
    "dead-letter",
    "graceful-shutdown",
    "multi-tenancy",
    "observability",
    "progress",
    "rate-limiting",
    "webhooks",
];
/// Extensions that it does not support.
const NOT_SUPPORTED: [&str; 6] =
    ["durable-execution", "encryption", "fair-scheduling", "job-versioning", "middleware", "schema-registry"];

/// The highest Open Job Spec level that this server meets, including all levels below. Tests check it against the suites.
const CONFORMANCE_LEVEL: u32 = 4;

/// Capabilities that clients may ask for. Pausing has two names, because clients ask by either.
const CAPABILITIES: [(&str, bool); 20] = [
    ("batch_enqueue", true),
    ("dead_letter", true),
    ("delayed_jobs", true),
    ("events", true),
    ("job_ttl", true),
    ("priority_queues", true),
    ("backpressure", true),
    ("multi_tenancy", true),
    ("progress", true),
    ("queue_pause", true),
    ("pause_resume", true),
    ("rate_limiting", true),
    ("unique_jobs", true),
    ("unique_explain", true),
    ("webhooks", true),
    ("cron_jobs", true),
    ("workflows", true),
    ("checkpoints", false),
    ("schema_registry", false),
    // Args are validated against the schemas of templates.
    ("schema_validation", true),
];

/// How long the store may take to answer a health check.
const HEALTH_PATIENCE: Duration = Duration::from_secs(2);
/// How long the result of a health check is reused.
const HEALTH_AGE_MAX: Duration = Duration::from_millis(250);

/// `GET /ojs/manifest`.
pub(crate) async fn manifest(Scope(app): Scope) -> Answer {
    let facts = app.engine.facts();
    let mut out = String::with_capacity(1_024);
    object(&mut out, |outer| {
        outer.plain("specversion", semel_ojs::VERSION);
        outer.plain("ojs_version", semel_ojs::VERSION);
        object(outer.member("implementation"), |object| {
            object.plain("name", "semel");
            object.plain("version", env!("CARGO_PKG_VERSION"));
            object.plain("language", "rust");
        });
        outer.number("conformance_level", CONFORMANCE_LEVEL);
        outer.texts("protocols", ["http"]);
        outer.plain("backend", facts.engine);
        object(outer.member("capabilities"), |object| {
            for (name, is_there) in CAPABILITIES {
                object.flag(name, is_there);
            }
        });
        outer.texts("extensions", EXTENSIONS);
        outer.texts("extensions_not_supported", NOT_SUPPORTED);
        object(outer.member("limits"), |object| {
            object.number("args_bytes", limits::ARGS_BYTES_MAX);
            object.number("meta_bytes", limits::META_BYTES_MAX);
            object.number("request_bytes", app.config.body_bytes_max);
            object.number("batch_bytes", app.config.batch_bytes_max);
            object.number("batch_jobs", limits::BATCH_JOBS_MAX);
            object.number("fetch_jobs", limits::CLAIM_JOBS_MAX);
            object.number("fetch_queues", limits::CLAIM_QUEUES_MAX);
            object.number("fetch_wait_ms", semel_ojs::worker::WAIT_MS_MAX);
            object.number("concurrency", limits::CONCURRENCY_MAX);
            object.number("holders_per_key", limits::HOLDERS_PER_KEY_MAX);
            object.number("visibility_timeout_default_ms", limits::VISIBILITY_DEFAULT_MS);
            object.number("timeout_default_ms", limits::EXECUTION_DEFAULT_MS);
            let retention = app.engine.store().retention();
            object.number("retention_completed_s", retention.default_s(State::Completed));
            object.number("retention_cancelled_s", retention.default_s(State::Cancelled));
            object.number("retention_discarded_s", retention.default_s(State::Discarded));
        });
        outer.plain("unique_job_strength", if facts.is_strong { "strong" } else { "best-effort" });
        outer.text("unique_job_mechanism", facts.mechanism);
        outer.text("durability", facts.durability);
    });
    Answer::ok(out)
}

/// `GET /health` and `/ojs/v1/health`.
pub(crate) async fn health(Scope(app): Scope, request: Request) -> Answered {
    let told = ask(&app).await;
    let is_well = told.is_ok();
    let mut out = String::new();
    object(&mut out, |outer| {
        outer.plain("status", if is_well { "ok" } else { "unhealthy" });
        outer.plain("version", env!("CARGO_PKG_VERSION"));
        object(outer.member("backend"), |object| {
            object.plain("type", app.engine.facts().engine);
            object.plain("status", if is_well { "ok" } else { "unhealthy" });
            match &told {
                Ok(offset) => object.number("time_ahead_ms", offset.as_millis()),
                Err(reason) if may_know(&app, &request) => object.text("reason", reason),
                Err(_) => {}
            }
        });
    });
    Ok(Answer::status(status(is_well), out))
}

/// Whether the caller may see what is wrong with the store, which may name its machines and files: only callers bound
/// to no tenant who may do everything. Without tokens, a page of another site in a browser does not count as one.
fn may_know(app: &App, request: &Request) -> bool {
    identify(app, request).is_ok_and(|caller| {
        let is_of_a_tenant = caller.token().is_some_and(|token| token.tenant.is_some());
        caller.is_operator() && !caller.is_limited() && !is_of_a_tenant
    })
}

/// `GET /ready`.
pub(crate) async fn ready(Scope(app): Scope) -> Answered {
    let is_well = !app.config.drain.has_begun() && is_well(&app).await;
    let word = if is_well { "ready" } else { "not_ready" };
    Ok(Answer::status(status(is_well), format!("{{\"status\":\"{word}\"}}")))
}

/// `GET /live`: the process answers, whatever the state of its store, and names its instance.
pub(crate) async fn live() -> Answer {
    Answer::ok(format!("{{\"status\":\"live\",\"instance\":\"{}\"}}", instance()))
}

/// Identifies this process among all that answer, or have answered, at the same address; `/live` reports it. Not secret.
pub fn instance() -> &'static str {
    static INSTANCE: LazyLock<String> = LazyLock::new(random::text);
    &INSTANCE
}

/// Result of a health check: the offset of the store's time from this machine's clock, or what is wrong with the store.
type Told = Result<Offset, String>;

/// The store's last health check, and when it was made. Anybody may ask without a token, so one request at a
/// time asks the store, and the others wait for its result.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Option<(Instant, Told)>>);

impl Health {
    async fn told<E: Display>(&self, ask: impl Future<Output = Result<Offset, E>>) -> Told {
        let mut last = self.0.lock().await;
        if let Some((at, told)) = &*last
            && at.elapsed() < HEALTH_AGE_MAX
        {
            return told.clone();
        }
        let told = match tokio::time::timeout(HEALTH_PATIENCE, ask).await {
            Ok(told) => told.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store has not answered for {} seconds", HEALTH_PATIENCE.as_secs())),
        };
        *last = Some((Instant::now(), told.clone()));
        told
    }
}

/// Whether the store answers and accepts writes.
pub(crate) async fn is_well(app: &App) -> bool {
    ask(app).await.is_ok()
}

async fn ask(app: &App) -> Told {
    let ask = async {
        let offset = app.engine.time_offset().await?;
        app.engine.takes_writes().await.map(|()| offset)
    };
    app.health.told(ask).await
}

pub(crate) const fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_asks_the_store_for_all_who_want_to_know() {
        let (health, asked) = (Health::default(), AtomicUsize::new(0));
        let ask = async |says: Result<(), &'static str>| {
            let asking = async {
                asked.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
                says.map(|()| Offset::from_millis(0))
            };
            health.told(asking).await.is_ok()
        };
        let told = futures_util::future::join_all((0..100).map(|_| ask(Ok(())))).await;
        assert_eq!((told, asked.load(Ordering::Relaxed)), (vec![true; 100], 1));
        assert!(ask(Err("away")).await, "what it said a moment ago");
        tokio::time::advance(HEALTH_AGE_MAX).await;
        assert!(!ask(Err("away")).await);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        // A store that does not answer is unhealthy, and is not asked again at once.
        tokio::time::advance(HEALTH_AGE_MAX).await;
        let silent = health.told(std::future::pending::<Result<Offset, &'static str>>()).await;
        assert_eq!(silent, Err("the store has not answered for 2 seconds".to_owned()));
        assert!(!ask(Ok(())).await);
    }
}
