//! `/ojs/v1/workflows`: create, list, show, cancel.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::{StatusCode, Uri};
use semel_core::draft::Map;
use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::state::State;
use semel_core::workflow::{Cancelled, Created, Status, Step, Workflow, may_have_successor, shown_successor};
use semel_engine::room::READ_AT_ONCE;
use semel_ojs::workflow::{answer, answer_curt, answer_list, listed, parse};
use semel_ojs::{Code, Problem};
use semel_store::StoreError;

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered, Refused};
use crate::search::Told;
use crate::tenancy::Scope;

/// Workflows on a page, by default and at most.
const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 200;

/// Replacement jobs that one answer follows, at most.
const SUCCESSORS_MAX: usize = 256;

type Id = Result<Path<String>, PathRejection>;

/// Reads a workflow's id in the path. A text that is no id is reported as a workflow that does not exist.
fn workflow_id(id: Id) -> Result<WorkflowId, Problem> {
    let text = extract::name(id, "workflow")?;
    WorkflowId::parse(&text, "").map_err(|_| Problem::not_found("workflow").naming(text))
}

/// `POST /workflows`.
pub(crate) async fn create(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.batch_bytes_max).await?;
    let templates = app.templates();
    let plan = parse(&text, caller.terms(&app, &templates))?;
    if plan.id.is_none() {
        let why = "workflows; send an `id` (a UUIDv7) in the request, the same each time: that makes it safe to send again";
        extract::no_idempotency(&parts, &app, &caller, why)?;
    }
    for step in &plan.steps {
        caller.check_queue(step.offer.queue.as_str())?;
    }
    match app.engine.create_workflow(plan).await? {
        Created::Done(id, workflow) => {
            Ok(Answer::status(StatusCode::CREATED, answer(id, &workflow, &|_| None)))
        }
        Created::Repeated(id, workflow) => {
            // Other callers' jobs may have replaced its own since, and been worked on.
            let text = if caller.knows_others() {
                show_one(&app, id, *workflow).await?
            } else {
                answer_curt(id, &workflow)
            };
            Ok(Answer::status(StatusCode::CREATED, text).replayed())
        }
        Created::IdTaken(id) => Err(Problem::new(
            Code::Duplicate,
            "another request has already used this workflow id; send a new one, or none",
        )
        .with_details(|object| {
            object.plain("existing_workflow_id", id);
            object.plain("pointer", "/id");
        })
        .into()),
        Created::QueueFull(depth) => {
            let full = Outcome::QueueFull(depth);
            Err(caller.may_hear(Problem::of_outcome(&full).unwrap_or_else(Problem::internal)).into())
        }
        Created::Corrupt(corrupt) => Err(StoreError::from(corrupt).into()),
    }
}

/// `GET /workflows`, the newest first.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    caller.check_all_queues()?;
    let query = Parameters::of(&uri)?;
    let limit = usize::try_from(query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?).unwrap_or(usize::MAX);
    let from = query.get("cursor").map(|text| WorkflowId::parse(text, "")).transpose();
    let from = from.map_err(|_| extract::refuse("cursor", "is not one that an earlier page returned"))?;
    let status = match query.get("state") {
        None => None,
        Some(name) => Some(Status::from_name(name).ok_or_else(|| {
            extract::refuse(
                "state",
                "is not a workflow state; the states are running, completed, failed, cancelled",
            )
        })?),
    };
    let (told, next) = page(&app, from, limit, status).await?;
    Ok(Answer::ok(answer_list(told.items(), next)))
}

