//! Making responses: every handler returns JSON text or a [`Problem`], and only this module turns them into responses.

use std::fmt::Write as _;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{HeaderName, LOCATION};
use http::{HeaderValue, StatusCode};
use semel_core::error::Invalid;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::settle::{Refusal, Settled};
use semel_engine::{Engine, Job};
use semel_ojs::{Code, JobView, Problem};
use semel_store::StoreError;

use crate::caller::Caller;

/// A handler's result.
pub(crate) type Answered = Result<Answer, Refused>;

/// Marks the answer as a repetition of an earlier request's answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// JSON text with its status.
pub(crate) struct Answer {
    status: StatusCode,
    body: Bytes,
    location: Option<JobId>,
    is_replay: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Answer {
    /// An answer with status 200.
    pub(crate) fn ok(body: impl Into<Bytes>) -> Self {
        Self::status(StatusCode::OK, body)
    }

    /// An answer with any status.
    pub(crate) fn status(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, body: body.into(), location: None, is_replay: false, headers: Vec::new() }
    }

    /// An answer with status 201 and the job's location.
    pub(crate) fn created(id: JobId, body: String) -> Self {
        Self { location: Some(id), ..Self::status(StatusCode::CREATED, body) }
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: HeaderName, value: impl std::fmt::Display) -> Self {
        self.headers.extend(HeaderValue::try_from(value.to_string()).ok().map(|value| (name, value)));
        self
    }

    /// Marks the answer as replayed.
    pub(crate) fn replayed(self) -> Self {
        Self { is_replay: true, ..self }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        if let Some(id) = self.location
            && let Ok(value) = HeaderValue::try_from(location(id))
        {
            response.headers_mut().insert(LOCATION, value);
        }
        if !self.headers.is_empty() {
            response.headers_mut().extend(self.headers);
        }
        if self.is_replay {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// Path of a job.
fn location(id: JobId) -> String {
    const JOBS: &str = "/ojs/v1/jobs/";
    let mut at = String::with_capacity(JOBS.len() + 36);
    at.push_str(JOBS);
    // Writing to a string cannot fail.
    let _ = write!(at, "{id}");
    at
}

/// A refusal on its way to the edge, which knows the request's id and writes the body.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) problem: Problem,
    /// Written to the server's log, not to the answer.
    pub(crate) cause: Option<String>,
}

impl Refused {
    /// Reports an engine result that its own rules make impossible.
    pub(crate) fn out_of_step() -> Self {
        let cause = "the engine's outcomes are not those of the jobs it was given".to_owned();
        Self { problem: Problem::internal(), cause: Some(cause) }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status_of(&self.problem);
        response.extensions_mut().insert(self);
        response
    }
}

impl Refused {
    /// Adds what was looked for, if the refusal is that it was not found.
    pub(crate) fn naming(self, id: JobId) -> Self {
        Self { problem: self.problem.naming(id), ..self }
    }
}

/// The problem's HTTP status.
pub(crate) fn status_of(problem: &Problem) -> StatusCode {
    StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem, cause: None }
    }
}

