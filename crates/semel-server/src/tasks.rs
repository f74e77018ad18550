//! `/v1/tasks`: create, list, show, cancel, with the bodies and codes of the system that tasks come from.
//! Errors that do not concern tasks (tokens, sizes, an unavailable store) are answered as everywhere else.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::{StatusCode, Uri};
use semel_core::enqueue::Outcome;
use semel_core::ident::WorkflowId;
use semel_core::job::Head;
use semel_core::settle::{Refusal, Settled};
use semel_core::task::{TaskOutcome, TaskPlan};
use semel_engine::room::READ_AT_ONCE;
use semel_engine::tasks::Task;
use semel_ojs::task::{self, Create, Refused as Unread};
use semel_ojs::{Code, Problem};
use semel_store::StoreError;

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::replay;
use crate::respond::{Answer, Answered, Refused, status_of, view};
use crate::search::Told;
use crate::tenancy::Scope;
use crate::workflows::as_it_goes_on;

/// Path of the tasks.
pub(crate) const PATH: &str = "/v1/tasks";
/// Tasks on a page, by default and at most.
const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 200;
/// Reads from the engine for one page: as many as the longest page takes.
const LOOKS_MAX: usize = PAGE_MAX as usize / READ_AT_ONCE;

type Id = Result<Path<String>, PathRejection>;

fn error(status: StatusCode, code: &str, message: &str) -> Answer {
    Answer::status(status, task::error(code, message))
}

