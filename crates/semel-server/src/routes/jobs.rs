//! Jobs, their progress, dead letters, and unique keys.

use semel_ojs::Code::{Conflict, CursorGone, Duplicate, InvalidRequest, NotFound, TooManyHolders};

use crate::caller::Access::{Admin, Inspect, Produce, Touch, Work};
use crate::{batch, dead_letter, explain, jobs, key_events, progress, unique_jobs, workers};

use super::ADMISSION;
use super::endpoint::{Endpoint, delete, get, post, put};
use super::parameters::{DEAD_LETTERS, JOBS, KEY_EVENTS, QUEUE, REASON, STATES, TYPE, UNIQUE_JOBS};

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    [of_jobs(), of_runs(), of_dead_letters(), of_keys()].into_iter().flatten().collect()
}

/// Jobs, as producers see them.
fn of_jobs() -> Vec<Endpoint> {
    vec![
        post("/ojs/v1/jobs", Produce, jobs::create)
            .named("enqueue", "Enqueues one job; its unique policy decides what becomes of it.")
            .takes("Enqueue")
            .answers(201, "Enqueued")
            .answers(200, "Enqueued")
            .refuses(&ADMISSION),
        get("/ojs/v1/jobs", Inspect, jobs::list)
            .named("listJobs", "A page of jobs, newest first.")
            .query(JOBS)
            .answers(200, "Jobs")
            .refuses(&[InvalidRequest, CursorGone]),
        post("/ojs/v1/jobs/batch", Produce, batch::all_or_nothing)
            .named("enqueueBatch", "Enqueues jobs, all or nothing.")
            .takes("Batch")
            .answers(201, "BatchEnqueued")
            .refuses(&ADMISSION),
        post("/ojs/v1/jobs/bulk", Produce, batch::each)
            .named(
                "enqueueBulk",
                "Enqueues jobs, each on its own: 207 when some were refused, 422 when all were.",
            )
            .takes("Batch")
            .answers(200, "BulkEnqueued")
            .answers(207, "BulkEnqueued")
            .answers(422, "BulkEnqueued")
            .refuses(&ADMISSION),
        get("/ojs/v1/jobs/{id}", Inspect, jobs::show)
            .named("showJob", "One job.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound]),
        delete("/ojs/v1/jobs/{id}", Touch, jobs::cancel)
            .named("cancelJob", "Cancels a job that has not ended.")
            .may_take("Bearer")
            .answers(200, "JobAnswer")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        post("/ojs/v1/jobs/{id}/cancel", Touch, jobs::cancel)
            .named("cancelJobByPost", "The same as cancelJob.")
            .may_take("Bearer")
            .answers(200, "JobAnswer")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        post("/ojs/v1/jobs/{id}/activate", Produce, jobs::activate)
            .named("activateJob", "Makes a pending job available.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict]),
    ]
}

/// Reports on a job's run.
fn of_runs() -> Vec<Endpoint> {
    vec![
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
            .named("reportProgress", "Reports how far a run has come.")
            .takes("ProgressReport")
            .answers(200, "Progress")
            .refuses(&[InvalidRequest, NotFound, Conflict]),
        get("/ojs/v1/jobs/{id}/progress", Inspect, progress::show)
            .named("showProgress", "How far a run has come.")
            .answers(200, "Progress")
            .refuses(&[NotFound]),
    ]
}

/// Dead letters.
fn of_dead_letters() -> Vec<Endpoint> {
    vec![
        get("/ojs/v1/dead-letter", Inspect, dead_letter::list)
            .named("listDeadLetters", "Jobs that failed for good, newest first.")
            .query(DEAD_LETTERS)
            .answers(200, "DeadLetters")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/dead-letter/stats", Inspect, dead_letter::stats)
            .named("deadLetterStats", "How many dead letters there are, by queue.")
            .query(&[STATES, QUEUE, TYPE])
            .answers(200, "DeadLetterStats")
            .refuses(&[InvalidRequest]),
        delete("/ojs/v1/dead-letter/{id}", Admin, dead_letter::remove)
            .named("deleteDeadLetter", "Deletes a dead letter.")
            .answers(200, "Deleted")
            .refuses(&[NotFound, Conflict]),
        post("/ojs/v1/dead-letter/{id}/retry", Admin, dead_letter::retry)
            .named("retryDeadLetter", "Retries a dead letter, under its own unique policy.")
            .answers(200, "JobAnswer")
            .refuses(&[NotFound, Conflict, Duplicate, TooManyHolders]),
    ]
}

/// Unique keys: what they would decide, and which jobs hold them.
fn of_keys() -> Vec<Endpoint> {
    vec![
        post("/ojs/v1/unique/explain", Produce, explain::explain)
            .named("explain", "Explains what an enqueue request would do, and why; stores nothing.")
            .takes("Enqueue")
            .answers(200, "Explanation")
            .refuses(&ADMISSION),
        get("/ojs/v1/unique-jobs", Admin, unique_jobs::list)
            .named("listUniqueJobs", "Which jobs hold which keys.")
            .query(UNIQUE_JOBS)
            .answers(200, "UniqueJobs")
            .refuses(&[InvalidRequest, CursorGone]),
        get("/ojs/v1/unique-jobs/{key}", Admin, unique_jobs::show)
            .named("showUniqueJob", "The jobs that hold a key.")
            .answers(200, "UniqueJob")
            .refuses(&[InvalidRequest, NotFound]),
        get("/ojs/v1/unique-jobs/{key}/events", Admin, key_events::list)
            .named("listKeyEvents", "What happened to a key according to the event log, oldest first.")
            .query(KEY_EVENTS)
            .answers(200, "KeyEvents")
            .refuses(&[InvalidRequest, CursorGone]),
        delete("/ojs/v1/unique-jobs/{key}", Admin, unique_jobs::release)
            .named("releaseKey", "Takes a key from its holders; the jobs themselves stay as they are.")
            .query(REASON)
            .may_take("Reason")
            .answers(200, "Released")
            .refuses(&[InvalidRequest, NotFound, TooManyHolders]),
    ]
}
