//! To answers: every handler gives back JSON text or a [`Problem`], and this is the one place that makes responses.

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

/// What a handler gives back.
pub(crate) type Answered = Result<Answer, Refused>;

/// Says that the answer repeats that of an earlier request.
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
    /// 200.
    pub(crate) fn ok(body: impl Into<Bytes>) -> Self {
        Self::status(StatusCode::OK, body)
    }

    /// Any status.
    pub(crate) fn status(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, body: body.into(), location: None, is_replay: false, headers: Vec::new() }
    }

    /// 201, with the place of the job.
    pub(crate) fn created(id: JobId, body: String) -> Self {
        Self { location: Some(id), ..Self::status(StatusCode::CREATED, body) }
    }

    /// The same with another header.
    pub(crate) fn with(mut self, name: HeaderName, value: impl std::fmt::Display) -> Self {
        self.headers.extend(HeaderValue::try_from(value.to_string()).ok().map(|value| (name, value)));
        self
    }

    /// The same, said to be a repetition.
    pub(crate) fn replayed(self) -> Self {
        Self { is_replay: true, ..self }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        if let Some(id) = self.location
            && let Ok(value) = HeaderValue::try_from(format!("/ojs/v1/jobs/{id}"))
        {
            response.headers_mut().insert(LOCATION, value);
        }
        response.headers_mut().extend(self.headers);
        if self.is_replay {
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// A refusal on its way to the edge, which knows the request's id and writes the body.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) problem: Problem,
    /// What the server's log is to tell and the answer is not.
    pub(crate) cause: Option<String>,
}

impl Refused {
    /// The engine answered what its own rules make impossible.
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
                "the job's key is in too much demand right now; try again shortly",
            ),
            StoreError::Unavailable(_) => Problem::new(
                Code::Unavailable,
                "the store cannot be reached or cannot write now; try again shortly",
            ),
            StoreError::Unknown(_) => Problem::new(
                Code::Unavailable,
                "the store was lost before it said whether the request was carried out, or too few of its replicas have it: that is \
                 unknown; repeat it with the same job id",
            ),
            StoreError::Closed => Problem::new(
                Code::Unavailable,
                "the server is shutting down and whether the request was carried out is unknown; repeat it with the same job id",
            ),
            StoreError::Unsupported(_) => Problem::new(
                Code::Unsupported,
                "the store does not do this; the manifest says which store it is",
            ),
            _ => Problem::internal(),
        };
        Self { problem, cause: Some(error.to_string()) }
    }
}

/// A whole job as it is shown.
pub(crate) fn view(job: &Job) -> JobView<'_> {
    JobView {
        head: &job.head,
        body: Some(&job.body),
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

/// The same for a caller, who may know of its relations.
pub(crate) fn view_for<'a>(job: &'a Job, caller: &Caller) -> JobView<'a> {
    JobView { names_others: caller.knows_others(), ..view(job) }
}

/// Shows the whole job of this head, or the head alone when its body has been deleted in the meantime.
pub(crate) async fn show(
    engine: &Engine,
    caller: &Caller,
    head: &Head,
    write: impl FnOnce(&JobView<'_>) -> String,
) -> Result<String, StoreError> {
    Ok(match engine.job(head.id).await? {
        Some(job) => write(&view_for(&job, caller)),
        None => write(&JobView::bare(head)),
    })
}

/// The job of a request that was carried out, now or before.
pub(crate) fn settled(settled: Settled) -> Result<Box<Head>, Refused> {
    match settled {
        Settled::Done(head) | Settled::Repeated(head) => Ok(head),
        Settled::Refused(refusal) => Err(refusal.into()),
    }
}