impl From<Invalid> for Refused {
    fn from(invalid: Invalid) -> Self {
        Problem::from(invalid).into()
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let cause = if let Refusal::Corrupt(corrupt) = &refusal { Some(corrupt.to_string()) } else { None };
        Self { problem: refusal.into(), cause }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        let problem = match &error {
            StoreError::Contended => Problem::new(
                Code::Contended,
                "too many requests compete for the job's key, or for another record that this request needs; try again shortly",
            ),
            // Whether the request may be stored decides what the caller should do.
            StoreError::Behind(_) => Problem::new(
                Code::Unavailable,
                "too few of the store's replicas are connected to confirm an answer: this request stored nothing; repeat it when \
                 they are back, with the same job id if it has one, because an earlier attempt may be stored",
            ),
            StoreError::Lagging(_) => Problem::new(
                Code::Unavailable,
                "too few of the store's replicas have confirmed the request yet: it may be stored, but a replica that takes over \
                 may not have it; repeat it with the same job id: if it is stored, you get the first answer once they have \
                 confirmed it",
            ),
            StoreError::Unavailable(_) | StoreError::Stalled => Problem::new(
                Code::Unavailable,
                "the store cannot be reached or cannot write now; try again shortly, with the same job id if the request has one",
            ),
            StoreError::Unknown(_) => Problem::new(
                Code::Unavailable,
                "the connection to the store was lost before it answered, so whether the request was carried out is unknown; repeat it with the same job id",
            ),
            // Both a write that failed with the store and any later request get this answer.
            StoreError::Poisoned(_) => Problem::new(
                Code::Unavailable,
                "the store has failed and must be reopened; if the request was under way when it failed, whether it was carried out \
                 is unknown: repeat it with the same job id",
            ),
            StoreError::Closed => Problem::new(
                Code::Unavailable,
                "the server is shutting down, and whether the request was carried out is unknown; repeat it with the same job id",
            ),
            StoreError::Unsupported(_) => Problem::new(
                Code::Unsupported,
                "the store does not support this; GET /ojs/manifest says which store it is",
            ),
            StoreError::CursorGone => Problem::new(
                Code::CursorGone,
                "the job that this cursor names is gone, so it is not known where the previous page ended; read from the beginning, without a cursor",
            )
            .with_hint("Read the list from the beginning, without a cursor."),
            _ => Problem::internal(),
        };
        // A stale cursor is the caller's mistake, not a failure.
        let cause = (error != StoreError::CursorGone).then(|| error.to_string());
        Self { problem, cause }
    }
}

/// A whole job as it is shown; if its body cannot be read, its head and a note of that.
pub(crate) fn view(job: &Job) -> JobView<'_> {
    JobView {
        head: &job.head,
        body: job.is_readable.then_some(&job.body),
        failures: &job.failures.0,
        result: job.result.as_ref().and_then(|result| str::from_utf8(result).ok()),
        duplicates: Some(&job.duplicates),
        progress: job.progress.as_ref().and_then(|progress| str::from_utf8(progress).ok()),
        workflow: job.waiters.workflow(),
        replaced_by: job.replaced_by.filter(|_| !job.is_replacement_hidden),
        parent_results: job.parent_results.as_ref().and_then(|text| str::from_utf8(text).ok()),
        with_lease: false,
        is_curt: false,
        names_others: false,
    }
}

/// As [`view`], with the job's relations to other jobs if the caller may know of them.
pub(crate) fn view_for<'a>(job: &'a Job, caller: &Caller) -> JobView<'a> {
    JobView { names_others: caller.knows_others(), ..view(job) }
}

/// Unwraps what was read for the answer to a request that was carried out. A failed read is left out of the
/// answer: reporting a failure would make the client send the request again.
pub(crate) fn if_read<T: Default, E: std::fmt::Display>(read: Result<T, E>) -> T {
    read.unwrap_or_else(|error| {
        tracing::warn!(%error, "a request was carried out, but part of its answer could not be read and was left out");
        T::default()
    })
}

