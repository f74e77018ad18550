//! `/ojs/v1/workers`: fetch, ack, nack, heartbeat.

use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use semel_core::canon::Json;
use semel_core::ident::JobId;
use semel_core::lease::Grant;
use semel_core::settings::Directive;
use semel_core::settle::Settled;
use semel_engine::engine::Undecided;
use semel_engine::workers::{SaidOfItself, WorkerSeen};
use semel_ojs::JobView;
use semel_ojs::answer::{self, Beat};
use semel_ojs::refusal::why_lost;
use semel_ojs::worker::{Ack, Fetch, Heartbeat, Nack};
use semel_store::StoreError;
use semel_store::backend::Claim;
use tokio::time::Instant;

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::leased::Leased;
use crate::respond::{Answer, Answered, Refused, settled, view};
use crate::tenancy::Scope;

type Id = Result<Path<String>, PathRejection>;

/// How long a heartbeat that names jobs waits for its directive and the time once the leases are extended: as long as
/// that extension took, which shows how fast the store is, but at least this. A worker's own timeout is longer.
const TOLD_WITHIN: Duration = Duration::from_millis(250);
/// The upper bound of that wait.
const TOLD_WITHIN_MAX: Duration = Duration::from_secs(1);

/// `POST /workers/fetch`. With `wait_ms` the answer waits for jobs.
pub(crate) async fn fetch(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let fetch = Fetch::parse(&text)?;
    extract::check_unread(&parts)?;
    for queue in &fetch.queues {
        caller.check_queue(queue.name())?;
    }
    let seen = app.engine.workers().get(app.engine.tenant(), &fetch.worker);
    if !fetch.worker.is_empty() && speaks_for(&caller, seen.as_ref()) {
        // The worker has said that it is draining, so a fetch does not count as a heartbeat. If that is
        // stale, or was reported by a caller without these queues, a worker that fetches has begun anew.
        if seen.as_ref().is_some_and(|worker| worker.drains(&fetch.queues)) {
            return Ok(Answer::ok(answer::fetched([])));
        }
        let is_draining = seen.is_some_and(|worker| worker.is_draining).then_some(false);
        let said_of = Some(caller.queues());
        let said = SaidOfItself { queues: &fetch.queues, is_draining, said_of, ..SaidOfItself::default() };
        app.engine.workers().heard(app.engine.tenant(), &fetch.worker, app.engine.now().await?, &said);
    }
    let claim = Claim {
        queues: fetch.queues,
        limit: fetch.count,
        grant: Grant::new(fetch.worker, fetch.visibility_ms),
        closed: Vec::new(),
    };
    // Answers at once if the server is shutting down or has as many polls waiting as it allows.
    let waits = !fetch.wait.is_zero() && !app.config.drain.has_begun() && extract::park(&parts);
    let room = extract::answer_room(&parts);
    let leased = Leased::claim(&app, &claim, waits.then_some(fetch.wait), room).await?;
    // If the token was revoked meanwhile, the leased jobs are given back.
    caller.check_still(&app)?;
    let answer = answer::fetched(leased.jobs().iter().map(view));
    // If there is no room for the answer, the jobs are given back.
    extract::answered(&parts, answer.len())?;
    leased.told();
    Ok(Answer::ok(answer))
}

/// Whether to believe what the caller says about the worker with this id. A token limited to some queues cannot speak for a
/// worker that takes jobs of others. Two workers may share an id unknowingly, so no jobs or leases are refused because of it.
fn speaks_for(caller: &Caller, seen: Option<&WorkerSeen>) -> bool {
    seen.is_none_or(|worker| worker.is_stale() || caller.sees_worker(worker))
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
    let head = settled(id, app.engine.complete(id, bearer, result.clone().map(Into::into)).await?)?;
    Ok(Answer::ok(answer::acknowledged(&JobView { result: result.as_deref(), ..JobView::bare(&head) })))
}

/// `POST /workers/nack`: reports a failure, or returns the job with `requeue: true`, after `delay_ms`.
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
    let head = settled(
        id,
        match (report, delay) {
            (Some(report), _) => app.engine.fail(id, bearer, report).await?,
            (None, Some(delay)) => app.engine.snooze(id, bearer, delay).await?,
            (None, None) => app.engine.give_back(id, bearer).await?,
        },
    )?;
    let write = |view: &JobView<'_>| answer::failed(&JobView { head: &head, ..*view });
    Ok(Answer::ok(caller.show(app, &head, write).await))
}

