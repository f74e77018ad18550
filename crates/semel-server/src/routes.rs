//! Every endpoint of the server, in one table: its path, who may use it, what it takes and answers. The router, the
//! check of tokens and the OpenAPI document are made from it, so an endpoint that is not in it does not exist.
//!
//! To add one: write its handler in its resource's file, add a row here, add the schemas it names to
//! `openapi/schemas.json`, and run `cargo xtask golden`.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use http::Method;
use semel_ojs::Code;

use crate::caller::Access;
use crate::metrics::Times;
use crate::{
    App, admin, batch, crons, dead_letter, edge, events, explain, jobs, limits, metrics, openapi, progress,
    queues, stream, system, tenancy, unique_jobs, webhooks, workers, workflows,
};

/// A parameter of a query, and the JSON Schema of its values.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) schema: &'static str,
    pub(crate) says: &'static str,
}

/// What a request carries.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// Nothing that is read.
    None,
    /// A schema's JSON, or nothing.
    May(&'static str),
    /// A schema's JSON.
    Must(&'static str),
}

/// One row.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// With axum's braces around parameters, which are OpenAPI's too.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    /// What it is called in OpenAPI; unique.
    pub(crate) name: &'static str,
    pub(crate) says: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) body: Body,
    /// Each success's status, media type (none for OJS's) and schema.
    pub(crate) answers: Vec<(u16, Option<&'static str>, &'static str)>,
    /// The refusals of its own; those that every endpoint has are known.
    pub(crate) refuses: Vec<Code>,
    /// Whether it is about the whole server: then it is not there for a request that is some tenant's.
    pub(crate) is_global: bool,
    handler: MethodRouter<Arc<App>>,
}

impl Endpoint {
    fn new<H, T>(method: Method, path: &'static str, access: Access, handler: H) -> Self
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::TRACE);
        Self {
            method,
            path,
            access,
            name: "",
            says: "",
            query: &[],
            body: Body::None,
            answers: Vec::new(),
            refuses: Vec::new(),
            is_global: false,
            handler: on(filter, handler),
        }
    }

    /// Its name in OpenAPI, and what it does in one sentence.
    fn named(self, name: &'static str, says: &'static str) -> Self {
        Self { name, says, ..self }
    }

    fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    /// A body of this schema.
    fn takes(self, schema: &'static str) -> Self {
        Self { body: Body::Must(schema), ..self }
    }

    /// A body of this schema, or none.
    fn may_take(self, schema: &'static str) -> Self {
        Self { body: Body::May(schema), ..self }
    }

    /// A success: its status and schema.
    fn answers(mut self, status: u16, schema: &'static str) -> Self {
        self.answers.push((status, None, schema));
        self
    }

    /// A success of another media type than OJS's.
    fn answers_as(mut self, status: u16, media: &'static str, schema: &'static str) -> Self {
        self.answers.push((status, Some(media), schema));
        self
    }

    /// It is about the whole server and all tenants.
    fn global(self) -> Self {
        Self { is_global: true, ..self }
    }

    fn refuses(mut self, codes: &[Code]) -> Self {
        self.refuses.extend_from_slice(codes);
        self
    }
}

fn get<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::GET, path, access, handler)
}

fn post<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::POST, path, access, handler)
}

fn patch<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::PATCH, path, access, handler)
}

fn put<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::PUT, path, access, handler)
}

fn delete<H: Handler<T, Arc<App>>, T: 'static>(path: &'static str, access: Access, handler: H) -> Endpoint {
    Endpoint::new(Method::DELETE, path, access, handler)
}

const fn parameter(name: &'static str, schema: &'static str, says: &'static str) -> Parameter {
    Parameter { name, schema, says }
}

