//! `/admin/jobs`, and what is done to many jobs at once.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use http::Uri;
use semel_core::ident::JobId;
use semel_core::lease::Bearer;
use semel_core::life::Revived;
use semel_core::settle::Settled;
use semel_core::state::StateSet;
use semel_ojs::bulk::Bulk;
use semel_ojs::write::{list as put_list, object};
use semel_ojs::{Code, Problem, answer};
use semel_store::backend::Filter;

use super::Page;
use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered, Refused, settled, show as show_job, view};

/// Jobs that a listing by page numbers looks through.
const LOOKED_AT_MAX: usize = 10_000;
/// Jobs read at once.
const CHUNK: u32 = 1_000;

/// `GET /admin/jobs`, newest first: `state`, `queue`, `type`, `page`, `per_page`. The total counts ten thousand at most.
pub(crate) async fn list(State(app): State<Arc<App>>, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    caller.check_listed(query.get("queue"))?;
    let page = Page::of(&query)?;
    let ids = found(&app, crate::jobs::filter(&query)?, LOOKED_AT_MAX).await?;
    let jobs = app.engine.jobs(page.of_items(&ids).to_vec()).await?;
    let mut out = String::with_capacity(1_024 * (jobs.len() + 1));
    object(&mut out, |outer| {
        put_list(outer.member("items"), &jobs, |out, job| view(job).write(out));
        page.put(ids.len(), outer);
    });
    Ok(Answer::ok(out))
}

/// The newest jobs that the filter admits, at most so many.
pub(crate) async fn found(app: &App, filter: Filter, most: usize) -> Result<Vec<JobId>, Refused> {
    let mut filter = Filter { limit: CHUNK, ..filter };
    let mut ids = Vec::new();
    loop {
        let listing = app.engine.list(filter.clone()).await?;
        ids.extend(listing.heads.iter().map(|head| head.id));
        match listing.next {
            Some(next) if ids.len() < most => filter.before = Some(next),
            _ => break,
        }
    }
    ids.truncate(most);
    Ok(ids)
}

/// `GET /admin/jobs/{id}`: the job without a wrapper.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    match app.engine.job(id).await? {
        Some(job) => {
            let mut out = String::with_capacity(1_024);
            view(&job).write(&mut out);
            Ok(Answer::ok(out))
        }
        None => Err(Problem::not_found("job").into()),
    }
}

/// `POST /admin/jobs/{id}/cancel`.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    let head = settled(app.engine.cancel(id, Bearer::default()).await?)?;
    Ok(Answer::ok(show_job(&app.engine, &head, answer::job).await?))
}

/// `POST /admin/jobs/bulk/cancel`: live jobs that the filter admits.
pub(crate) async fn bulk_cancel(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Answered {
    let bulk = read(&app, &caller, request).await?;
    let ids = wanted(&app, &bulk, Filter { states: StateSet::LIVE, ..Filter::default() }).await?;
    let mut done = Vec::new();
    for id in &ids {
        if let Settled::Done(_) = app.engine.cancel(*id, Bearer::default()).await? {
            done.push(*id);
        }
    }
    Ok(Answer::ok(told("cancelled", ids.len(), &done)))
}

/// `POST /admin/jobs/bulk/retry`: dead letters that the filter admits. One whose key another job holds stays.
pub(crate) async fn bulk_retry(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Answered {
    let bulk = read(&app, &caller, request).await?;
    let ids = wanted(&app, &bulk, Filter { dead_letters: true, ..Filter::default() }).await?;
    let mut done = Vec::new();
    for id in &ids {
        if let Revived::Done(_) = app.engine.revive(*id).await? {
            done.push(*id);
        }
    }
    Ok(Answer::ok(told("retried", ids.len(), &done)))
}

/// `POST /admin/jobs/bulk/delete`: dead letters that the filter admits.
pub(crate) async fn bulk_delete(State(app): State<Arc<App>>, caller: Caller, request: Request) -> Answered {
    let bulk = read(&app, &caller, request).await?;
    let ids = wanted(&app, &bulk, Filter { dead_letters: true, ..Filter::default() }).await?;
    let mut done = Vec::new();
    for id in &ids {
        if let Settled::Done(_) = app.engine.delete_dead_letter(*id).await? {
            done.push(*id);
        }
    }
    Ok(Answer::ok(told("deleted", ids.len(), &done)))
}

async fn read(app: &App, caller: &Caller, request: Request) -> Result<Bulk, Refused> {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let bulk = Bulk::parse(&text)?;
    caller.check_listed(bulk.queue.as_ref().map(semel_core::ident::QueueName::as_str))?;
    if !bulk.is_confirmed {
        return Err(Problem::new(
            Code::InvalidRequest,
            "/confirm is not true: this changes many jobs at once; look at them with GET /ojs/v1/jobs first, then send confirm: true",
        )
        .with_details(|object| object.text("pointer", "/confirm"))
        .into());
    }
    Ok(bulk)
}

/// The jobs that are meant, of those that it can be done to.
async fn wanted(app: &App, bulk: &Bulk, possible: Filter) -> Result<Vec<JobId>, Refused> {
    let mut filter = possible;
    if !bulk.states.is_empty() {
        let both = bulk.states.iter().filter(|state| {
            (filter.states.is_empty() || filter.states.contains(*state))
                && (!filter.dead_letters || *state == semel_core::state::State::Discarded)
        });
        filter.states = both.collect();
        if filter.states.is_empty() {
            return Ok(Vec::new());
        }
    }
    (filter.queue, filter.job_type) = (bulk.queue.clone(), bulk.job_type.clone());
    found(app, filter, bulk.limit).await
}

fn told(verb: &str, matched: usize, done: &[JobId]) -> String {
    let mut out = String::with_capacity(64 + 40 * done.len());
    object(&mut out, |outer| {
        outer.number("matched", matched);
        outer.number(verb, done.len());
        outer.number("succeeded", done.len());
        outer.number("failed", matched - done.len());
        put_list(outer.member("job_ids"), done, |out, id| {
            out.push('"');
            out.push_str(&id.to_string());
            out.push('"');
        });
    });
    out
}
