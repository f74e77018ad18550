//! Endpoints of operators.

use semel_ojs::Code::{
    Conflict, CursorGone, Duplicate, InvalidRequest, NotFound, TooManyHolders, Unsupported,
};

use crate::caller::Access::Admin;
use crate::{admin, audit, dead_letter, queues, tenancy};

use super::endpoint::{Endpoint, delete, get, post, put};
use super::parameters::{AUDIT, HISTORY, LIMIT, OFFSET, PAGE, PER_PAGE, QUEUE, STATES, TYPE};

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    let parts = [of_server(), of_jobs(), of_dead_letters(), of_queues(), of_workers()];
    parts.into_iter().flatten().collect()
}

/// The server as a whole, its tenants, its policies, its audit log.
fn of_server() -> Vec<Endpoint> {
    vec![
        post("/ojs/v1/admin/reset", Admin, admin::reset)
            .named("reset", "Deletes everything; only on servers started with --allow-reset.")
            .answers(200, "Reset")
            .refuses(&[NotFound, Unsupported])
            .global(),
        get("/ojs/v1/admin/tenants/{id}/stats", Admin, tenancy::stats)
            .named(
                "tenantStats",
                "A tenant's queues and jobs in numbers; all are 0 for a tenant that was never used.",
            )
            .answers(200, "TenantStats")
            .refuses(&[InvalidRequest])
            .global(),
        get("/ojs/v1/admin/stats", Admin, admin::stats::show)
            .named(
                "adminStats",
                "Key figures: the tenant's queues and jobs, and this server's workers and throughput.",
            )
            .answers(200, "AdminStats"),
        get("/ojs/v1/admin/stats/history", Admin, admin::history::show)
            .named("adminHistory", "Outcomes of requests, by minute for three hours or by hour for a week.")
            .query(HISTORY)
            .answers(200, "History")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/admin/advice", Admin, admin::advice::show)
            .named("advice", "Advice on unique policies, based on samples of incoming jobs.")
            .answers(200, "PolicyAdvice"),
        get("/ojs/v1/admin/stats/policies", Admin, admin::policies::show)
            .named(
                "adminPolicies",
                "The unique policies in use and their outcomes, by this server's own counters.",
            )
            .answers(200, "Policies"),
        get("/ojs/v1/admin/audit", Admin, audit::list)
            .named("audit", "What operators did through this server, newest first.")
            .query(AUDIT)
            .answers(200, "Audit")
            .refuses(&[InvalidRequest]),
    ]
}

