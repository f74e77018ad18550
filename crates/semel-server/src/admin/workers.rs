//! `/admin/workers`: the workers this server has heard from, and the directives they are given.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use semel_core::lease::is_worker_id;
use semel_core::settings::Directive;
use semel_engine::workers::{SaidOfItself, WorkerSeen};
use semel_ojs::write::{Object, list as put_list, object};
use semel_ojs::{Problem, settings};

use super::Page;
use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered, Refused};
use crate::tenancy::Scope;

type Id = Result<Path<String>, PathRejection>;

/// `GET /admin/workers`: the workers that this server has heard from in the last ten minutes, by id.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    caller.check_all_queues()?;
    let page = Page::of(&Parameters::of(&uri)?)?;
    let workers = app.engine.workers().all(app.engine.tenant());
    let shown = page.of_items(&workers);
    let mut directives = Vec::with_capacity(shown.len());
    for worker in shown {
        directives.push(app.engine.directive(&worker.id).await?);
    }
    let mut out = String::with_capacity(1_024);
    object(&mut out, |outer| {
        put_list(outer.member("items"), shown.iter().zip(directives), |out, (worker, directive)| {
            object(out, |object| put(worker, directive, object));
        });
        object(outer.member("summary"), |object| {
            let count = |is: fn(&WorkerSeen) -> bool| workers.iter().filter(|worker| is(worker)).count();
            object.number("total", workers.len());
            object.number("draining", count(|worker| worker.is_draining));
            object.number("stale", count(WorkerSeen::is_stale));
        });
        page.put(workers.len(), false, outer);
    });
    Ok(Answer::ok(out))
}

fn put(worker: &WorkerSeen, directive: Directive, object: &mut Object<'_>) {
    object.text("id", &worker.id);
    object.text("worker_id", &worker.id);
    object.plain("state", state(worker, directive));
    object.plain("directive", directive.name());
    object.texts("queues", worker.queues.iter().map(semel_core::ident::QueueName::as_str));
    object.number("active_jobs", worker.active_jobs);
    object.time("first_seen_at", worker.first_seen);
    object.time("last_heartbeat_at", worker.last_seen);
}

/// A worker's state, in one word.
const fn word(is_draining: bool, directive: Directive) -> &'static str {
    if is_draining { "draining" } else { directive.name() }
}

fn state(worker: &WorkerSeen, directive: Directive) -> &'static str {
    if worker.is_stale() { "stale" } else { word(worker.is_draining, directive) }
}

/// `GET /workers/{id}/health`: 503 for a worker that is about to terminate or has been silent for too long.
pub(crate) async fn health(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    let id = extract::name(id, "worker")?;
    let worker = app.engine.workers().get(app.engine.tenant(), &id);
    let Some(worker) = worker.filter(|worker| caller.sees_worker(worker)) else {
        return Err(Problem::not_found("worker").naming(id).into());
    };
    let directive = app.engine.directive(&id).await?;
    let mut out = String::with_capacity(256);
    object(&mut out, |object| put(&worker, directive, object));
    let is_well = !worker.is_draining && !worker.is_stale();
    Ok(Answer::status(crate::system::status(is_well), out))
}

/// `PUT /admin/workers/{id}/directive`: sets the directive that the worker is given at its heartbeats, until
/// another is set. The worker need not have been heard from.
pub(crate) async fn direct(Scope(app): Scope, caller: Caller, id: Id, request: Request) -> Answered {
    let id = worker(&caller, id)?;
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    told(&app, &id, settings::directive(&text)?).await
}

/// `POST /admin/workers/{id}/quiet`: the same as `{"directive": "quiet"}`.
pub(crate) async fn quiet(Scope(app): Scope, caller: Caller, id: Id) -> Answered {
    told(&app, &worker(&caller, id)?, Directive::Quiet).await
}

fn worker(caller: &Caller, id: Id) -> Result<String, Refused> {
    let id = extract::name(id, "worker")?;
    caller.check_all_queues()?;
    if id.is_empty() || !is_worker_id(&id) {
        return Err(Problem::not_found("worker").naming(id).into());
    }
    Ok(id)
}

async fn told(app: &App, id: &str, directive: Directive) -> Answered {
    app.engine.direct(id, directive).await?;
    // A worker that is told to run takes jobs again, even if it had said that it was draining.
    let seen = app.engine.workers().get(app.engine.tenant(), id);
    if directive == Directive::Run
        && let Some(worker) = seen.filter(|worker| worker.is_draining && !worker.is_stale())
    {
        let said = SaidOfItself { is_draining: Some(false), ..SaidOfItself::default() };
        app.engine.workers().heard(app.engine.tenant(), &worker.id, worker.last_seen, &said);
    }
    let mut out = String::with_capacity(64);
    object(&mut out, |object| {
        object.text("worker_id", id);
        object.plain("directive", directive.name());
    });
    Ok(Answer::ok(out))
}
