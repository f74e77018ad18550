//! `/ojs/v1/jobs`: enqueue, read, list, cancel, activate.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use http::header::HeaderName;
use http::request::Parts;
use semel_core::body::Body;
use semel_core::enqueue::Outcome;
use semel_core::enqueue::once::Once;
use semel_core::ident::{JobType, QueueName};
use semel_core::job::Head;
use semel_core::state::{State as JobState, StateSet};
use semel_core::unique::Disclose;
use semel_ojs::answer::{self, Admitted};
use semel_ojs::enqueue::once;
use semel_ojs::place::Place;
use semel_ojs::write::{list as put_list, object};
use semel_ojs::{Enqueue, JobView, Problem, worker};
use semel_store::backend::Filter;

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::replay;
use crate::respond::{Answer, Answered, Refused, settled, show as show_job, view_for};
use crate::search;
use crate::tenancy::Scope;

/// How full a bounded queue is: the fraction used, the number of waiting jobs, and the bound.
pub(crate) const QUEUE_DEPTH: HeaderName = HeaderName::from_static("x-ojs-queue-depth");
pub(crate) const QUEUE_BOUND: HeaderName = HeaderName::from_static("x-ojs-queue-bound");
const QUEUE_PRESSURE: HeaderName = HeaderName::from_static("x-ojs-queue-pressure");
/// What a job's limit allows, and how much of it remains.
const RATE_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const RATE_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

/// Jobs on a page, by default and at most.
const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 200;

/// `POST /jobs`. Rarely awaited futures are boxed: a handler's future has room for whatever it may await, and
/// is copied with it from layer to layer.
pub(crate) async fn create(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let templates = app.templates();
    let key = extract::idempotency(&parts, &app, &caller, None)?;
    let terms = caller.terms(&app, &templates);
    let request = Enqueue::parse(&text, terms);
    let request = match request.and_then(|request| extract::traced(&parts, request)) {
        Ok(request) => request,
        Err(invalid) => {
            let sent = key.and_then(|key| once(&text, key, terms.tenant).ok());
            return Box::pin(replayed(&app, &caller, &parts, sent, invalid.into())).await;
        }
    };
    let request = match key {
        Some(key) => request.once(&text, key, terms.tenant)?,
        None => request,
    };
    let (offer, body) = request.into_parts();
    if let Err(problem) = caller.check_queue(offer.queue.name()) {
        return Box::pin(replayed(&app, &caller, &parts, offer.once, problem)).await;
    }
    let limit = offer.limit.as_ref().map(|limit| limit.key.clone());
    let queue = offer.queue.clone();
    let source = extract::source(&parts);
    // Header values are slices of the connection's read buffer, which cannot be reused while they are kept.
    drop((parts, text));
    let outcome = app.engine.enqueue(offer, &source).await?;
    let mut answer = admitted(&app, &caller, &outcome, Some(&body)).await?;
    // The job is stored, so the answer must succeed: a header that cannot be had is left out.
    // The limit's use by others is only shown to a caller who could ask for it.
    if let Some(key) = limit.filter(|_| caller.knows_others())
        && let Ok(Some(seen)) = Box::pin(app.engine.limit(&key)).await
    {
        answer = with_limit(&seen, answer);
    }
    if outcome.is_inserted()
        && caller.inspect()
        && let Ok(Some((bound, waiting))) = app.engine.pressure(&queue).await
        && bound.warns(waiting)
    {
        let pressure = waiting as f64 / bound.max_depth as f64;
        answer = answer
            .with(QUEUE_PRESSURE, format_args!("{pressure:.2}"))
            .with(QUEUE_DEPTH, waiting)
            .with(QUEUE_BOUND, bound.max_depth);
    }
    Ok(answer)
}

/// The earlier answer, if the request was sent before; otherwise the refusal.
async fn replayed(
    app: &App,
    caller: &Caller,
    parts: &Parts,
    sent: Option<Once>,
    refusal: Problem,
) -> Answered {
    match replay::answer(app, caller, parts, sent).await? {
        Some(outcome) => admitted(app, caller, &outcome, None).await,
        None => Err(refusal.into()),
    }
}

/// Adds headers with the job's limit and what remains of it.
fn with_limit(seen: &semel_engine::limits::LimitSeen, answer: Answer) -> Answer {
    let view = crate::limits::view(seen);
    answer.with(RATE_LIMIT, view.most()).with(RATE_REMAINING, view.remaining())
}

/// The answer to one enqueued job. `body` is what was sent, if it could be read.
async fn admitted(app: &App, caller: &Caller, outcome: &Outcome, body: Option<&Body>) -> Answered {
    let (head, how) = told(caller, outcome)?;
    let own = asked_for(head, body);
    let shown = if is_own(how) {
        answer::enqueued(&own, how)
    } else if !caller.inspect() {
        answer::enqueued(&JobView { is_curt: true, ..own }, how)
    } else {
        Box::pin(show_job(&app.engine, caller, head, |view| answer::enqueued(view, how))).await
    };
    Ok(match how {
        Admitted::Repeated => Answer::created(head.id, shown).replayed(),
        Admitted::Amended | Admitted::Existing => Answer::ok(shown),
        Admitted::Created | Admitted::Replaced(_) | Admitted::FollowUp => Answer::created(head.id, shown),
    })
}

