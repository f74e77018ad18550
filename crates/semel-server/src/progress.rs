//! Progress of a run: `/jobs/{id}/progress`, and `/workers/progress` for clients that report percentages.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use semel_core::ident::JobId;
use semel_ojs::progress::{Progress, shown};

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::respond::{Answer, Answered, settled};
use crate::tenancy::Scope;

type Id = Result<Path<String>, PathRejection>;

/// `PUT /jobs/{id}/progress`: `progress` from 0 to 1, clamped to that range, and a `message`. The job must be running.
pub(crate) async fn report(Scope(app): Scope, caller: Caller, id: Id, request: Request) -> Answered {
    let id = extract::job_id(id)?;
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    keep(&app, &caller, id, Progress::parse(&text)?).await
}

/// `POST /workers/progress`: the same with a `job_id` in the body, and `progress` from 0 to 100.
pub(crate) async fn report_percent(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let (id, told) = Progress::parse_percent(&text)?;
    keep(&app, &caller, id, told).await
}

async fn keep(app: &App, caller: &Caller, id: JobId, told: Progress) -> Answered {
    caller.check_job(app, id).await?;
    let Progress { bearer, value, visibility_ms } = told;
    let settling = app.engine.progress(id, bearer, value.clone().into(), visibility_ms);
    let head = settled(id, settling.await?)?;
    Ok(Answer::ok(shown(head.id, Some(&value))))
}

/// `GET /jobs/{id}/progress`.
pub(crate) async fn show(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    let id = extract::job_id(id)?;
    let job = caller.job(&app, id).await?;
    let told = job.progress.as_ref().and_then(|told| str::from_utf8(told).ok());
    Ok(Answer::ok(shown(id, told)))
}