fn not_found() -> Answer {
    error(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such task")
}

/// Reads a task's id in the path. A text that is no id is reported as a task that does not exist.
fn task_id(id: Id) -> Option<WorkflowId> {
    id.ok().and_then(|Path(text)| WorkflowId::parse(&text, "").ok())
}

/// `POST /v1/tasks`.
pub(crate) async fn create(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let templates = app.templates();
    let key = match extract::idempotency(&parts, &app, &caller, None) {
        Ok(key) => key,
        Err(problem) => return Ok(bad_request(problem.message())),
    };
    let plan = match Create::parse(&text, caller.terms(&app, &templates), &templates) {
        Ok(create) => match key {
            Some(key) => create.once(&text, key)?.plan,
            None => create.plan,
        },
        Err(unread) => {
            let sent = key.and_then(|key| task::once(&text, key).ok());
            return match replay::answer(&app, &caller, &parts, sent).await? {
                Some(outcome) => answer_decided(&app, outcome, 0).await,
                None => Ok(refused(unread)),
            };
        }
    };
    if let Err(problem) = check_queues(&caller, &plan) {
        // When the request was first sent, its template may have named other queues.
        return match replay::answer(&app, &caller, &parts, plan.offer.once).await? {
            Some(outcome) => answer_decided(&app, outcome, 0).await,
            None => Err(problem.into()),
        };
    }
    let steps = plan.steps.steps.len();
    let created = app.engine.create_task(plan, &extract::source(&parts)).await?;
    answer_created(&app, &caller, created, steps).await
}

fn check_queues(caller: &Caller, plan: &TaskPlan) -> Result<(), Problem> {
    caller.check_queue(plan.offer.queue.name())?;
    plan.steps.steps.iter().try_for_each(|step| caller.check_queue(step.offer.queue.name()))
}

/// The answer to a request that could not be read.
fn refused(unread: Unread) -> Answer {
    match unread {
        Unread::NoTemplate(message) => error(StatusCode::NOT_FOUND, "NOT_FOUND", &message),
        Unread::NoKey(preset) => bad_request(&task::key_required(preset)),
        Unread::Invalid(invalid) => bad_request(Problem::from(invalid).message()),
    }
}

/// The answer to an invalid request.
pub(crate) fn bad_request(message: &str) -> Answer {
    error(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
}

async fn answer_created(app: &App, caller: &Caller, created: TaskOutcome, steps: usize) -> Answered {
    match created {
        TaskOutcome::Created { id, workflow, .. } => {
            Ok(Answer::status(StatusCode::CREATED, task::created(id, workflow.steps.len())))
        }
        TaskOutcome::Decided(outcome) => {
            caller.check_named(&outcome)?;
            let heard = |refused: Refused| Refused { problem: caller.may_hear(refused.problem), ..refused };
            answer_decided(app, outcome, steps).await.map_err(heard)
        }
        TaskOutcome::Unfit(why) => {
            Ok(bad_request(Problem::from(task::refused_unfit(why).under("/unique")).message()))
        }
        TaskOutcome::Corrupt(corrupt) => Err(StoreError::from(corrupt).into()),
    }
}

/// Number of steps of this job's task; `None` if the job is no task, or its workflow is no longer kept.
async fn steps(app: &App, head: &Head) -> Result<Option<usize>, Refused> {
    let workflow = app.engine.workflow(WorkflowId::new(head.id)).await?;
    Ok(workflow.filter(|workflow| workflow.task().is_some()).map(|workflow| workflow.steps.len()))
}

fn conflict() -> Answer {
    error(StatusCode::CONFLICT, "CONFLICT", task::CONFLICT)
}

/// Answers an outcome. `planned` is the number of steps that such a task has now, for a task whose workflow is no longer kept.
async fn answer_decided(app: &App, outcome: Outcome, planned: usize) -> Answered {
    match outcome {
        Outcome::Repeated(head) => {
            let steps = steps(app, &head).await?.unwrap_or_default();
            let id = WorkflowId::new(head.id);
            Ok(Answer::status(StatusCode::CREATED, task::created(id, steps)).replayed())
        }
        // The key may be held by a plain job from before the template had steps; that is no task to answer with.
        Outcome::Existing(head) => Ok(match steps(app, &head).await? {
            Some(steps) => Answer::ok(task::existing(WorkflowId::new(head.id), steps)),
            None if app.engine.job(head.id).await?.is_some_and(|job| !job.waiters.are_of_task()) => {
                conflict()
            }
            None => Answer::ok(task::existing(WorkflowId::new(head.id), planned)),
        }),
        // All of these get one answer, so that nobody can probe whether the other task is live, or what differs.
        Outcome::Rejected { .. } => Ok(conflict()),
        outcome => {
            let cause =
                if let Outcome::Corrupt(corrupt) = &outcome { Some(corrupt.to_string()) } else { None };
            let problem = Problem::of_outcome(&outcome).unwrap_or_else(Problem::internal);
            if problem.code() == Code::PayloadMismatch {
                let pointers =
                    if let Outcome::Mismatch { pointers, .. } = &outcome { &pointers[..] } else { &[] };
                let message = task::mismatch(problem.message(), pointers);
                return Ok(error(StatusCode::UNPROCESSABLE_ENTITY, "PAYLOAD_MISMATCH", &message));
            }
            if status_of(&problem) == StatusCode::CONFLICT {
                return Ok(error(StatusCode::CONFLICT, "CONFLICT", problem.message()));
            }
            Err(Refused { problem, cause })
        }
    }
}

/// Cursor and page size.
fn page(query: &Parameters) -> Result<(Option<WorkflowId>, usize), Problem> {
    let limit = usize::try_from(query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?).unwrap_or(usize::MAX);
    let from = query.get("cursor").map(|text| WorkflowId::parse(text, "")).transpose();
    Ok((from.map_err(|_| extract::refuse("cursor", "is not one that an earlier page returned"))?, limit))
}

/// `GET /v1/tasks`, the newest first.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    caller.check_all_queues()?;
    let (from, limit) = match Parameters::of(&uri).and_then(|query| page(&query)) {
        Ok(page) => page,
        Err(problem) => return Ok(bad_request(problem.message())),
    };
    let (told, next) = told(&app, from, limit).await?;
    Ok(Answer::ok(task::answer_list(told.items(), next)))
}

/// Up to `limit` tasks before `from`, as far as the answer has room, and where to go on.
async fn told(
    app: &App,
    mut from: Option<WorkflowId>,
    limit: usize,
) -> Result<(Told, Option<WorkflowId>), StoreError> {
    let mut told = Told::default();
    for _ in 0..LOOKS_MAX {
        let piece = READ_AT_ONCE.min(limit - told.items().len());
        let (tasks, next) = app.engine.tasks(from, u32::try_from(piece).unwrap_or(u32::MAX)).await?;
        for Task { id, workflow, job } in &tasks {
            let job = job.as_ref().map(view);
            if !told.push(task::listed(*id, workflow, job.as_ref()), 1) {
                return Ok((told, from));
            }
            from = Some(*id);
        }
        from = next;
        if from.is_none() || told.items().len() == limit {
            break;
        }
    }
    Ok((told, from))
}

/// `GET /v1/tasks/{id}`.
pub(crate) async fn show(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    caller.check_all_queues()?;
    let Some(id) = task_id(id) else { return Ok(not_found()) };
    let Some(Task { workflow, job, .. }) = app.engine.task(id).await? else { return Ok(not_found()) };
    let (workflow, state_of) = as_it_goes_on(&app, workflow).await?;
    Ok(Answer::ok(task::answer(id, &workflow, job.as_ref().map(view).as_ref(), &state_of)))
}

/// `DELETE /v1/tasks/{id}`.
pub(crate) async fn cancel(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    caller.check_all_queues()?;
    let Some(id) = task_id(id) else { return Ok(not_found()) };
    match app.engine.cancel_task(id).await? {
        Settled::Done(head) | Settled::Repeated(head) => {
            Ok(Answer::ok(task::answer_cancelled(id, Some(&head))))
        }
        Settled::Refused(Refusal::NotFound) => Ok(not_found()),
        Settled::Refused(Refusal::WrongState(state)) => {
            let message = format!("the task has already ended ({state}); there is nothing left to cancel");
            Ok(error(StatusCode::CONFLICT, "CONFLICT", &message))
        }
        Settled::Refused(refusal) => Err(refusal.into()),
    }
}