/// `POST /workers/heartbeat`.
pub(crate) async fn heartbeat(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let beat = Heartbeat::parse(&text)?;
    let (mut extended, mut held, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    let ids: Vec<JobId> = beat.jobs.iter().map(|(id, _)| *id).collect();
    let began = Instant::now();
    if !beat.jobs.is_empty() {
        let answers = app.engine.extend(beat.jobs, beat.visibility_ms, caller.queues()).await?;
        for (id, settled) in ids.iter().zip(answers) {
            match settled {
                Ok(Settled::Done(_) | Settled::Repeated(_)) => extended.push(*id),
                Ok(Settled::Refused(refusal)) => lost.push((*id, why_lost(&refusal))),
                Err(Undecided::Held) => held.push(*id),
                // Unknown: the worker reports this job again at its next heartbeat.
                Err(Undecided::Unheard) => {}
            }
        }
    }
    // The fate of the leases is reported whatever else fails, or the worker would think them expired. A
    // heartbeat without jobs came for the rest alone.
    let names_jobs = !ids.is_empty();
    let patience =
        if names_jobs { began.elapsed().clamp(TOLD_WITHIN, TOLD_WITHIN_MAX) } else { Duration::MAX };
    let workers = app.engine.workers();
    let seen = workers.get(app.engine.tenant(), &beat.worker);
    let speaks = !beat.worker.is_empty() && speaks_for(&caller, seen.as_ref());
    let told = async { if speaks { app.engine.directive(&beat.worker).await } else { Ok(Directive::Run) } };
    let (now, told) = match tokio::join!(within(patience, app.engine.now()), within(patience, told)) {
        (Ok(now), Ok(told)) => (Some(now), Some(told)),
        (now, told) if names_jobs => (now.ok(), told.ok()),
        (Err(error), _) | (_, Err(error)) => return Err(error.into()),
    };
    if speaks && let Some(now) = now {
        let (active_jobs, is_draining) = (beat.count, beat.is_draining);
        let said = SaidOfItself { queues: &[], active_jobs, is_draining, said_of: Some(caller.queues()) };
        workers.heard(app.engine.tenant(), &beat.worker, now, &said);
    }
    if speaks && let Some(told) = told {
        workers.told(app.engine.tenant(), &beat.worker, told);
    }
    let last = seen.filter(|_| speaks).map(|worker| worker.told);
    let mut directive = told.or(last).unwrap_or_default();
    if app.config.allow_reset && directive == Directive::Run {
        directive = test_directive(&app, &extended).await.unwrap_or(directive);
    }
    Ok(Answer::ok(answer::heartbeat(&Beat { directive, extended: &extended, held: &held, lost: &lost, now })))
}

/// The store's answer, if it comes in time.
async fn within<T>(
    patience: Duration,
    said: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = || StoreError::Unavailable("it did not answer in time".to_owned());
    tokio::time::timeout(patience, said).await.unwrap_or_else(|_| Err(late()))
}

/// On a test server a job's meta may set its worker's directive: the conformance suites have no other way.
async fn test_directive(app: &App, jobs: &[JobId]) -> Result<Directive, Refused> {
    for job in app.engine.jobs(jobs.to_vec()).await? {
        let meta = Json::parse(&job.body.meta, "/meta").ok();
        let said = meta.as_ref().and_then(|meta| meta.get("test_directive")).and_then(Json::as_str);
        if let Some(directive @ (Directive::Quiet | Directive::Terminate)) =
            said.and_then(Directive::from_name)
        {
            return Ok(directive);
        }
    }
    Ok(Directive::Run)
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::Poll;
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use http::Request;
    use http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;
    use semel_core::state::State;
    use semel_engine::Engine;
    use semel_engine::workers::STALE_AFTER;
    use semel_store::memory::Memory;
    use tower_service::Service as _;

    async fn ask(router: &mut Router, path: &str, body: &str) -> serde_json::Value {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        let response = router.call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn active(engine: &Engine) -> u64 {
        let queues = engine.queues().await.unwrap();
        queues.iter().map(|queue| queue.counts[usize::from(State::Active.code())]).sum()
    }

    /// A caller that has hung up must not hold leases.
    #[tokio::test]
    async fn a_fetch_that_is_given_up_gives_back_what_was_leased_for_it() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let mut router = crate::router(engine.clone(), crate::Config::default());
        let jobs = vec![r#"{"type":"a.b","args":[]}"#; 1_000].join(",");
        ask(&mut router, "/ojs/v1/jobs/bulk", &format!(r#"{{"jobs":[{jobs}]}}"#)).await;
        let body = Body::from(r#"{"queues":["default"],"count":1000}"#);
        let request = Request::post("/ojs/v1/workers/fetch").header(CONTENT_TYPE, "application/json");
        let mut fetch = router.call(request.body(body).unwrap());
        // Until there are more jobs than are leased at once.
        loop {
            let has_ended =
                std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut fetch).poll(context).is_ready()));
            assert!(!has_ended.await, "it was not given up");
            if active(&engine).await > 64 {
                break;
            }
        }
        drop(fetch);
        let given_back = async {
            while active(&engine).await > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), given_back).await.unwrap();
    }

    /// Others' unread answers must not cost a lease, and no jobs are started for a worker that would not be sent them.
    #[tokio::test]
    async fn a_worker_tells_of_its_jobs_whatever_is_unread() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let bounds = crate::Bounds { answer_bytes: 10, answer_bytes_free: 1_024, ..crate::Bounds::default() };
        let mut router = crate::router(engine, crate::Config { bounds, ..crate::Config::default() });
        let send = async |router: &mut Router, path: &str, body: String| {
            let request = Request::post(format!("/ojs/v1/{path}")).header(CONTENT_TYPE, "application/json");
            router.call(request.body(Body::from(body)).unwrap()).await.unwrap()
        };
        let small = || r#"{"type":"a.b","args":[]}"#.to_owned();
        let fetch = || r#"{"queues":["default"],"worker_id":"w"}"#.to_owned();
        send(&mut router, "jobs", small()).await;
        let told = ask(&mut router, "/ojs/v1/workers/fetch", &fetch()).await;
        let id = told["jobs"][0]["id"].as_str().unwrap().to_owned();
        let unread = send(
            &mut router,
            "jobs",
            format!(r#"{{"type":"a.b","queue":"q","args":["{}"]}}"#, "x".repeat(4_096)),
        )
        .await;
        assert_eq!(unread.status(), 201);
        // Nothing is available: there would be room for an empty answer.
        for (path, body, status) in [
            ("jobs", small(), 503),
            ("workers/fetch", fetch(), 503),
            ("workers/heartbeat", format!(r#"{{"worker_id":"w","active_jobs":["{id}"]}}"#), 200),
            ("workers/ack", format!(r#"{{"job_id":"{id}"}}"#), 200),
        ] {
            let told = send(&mut router, path, body).await;
            assert_eq!(told.status(), status, "{path}");
        }
        drop(unread);
        assert_eq!(send(&mut router, "workers/fetch", fetch()).await.status(), 200);
    }

    /// A worker that said it was draining, and is restarted under the same id, must get jobs again: its own
    /// fetches and heartbeats must not keep the old state alive.
    #[tokio::test(start_paused = true)]
    async fn who_begins_anew_takes_jobs_again() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let mut router = crate::router(engine, crate::Config::default());
        ask(&mut router, "/ojs/v1/jobs", r#"{"type":"a.b","args":[]}"#).await;
        let beat = r#"{"worker_id":"w","state":"draining","active_jobs":[]}"#;
        ask(&mut router, "/ojs/v1/workers/heartbeat", beat).await;
        let fetch = r#"{"queues":["default"],"worker_id":"w"}"#;
        for _ in 0..3 {
            let told = ask(&mut router, "/ojs/v1/workers/fetch", fetch).await;
            assert_eq!(told["jobs"], serde_json::json!([]), "it has said that it takes none");
            tokio::time::advance(STALE_AFTER / 4).await;
            // It is alive, and says nothing about draining.
            ask(&mut router, "/ojs/v1/workers/heartbeat", r#"{"worker_id":"w","active_jobs":[]}"#).await;
        }
        tokio::time::advance(STALE_AFTER / 2).await;
        let told = ask(&mut router, "/ojs/v1/workers/fetch", fetch).await;
        assert_eq!(told["jobs"].as_array().unwrap().len(), 1, "{told}");
    }
}
