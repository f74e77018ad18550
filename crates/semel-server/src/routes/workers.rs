//! Endpoints of workers.

use semel_ojs::Code;

use crate::caller::Access;
use crate::{admin, progress, workers};

use super::endpoint::{Endpoint, get, post};

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    use Access::Work;
    use Code::{Conflict, InvalidRequest, NotFound};
    vec![
        post("/ojs/v1/workers/progress", Work, progress::report_percent)
            .named("reportPercent", "Reports how far a run has come, as a percentage.")
            .takes("PercentReport")
            .answers(200, "Progress")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        get("/ojs/v1/workers/{id}/health", Work, admin::workers::health)
            .named("workerHealth", "What this server last heard from a worker.")
            .answers(200, "Worker")
            .answers(503, "Worker")
            .refuses(&[NotFound]),
        post("/ojs/v1/workers/fetch", Work, workers::fetch)
            .named("fetch", "Leases jobs; with `wait_ms`, waits for the first one.")
            .takes("Fetch")
            .answers(200, "Fetched")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/workers/ack", Work, workers::ack)
            .named("ack", "Completes a job.")
            .takes("Ack")
            .answers(200, "Acknowledged")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        post("/ojs/v1/workers/nack", Work, workers::nack)
            .named("nack", "Reports a failure, or gives a job back.")
            .takes("Nack")
            .answers(200, "Failed")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        post("/ojs/v1/workers/heartbeat", Work, workers::heartbeat)
            .named("heartbeat", "Extends the leases of jobs that are being worked on.")
            .takes("Heartbeat")
            .answers(200, "Beat")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/workers/beat", Work, workers::heartbeat)
            .named("beat", "The same as heartbeat.")
            .takes("Heartbeat")
            .answers(200, "Beat")
            .refuses(&[InvalidRequest]),
    ]
}
