//! Queues and limits.

use semel_ojs::Code;

use crate::caller::Access;
use crate::{limits, queues};

use super::endpoint::{Endpoint, get, post};
use super::parameters::QUEUE_LIST;

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    use Access::{Admin, Inspect};
    use Code::{CursorGone, InvalidRequest, NotFound};
    vec![
        get("/ojs/v1/queues", Inspect, queues::list)
            .named("listQueues", "Queues by name, with how many jobs are in each.")
            .query(QUEUE_LIST)
            .answers(200, "Queues")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/queues/{name}", Inspect, queues::show)
            .named("showQueue", "One queue.")
            .answers(200, "QueueAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/queues/{name}/stats", Inspect, queues::show)
            .named("queueStats", "The same as showQueue.")
            .answers(200, "QueueAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/queues/{name}/pause", Admin, queues::pause)
            .named("pauseQueue", "Pauses a queue: workers take no jobs from it.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/queues/{name}/resume", Admin, queues::resume)
            .named("resumeQueue", "Resumes a queue: workers take jobs from it again.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/queues/{name}/purge", Admin, queues::purge)
            .named("purgeQueue", "Cancels the jobs that wait in a queue.")
            .may_take("Purge")
            .answers(200, "Purged")
            .refuses(&[InvalidRequest, NotFound, CursorGone]),
        get("/ojs/v1/rate-limits/{key}", Inspect, limits::show)
            .named("showRateLimit", "A rate or concurrency limit, and how much of it is used.")
            .answers(200, "RateLimit")
            .refuses(&[NotFound]),
    ]
}
