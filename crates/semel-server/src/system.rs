//! The manifest, and whether the server is well.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use semel_ojs::write::object;

use crate::App;
use crate::respond::{Answer, Answered};

/// How long the store may take to say that it is well.
const HEALTH_PATIENCE: Duration = Duration::from_secs(2);

/// `GET /ojs/manifest`.
pub(crate) async fn manifest(State(app): State<Arc<App>>) -> Answer {
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
        outer.number("conformance_level", 3);
        outer.texts("protocols", ["http"]);
        outer.plain("backend", facts.engine);
        object(outer.member("capabilities"), |object| {
            for name in
                ["batch_enqueue", "dead_letter", "delayed_jobs", "events", "job_ttl", "priority_queues"]
            {
                object.flag(name, true);
            }
            for name in ["queue_pause", "unique_jobs", "unique_explain"] {
                object.flag(name, true);
            }
            for name in ["cron_jobs", "workflows"] {
                object.flag(name, true);
            }
            object.flag("rate_limiting", false);
        });
        outer.raw("extensions", "[]");
        outer.plain("unique_job_strength", "strong");
        outer.text("unique_job_mechanism", facts.mechanism);
        outer.text("durability", facts.durability);
    });
    Answer::ok(out)
}

/// `GET /health` and `/ojs/v1/health`.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Answered {
    let is_well = is_well(&app).await;
    let mut out = String::new();
    object(&mut out, |outer| {
        outer.plain("status", if is_well { "ok" } else { "unhealthy" });
        outer.plain("version", env!("CARGO_PKG_VERSION"));
        object(outer.member("backend"), |object| {
            object.plain("type", app.engine.facts().engine);
            object.plain("status", if is_well { "connected" } else { "unavailable" });
        });
    });
    Ok(Answer::status(status(is_well), out))
}

/// `GET /ready`.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Answered {
    let is_well = !app.config.drain.has_begun() && is_well(&app).await;
    let word = if is_well { "ready" } else { "not_ready" };
    Ok(Answer::status(status(is_well), format!("{{\"status\":\"{word}\"}}")))
}

/// `GET /live`: the process answers, whatever its store does.
pub(crate) async fn live() -> Answer {
    Answer::ok("{\"status\":\"live\"}".to_owned())
}

async fn is_well(app: &App) -> bool {
    matches!(tokio::time::timeout(HEALTH_PATIENCE, app.engine.now()).await, Ok(Ok(_)))
}

const fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