/// Workflows with this status among the next before `from`, as far as the answer has room; and where to go on.
async fn page(
    app: &App,
    mut from: Option<WorkflowId>,
    limit: usize,
    status: Option<Status>,
) -> Result<(Told, Option<WorkflowId>), StoreError> {
    let (mut told, mut looked) = (Told::default(), 0);
    while looked < limit {
        let piece = READ_AT_ONCE.min(limit - looked);
        let found = app.engine.workflows(from, u32::try_from(piece).unwrap_or(u32::MAX)).await?;
        let is_last = found.len() < piece;
        looked += found.len();
        for (id, workflow) in found {
            let is_wanted = status.is_none_or(|wanted| wanted == workflow.status);
            if is_wanted && !told.push(listed(id, &workflow), 1) {
                return Ok((told, from));
            }
            from = Some(id);
        }
        if is_last {
            return Ok((told, None));
        }
    }
    Ok((told, from))
}

/// `GET /workflows/{id}`.
pub(crate) async fn show(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    caller.check_all_queues()?;
    let id = workflow_id(id)?;
    match app.engine.workflow(id).await? {
        Some(workflow) => Ok(Answer::ok(show_one(&app, id, workflow).await?)),
        None => Err(Problem::not_found("workflow").naming(id).into()),
    }
}

/// `DELETE /workflows/{id}` and `POST /workflows/{id}/cancel`.
pub(crate) async fn cancel(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    caller.check_all_queues()?;
    let id = workflow_id(id)?;
    match app.engine.cancel_workflow(id).await? {
        Cancelled::Done(workflow) if caller.inspect() => Ok(Answer::ok(answer(id, &workflow, &|_| None))),
        Cancelled::Done(workflow) => Ok(Answer::ok(answer_curt(id, &workflow))),
        Cancelled::NotFound => Err(Problem::not_found("workflow").naming(id).into()),
        Cancelled::Over(status) => Err(Problem::new(
            Code::Conflict,
            format!("the workflow has already ended ({}); there is nothing left to cancel", status.name()),
        )
        .with_details(|object| object.plain("state", status.name()))
        .into()),
        Cancelled::Corrupt(corrupt) => Err(StoreError::from(corrupt).into()),
    }
}

/// Shows a workflow with its jobs' current states.
async fn show_one(app: &App, id: WorkflowId, workflow: Workflow) -> Result<String, Refused> {
    let (workflow, state_of) = as_it_goes_on(app, workflow).await?;
    Ok(answer(id, &workflow, &state_of))
}

/// Replaces the job of each step by the job that took its place, where that may be shown, and gives the states of those.
pub(crate) async fn as_it_goes_on(
    app: &App,
    mut workflow: Workflow,
) -> Result<(Workflow, impl Fn(&Step) -> Option<&'static str> + use<>), StoreError> {
    let mut states = states_of(app, workflow.running_jobs()).await?;
    let (mut successors, mut left) = (Map::default(), SUCCESSORS_MAX);
    for (id, _) in states.iter().filter(|(_, state)| may_have_successor(**state)) {
        let last = successor(app, *id, &mut left).await?;
        if last != *id {
            successors.insert(*id, last);
        }
    }
    if !successors.is_empty() {
        states.extend(states_of(app, successors.values().copied().collect()).await?);
    }
    workflow.name_successors(&successors);
    let state_of = move |step: &Step| {
        let state = step.job().and_then(|job| states.get(&job))?;
        step.state_word(*state)
    };
    Ok((workflow, state_of))
}

async fn states_of(app: &App, ids: Vec<JobId>) -> Result<Map<JobId, State>, StoreError> {
    Ok(app.engine.heads(ids).await?.into_iter().map(|head| (head.id, head.state)).collect())
}

/// Follows the chain of jobs that replaced this one, as far as they may be shown and `left` allows, and returns the last.
async fn successor(app: &App, id: JobId, left: &mut usize) -> Result<JobId, StoreError> {
    let mut last = id;
    while *left > 0 {
        *left -= 1;
        let Some(job) = app.engine.job(last).await? else { break };
        match shown_successor(job.replaced_by, job.is_replacement_hidden) {
            Some(next) => last = next,
            None => break,
        }
    }
    Ok(last)
}
