//! The server itself.

use crate::caller::Access;
use crate::{metrics, openapi, system, whoami};

use super::endpoint::{Endpoint, get};

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    use Access::{Any, Metrics, Public};
    vec![
        get("/ojs/v1/health", Public, system::health)
            .named("ojsHealth", "Whether the server and its store are well.")
            .answers(200, "Health")
            .answers(503, "Health"),
        get("/ojs/v1/openapi.json", Public, openapi::show)
            .named("openapi", "This document.")
            .answers(200, "OpenApi"),
        get("/openapi.json", Public, openapi::show)
            .named("rootOpenapi", "This document.")
            .answers(200, "OpenApi"),
        get("/ojs/manifest", Public, system::manifest)
            .named("manifest", "What this server supports.")
            .answers(200, "Manifest"),
        get("/ojs/v1/whoami", Any, whoami::show)
            .named("whoami", "What the request's token may do.")
            .answers(200, "WhoAmI"),
        get("/health", Public, system::health)
            .named("health", "Whether the server and its store are well.")
            .answers(200, "Health")
            .answers(503, "Health"),
        get("/live", Public, system::live)
            .named("live", "Whether the process answers at all.")
            .answers(200, "Status"),
        get("/ready", Public, system::ready)
            .named("ready", "Whether requests should be sent here.")
            .answers(200, "Status")
            .answers(503, "Status"),
        get("/metrics", Metrics, metrics::show)
            .named("metrics", "Metrics in Prometheus's text format.")
            .answers_as(200, "text/plain", "Metrics")
            .global(),
    ]
}
