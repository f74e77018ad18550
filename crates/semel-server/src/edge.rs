//! What every answer has in common: the media type, the version, the request's id; and what no handler decides:
//! tokens, versions, time, panics, unknown paths and methods.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use semel_ojs::{Code, MEDIA_TYPE, Problem, VERSION, is_supported_version};
use semel_store::clock::{Clock as _, SystemClock};

use crate::App;
use crate::auth::Admitted;
use crate::caller::{Access, Caller};
use crate::extract::REQUEST_ID;
use crate::jobs::{QUEUE_BOUND, QUEUE_DEPTH};
use crate::load::Place;
use crate::respond::{Refused, status_of};
use crate::routes::Row;
use crate::tenancy::{Scope, tenant_of};
use crate::trace::{self, Span};

const OJS_VERSION: HeaderName = HeaderName::from_static("ojs-version");
/// The longest request id that is taken over from a client, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Wraps every request.
pub(crate) async fn edge(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let row = route.as_ref().and_then(|route| app.routes.find(route.as_str(), request.method()));
    let mut caller = Caller::default();
    let asked = trace::of(request.headers());
    // Whoever records knows the request as a part of its own; otherwise the caller's own part is handed on.
    let spans = app.config.spans.as_ref().filter(|_| row.is_some_and(|row| row.access != Access::Public));
    let own = spans.map(|_| (trace::below(asked.as_ref()), SystemClock.now()));
    if let Some(trace) = own.as_ref().map(|(trace, _)| trace).or(asked.as_ref()) {
        request.extensions_mut().insert(trace.clone());
    }
    let path = route.as_ref().map(MatchedPath::as_str);
    let mut response = match admit(&app, path, row, &mut request) {
        Err(problem) => Refused::from(problem).into_response(),
        Ok((who, place)) => {
            caller = who;
            let answer = AssertUnwindSafe(next.run(request)).catch_unwind();
            let answer = tokio::time::timeout(app.config.request_timeout, answer).await;
            drop(place);
            match answer {
                Ok(Ok(response)) => response,
                Ok(Err(_)) => {
                    let cause = Some("a handler panicked".to_owned());
                    Refused { problem: Problem::internal(), cause }.into_response()
                }
                Err(_) => Refused::from(Problem::new(
                    Code::Timeout,
                    "the request took too long; whether it was carried out is unknown, so repeat it with the same job id",
                ))
                .into_response(),
            }
        }
    };
    finish(&mut response, id);
    let took = began.elapsed();
    if let Some(row) = row {
        row.times.count(response.status(), took);
    }
    if let (Some(spans), Some((trace, began)), Some(row)) = (spans, own, row) {
        let (parent, status) = (asked.map(|asked| asked.span), response.status().as_u16());
        let method = row.name_of_method();
        spans.take(Span { trace, parent, method, route: row.path, status, began, took });
    }
    // The route and not the path: that may hold a key.
    let (method, route) = row.map_or(("", ""), |row| (row.method.as_str(), row.path));
    let status = response.status().as_u16();
    tracing::debug!(target: "semel::request", method, route, status, ?took, token = caller.id());
    response
}

/// There is nothing at this path.
pub(crate) async fn no_such_path() -> Refused {
    nothing_there().into()
}

fn nothing_there() -> Problem {
    Problem::new(
        Code::NotFound,
        "there is nothing at this path; GET /ojs/manifest says what this server does",
    )
}

/// There is something at this path, but not for this method.
pub(crate) async fn no_such_method() -> Refused {
    Problem::new(
        Code::MethodNotAllowed,
        "this path does not know the method; use one that the Allow header names",
    )
    .into()
}

/// Whether the request is let in, whose it is, and its place among those under way. Handlers find these, and the app
/// of the request's tenant, among the extensions.
fn admit(
    app: &Arc<App>,
    path: Option<&str>,
    row: Option<&Row>,
    request: &mut Request,
) -> Result<(Caller, Option<Arc<Place>>), Problem> {
    let access = row.map(|row| row.access);
    // What is no endpoint is told apart by whoever has a token, and by nobody else below OJS's path.
    let is_public = match access {
        Some(access) => access == Access::Public,
        None => !request.uri().path().starts_with("/ojs/v1"),
    };
    let caller = if is_public { Caller::default() } else { identify(app, request.headers())? };
    let tenant = tenant_of(request.headers(), &caller)?;
    caller.check_tenant(&tenant)?;
    // To a tenant what is about the whole server is not there.
    if !tenant.is_default() && path.is_some_and(|path| app.routes.is_global(path)) {
        return Err(nothing_there());
    }
    if let Some(access) = access {
        caller.check(access)?;
    }
    check_version(request.headers())?;
    let place = if is_public {
        None
    } else {
        let place = Place::take(&app.load, app.config.bounds, caller.token())?;
        request.extensions_mut().insert(Arc::clone(&place));
        Some(place)
    };
    request.extensions_mut().insert(caller.clone());
    request.extensions_mut().insert(Scope::of(app, &tenant));
    Ok((caller, place))
}

fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, Problem> {
    match app.config.tokens.admit(headers, || SystemClock.now()) {
        Admitted::Open => Ok(Caller::default()),
        Admitted::As(token) => Ok(Caller::with(token)),
        Admitted::Refused => Err(Problem::new(
            Code::Unauthorized,
            "the request carries no token that this server knows; send Authorization: Bearer and a token",
        )),
    }
}

fn check_version(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get(OJS_VERSION) {
        Some(version) if !version.to_str().is_ok_and(is_supported_version) => Err(Problem::new(
            Code::UnsupportedVersion,
            "this version of Open Job Spec is not supported; send OJS-Version: 1.0",
        )
        .with_details(|object| object.texts("supported", [VERSION]))),
        _ => Ok(()),
    }
}

fn finish(response: &mut Response, id: HeaderValue) {
    if let Some(refused) = refusal(response) {
        let request_id = id.to_str().unwrap_or_default();
        if let Some(cause) = &refused.cause {
            let code = refused.problem.code().entry().wire;
            tracing::error!(request_id, code, cause, "a request failed");
        }
        let mut body = String::with_capacity(512);
        refused.problem.write(request_id, &mut body);
        *response.status_mut() = status_of(&refused.problem);
        *response.body_mut() = Body::from(body);
        let headers = response.headers_mut();
        headers.remove(http::header::CONTENT_LENGTH);
        headers.remove(CONTENT_TYPE);
        match refused.problem.code() {
            Code::Unauthorized => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::QueueFull => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                if let Some(depth) = refused.problem.depth() {
                    headers.insert(QUEUE_DEPTH, HeaderValue::from(depth.waiting));
                    headers.insert(QUEUE_BOUND, HeaderValue::from(depth.bound));
                }
            }
            Code::Contended | Code::Unavailable | Code::TooManyRequests => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
    }
    let headers = response.headers_mut();
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(OJS_VERSION, HeaderValue::from_static(VERSION));
    headers.insert(REQUEST_ID, id);
}

/// The refusal a handler gave back, or one for an error that the framework answered by itself.
fn refusal(response: &mut Response) -> Option<Refused> {
    if let Some(refused) = response.extensions_mut().remove::<Refused>() {
        return Some(refused);
    }
    let is_ours = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == MEDIA_TYPE);
    match response.status() {
        _ if is_ours => None,
        StatusCode::PAYLOAD_TOO_LARGE => {
            Some(Problem::new(Code::TooLarge, "the body is too large; send less at once").into())
        }
        status if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE => {
            Some(Problem::internal().into())
        }
        _ => None,
    }
}

/// The client's own id of the request, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Random per process, so that two servers do not name their requests alike.
    static PROCESS: LazyLock<u64> = LazyLock::new(semel_store::random::number);
    let sent = headers.get(REQUEST_ID).filter(|id| {
        !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX && id.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    match sent {
        Some(id) => id.clone(),
        None => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            HeaderValue::try_from(format!("req_{:016x}{number:08x}", *PROCESS))
                .unwrap_or(HeaderValue::from_static("req_unknown"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::Router;
    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use semel_engine::Engine;
    use semel_store::memory::Memory;
    use tower_service::Service as _;

    use super::*;
    use crate::Config;

    /// Asks a router of two handlers that never answer.
    async fn ask(path: &str) -> (StatusCode, HeaderMap, serde_json::Value) {
        let config = Config { request_timeout: Duration::from_millis(50), ..Config::default() };
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let app = Arc::new(App::new(engine, config, &[]));
        let mut router = Router::new()
            .route("/panics", get(async || -> Refused { panic!("a secret") }))
            .route("/sleeps", get(async || -> Refused { std::future::pending().await }))
            .layer(axum::middleware::from_fn_with_state(app, edge));
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let (parts, body) = router.call(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_that_tells_nothing() {
        let (status, headers, body) = ask("/panics").await;
        assert_eq!((status.as_u16(), &body["error"]["code"]), (500, &"internal_error".into()));
        assert_eq!(headers[CONTENT_TYPE], MEDIA_TYPE);
        assert!(!body.to_string().contains("secret"));
    }

    #[tokio::test]
    async fn a_request_that_takes_too_long_is_answered() {
        let (status, headers, body) = ask("/sleeps").await;
        assert_eq!((status.as_u16(), &body["error"]["retryable"]), (504, &true.into()));
        assert!(headers.contains_key(REQUEST_ID));
    }
}
