//! The server over real connections, mostly on the in-memory store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on stops here")]

mod access;
mod admin;
mod admin_ui;
mod advice;
mod backpressure;
mod beats;
mod bounds;
#[cfg(unix)]
mod browser;
mod cancellation;
mod catalogue;
mod crons;
mod endpoints;
mod errors;
mod glance;
mod harness;
mod idempotency;
mod identity;
mod jobs;
mod key_events;
mod let_go;
mod limits;
mod listing;
mod moving;
#[cfg(unix)]
#[path = "../../../semel-redis/tests/it/nodes.rs"]
#[allow(dead_code, reason = "the tests of the store need more of it")]
mod nodes;
mod openapi;
#[cfg(unix)]
#[path = "../../../semel-redis/tests/it/own.rs"]
#[allow(dead_code, reason = "the tests of the store need more of it")]
mod own;
mod polling;
mod progress;
mod promises;
mod races;
mod rates;
mod recipes;
mod requests;
mod revoked;
mod schemas;
mod sdks;
mod slow;
mod streams;
mod suites;
mod tasks;
mod tenant_flows;
mod tenants;
mod tls;
mod unique;
mod unique_spec;
mod webhook_pace;
mod webhook_retries;
mod webhooks;
mod workers;
mod workflows;
