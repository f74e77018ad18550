//! Every endpoint of the server, in one table: its path, the access it requires, what it takes and what it answers.
//! The router, the check of tokens and the OpenAPI document are made from it, so an endpoint that is not in it does
//! not exist. The only other paths are the dashboard's files and its page of errors, which are not part of the API.
//!
//! To add an endpoint: write its handler in its resource's file, add a row to its area's file here, add the
//! schemas it names to `openapi/schemas.json`, and run `cargo xtask golden`.

mod admin;
mod endpoint;
mod events;
mod flows;
mod jobs;
mod known;
mod parameters;
mod queues;
mod system;
mod tasks;
mod workers;

use std::sync::Arc;

use axum::Router;
use semel_ojs::Code;

use crate::{App, edge};

pub(crate) use endpoint::{Body, Endpoint};
pub(crate) use known::{Known, Row};

/// Why an offered job may be refused.
const ADMISSION: [Code; 7] = [
    Code::InvalidRequest,
    Code::InvalidRetryPolicy,
    Code::Duplicate,
    Code::PayloadMismatch,
    Code::TooManyHolders,
    Code::QueueFull,
    Code::Contended,
];

/// Every endpoint.
pub(crate) fn table() -> Vec<Endpoint> {
    let areas = [
        jobs::rows(),
        workers::rows(),
        queues::rows(),
        events::rows(),
        flows::rows(),
        tasks::rows(),
        admin::rows(),
        system::rows(),
    ];
    areas.into_iter().flatten().collect()
}

/// The routes of the table, answered by this app.
pub(crate) fn router(table: Vec<Endpoint>, app: Arc<App>) -> Router {
    let routes = table
        .into_iter()
        .fold(Router::new(), |router, endpoint| router.route(endpoint.path, endpoint.handler));
    routes
        .merge(crate::dashboard::routes())
        .fallback(edge::no_such_path)
        .method_not_allowed_fallback(edge::no_such_method)
        .layer(axum::middleware::from_fn_with_state(app, edge::edge))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::Method;

    use super::*;
    use crate::caller::Access;

    #[test]
    fn every_row_is_complete_and_named_once() {
        let mut names = BTreeSet::new();
        for endpoint in table() {
            assert!(names.insert(endpoint.name), "{} twice", endpoint.name);
            assert!(!endpoint.name.is_empty() && endpoint.says.ends_with('.'), "{}", endpoint.path);
            assert!(!endpoint.answers.is_empty(), "{}", endpoint.path);
            let is_public = endpoint.access == Access::Public;
            assert!(!is_public || endpoint.method == Method::GET, "{} changes something", endpoint.path);
        }
    }

    #[test]
    fn the_edge_finds_each_row() {
        let known = Known::of(&table());
        let access = |path, method: &Method| known.find(path, method).map(|row| row.access);
        for endpoint in table() {
            assert_eq!(access(endpoint.path, &endpoint.method), Some(endpoint.access));
        }
        assert_eq!(access("/ojs/v1/jobs", &Method::HEAD), Some(Access::Inspect));
        assert_eq!(access("/ojs/v1/jobs", &Method::PUT), None);
        for endpoint in table() {
            assert_eq!(
                known.is_global(endpoint.path),
                endpoint.is_global,
                "{} is half global",
                endpoint.path
            );
        }
    }
}
