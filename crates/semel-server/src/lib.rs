//! Semel over HTTP: Open Job Spec at `/ojs/v1`, explanations and keys beside it, metrics and health at the root.
//!
//! # Layout
//! - [`config`], [`auth`], [`serve`](mod@serve): what an operator decides, tokens, and the accept loop.
//! - `edge`: what every answer has in common; `extract`, `respond`: from requests, to answers.
//! - one file per resource: `jobs`, `batch`, `progress`, `workers`, `dead_letter`, `queues`, `limits`, `events`,
//!   `explain`, `unique_jobs`, `admin`, `system`.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post, put};
use semel_engine::Engine;

pub mod auth;
pub mod config;
pub mod serve;

mod admin;
mod batch;
mod dead_letter;
mod edge;
mod events;
mod explain;
mod extract;
mod jobs;
mod limits;
mod progress;
mod queues;
mod respond;
mod system;
mod unique_jobs;
mod workers;

pub use config::{Config, ListenRefused, check_listen};
pub use serve::{Limits, serve};

/// What handlers share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
}

impl App {
    /// Whether the caller may see other people's jobs: everybody who is let in, until tokens have scopes.
    pub(crate) const fn inspect(&self) -> bool {
        true
    }
}

/// The whole server as a service: routes, errors and headers.
pub fn router(engine: Engine, config: Config) -> Router {
    let app = Arc::new(App { engine, config });
    let v1 = Router::new()
        .route("/jobs", post(jobs::create).get(jobs::list))
        .route("/jobs/batch", post(batch::all_or_nothing))
        .route("/jobs/bulk", post(batch::each))
        .route("/jobs/{id}", get(jobs::show).delete(jobs::cancel))
        .route("/jobs/{id}/activate", post(jobs::activate))
        .route("/jobs/{id}/ack", post(workers::ack_named))
        .route("/jobs/{id}/nack", post(workers::nack_named))
        .route("/jobs/{id}/progress", put(progress::report).get(progress::show))
        .route("/workers/fetch", post(workers::fetch))
        .route("/workers/ack", post(workers::ack))
        .route("/workers/nack", post(workers::nack))
        .route("/workers/heartbeat", post(workers::heartbeat))
        .route("/workers/beat", post(workers::heartbeat))
        .route("/workers/progress", post(progress::report_percent))
        .route("/workers/{id}/health", get(admin::workers::health))
        .route("/dead-letter", get(dead_letter::list))
        .route("/dead-letter/stats", get(dead_letter::stats))
        .route("/dead-letter/{id}", delete(dead_letter::remove))
        .route("/dead-letter/{id}/retry", post(dead_letter::retry))
        .route("/queues", get(queues::list))
        .route("/queues/{name}", get(queues::show))
        .route("/queues/{name}/stats", get(queues::show))
        .route("/queues/{name}/pause", post(queues::pause))
        .route("/queues/{name}/resume", post(queues::resume))
        .route("/queues/{name}/purge", post(queues::purge))
        .route("/rate-limits/{key}", get(limits::show))
        .route("/events", get(events::list))
        .route("/unique/explain", post(explain::explain))
        .route("/unique-jobs", get(unique_jobs::list))
        .route("/unique-jobs/{key}", get(unique_jobs::show).delete(unique_jobs::release))
        .route("/admin/reset", post(admin::reset))
        .route("/admin/stats", get(admin::stats::show))
        .route("/admin/jobs", get(admin::jobs::list))
        .route("/admin/jobs/bulk/cancel", post(admin::jobs::bulk_cancel))
        .route("/admin/jobs/bulk/retry", post(admin::jobs::bulk_retry))
        .route("/admin/jobs/bulk/delete", post(admin::jobs::bulk_delete))
        .route("/admin/jobs/{id}", get(admin::jobs::show))
        .route("/admin/jobs/{id}/cancel", post(admin::jobs::cancel))
        .route("/admin/jobs/{id}/retry", post(dead_letter::retry))
        .route("/admin/dead-letter", get(admin::dead_letter::list))
        .route("/admin/dead-letter/stats", get(dead_letter::stats))
        .route("/admin/dead-letter/{id}", delete(admin::dead_letter::remove))
        .route("/admin/dead-letter/{id}/retry", post(dead_letter::retry))
        .route("/admin/queues", get(admin::queues::list))
        .route("/admin/queues/{name}", get(queues::show))
        .route("/admin/queues/{name}/config", get(admin::queues::config).put(admin::queues::configure))
        .route("/admin/queues/{name}/pause", post(queues::pause))
        .route("/admin/queues/{name}/resume", post(queues::resume))
        .route("/admin/queues/{name}/purge", post(queues::purge))
        .route("/admin/workers", get(admin::workers::list))
        .route("/admin/workers/{id}/directive", put(admin::workers::direct))
        .route("/health", get(system::health));
    Router::new()
        .nest("/ojs/v1", v1)
        .route("/ojs/manifest", get(system::manifest))
        .route("/health", get(system::health))
        .route("/ready", get(system::ready))
        .route("/metrics", get(system::metrics))
        .fallback(edge::no_such_path)
        .method_not_allowed_fallback(edge::no_such_method)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), edge::edge))
        .with_state(app)
}
