//! `/admin/jobs`, and bulk operations on jobs.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use http::request::Parts;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::lease::Bearer;
use semel_core::life::Revived;
use semel_core::settle::Settled;
use semel_core::state::StateSet;
use semel_ojs::answer;
use semel_ojs::bulk::Bulk;
use semel_ojs::refusal::reason;
use semel_ojs::write::{Object, list as put_list, object};
use semel_store::backend::Filter;

use super::Page;
use crate::App;
use crate::audit::Many;
use crate::caller::Caller;
use crate::dead_letter;
use crate::extract::{self, Parameters};
use crate::many::{Found, answers, check_confirmed, each, found};
use crate::respond::{Answer, Answered, Refused, settled, show as show_job, view_for};
use crate::search::Listed;
use crate::tenancy::Scope;

/// Jobs that a listing paged by number looks through, at most.
const LOOKED_AT_MAX: usize = 10_000;
/// Dead letters that one bulk response lists with the reason they were left; all of them are counted.
const LEFT_MAX: usize = 100;

/// `GET /admin/jobs`, newest first: `state`, `queue`, `type`, `page`, `per_page`. The total comes from a
/// bounded scan: it counts ten thousand jobs at most, and says whether there may be more.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    caller.check_listed(query.get("queue"))?;
    let page = Page::of(&query)?;
    let found = found(&app, crate::jobs::filter(&query)?, LOOKED_AT_MAX).await?;
    let listed = Listed::read(&app.engine, page.of_items(&found.heads).iter().collect()).await?;
    let mut out = String::new();
    object(&mut out, |outer| {
        listed.put(outer.member("items"), &caller);
        page.put(found.heads.len(), found.rest.is_some(), outer);
    });
    Ok(Answer::ok(out))
}

/// `GET /admin/jobs/{id}`: the job without a wrapper object.
pub(crate) async fn show(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    let mut out = String::with_capacity(1_024);
    view_for(&caller.job(&app, id).await?, &caller).write(&mut out);
    Ok(Answer::ok(out))
}

/// `POST /admin/jobs/{id}/cancel`.
pub(crate) async fn cancel(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_cancel(&app, id).await?;
    let head = settled(id, app.engine.cancel(id, Bearer::default()).await?)?;
    Ok(Answer::ok(show_job(&app.engine, &caller, &head, answer::job).await))
}

/// `POST /admin/jobs/{id}/retry`: retries a dead letter. A job in any other state is a state conflict, not a missing job.
pub(crate) async fn retry(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    let (parts, _) = request.into_parts();
    dead_letter::no_idempotency(&parts, &app, &caller)?;
    let source = extract::source(&parts);
    match app.engine.revive(id, &source).await? {
        // This path names a job, not a dead letter: the refusal is about the job's state.
        Revived::Refused(refusal) => Err(Refused::from(refusal).naming(id)),
        revived => dead_letter::revived(&app, &caller, id, revived).await,
    }
}

/// `POST /admin/jobs/bulk/cancel`: cancels the live jobs that the filter admits.
pub(crate) async fn bulk_cancel(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, bulk) = read(&app, &caller, request).await?;
    let found = wanted(&app, &bulk, Filter { states: StateSet::LIVE, ..Filter::default() }).await?;
    let act = async |id| {
        // Cancelling a task cancels its steps too, whatever their queues.
        if caller.is_limited() && app.engine.task(WorkflowId::new(id)).await?.is_some() {
            return Ok(false);
        }
        Ok(matches!(app.engine.cancel(id, Bearer::default()).await?, Settled::Done(_)))
    };
    let done = each(&found.heads, act).await?;
    Many::done(&parts.extensions, done.len());
    Ok(Answer::ok(told("cancelled", &found, &done, |_| {})))
}

/// `POST /admin/jobs/bulk/retry`: retries dead letters that the filter admits; lists those left because their key is held.
pub(crate) async fn bulk_retry(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, bulk) = read(&app, &caller, request).await?;
    let source = extract::source(&parts);
    let found = wanted(&app, &bulk, Filter { dead_letters: true, ..Filter::default() }).await?;
    let act = async |id| Ok(why_left(&app.engine.revive(id, &source).await?));
    let (mut done, mut left) = (Vec::new(), Vec::new());
    for (id, why) in answers(&found.heads, act).await? {
        match why {
            None => done.push(id),
            Some(reason) => left.push((id, reason)),
        }
    }
    left.truncate(LEFT_MAX);
    Many::done(&parts.extensions, done.len());
    Ok(Answer::ok(told("retried", &found, &done, |outer| {
        put_list(outer.member("failures"), left, |out, (id, reason)| {
            object(out, |failure| {
                failure.plain("job_id", id);
                failure.plain("reason", reason);
            });
        });
    })))
}

