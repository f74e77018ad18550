//! The manifest, health and metrics.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use semel_core::state::State as JobState;
use semel_ojs::write::object;

use crate::App;
use crate::respond::{Answer, Answered, Refused};

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
        outer.number("conformance_level", 1);
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
            for name in ["cron_jobs", "workflows", "rate_limiting"] {
                object.flag(name, false);
            }
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
    let is_well = is_well(&app).await;
    let word = if is_well { "ready" } else { "not_ready" };
    Ok(Answer::status(status(is_well), format!("{{\"status\":\"{word}\"}}")))
}

async fn is_well(app: &App) -> bool {
    matches!(tokio::time::timeout(HEALTH_PATIENCE, app.engine.now()).await, Ok(Ok(_)))
}

pub(crate) const fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// `GET /metrics`, in Prometheus's text form. The media type has no version, as OJS wants it.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Refused> {
    let queues = app.engine.queues().await?;
    let mut out = String::with_capacity(4_096);
    // Writing to a string cannot fail.
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = out.write_fmt(text);
        out.push('\n');
    };
    line(format_args!("# HELP semel_jobs Jobs now stored, by queue and state."));
    line(format_args!("# TYPE semel_jobs gauge"));
    for stats in &queues {
        for state in JobState::ALL {
            let count = stats.count(state);
            line(format_args!("semel_jobs{{queue=\"{}\",state=\"{state}\"}} {count}", stats.row.name));
        }
    }
    line(format_args!("# HELP semel_jobs_created_total Jobs ever admitted, by queue."));
    line(format_args!("# TYPE semel_jobs_created_total counter"));
    for stats in &queues {
        line(format_args!("semel_jobs_created_total{{queue=\"{}\"}} {}", stats.row.name, stats.created));
    }
    line(format_args!("# HELP semel_queue_paused Whether a queue is paused."));
    line(format_args!("# TYPE semel_queue_paused gauge"));
    for stats in &queues {
        line(format_args!(
            "semel_queue_paused{{queue=\"{}\"}} {}",
            stats.row.name,
            u8::from(stats.row.paused)
        ));
    }
    line(format_args!(
        "# HELP semel_outcomes_total Outcomes of requests since the start, by type, queue and outcome."
    ));
    line(format_args!("# TYPE semel_outcomes_total counter"));
    for ((job_type, queue, outcome), count) in app.engine.counters().all() {
        line(format_args!(
            "semel_outcomes_total{{type=\"{job_type}\",queue=\"{queue}\",outcome=\"{outcome}\"}} {count}"
        ));
    }
    let mut response = out.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}
