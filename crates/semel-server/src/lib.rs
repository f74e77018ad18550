//! Semel over HTTP: Open Job Spec at `/ojs/v1`, explanations and keys beside it, metrics and health at the root.
//!
//! # Layout
//! - [`config`], [`auth`], [`serve`](mod@serve): what an operator decides, tokens, and the accept loop.
//! - [`tenancy`]: whose request it is. `edge`: what every answer has in common; `extract`, `respond`: from requests, to answers.
//! - one file per resource: `jobs`, `batch`, `workers`, `dead_letter`, `queues`, `events`, `stream`, `explain`, `unique_jobs`,
//!   `admin`, `system`.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};
use semel_engine::Engine;
use tokio::sync::Semaphore;

use crate::tenancy::Tenants;

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
mod queues;
mod respond;
mod stream;
mod system;
pub mod tenancy;
mod unique_jobs;
mod workers;

pub use config::{Config, ListenRefused, check_listen};
pub use serve::{Limits, serve};

/// What handlers share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    /// Streams of events that may still be opened.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) tenants: Tenants,
}

impl App {
    pub(crate) fn new(engine: Engine, config: Config) -> Self {
        let streams = Arc::new(Semaphore::new(config.streams_max));
        Self { engine, config, streams, tenants: Tenants::default() }
    }

    /// Whether the caller may see other people's jobs: everybody who is let in, until tokens have scopes.
    pub(crate) const fn inspect(&self) -> bool {
        true
    }
}

/// The whole server as a service: routes, errors and headers.
pub fn router(engine: Engine, config: Config) -> Router {
    let app = Arc::new(App::new(engine, config));
    routes()
        .merge(operators())
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), edge::edge))
        .with_state(app)
}

/// What every tenant has for itself. Nothing in a handler of these says whose the request is: `app.engine` is the
/// tenant's.
fn routes() -> Router<Arc<App>> {
    let v1 = Router::new()
        .route("/jobs", post(jobs::create).get(jobs::list))
        .route("/jobs/batch", post(batch::all_or_nothing))
        .route("/jobs/bulk", post(batch::each))
        .route("/jobs/{id}", get(jobs::show).delete(jobs::cancel))
        .route("/jobs/{id}/activate", post(jobs::activate))
        .route("/workers/fetch", post(workers::fetch))
        .route("/workers/ack", post(workers::ack))
        .route("/workers/nack", post(workers::nack))
        .route("/workers/heartbeat", post(workers::heartbeat))
        .route("/workers/beat", post(workers::heartbeat))
        .route("/dead-letter", get(dead_letter::list))
        .route("/dead-letter/stats", get(dead_letter::stats))
        .route("/dead-letter/{id}", delete(dead_letter::remove))
        .route("/dead-letter/{id}/retry", post(dead_letter::retry))
        .route("/queues", get(queues::list))
        .route("/queues/{name}", get(queues::show))
        .route("/queues/{name}/stats", get(queues::show))
        .route("/queues/{name}/pause", post(queues::pause))
        .route("/queues/{name}/resume", post(queues::resume))
        .route("/events", get(events::list))
        .route("/events/stream", get(stream::all))
        .route("/jobs/{id}/events", get(stream::of_job))
        .route("/queues/{name}/events", get(stream::of_queue))
        .route("/unique/explain", post(explain::explain))
        .route("/unique-jobs", get(unique_jobs::list))
        .route("/unique-jobs/{key}", get(unique_jobs::show).delete(unique_jobs::release))
        .route("/health", get(system::health));
    Router::new()
        .nest("/ojs/v1", v1)
        .route("/ojs/manifest", get(system::manifest))
        .route("/health", get(system::health))
        .route("/ready", get(system::ready))
        .fallback(edge::no_such_path)
        .method_not_allowed_fallback(edge::no_such_method)
}

/// What is about the whole server: not there for a request that is some tenant's.
fn operators() -> Router<Arc<App>> {
    Router::new()
        .route("/ojs/v1/admin/reset", post(admin::reset))
        .route("/ojs/v1/admin/tenants/{id}/stats", get(tenancy::stats))
        .route("/metrics", get(system::metrics))
}
