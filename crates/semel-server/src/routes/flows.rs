//! Crons and workflows.

use semel_ojs::Code::{
    Conflict, Contended, Duplicate, InvalidRequest, InvalidRetryPolicy, NotFound, QueueFull,
};

use crate::caller::Access::{Inspect, Produce};
use crate::{crons, workflows};

use super::endpoint::{Endpoint, delete, get, patch, post};
use super::parameters::{CRONS, WORKFLOWS};

/// The rows of this area.
pub(super) fn rows() -> Vec<Endpoint> {
    [of_crons(), of_workflows()].into_iter().flatten().collect()
}

/// Crons.
fn of_crons() -> Vec<Endpoint> {
    vec![
        post("/ojs/v1/cron", Produce, crons::register)
            .named("registerCron", "Registers a cron, or replaces the one of the same name.")
            .takes("CronRegistration")
            .answers(201, "CronRegistered")
            .answers(200, "CronRegistered")
            .refuses(&[InvalidRequest, InvalidRetryPolicy, NotFound, Duplicate, Conflict, Contended]),
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
            .named("changeCron", "Changes a cron's schedule or policy; its job stays the same.")
            .takes("CronChange")
            .answers(200, "CronAnswer")
            .refuses(&[InvalidRequest, NotFound, Contended]),
        delete("/ojs/v1/cron/{name}", Produce, crons::remove)
            .named("deleteCron", "Deletes a cron; the jobs that it created stay.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
        get("/ojs/v1/cron/{name}/history", Inspect, crons::history)
            .named("cronHistory", "The outcomes of a cron's last ticks.")
            .answers(200, "CronHistory")
            .refuses(&[NotFound]),
        post("/ojs/v1/cron/{name}/trigger", Produce, crons::trigger)
            .named("triggerCron", "Makes a cron tick now.")
            .answers(200, "CronTriggered")
            .refuses(&[InvalidRequest, NotFound, Contended]),
        post("/ojs/v1/cron/{name}/enable", Produce, crons::enable)
            .named("enableCron", "Enables a cron, so that it ticks.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
        post("/ojs/v1/cron/{name}/disable", Produce, crons::disable)
            .named("disableCron", "Disables a cron, so that it no longer ticks.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
        get("/ojs/v1/crons", Inspect, crons::list)
            .named("listCronsToo", "The same as listCrons.")
            .query(CRONS)
            .answers(200, "Crons")
            .refuses(&[InvalidRequest]),
        get("/ojs/v1/crons/{name}", Inspect, crons::show)
            .named("showCronToo", "The same as showCron.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound]),
        patch("/ojs/v1/crons/{name}", Produce, crons::patch)
            .named("changeCronToo", "The same as changeCron.")
            .takes("CronChange")
            .answers(200, "CronAnswer")
            .refuses(&[InvalidRequest, NotFound, Contended]),
        delete("/ojs/v1/crons/{name}", Produce, crons::remove)
            .named("deleteCronToo", "The same as deleteCron.")
            .answers(200, "CronAnswer")
            .refuses(&[NotFound, Contended]),
    ]
}

/// Workflows.
fn of_workflows() -> Vec<Endpoint> {
    vec![
        post("/ojs/v1/workflows", Produce, workflows::create)
            .named(
                "createWorkflow",
                "Creates a workflow: a chain, a group, a batch, or steps with depends_on.",
            )
            .takes("WorkflowRequest")
            .answers(201, "WorkflowAnswer")
            .refuses(&[InvalidRequest, InvalidRetryPolicy, Duplicate, Contended, QueueFull]),
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
            .named("cancelWorkflowByPost", "The same as cancelWorkflow.")
            .answers(200, "WorkflowAnswer")
            .refuses(&[NotFound, Conflict, Contended]),
    ]
}