/// Jobs, individually or by a filter.
fn of_jobs() -> Vec<Endpoint> {
    vec![
        get("/ojs/v1/admin/jobs", Admin, admin::jobs::list)
            .named("adminListJobs", "Jobs by page number, newest first.")
            .query(&[STATES, QUEUE, TYPE, PAGE, PER_PAGE, LIMIT, OFFSET])
            .answers(200, "JobItems")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/admin/jobs/bulk/cancel", Admin, admin::jobs::bulk_cancel)
            .named("bulkCancel", "Cancels the live jobs that match a filter.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest, CursorGone]),
        post("/ojs/v1/admin/jobs/bulk/retry", Admin, admin::jobs::bulk_retry)
            .named("bulkRetry", "Retries the dead letters that match a filter.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest, CursorGone]),
        post("/ojs/v1/admin/jobs/bulk/delete", Admin, admin::jobs::bulk_delete)
            .named("bulkDelete", "Deletes the dead letters that match a filter.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest, CursorGone]),
        get("/ojs/v1/admin/jobs/{id}", Admin, admin::jobs::show)
            .named("adminShowJob", "One job, without a wrapper.")
            .answers(200, "Job")
            .refuses(&[NotFound]),
        post("/ojs/v1/admin/jobs/{id}/cancel", Admin, admin::jobs::cancel)
            .named("adminCancelJob", "Cancels a job that has not ended.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/admin/jobs/{id}/retry", Admin, admin::jobs::retry)
            .named("adminRetryJob", "Retries a dead letter, under its own unique policy.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict, Duplicate, TooManyHolders]),
    ]
}

/// Dead letters.
fn of_dead_letters() -> Vec<Endpoint> {
    vec![
        get("/ojs/v1/admin/dead-letter", Admin, admin::dead_letter::list)
            .named("adminListDeadLetters", "Dead letters by page number, newest first.")
            .query(&[STATES, QUEUE, TYPE, PAGE, PER_PAGE, LIMIT, OFFSET])
            .answers(200, "JobItems")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/admin/dead-letter/stats", Admin, dead_letter::stats)
            .named("adminDeadLetterStats", "How many dead letters there are, by queue.")
            .query(&[STATES, QUEUE, TYPE])
            .answers(200, "DeadLetterStats")
            .refuses(&[InvalidRequest]),
        delete("/ojs/v1/admin/dead-letter/{id}", Admin, admin::dead_letter::remove)
            .named("adminDeleteDeadLetter", "Deletes a dead letter.")
            .answers(204, "Deleted")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/admin/dead-letter/{id}/retry", Admin, dead_letter::retry)
            .named("adminRetryDeadLetter", "Retries a dead letter, under its own unique policy.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict, Duplicate, TooManyHolders]),
        // Open Job Spec's own operator pages use this path for it.
        post("/ojs/v1/admin/dead-letter/retry", Admin, admin::jobs::bulk_retry)
            .named("retryDeadLetters", "The same as bulkRetry.")
            .takes("BulkWish")
            .answers(200, "BulkDone")
            .refuses(&[InvalidRequest, CursorGone]),
    ]
}

/// Queues and their settings.
fn of_queues() -> Vec<Endpoint> {
    vec![
        get("/ojs/v1/admin/queues", Admin, admin::queues::list)
            .named("adminListQueues", "Queues by page number, with their job counts.")
            .query(&[PAGE, PER_PAGE, LIMIT, OFFSET])
            .answers(200, "QueueItems")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/admin/queues/{name}", Admin, queues::show)
            .named("adminShowQueue", "One queue.")
            .answers(200, "QueueAnswer")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/admin/queues/{name}/config", Admin, admin::queues::config)
            .named("showQueueConfig", "A queue's settings.")
            .answers(200, "QueueConfigured")
            .refuses(&[InvalidRequest, NotFound]),
        put("/ojs/v1/admin/queues/{name}/config", Admin, admin::queues::configure)
            .named("configureQueue", "Replaces a queue's settings; what is left out is unset.")
            .takes("QueueConfig")
            .answers(200, "QueueConfigured")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/admin/queues/{name}/pause", Admin, queues::pause)
            .named("adminPauseQueue", "Pauses a queue: workers take no jobs from it.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/admin/queues/{name}/resume", Admin, queues::resume)
            .named("adminResumeQueue", "Resumes a queue: workers take jobs from it again.")
            .answers(200, "QueuePaused")
            .refuses(&[InvalidRequest, NotFound]),
        post("/ojs/v1/admin/queues/{name}/purge", Admin, queues::purge_confirmed)
            .named("adminPurgeQueue", "Cancels the jobs that wait in a queue; the request must confirm it.")
            .takes("ConfirmedPurge")
            .answers(200, "Purged")
            .refuses(&[InvalidRequest, NotFound, CursorGone]),
        // Open Job Spec's own operator pages use this path for it.
        delete("/ojs/v1/admin/queues/{name}/jobs", Admin, queues::purge_confirmed)
            .named("emptyQueue", "The same as adminPurgeQueue.")
            .takes("ConfirmedPurge")
            .answers(200, "Purged")
            .refuses(&[InvalidRequest, NotFound, CursorGone]),
    ]
}

/// Workers and their directives.
fn of_workers() -> Vec<Endpoint> {
    vec![
        get("/ojs/v1/admin/workers", Admin, admin::workers::list)
            .named("listWorkers", "The workers that this server has heard from lately.")
            .query(&[PAGE, PER_PAGE, LIMIT, OFFSET])
            .answers(200, "Workers")
            .refuses(&[InvalidRequest]),
        post("/ojs/v1/admin/workers/{id}/quiet", Admin, admin::workers::quiet)
            .named("quietWorker", "Tells a worker at its next heartbeat to take no more jobs.")
            .answers(200, "DirectiveSet")
            .refuses(&[NotFound]),
        put("/ojs/v1/admin/workers/{id}/directive", Admin, admin::workers::direct)
            .named("directWorker", "Sets what a worker is told at its next heartbeat.")
            .takes("DirectiveWish")
            .answers(200, "DirectiveSet")
            .refuses(&[InvalidRequest, NotFound]),
    ]
}