/// Why a dead letter is left where it is; `None` if it was revived.
const fn why_left(revived: &Revived) -> Option<&'static str> {
    match revived {
        Revived::Done(_) => None,
        Revived::Blocked { .. } => Some("duplicate"),
        Revived::Refused(refusal) => Some(reason(refusal)),
    }
}

/// `POST /admin/jobs/bulk/delete`: deletes the dead letters that the filter admits.
pub(crate) async fn bulk_delete(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, bulk) = read(&app, &caller, request).await?;
    let found = wanted(&app, &bulk, Filter { dead_letters: true, ..Filter::default() }).await?;
    let act = async |id| Ok(matches!(app.engine.delete_dead_letter(id).await?, Settled::Done(_)));
    let done = each(&found.heads, act).await?;
    Many::done(&parts.extensions, done.len());
    Ok(Answer::ok(told("deleted", &found, &done, |_| {})))
}

async fn read(app: &App, caller: &Caller, request: Request) -> Result<(Parts, Bulk), Refused> {
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let why = "operations on many jobs; leave it out, and before you send the request again, check with GET /ojs/v1/jobs what is left to do";
    extract::no_idempotency(&parts, app, caller, why)?;
    let bulk = Bulk::parse(&text)?;
    caller.check_listed(bulk.queue.as_ref().map(semel_core::ident::QueueName::as_str))?;
    check_confirmed(bulk.is_confirmed)?;
    Many::meant(&parts.extensions, &bulk);
    Ok((parts, bulk))
}

/// The jobs that the bulk request selects, among those that the operation is possible for.
async fn wanted(app: &App, bulk: &Bulk, possible: Filter) -> Result<Found, Refused> {
    let mut filter = possible;
    if !bulk.states.is_empty() {
        let both = bulk.states.iter().filter(|state| {
            (filter.states.is_empty() || filter.states.contains(*state))
                && (!filter.dead_letters || StateSet::DEAD_LETTERS.contains(*state))
        });
        filter.states = both.collect();
        if filter.states.is_empty() {
            return Ok(Found::default());
        }
    }
    (filter.queue, filter.job_type) = (bulk.queue.clone(), bulk.job_type.clone());
    filter.before = bulk.before;
    found(app, filter, bulk.limit).await
}

fn told(verb: &str, found: &Found, done: &[JobId], put_more: impl FnOnce(&mut Object<'_>)) -> String {
    let matched = found.heads.len();
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
        put_more(outer);
        found.put_rest(outer);
    });
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use http::Request;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;
    use semel_core::ident::JobId;
    use semel_engine::Engine;
    use semel_store::memory::Memory;
    use serde_json::Value;
    use tower_service::Service as _;

    use super::why_left;

    async fn ask(router: &mut Router, path: &str, body: &str) -> (u16, Value) {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        let response = router.call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    /// Between listing the dead letters and deciding each one, another caller may revive or delete it.
    #[tokio::test]
    async fn each_of_many_is_told_why_it_stays_as_a_single_one_is() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let mut router = crate::router(engine.clone(), crate::Config::default());
        for (queue, on_exhaustion, word) in
            [("kept", "dead_letter", "wrong_state"), ("thrown", "discard", "no_dead_letter")]
        {
            let retry = format!(r#"{{"max_attempts":1,"on_exhaustion":"{on_exhaustion}"}}"#);
            let job =
                format!(r#"{{"type":"a.b","args":[],"options":{{"queue":"{queue}","retry":{retry}}}}}"#);
            let (_, made) = ask(&mut router, "/ojs/v1/jobs", &job).await;
            let id = JobId::parse(made["job"]["id"].as_str().unwrap(), "").unwrap();
            ask(&mut router, "/ojs/v1/workers/fetch", &format!(r#"{{"queues":["{queue}"]}}"#)).await;
            let failure = format!(r#"{{"job_id":"{id}","error":{{"code":"x","message":"x"}}}}"#);
            let (_, failed) = ask(&mut router, "/ojs/v1/workers/nack", &failure).await;
            assert_eq!(failed["state"], "discarded", "{failed}");
            // After this call it is no longer a dead letter.
            drop(engine.revive(id, "").await.unwrap());
            let why = why_left(&engine.revive(id, "").await.unwrap());
            assert_eq!(why, Some(word), "{queue}");
            let (status, told) = ask(&mut router, &format!("/ojs/v1/admin/jobs/{id}/retry"), "{}").await;
            assert_eq!((status, told["error"]["details"]["reason"].as_str()), (409, why), "{told}");
        }
        let nobody = JobId::parse("01961111-aaaa-7bbb-8ccc-dddddddddddd", "").unwrap();
        let why = why_left(&engine.revive(nobody, "").await.unwrap());
        let (status, told) = ask(&mut router, &format!("/ojs/v1/admin/jobs/{nobody}/retry"), "{}").await;
        assert_eq!((status, told["error"]["code"].as_str(), why), (404, why, Some("not_found")), "{told}");
    }
}
