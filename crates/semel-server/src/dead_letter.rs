//! `/ojs/v1/dead-letter`: jobs that failed for good and that their retry policy keeps for people.

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use http::request::Parts;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::life::Revived;
use semel_core::settle::{Refusal, Settled};
use semel_core::unique::{Disclose, disclosed};
use semel_ojs::write::object;
use semel_ojs::{Code, Problem, answer};
use semel_store::backend::Filter;

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::many::{Found, found, has_more};
use crate::respond::{Answer, Answered, Refused, settled, show};
use crate::search::Listed;
use crate::tenancy::Scope;

const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 100;
/// Dead letters that are counted; beyond this the total is a lower bound.
const COUNTED_MAX: usize = 10_000;

/// `GET /dead-letter`, newest first.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    caller.check_listed(query.get("queue"))?;
    let limit = query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?;
    let offset = query.number("offset", 0, 0, COUNTED_MAX as u64)?;
    let found = all(&app, crate::jobs::filter(&query)?).await?;
    let heads = &found.heads;
    let (first, count) = (usize::try_from(offset).unwrap_or(usize::MAX), usize::try_from(limit).unwrap_or(0));
    let page: Vec<&Head> = heads.iter().skip(first).take(count).collect();
    let page = Listed::read(&app.engine, page).await?;
    let mut out = String::new();
    object(&mut out, |outer| {
        page.put(outer.member("jobs"), &caller);
        object(outer.member("pagination"), |page| {
            found.put_total(page);
            page.number("limit", limit);
            page.number("offset", offset);
            page.flag("has_more", has_more(offset, limit, heads.len() as u64, found.rest.is_some()));
        });
    });
    Ok(Answer::ok(out))
}

/// `GET /dead-letter/stats`.
pub(crate) async fn stats(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    caller.check_listed(query.get("queue"))?;
    let found = all(&app, crate::jobs::filter(&query)?).await?;
    let heads = &found.heads;
    let mut queues: BTreeMap<&str, u64> = BTreeMap::new();
    for head in heads {
        *queues.entry(head.queue.name()).or_default() += 1;
    }
    let mut out = String::new();
    object(&mut out, |outer| {
        found.put_total(outer);
        object(outer.member("by_queue"), |object| {
            for (name, count) in &queues {
                object.number(name, count);
            }
        });
        outer.time("newest_at", heads.iter().filter_map(|head| head.finished_at).max());
        outer.time("oldest_at", heads.iter().filter_map(|head| head.finished_at).min());
    });
    Ok(Answer::ok(out))
}

/// The dead letters that the filter admits, newest first.
pub(crate) async fn all(app: &App, filter: Filter) -> Result<Found, Refused> {
    found(app, Filter { dead_letters: true, ..filter }, COUNTED_MAX).await
}

/// `POST /dead-letter/{id}/retry`: admits the job anew under its own policy.
pub(crate) async fn retry(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    let (parts, _) = request.into_parts();
    no_idempotency(&parts, &app, &caller)?;
    let source = extract::source(&parts);
    revived(&app, &caller, id, app.engine.revive(id, &source).await?).await
}

/// Refuses an `Idempotency-Key`: a revived dead letter may fail again, and a repeated request would run it once more.
pub(crate) fn no_idempotency(parts: &Parts, app: &App, caller: &Caller) -> Result<(), Problem> {
    let why = "dead letters; leave it out, and before you send the request again, check with GET /ojs/v1/jobs/{id} what became of the job";
    extract::no_idempotency(parts, app, caller, why)
}

/// The answer for a dead letter that was offered again.
pub(crate) async fn revived(app: &App, caller: &Caller, id: JobId, revived: Revived) -> Answered {
    match revived {
        Revived::Done(head) => Ok(Answer::ok(show(&app.engine, caller, &head, answer::job).await)),
        Revived::Blocked { holder } => Err(Problem::new(
            Code::Duplicate,
            "another job holds the dead letter's unique key; wait until that job ends, or cancel it, then retry again",
        )
        .with_details(|object| {
            let named = holder.named();
            let seen = |head: &&Head| disclosed(Disclose::Always, caller.sight(), head) == Disclose::Always;
            if let Some(head) = named.filter(seen) {
                object.plain("existing_job_id", head.id);
                object.plain("existing_job_state", head.state);
            }
        })
        .into()),
        Revived::Refused(Refusal::NotFound | Refusal::NoDeadLetter(_)) => Err(not_there(id)),
        Revived::Refused(refusal) => Err(refusal.into()),
    }
}

/// The refusal for an id that is not among the dead letters; it may be another job's.
fn not_there(id: JobId) -> Refused {
    Problem::not_found("dead letter").naming(id).into()
}

/// Deletes one dead letter.
pub(crate) async fn deleted(app: &App, id: JobId) -> Result<Box<Head>, Refused> {
    match app.engine.delete_dead_letter(id).await? {
        Settled::Refused(Refusal::NotFound | Refusal::NoDeadLetter(_)) => Err(not_there(id)),
        other => settled(id, other),
    }
}

/// `DELETE /dead-letter/{id}`.
pub(crate) async fn remove(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    let head = deleted(&app, id).await?;
    let mut out = String::new();
    object(&mut out, |object| {
        object.flag("deleted", true);
        object.plain("job_id", head.id);
        object.plain("id", head.id);
    });
    Ok(Answer::ok(out))
}