const STATES: Parameter = parameter("state", r#"{"type":"string"}"#, "States, separated by commas.");
const QUEUE: Parameter = parameter("queue", r#"{"type":"string"}"#, "This queue only.");
const TYPE: Parameter = parameter("type", r#"{"type":"string"}"#, "This type only.");
const JOBS: &[Parameter] = &[
    STATES,
    QUEUE,
    TYPE,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Jobs on a page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];
const DEAD_LETTERS: &[Parameter] = &[
    STATES,
    QUEUE,
    TYPE,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":100,"default":50}"#, "Jobs on a page."),
    parameter(
        "offset",
        r#"{"type":"integer","minimum":0,"maximum":10000,"default":0}"#,
        "Jobs to pass over.",
    ),
];
const TEXT: &str = r#"{"type":"string"}"#;
const AFTER: Parameter =
    parameter("after", TEXT, "What came after this cursor or event's id; `end`: what happens from now on.");
const CURSOR: Parameter = parameter("cursor", TEXT, "The same.");
const TYPES: Parameter = parameter("types", TEXT, "Kinds of events, separated by commas.");
const QUEUES: Parameter = parameter("queues", TEXT, "Queues, separated by commas.");
const JOB_TYPES: Parameter = parameter("job_types", TEXT, "Types of jobs, separated by commas.");
const JOB_IDS: Parameter = parameter("jobs", TEXT, "Jobs, separated by commas.");
const EVENTS: &[Parameter] = &[
    AFTER,
    CURSOR,
    TYPES,
    QUEUES,
    JOB_TYPES,
    JOB_IDS,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":50}"#, "Events on a page."),
    parameter(
        "wait_ms",
        r#"{"type":"integer","minimum":0,"maximum":25000,"default":0}"#,
        "How long to wait for something to tell.",
    ),
];
const FILTERS: &[Parameter] = &[AFTER, CURSOR, TYPES, QUEUES, JOB_TYPES, JOB_IDS];
const STREAM: &[Parameter] = &[
    AFTER,
    CURSOR,
    TYPES,
    QUEUES,
    JOB_TYPES,
    JOB_IDS,
    parameter("channel", TEXT, "`job:ID`, `queue:NAME` or `all`."),
];
const WEBHOOKS: &[Parameter] = &[
    parameter(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":100,"default":50}"#,
        "Subscriptions on a page.",
    ),
    parameter("cursor", TEXT, "`pagination.next_cursor` of the page before."),
];
const UNIQUE_JOBS: &[Parameter] = &[
    STATES,
    QUEUE,
    TYPE,
    parameter("page", r#"{"type":"integer","minimum":1,"default":1}"#, "Which page."),
    parameter("per_page", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Keys on a page."),
];
const PAGE: Parameter =
    parameter("page", r#"{"type":"integer","minimum":1,"maximum":10000,"default":1}"#, "Which page.");
const PER_PAGE: Parameter =
    parameter("per_page", r#"{"type":"integer","minimum":1,"maximum":100,"default":25}"#, "Items on a page.");
const REASON: &[Parameter] = &[parameter("reason", r#"{"type":"string"}"#, "Why, for the audit log.")];

const CRONS: &[Parameter] = &[
    parameter("enabled", r#"{"type":"boolean"}"#, "Those that tick, or those that do not."),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":200}"#, "Crons on a page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];
const WORKFLOWS: &[Parameter] = &[
    parameter(
        "state",
        r#"{"type":"string","enum":["running","completed","failed","cancelled"]}"#,
        "In this state.",
    ),
    parameter(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#,
        "Workflows on a page.",
    ),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];

/// The endpoints of crons and workflows.
fn flows() -> Vec<Endpoint> {
    use Access::{Inspect, Produce};
    use Code::{Conflict, Contended, Duplicate, InvalidRequest, InvalidRetryPolicy, NotFound};
    vec![
        post("/ojs/v1/cron", Produce, crons::register)
            .named("registerCron", "Registers a cron, or makes the one of that name what is asked for.")
            .takes("CronRegistration")
            .answers(201, "CronAnswer")
            .answers(200, "CronAnswer")
            .refuses(&[InvalidRequest, InvalidRetryPolicy, NotFound, Contended]),
        get("/ojs/v1/cron", Inspect, crons::list)
            .named("listCrons", "Crons, by name.")
            .query(CRONS)
            .answers(200, "Crons")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/cron/{name}", Inspect, crons::show)
            .named("showCron", "One cron.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound]),
        patch("/ojs/v1/cron/{name}", Produce, crons::patch)
            .named("changeCron", "Changes a cron's schedule or policy; its job stays.")
            .takes("CronChange")
            .answers(200, "CronAnswer")
            .refuses(&[InvalidRequest, NotFound, Contended]),
        delete("/ojs/v1/cron/{name}", Produce, crons::remove)
            .named("deleteCron", "Deletes a cron; its jobs stay.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
        get("/ojs/v1/cron/{name}/history", Inspect, crons::history)
            .named("cronHistory", "What became of a cron's last ticks.")
            .answers(200, "CronHistory")
            .refuses(&[NotFound]),
        post("/ojs/v1/cron/{name}/trigger", Produce, crons::trigger)
            .named("triggerCron", "Does now what a tick does.")
            .answers(200, "CronTriggered")
            .refuses(&[NotFound, Contended]),
        post("/ojs/v1/cron/{name}/enable", Produce, crons::enable)
            .named("enableCron", "Lets a cron tick.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
        post("/ojs/v1/cron/{name}/disable", Produce, crons::disable)
            .named("disableCron", "Lets a cron tick no more.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
        post("/ojs/v1/workflows", Produce, workflows::create)
            .named(
                "createWorkflow",
                "Jobs that wait for jobs: a chain, a group, a batch, or steps with depends_on.",
            )
            .takes("WorkflowRequest")
            .answers(201, "WorkflowAnswer")
            .refuses(&[InvalidRequest, InvalidRetryPolicy, Duplicate, Contended]),
        get("/ojs/v1/workflows", Inspect, workflows::list)
            .named("listWorkflows", "Workflows, newest first.")
            .query(WORKFLOWS)
            .answers(200, "Workflows")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/workflows/{id}", Inspect, workflows::show)
            .named("showWorkflow", "One workflow and its steps.")
            .answers(200, "WorkflowAnswer")
            .refuses(&[NotFound]),
        delete("/ojs/v1/workflows/{id}", Produce, workflows::cancel)
            .named("cancelWorkflow", "Cancels a workflow and the jobs that were created for it.")
            .answers(200, "WorkflowAnswer")
            .refuses(&[NotFound, Conflict, Contended]),
        post("/ojs/v1/workflows/{id}/cancel", Produce, workflows::cancel)
            .named("cancelWorkflowByPost", "The same.")
            .answers(200, "WorkflowAnswer")
            .refuses(&[NotFound, Conflict, Contended]),
    ]
}

/// Every endpoint.
pub(crate) fn table() -> Vec<Endpoint> {
    let mut table = jobs_and_system();
    table.extend(flows());
    table
}

/// The endpoints of jobs, queues and the server itself.
fn jobs_and_system() -> Vec<Endpoint> {
    use Access::{Admin, Inspect, Metrics, Produce, Public, Touch, Work};
    use Code::{
        Conflict, Contended, CursorGone, Duplicate, InvalidRequest, InvalidRetryPolicy, NotFound,
        PayloadMismatch, QueueFull, TooManyHolders, Unsupported,
    };
    let admission = [
        InvalidRequest,
        InvalidRetryPolicy,
        Duplicate,
        PayloadMismatch,
        TooManyHolders,
        QueueFull,
        Contended,
    ];
    vec![
        post("/ojs/v1/jobs", Produce, jobs::create)
            .named("enqueue", "Offers one job; its unique policy decides what becomes of it.")
            .takes("Enqueue")
            .answers(201, "Enqueued")
            .answers(200, "Enqueued")
            .refuses(&admission),
        get("/ojs/v1/jobs", Inspect, jobs::list)
            .named("listJobs", "A page of jobs, newest first.")
            .query(JOBS)
            .answers(200, "Jobs")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/jobs/batch", Produce, batch::all_or_nothing)
            .named("enqueueBatch", "Offers jobs, all or nothing.")
            .takes("Batch")
            .answers(201, "BatchEnqueued")
            .refuses(&admission),
        post("/ojs/v1/jobs/bulk", Produce, batch::each)
            .named(
                "enqueueBulk",
                "Offers jobs, each for itself: 207 when some were refused, 422 when all were.",
            )
            .takes("Batch")
            .answers(200, "BulkEnqueued")
            .answers(207, "BulkEnqueued")
            .answers(422, "BulkEnqueued")
            .refuses(&admission),
        get("/ojs/v1/jobs/{id}", Inspect, jobs::show)
            .named("showJob", "One job.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound]),
        delete("/ojs/v1/jobs/{id}", Touch, jobs::cancel)
            .named("cancelJob", "Cancels a job that has not ended.")
            .may_take("Bearer")
            .answers(200, "JobAnswer")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        post("/ojs/v1/jobs/{id}/activate", Produce, jobs::activate)
            .named("activateJob", "Makes a pending or scheduled job available.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/jobs/{id}/ack", Work, workers::ack_named)
            .named("ackJob", "Completes the job that the path names.")
            .may_take("AckNamed")
            .answers(200, "Acknowledged")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        post("/ojs/v1/jobs/{id}/nack", Work, workers::nack_named)
            .named("nackJob", "Reports a failure of the job that the path names, or gives it back.")
            .takes("NackNamed")
            .answers(200, "Failed")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        put("/ojs/v1/jobs/{id}/progress", Work, progress::report)
            .named("reportProgress", "Tells how far a run has come.")
            .takes("ProgressReport")
            .answers(200, "Progress")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        get("/ojs/v1/jobs/{id}/progress", Inspect, progress::show)
            .named("showProgress", "How far a run has come.")
            .answers(200, "Progress")
            .refuses(&[NotFound]),
        post("/ojs/v1/workers/progress", Work, progress::report_percent)
            .named("reportPercent", "Tells how far a run has come, counted to a hundred.")
            .takes("PercentReport")
            .answers(200, "Progress")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        get("/ojs/v1/workers/{id}/health", Work, admin::workers::health)
            .named("workerHealth", "What this server last heard of a worker.")
            .answers(200, "Worker")
            .answers(503, "Worker")
            .refuses(&[NotFound]),
        post("/ojs/v1/workers/fetch", Work, workers::fetch)
            .named("fetch", "Leases jobs; `wait_ms` waits for the first.")
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
        get("/ojs/v1/dead-letter", Inspect, dead_letter::list)
            .named("listDeadLetters", "Jobs that failed for good, newest first.")
            .query(DEAD_LETTERS)
            .answers(200, "DeadLetters")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/dead-letter/stats", Inspect, dead_letter::stats)
            .named("deadLetterStats", "How many there are, by queue.")
            .query(&[STATES, QUEUE, TYPE])
            .answers(200, "DeadLetterStats")
            .refuses(&[InvalidRequest]),
        delete("/ojs/v1/dead-letter/{id}", Admin, dead_letter::remove)
            .named("deleteDeadLetter", "Deletes one.")
            .answers(200, "Deleted")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/dead-letter/{id}/retry", Admin, dead_letter::retry)
            .named("retryDeadLetter", "Offers one again, under its own policy.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict, Duplicate]),
        get("/ojs/v1/queues", Inspect, queues::list)
            .named("listQueues", "Queues and how many jobs are in them.")
            .answers(200, "Queues"),
        get("/ojs/v1/queues/{name}", Inspect, queues::show)
            .named("showQueue", "One queue.")
            .answers(200, "QueueAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/queues/{name}/stats", Inspect, queues::show)
            .named("queueStats", "The same.")
            .answers(200, "QueueAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/queues/{name}/pause", Admin, queues::pause)
            .named("pauseQueue", "Lets no worker take jobs from a queue.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/queues/{name}/resume", Admin, queues::resume)
            .named("resumeQueue", "Lets workers take jobs from it again.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/queues/{name}/purge", Admin, queues::purge)
            .named("purgeQueue", "Cancels jobs that wait in a queue.")
            .may_take("Purge")
            .answers(200, "Purged")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/rate-limits/{key}", Inspect, limits::show)
            .named("showRateLimit", "A limit that jobs have asked for, and how much of it is used.")
            .answers(200, "RateLimit")
            .refuses(&[NotFound]),
        get("/ojs/v1/events", Inspect, events::list)
            .named("listEvents", "What happened, oldest first.")
            .query(EVENTS)
            .answers(200, "Events")
            .refuses(&[InvalidRequest, CursorGone]),
        get("/ojs/v1/events/stream", Inspect, stream::all)
            .named("streamEvents", "What happens, as server-sent events; resumed by Last-Event-ID.")
            .query(STREAM)
            .answers_as(200, "text/event-stream", "EventStream")
            .refuses(&[InvalidRequest, CursorGone]),
        get("/ojs/v1/jobs/{id}/events", Inspect, stream::of_job)
            .named("streamJobEvents", "What happens to one job, as server-sent events.")
            .query(FILTERS)
            .answers_as(200, "text/event-stream", "EventStream")
            .refuses(&[InvalidRequest, NotFound, CursorGone]),
        get("/ojs/v1/queues/{name}/events", Inspect, stream::of_queue)
            .named("streamQueueEvents", "What happens in one queue, as server-sent events.")
            .query(FILTERS)
            .answers_as(200, "text/event-stream", "EventStream")
            .refuses(&[InvalidRequest, CursorGone]),
        post("/ojs/v1/unique/explain", Produce, explain::explain)
            .named("explain", "What an enqueue request would lead to, and why; stores nothing.")
            .takes("Enqueue")
            .answers(200, "Explanation")
            .refuses(&admission),
        get("/ojs/v1/unique-jobs", Admin, unique_jobs::list)
            .named("listUniqueJobs", "Which jobs hold which keys.")
            .query(UNIQUE_JOBS)
            .answers(200, "UniqueJobs")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/unique-jobs/{key}", Admin, unique_jobs::show)
            .named("showUniqueJob", "Who holds a key.")
            .answers(200, "UniqueJob")
            .refuses(&[InvalidRequest, NotFound]),
        delete("/ojs/v1/unique-jobs/{key}", Admin, unique_jobs::release)
            .named("releaseKey", "Takes a key from its holders; the jobs stay what they are.")
            .query(REASON)
            .may_take("Reason")
            .answers(200, "Released")
            .refuses(&[InvalidRequest, NotFound, TooManyHolders]),
        post("/ojs/v1/webhooks/subscriptions", Admin, webhooks::create)
            .named("createWebhook", "Has events delivered by HTTP; only this answer has the secret.")
            .takes("NewWebhook")
            .answers(201, "WebhookAnswer")
            .refuses(&[InvalidRequest, Conflict]),
        get("/ojs/v1/webhooks/subscriptions", Admin, webhooks::list)
            .named("listWebhooks", "Subscriptions, oldest first.")
            .query(WEBHOOKS)
            .answers(200, "Webhooks")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::show)
            .named("showWebhook", "One subscription.")
            .answers(200, "WebhookAnswer")
            .refuses(&[NotFound]),
        patch("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::change)
            .named("changeWebhook", "Changes the members that are sent.")
            .takes("ChangedWebhook")
            .answers(200, "WebhookAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        delete("/ojs/v1/webhooks/subscriptions/{id}", Admin, webhooks::remove)
            .named("deleteWebhook", "Deletes one; what is not delivered yet is not delivered any more.")
            .answers(200, "WebhookDeleted")
            .refuses(&[NotFound]),
        post("/ojs/v1/webhooks/subscriptions/{id}/rotate-secret", Admin, webhooks::rotate)
            .named("rotateWebhookSecret", "Makes another secret; only this answer has it.")
            .answers(200, "WebhookAnswer")
            .refuses(&[NotFound]),
        post("/ojs/v1/admin/reset", Admin, admin::reset)
            .named("reset", "Deletes everything; only on servers started with --allow-reset.")
            .answers(200, "Reset")
            .refuses(&[NotFound, Unsupported])
            .global(),
        get("/ojs/v1/admin/tenants/{id}/stats", Admin, tenancy::stats)
            .named("tenantStats", "How much a tenant has; one that nobody has used has nothing.")
            .answers(200, "TenantStats")
            .refuses(&[InvalidRequest])
            .global(),
        get("/ojs/v1/admin/stats", Admin, admin::stats::show)
            .named("adminStats", "The whole server in a few numbers.")
            .answers(200, "AdminStats"),
        get("/ojs/v1/admin/jobs", Admin, admin::jobs::list)
            .named("adminListJobs", "Jobs by page numbers, newest first.")
            .query(&[STATES, QUEUE, TYPE, PAGE, PER_PAGE])
            .answers(200, "JobItems")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/admin/jobs/bulk/cancel", Admin, admin::jobs::bulk_cancel)
            .named("bulkCancel", "Cancels the live jobs that a filter admits.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/admin/jobs/bulk/retry", Admin, admin::jobs::bulk_retry)
            .named("bulkRetry", "Offers the dead letters again that a filter admits.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/admin/jobs/bulk/delete", Admin, admin::jobs::bulk_delete)
            .named("bulkDelete", "Deletes the dead letters that a filter admits.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/admin/jobs/{id}", Admin, admin::jobs::show)
            .named("adminShowJob", "One job, without a wrapper.")
            .answers(200, "Job")
            .refuses(&[NotFound]),
        post("/ojs/v1/admin/jobs/{id}/cancel", Admin, admin::jobs::cancel)
            .named("adminCancelJob", "Cancels a job that has not ended.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/admin/jobs/{id}/retry", Admin, dead_letter::retry)
            .named("adminRetryJob", "Offers a dead letter again, under its own policy.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict, Duplicate]),
        get("/ojs/v1/admin/dead-letter", Admin, admin::dead_letter::list)
            .named("adminListDeadLetters", "Dead letters by page numbers, newest first.")
            .query(&[STATES, QUEUE, TYPE, PAGE, PER_PAGE])
            .answers(200, "JobItems")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/admin/dead-letter/stats", Admin, dead_letter::stats)
            .named("adminDeadLetterStats", "How many there are, by queue.")
            .query(&[STATES, QUEUE, TYPE])
            .answers(200, "DeadLetterStats")
            .refuses(&[InvalidRequest]),
        delete("/ojs/v1/admin/dead-letter/{id}", Admin, admin::dead_letter::remove)
            .named("adminDeleteDeadLetter", "Deletes one.")
            .answers(204, "Deleted")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/admin/dead-letter/{id}/retry", Admin, dead_letter::retry)
            .named("adminRetryDeadLetter", "Offers one again, under its own policy.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict, Duplicate]),
        get("/ojs/v1/admin/queues", Admin, admin::queues::list)
            .named("adminListQueues", "Queues by page numbers, with their counts.")
            .query(&[PAGE, PER_PAGE])
            .answers(200, "QueueItems")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/admin/queues/{name}", Admin, queues::show)
            .named("adminShowQueue", "One queue.")
            .answers(200, "QueueAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/admin/queues/{name}/config", Admin, admin::queues::config)
            .named("showQueueConfig", "What has been set for a queue.")
            .answers(200, "QueueConfigured")
            .refuses(&[InvalidRequest, NotFound]),
        put("/ojs/v1/admin/queues/{name}/config", Admin, admin::queues::configure)
            .named("configureQueue", "Sets what holds for a queue; what is left out is unset.")
            .takes("QueueConfig")
            .answers(200, "QueueConfigured")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/admin/queues/{name}/pause", Admin, queues::pause)
            .named("adminPauseQueue", "Lets no worker take jobs from a queue.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/admin/queues/{name}/resume", Admin, queues::resume)
            .named("adminResumeQueue", "Lets workers take jobs from it again.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/admin/queues/{name}/purge", Admin, queues::purge)
            .named("adminPurgeQueue", "Cancels jobs that wait in a queue.")
            .may_take("Purge")
            .answers(200, "Purged")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/admin/workers", Admin, admin::workers::list)
            .named("listWorkers", "The workers that this server has heard of lately.")
            .query(&[PAGE, PER_PAGE])
            .answers(200, "Workers")
            .refuses(&[InvalidRequest]),
        put("/ojs/v1/admin/workers/{id}/directive", Admin, admin::workers::direct)
            .named("directWorker", "What a worker is told at its next heartbeat.")
            .takes("DirectiveWish")
            .answers(200, "DirectiveSet")
            .refuses(&[InvalidRequest, NotFound]),
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
            .named("manifest", "What this server does.")
            .answers(200, "Manifest"),
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
            .named("metrics", "Metrics in Prometheus's text form.")
            .answers_as(200, "text/plain", "Metrics")
            .global(),
    ]
}

/// What the edge knows of one row.
pub(crate) struct Row {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) times: Times,
}

impl Row {
    /// GET, POST, …
    pub(crate) fn name_of_method(&self) -> &'static str {
        const KNOWN: [Method; 5] = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        const NAMES: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
        KNOWN.iter().zip(NAMES).find(|(method, _)| **method == self.method).map_or("OTHER", |(_, name)| name)
    }
}

/// The table as the edge asks it: by path.
pub(crate) struct Known(Vec<Row>);

impl Known {
    pub(crate) fn of(table: &[Endpoint]) -> Self {
        let row = |endpoint: &Endpoint| Row {
            method: endpoint.method.clone(),
            path: endpoint.path,
            access: endpoint.access,
            times: Times::default(),
        };
        let mut rows: Vec<Row> = table.iter().map(row).collect();
        rows.sort_by_key(|row| row.path);
        Self(rows)
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.0
    }

    /// The row of `method` on the route of this path. None for a method that the route does not have.
    pub(crate) fn find(&self, path: &str, method: &Method) -> Option<&Row> {
        // HEAD is a GET whose body is not sent.
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let first = self.0.partition_point(|row| row.path < path);
        self.0.get(first..)?.iter().take_while(|row| row.path == path).find(|row| row.method == *method)
    }
}

/// The routes of the table, for any [`App`].
pub(crate) fn routes(table: Vec<Endpoint>) -> Router<Arc<App>> {
    only(table).fallback(edge::no_such_path).method_not_allowed_fallback(edge::no_such_method)
}

/// The routes of a table that is merged with another's [`routes`].
pub(crate) fn only(table: Vec<Endpoint>) -> Router<Arc<App>> {
    table.into_iter().fold(Router::new(), |router, endpoint| router.route(endpoint.path, endpoint.handler))
}

/// The routes as one app answers them.
pub(crate) fn router(routes: Router<Arc<App>>, app: Arc<App>) -> Router {
    routes.layer(axum::middleware::from_fn_with_state(Arc::clone(&app), edge::edge)).with_state(app)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
    }
}