/// A job as it was requested; its head alone if the request could not be read.
pub(crate) fn asked_for<'a>(head: &'a Head, body: Option<&'a Body>) -> JobView<'a> {
    body.map_or(JobView::bare(head), |body| JobView::fresh(head, body))
}

/// Whether the job is exactly what this request created. For any other job, a caller who may not inspect is
/// shown no more than it sent, because others may have changed the job since.
pub(crate) const fn is_own(how: Admitted<'_>) -> bool {
    matches!(how, Admitted::Created | Admitted::Replaced(_) | Admitted::FollowUp)
}

/// The job that answers an outcome, and how it came about; or the refusal.
pub(crate) fn told<'o>(caller: &Caller, outcome: &'o Outcome) -> Result<(&'o Head, Admitted<'o>), Refused> {
    caller.check_named(outcome)?;
    let shown = |disclose, ids| if disclose == Disclose::Always { Some(ids) } else { None };
    match outcome {
        Outcome::Created(head) => Ok((head, Admitted::Created)),
        Outcome::Repeated(head) => Ok((head, Admitted::Repeated)),
        Outcome::Replaced { head, cancelled, disclose } => {
            Ok((head, Admitted::Replaced(shown(*disclose, cancelled.as_slice()))))
        }
        Outcome::FollowUp(head) => Ok((head, Admitted::FollowUp)),
        Outcome::Amended(head) => Ok((head, Admitted::Amended)),
        Outcome::Existing(head) => Ok((head, Admitted::Existing)),
        refused => {
            let cause =
                if let Outcome::Corrupt(corrupt) = refused { Some(corrupt.to_string()) } else { None };
            let problem = Problem::of_outcome(refused).unwrap_or_else(Problem::internal);
            Err(Refused { problem: caller.may_hear(problem), cause })
        }
    }
}

/// `GET /jobs/{id}`.
pub(crate) async fn show(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    Ok(Answer::ok(answer::job(&view_for(&caller.job(&app, id).await?, &caller))))
}

/// `GET /jobs`: a page, newest first.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    caller.check_listed(query.get("queue"))?;
    let limit = query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?;
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let place = query.get("where").map(Place::parse).transpose();
    let place = place.map_err(|refused| extract::refuse("where", refused.message))?;
    let mut filter = filter(&query)?;
    filter.before = extract::cursor(&query)?;
    let (jobs, next) = match &place {
        Some(place) => search::by_place(&app.engine, filter, place, most).await?,
        None => app.engine.page(filter, most).await?,
    };
    let mut out = String::with_capacity(1_024 * (jobs.len() + 1));
    object(&mut out, |outer| {
        put_list(outer.member("jobs"), &jobs, |out, job| view_for(job, &caller).write(out));
        object(outer.member("pagination"), |page| {
            page.number("limit", limit);
            page.flag("has_more", next.is_some());
            match next {
                Some(next) => page.plain("next_cursor", next),
                None => page.raw("next_cursor", "null"),
            }
        });
    });
    Ok(Answer::ok(out))
}

/// The filter for `state`, `queue` and `type` of the query.
pub(crate) fn filter(query: &Parameters) -> Result<Filter, Problem> {
    let mut states = StateSet::EMPTY;
    for name in query.list("state") {
        let state = JobState::from_name(name).ok_or_else(|| {
            let known = JobState::ALL.map(JobState::name).join(", ");
            extract::refuse("state", format!("names an unknown state; the states are {known}"))
        })?;
        states = states.with(state);
    }
    let invalid = |name: &'static str| {
        move |refused: semel_core::error::Invalid| extract::refuse(name, refused.message)
    };
    let queue =
        query.get("queue").map(|name| QueueName::parse(name, "")).transpose().map_err(invalid("queue"))?;
    let job_type =
        query.get("type").map(|name| JobType::parse(name, "")).transpose().map_err(invalid("type"))?;
    Ok(Filter { states, queue, job_type, ..Filter::default() })
}

/// `DELETE /jobs/{id}`, and `POST /jobs/{id}/cancel`.
pub(crate) async fn cancel(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_cancel(&app, id).await?;
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let head = settled(id, app.engine.cancel(id, worker::bearer(&text)?).await?)?;
    Ok(Answer::ok(caller.show(&app, &head, answer::job).await))
}

/// `POST /jobs/{id}/activate`.
pub(crate) async fn activate(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    let id = extract::job_id(id)?;
    caller.check_job(&app, id).await?;
    let head = settled(id, app.engine.activate(id).await?)?;
    Ok(Answer::ok(caller.show(&app, &head, answer::activated).await))
}