/// Shows the whole job that a request has acted on; its head alone if its body has been deleted meanwhile or
/// cannot be read.
pub(crate) async fn show(
    engine: &Engine,
    caller: &Caller,
    head: &Head,
    write: impl FnOnce(&JobView<'_>) -> String,
) -> String {
    match if_read(engine.job(head.id).await) {
        Some(job) => write(&view_for(&job, caller)),
        None => write(&JobView::bare(head)),
    }
}

/// The job of a request that was carried out, now or earlier.
pub(crate) fn settled(id: JobId, settled: Settled) -> Result<Box<Head>, Refused> {
    match settled {
        Settled::Done(head) | Settled::Repeated(head) => Ok(head),
        Settled::Refused(refusal) => Err(Refused::from(refusal).naming(id)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::Router;
    use http::header::{AUTHORIZATION, CONTENT_TYPE};
    use http::{Method, Request};
    use http_body_util::BodyExt as _;
    use semel_core::draft::{Reads, Snapshot};
    use semel_store::Backend;
    use semel_store::backend::{Applied, Batch, BoxFuture};
    use semel_store::layer::Layer;
    use semel_store::memory::Memory;
    use serde_json::{Value, json};
    use tower_service::Service as _;

    use super::*;
    use crate::Config;
    use crate::auth::{Queues, Role, Token, Tokens, digest};

    const FETCH: (&str, &str) = ("/ojs/v1/workers/fetch", r#"{"queues":["default"]}"#);
    const NACK: (&str, &str) =
        ("/ojs/v1/workers/nack", r#"{"job_id":"ID","error":{"code":"x","message":"x"}}"#);

    /// A store that can no longer be read once it has carried out its last request.
    #[derive(Default)]
    struct Restarting {
        inner: Memory,
        is_last: AtomicBool,
        is_away: AtomicBool,
    }

    impl Restarting {
        fn go(&self) {
            self.is_away.store(self.is_last.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    impl Layer for Restarting {
        type Inner = Memory;

        fn inner(&self) -> &Memory {
            &self.inner
        }

        fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
            if self.is_away.load(Ordering::SeqCst) {
                let gone = StoreError::Unavailable("it restarts".to_owned());
                return Box::pin(std::future::ready(Err(gone)));
            }
            self.inner.load(reads)
        }

        fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
            Box::pin(async move {
                let applied = self.inner.commit(batch).await;
                self.go();
                applied
            })
        }

        fn confirm<'a>(&'a self, seen: &'a Reads) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(async move {
                let confirmed = self.inner.confirm(seen).await;
                self.go();
                confirmed
            })
        }
    }

    struct Scene {
        store: Arc<Restarting>,
        router: Router,
    }

    impl Scene {
        fn new(config: Config) -> Self {
            let store = Arc::new(Restarting::default());
            let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
            Self { store, router: crate::router(engine, config) }
        }

        async fn ask(&mut self, method: Method, path: &str, body: &str) -> (u16, Value) {
            let request = Request::builder().method(method).uri(path);
            let request =
                request.header(CONTENT_TYPE, "application/json").header(AUTHORIZATION, "Bearer mail");
            let asked = self.router.call(request.body(Body::from(body.to_owned())).unwrap());
            let response = asked.await.unwrap();
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice(&bytes).unwrap())
        }

        /// As `ask`; then the store is unreachable for as long as the answer takes.
        async fn ask_last(&mut self, method: Method, path: &str, body: &str) -> (u16, Value) {
            self.store.is_last.store(true, Ordering::SeqCst);
            let told = self.ask(method, path, body).await;
            self.store.is_last.store(false, Ordering::SeqCst);
            assert!(self.store.is_away.swap(false, Ordering::SeqCst), "it was done: {}", told.1);
            told
        }
    }

    /// The catalogue's hint names a detail that only the event log has.
    #[test]
    fn a_page_that_cannot_go_on_has_a_hint_of_its_own() {
        let mut out = String::new();
        Refused::from(StoreError::CursorGone).problem.write("r", &mut out);
        let told: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&told["error"]["code"], &told["error"]["details"]), (&json!("cursor_gone"), &json!({})));
        assert!(!told["error"]["hint"].as_str().unwrap().contains("details"), "{told}");
    }

    /// If the job is stored, a client that repeats the request under another id has it twice.
    #[test]
    fn of_a_write_without_replicas_it_is_told_whether_it_is_stored() {
        let told = |error: fn(String) -> StoreError| {
            let problem = Refused::from(error("a secret".to_owned())).problem;
            assert_eq!(problem.code(), Code::Unavailable);
            assert!(!problem.message().contains("a secret"), "{problem}");
            problem.message().to_owned()
        };
        let (lagging, behind) = (told(StoreError::Lagging), told(StoreError::Behind));
        assert!(lagging.contains("it may be stored") && !lagging.contains("unknown"), "{lagging}");
        assert!(behind.contains("stored nothing"), "{behind}");
        for (other, says) in
            [(told(StoreError::Unknown), "is unknown"), (told(StoreError::Unavailable), "try again")]
        {
            assert!(other.contains(says) && !other.contains("replicas"), "{other}");
        }
    }

    /// If told of a failure, the client would repeat the batch, and store all but the duplicate twice.
    #[tokio::test]
    async fn what_is_stored_is_told_though_a_duplicates_job_cannot_be_read() {
        let kept =
            json!({ "type": "a.b", "args": [1], "options": { "unique": { "on_conflict": "ignore" } } });
        let batch = json!({ "jobs": [{ "type": "a.b", "args": [2] }, kept] }).to_string();
        let kept = kept.to_string();
        for (path, body, status) in [
            ("/ojs/v1/jobs/bulk", &batch, 200),
            ("/ojs/v1/jobs/batch", &batch, 201),
            ("/ojs/v1/jobs", &kept, 200),
        ] {
            let mut scene = Scene::new(Config::default());
            let (_, first) = scene.ask(Method::POST, "/ojs/v1/jobs", &kept).await;
            let id = first["job"]["id"].as_str().unwrap();
            let (told, answer) = scene.ask_last(Method::POST, path, body).await;
            assert_eq!(told, status, "{path}: {answer}");
            assert!(answer.to_string().contains(id), "{path}: {answer}");
        }
    }

    #[tokio::test]
    async fn what_became_of_a_job_is_told_though_it_cannot_be_read() {
        let dead = json!({ "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } });
        let none: &[(&str, &str)] = &[];
        for (options, first, method, (path, body)) in [
            (json!({}), none, Method::DELETE, ("/ojs/v1/jobs/ID", "{}")),
            (json!({}), none, Method::POST, ("/ojs/v1/admin/jobs/ID/cancel", "")),
            (json!({ "pending": true }), none, Method::POST, ("/ojs/v1/jobs/ID/activate", "")),
            (json!({}), &[FETCH][..], Method::POST, NACK),
            (dead, &[FETCH, NACK][..], Method::POST, ("/ojs/v1/dead-letter/ID/retry", "")),
        ] {
            let mut scene = Scene::new(Config::default());
            let job = json!({ "type": "a.b", "args": [], "options": options }).to_string();
            let (_, made) = scene.ask(Method::POST, "/ojs/v1/jobs", &job).await;
            let id = made["job"]["id"].as_str().unwrap();
            let named = |text: &str| text.replace("ID", id);
            for (path, body) in first {
                let (told, answer) = scene.ask(Method::POST, path, &named(body)).await;
                assert_eq!(told, 200, "{path}: {answer}");
            }
            let (told, answer) = scene.ask_last(method, &named(path), &named(body)).await;
            assert_eq!((told, &answer["job"]["id"]), (200, &made["job"]["id"]), "{path}: {answer}");
        }
    }

    /// If told of a failure, the client would make the cron tick again.
    #[tokio::test]
    async fn a_tick_is_told_though_its_job_cannot_be_read() {
        let queues = Queues::Only(vec!["mail".to_owned()].into());
        let token = Token { queues, ..Token::new("mail", digest("mail"), vec![Role::Producer]) };
        let mut scene = Scene::new(Config { tokens: Tokens::only(vec![token]), ..Config::default() });
        let template = json!({ "type": "a.b", "args": [1], "options": { "queue": "mail" } });
        let cron = json!({ "name": "tick", "expression": "0 3 1 1 *", "job_template": template });
        let (told, answer) = scene.ask(Method::POST, "/ojs/v1/cron", &cron.to_string()).await;
        assert_eq!(told, 201, "{answer}");
        let (told, answer) = scene.ask_last(Method::POST, "/ojs/v1/cron/tick/trigger", "").await;
        assert_eq!(told, 200, "{answer}");
    }
}
