//! `/ojs/v1/jobs/batch`: all or nothing. `/ojs/v1/jobs/bulk`: item by item.

use axum::extract::Request;
use http::StatusCode;
use semel_core::body::Body;
use semel_core::draft::Map;
use semel_core::enqueue::{Batch as Decided, Counts, Mode, Outcome};
use semel_core::error::Invalid;
use semel_core::ident::JobId;
use semel_core::unique::UniqueKey;
use semel_engine::Job;
use semel_ojs::answer::{self, Admitted};
use semel_ojs::batch::Batch;
use semel_ojs::write::{Object, object};
use semel_ojs::{Enqueue, JobView, Problem};

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::jobs::told;
use crate::respond::{Answer, Answered, Refused, view};
use crate::tenancy::Scope;

/// Bytes an answer takes for each job, about.
const ITEM_BYTES: usize = 700;

/// `POST /jobs/batch`.
pub(crate) async fn all_or_nothing(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.batch_bytes_max).await?;
    let batch = Batch::parse(&text)?;
    let templates = app.templates();
    let (mut offers, mut bodies) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    for (index, (item, text)) in batch.requests(caller.terms(&templates)).zip(batch.texts()).enumerate() {
        let key = extract::idempotency(&parts, &app, &caller, Some(index))?;
        let item = item.and_then(|request| extract::traced(&parts, request));
        let item = item.and_then(|request| once(request, text, key));
        let (offer, body) = item.map_err(|invalid| Problem::from(invalid).at_index(index))?.into_parts();
        caller.check_queue(offer.queue.name()).map_err(|problem| problem.at_index(index))?;
        offers.push(offer);
        bodies.push(body);
    }
    let decided = app.engine.enqueue_batch(offers, Mode::AllOrNothing, &extract::source(&parts)).await?;
    let outcomes = match decided {
        Decided::Done(outcomes) => outcomes,
        Decided::Refused { index, outcome } => {
            let refused = told(&outcome).err().unwrap_or_else(Refused::out_of_step);
            return Err(Refused { problem: refused.problem.at_index(index), ..refused });
        }
    };
    if outcomes.len() != bodies.len() {
        return Err(Refused::out_of_step());
    }
    let stored = stored(&app, &outcomes).await?;
    let mut out = String::with_capacity(ITEM_BYTES * outcomes.len() + 64);
    let mut outer = Object::open(&mut out);
    let jobs = outer.member("jobs");
    jobs.push('[');
    for (at, (outcome, body)) in outcomes.iter().zip(&bodies).enumerate() {
        if at > 0 {
            jobs.push(',');
        }
        let (head, how) = told(outcome)?;
        answer::enqueued_item(&seen(head, how, body, &stored), how, jobs);
    }
    jobs.push(']');
    outer.number("count", outcomes.len());
    answer::put_counts(Counts::of(&outcomes), &mut outer);
    outer.close();
    Ok(Answer::status(StatusCode::CREATED, out))
}

/// `POST /jobs/bulk`: 200 when every item was admitted, 422 when none was, else 207.
pub(crate) async fn each(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.batch_bytes_max).await?;
    let batch = Batch::parse(&text)?;
    let templates = app.templates();
    let mut offers = Vec::with_capacity(batch.len());
    let mut items: Vec<Result<Body, Problem>> = Vec::with_capacity(batch.len());
    for (index, (item, text)) in batch.requests(caller.terms(&templates)).zip(batch.texts()).enumerate() {
        let key = extract::idempotency(&parts, &app, &caller, Some(index))?;
        let item = item.and_then(|request| extract::traced(&parts, request));
        items.push(match item.and_then(|request| once(request, text, key)) {
            Ok(request) => {
                let (offer, body) = request.into_parts();
                let allowed = caller.check_queue(offer.queue.name());
                if allowed.is_ok() {
                    offers.push(offer);
                }
                allowed.map(|()| body)
            }
            Err(invalid) => Err(invalid.into()),
        });
    }
    let outcomes = if offers.is_empty() {
        Vec::new()
    } else {
        match app.engine.enqueue_batch(offers, Mode::Each, &extract::source(&parts)).await? {
            Decided::Done(outcomes) => outcomes,
            Decided::Refused { .. } => return Err(Refused::out_of_step()),
        }
    };
    let stored = stored(&app, &outcomes).await?;
    let mut counts = Counts::of(&outcomes);
    let mut decided = outcomes.iter();
    let mut out = String::with_capacity(ITEM_BYTES * items.len() + 128);
    let mut outer = Object::open(&mut out);
    let results = outer.member("results");
    results.push('[');
    let mut failed = 0;
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            results.push(',');
        }
        let verdict = match item {
            Err(problem) => {
                counts.rejected += 1;
                Err(problem.clone())
            }
            Ok(body) => {
                let outcome = decided.next().ok_or_else(Refused::out_of_step)?;
                told(outcome)
                    .map(|(head, how)| (seen(head, how, body, &stored), how))
                    .map_err(|refused| refused.problem)
            }
        };
        failed += usize::from(verdict.is_err());
        put_result(at, verdict, results);
    }
    results.push(']');
    answer::put_counts(counts, &mut outer);
    outer.number("total", items.len());
    outer.number("succeeded", items.len() - failed);
    outer.number("failed", failed);
    outer.close();
    let status = match failed {
        0 => StatusCode::OK,
        all if all == items.len() => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::MULTI_STATUS,
    };
    Ok(Answer::status(status, out))
}

/// An item that may be sent again under its own part of the batch's key.
fn once(request: Enqueue, text: &str, key: Option<UniqueKey>) -> Result<Enqueue, Invalid> {
    match key {
        Some(key) => request.once(text, key),
        None => Ok(request),
    }
}

fn put_result(index: usize, verdict: Result<(JobView<'_>, Admitted<'_>), Problem>, out: &mut String) {
    object(out, |object| {
        object.number("index", index);
        match verdict {
            Ok((view, how)) => {
                object.plain("status", if how.is_deduplicated() { "duplicate" } else { "created" });
                object.plain("outcome", how.name());
                object.plain("job_id", view.head.id);
                answer::enqueued_item(&view, how, object.member("job"));
            }
            Err(problem) => {
                object.plain("status", "failed");
                object.number("code", problem.status());
                problem.put(object, None);
            }
        }
    });
}

/// The jobs that answer items without having been created by them.
async fn stored(app: &App, outcomes: &[Outcome]) -> Result<Map<JobId, Job>, Refused> {
    let ids = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Repeated(head) | Outcome::Amended(head) | Outcome::Existing(head) => Some(head.id),
        _ => None,
    });
    let ids: Vec<JobId> = ids.collect();
    if ids.is_empty() {
        return Ok(Map::default());
    }
    Ok(app.engine.jobs(ids).await?.into_iter().map(|job| (job.head.id, job)).collect())
}

fn seen<'a>(
    head: &'a semel_core::job::Head,
    how: Admitted<'_>,
    body: &'a Body,
    stored: &'a Map<JobId, Job>,
) -> JobView<'a> {
    match how {
        Admitted::Created | Admitted::Replaced(_) | Admitted::FollowUp => JobView::fresh(head, body),
        Admitted::Repeated | Admitted::Amended | Admitted::Existing => {
            stored.get(&head.id).map_or(JobView::bare(head), view)
        }
    }
}
