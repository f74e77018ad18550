//! Semel over HTTP: Open Job Spec at `/ojs/v1`, explanations and keys beside it, metrics and health at the root.
//!
//! # Layout
//! - [`config`], [`auth`]: settings of the operator, and tokens.
//! - [`serve`](mod@serve), [`tls`], `validity` of certificates, [`load`], [`drain`]: connections, bounds on
//!   what is in progress, and shutdown.
//! - `routes`: the table of endpoints, from which the router, the check of tokens and `openapi` are made;
//!   `caller`: who the caller is, and its permissions.
//! - `tenancy`: the tenant of a request. `edge`: what all answers have in common; `extract`, `respond`:
//!   reading requests, making answers; `sending`: until an answer is sent; `replay`: repeated requests;
//!   `metrics`: response times.
//! - [`templates`]: defaults and rules for jobs of some types, replaced as a whole.
//! - `dashboard`: the files of the dashboard.
//! - `many`: bulk operations on jobs found by a filter.
//! - one file per resource: `jobs`, `batch`, `progress`, `workers` and what is `leased` for them, `dead_letter`, `queues`, `limits`, `events`,
//!   `stream`, `explain`, `tasks`, `unique_jobs`, `key_events`, `hot_keys`, [`webhooks`], `admin`, `audit`, `whoami`, `system`.

use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use semel_core::time::Timestamp;
use semel_engine::Engine;
use tokio::sync::Semaphore;

pub mod auth;
pub mod config;
pub mod drain;
pub mod load;
pub mod serve;
pub mod tls;
pub mod trace;

mod admin;
mod audit;
mod batch;
mod caller;
mod crons;
mod dashboard;
mod dead_letter;
mod edge;
mod events;
mod explain;
mod extract;
mod hot_keys;
mod jobs;
mod key_events;
mod leased;
mod leftover;
mod limits;
mod many;
mod metrics;
mod openapi;
mod patience;
mod progress;
mod queues;
mod replay;
mod respond;
mod routes;
mod search;
mod sending;
mod stream;
mod system;
mod tasks;
pub mod templates;
mod tenancy;
mod unique_jobs;
mod validity;
pub mod webhooks;
mod whoami;
mod workers;
mod workflows;

pub use config::{Config, ListenRefused, check_listen};
pub use drain::Drain;
pub use load::Bounds;
pub use serve::{Limits, serve, serve_with};
pub use system::instance;
pub use templates::TemplateSet;
pub use tls::Tls;

use load::Load;
use routes::{Endpoint, Known};

/// State that handlers share. Each tenant has its own, reached through its [`Scope`](tenancy::Scope).
#[derive(Clone)]
pub(crate) struct App {
    /// The engine, within the tenant.
    pub(crate) engine: Engine,
    pub(crate) config: Arc<Config>,
    /// The edge's view of the routes.
    pub(crate) routes: Arc<Known>,
    /// Counts of what is in progress.
    pub(crate) load: Arc<Load>,
    /// The OpenAPI document.
    pub(crate) openapi: Bytes,
    /// Permits for event streams that may still be opened.
    pub(crate) streams: Arc<Semaphore>,
    /// Audit log of operators.
    pub(crate) audit: Arc<audit::Audit>,
    /// The store's last health check.
    pub(crate) health: Arc<system::Health>,
}

impl App {
    pub(crate) fn new(engine: Engine, config: Config, table: &[Endpoint]) -> Self {
        Self {
            engine,
            routes: Arc::new(Known::of(table)),
            load: Arc::default(),
            openapi: openapi::document(table).into(),
            streams: Arc::new(Semaphore::new(config.streams_max)),
            config: Arc::new(config),
            audit: Arc::default(),
            health: Arc::default(),
        }
    }

    /// When this server began to count, on the store's clock, whose time is now `now`.
    pub(crate) fn began(&self, now: Timestamp) -> Timestamp {
        let uptime = i64::try_from(self.engine.counters().uptime().as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(now.as_micros().saturating_sub(uptime))
    }
}

/// The whole server as a service: routes, errors and headers.
pub fn router(engine: Engine, config: Config) -> Router {
    if config.sample_policies {
        engine.sample_policies();
    }
    let table = routes::table();
    let app = App::new(engine, config, &table);
    routes::router(table, Arc::new(app))
}
