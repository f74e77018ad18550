//! `/ojs/v1/workers`: fetch, ack, nack, heartbeat.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use semel_core::canon::Json;
use semel_core::ident::JobId;
use semel_core::lease::Grant;
use semel_core::settle::{Refusal, Settled};
use semel_core::state::State;
use semel_engine::workers::SaidOfItself;
use semel_ojs::JobView;
use semel_ojs::answer::{self, Beat};
use semel_ojs::worker::{Ack, Fetch, Heartbeat, Nack};
use semel_store::backend::Claim;

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::respond::{Answer, Answered, Refused, settled, view};
use crate::tenancy::Scope;

type Id = Result<Path<String>, PathRejection>;

/// `POST /workers/fetch`. With `wait_ms` the answer waits for something to do.
pub(crate) async fn fetch(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let fetch = Fetch::parse(&text)?;
    for queue in &fetch.queues {
        caller.check_queue(queue.name())?;
    }
    if !fetch.worker.is_empty() {
        let said = SaidOfItself { queues: &fetch.queues, ..SaidOfItself::default() };
        let workers = app.engine.workers();
        workers.heard(app.engine.tenant(), &fetch.worker, app.engine.now().await?, &said);
        // It has said that it takes no more.
        if workers.is_draining(app.engine.tenant(), &fetch.worker) {
            return Ok(Answer::ok(answer::fetched([])));
        }
    }
    let claim = Claim {
        queues: fetch.queues,
        limit: fetch.count,
        grant: Grant::new(fetch.worker, fetch.visibility_ms),
        closed: Vec::new(),
    };
    // A server that ends, or has as many waiting as it takes, answers at once with what there is.
    let waits = !fetch.wait.is_zero() && !app.config.drain.has_begun() && extract::park(&parts);
    let jobs = if waits {
        app.engine.claim_or_wait_until(claim, fetch.wait, app.config.drain.begun()).await?
    } else {
        app.engine.claim(claim).await?
    };
    Ok(Answer::ok(answer::fetched(jobs.iter().map(view))))
}

/// `POST /workers/ack`.
pub(crate) async fn ack(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    acked(&app, &caller, None, request).await
}

/// `POST /jobs/{id}/ack`.
pub(crate) async fn ack_named(Scope(app): Scope, caller: Caller, id: Id, request: Request) -> Answered {
    acked(&app, &caller, Some(extract::job_id(id)?), request).await
}

async fn acked(app: &App, caller: &Caller, named: Option<JobId>, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let Ack { id, bearer, result } = Ack::parse_for(named, &text)?;
    caller.check_job(app, id).await?;
    let head = settled(app.engine.complete(id, bearer, result.clone().map(Into::into)).await?)?;
    Ok(Answer::ok(answer::acknowledged(&JobView { result: result.as_deref(), ..JobView::bare(&head) })))
}

/// `POST /workers/nack`: a failure, or `requeue: true`, which `delay_ms` puts off.
pub(crate) async fn nack(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    nacked(&app, &caller, None, request).await
}

/// `POST /jobs/{id}/nack`.
pub(crate) async fn nack_named(Scope(app): Scope, caller: Caller, id: Id, request: Request) -> Answered {
    nacked(&app, &caller, Some(extract::job_id(id)?), request).await
}

async fn nacked(app: &App, caller: &Caller, named: Option<JobId>, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let Nack { id, bearer, report, delay } = Nack::parse_for(named, &text)?;
    caller.check_job(app, id).await?;
    let head = settled(match (report, delay) {
        (Some(report), _) => app.engine.fail(id, bearer, report).await?,
        (None, Some(delay)) => app.engine.snooze(id, bearer, delay).await?,
        (None, None) => app.engine.give_back(id, bearer).await?,
    })?;
    let write = |view: &JobView<'_>| answer::failed(&JobView { head: &head, ..*view });
    Ok(Answer::ok(caller.show(app, &head, write).await?))
}

/// `POST /workers/heartbeat`.
pub(crate) async fn heartbeat(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let mut beat = Heartbeat::parse(&text)?;
    let (mut extended, mut lost) = (Vec::new(), Vec::new());
    if caller.is_limited() {
        let seen = caller.sees_jobs(&app, beat.jobs.iter().map(|(id, _)| *id).collect()).await?;
        let hidden = beat.jobs.iter().map(|(id, _)| *id).filter(|id| !seen.contains(id));
        lost.extend(hidden.map(|id| (id, reason(&Refusal::NotFound))));
        beat.jobs.retain(|(id, _)| seen.contains(id));
    }
    let ids: Vec<JobId> = beat.jobs.iter().map(|(id, _)| *id).collect();
    if !beat.jobs.is_empty() {
        let answers = app.engine.extend(beat.jobs, beat.visibility_ms).await?;
        for (id, settled) in ids.iter().zip(answers) {
            match settled {
                Some(Settled::Done(_) | Settled::Repeated(_)) => extended.push(*id),
                Some(Settled::Refused(refusal)) => lost.push((*id, reason(&refusal))),
                // Neither: the worker still holds it, and says so again.
                None => {}
            }
        }
    }
    let now = app.engine.now().await?;
    let mut state = "running";
    if !beat.worker.is_empty() {
        let said = SaidOfItself { active_jobs: beat.count, is_draining: beat.is_draining, queues: &[] };
        app.engine.workers().heard(app.engine.tenant(), &beat.worker, now, &said);
        state = app.engine.directive(&beat.worker).await?.name();
    }
    if app.config.allow_reset && state == "running" {
        state = directive(&app, &extended).await?;
    }
    Ok(Answer::ok(answer::heartbeat(&Beat { state, extended: &extended, lost: &lost, now })))
}

const fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotFound => "not_found",
        // A worker that has ended it itself may have more to do than the job.
        Refusal::WrongState(State::Completed) => "completed",
        Refusal::WrongState(_) => "not_active",
        Refusal::StaleLease(_) => "stale_lease",
        Refusal::OtherWorker => "other_worker",
        Refusal::AwaitsRun => "awaits_run",
        Refusal::Corrupt(_) => "damaged",
    }
}

/// On a test server a job's meta may say what its worker is told: the conformance suites have no other way.
async fn directive(app: &App, jobs: &[JobId]) -> Result<&'static str, Refused> {
    for job in app.engine.jobs(jobs.to_vec()).await? {
        let meta = Json::parse(&job.body.meta, "/meta").ok();
        match meta.as_ref().and_then(|meta| meta.get("test_directive")).and_then(Json::as_str) {
            Some("quiet") => return Ok("quiet"),
            Some("terminate") => return Ok("terminate"),
            _ => {}
        }
    }
    Ok("running")
}
