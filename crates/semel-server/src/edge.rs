//! What all answers have in common: the media type, the version, the request id; and what no handler decides:
//! tokens, versions, timeouts, panics, unknown paths and methods.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, NestedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use http::header::{
    ACCEPT_LANGUAGE, CONTENT_TYPE, HOST, HeaderName, LOCATION, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode};
use semel_ojs::{Code, MEDIA_TYPE, Problem, VERSION, is_supported_version};
use semel_store::clock::{Clock as _, SystemClock};

use crate::App;
use crate::audit::{Account, Act};
use crate::auth::Admitted;
use crate::caller::{Access, Caller, twice, unknown};
use crate::extract::{self, Peer, REQUEST_ID};
use crate::jobs::{QUEUE_BOUND, QUEUE_DEPTH};
use crate::leftover::Leftover;
use crate::load::{self, Place};
use crate::respond::{Refused, status_of};
use crate::routes::Row;
use crate::sending;
use crate::tasks;
use crate::tenancy::{Scope, tenant_of};
use crate::trace::{self, Span};

const OJS_VERSION: HeaderName = HeaderName::from_static("ojs-version");
/// The header in which a browser says which kind of site the request comes from. No page can set it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The longest request id that is accepted from a client, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The middleware around every request.
pub(crate) async fn edge(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let nested = request.extensions().get::<NestedPath>().cloned();
    let asked = request.uri().path();
    let path = route.as_ref().map(|route| own_path(route.as_str(), nested.as_ref(), asked));
    let row = path.and_then(|path| app.routes.find(path, request.method()));
    let mut caller = Caller::default();
    let (mut account, mut held) = (None, None);
    let asked = trace::of(request.headers());
    // With a span collector, the trace gets a span of this request; otherwise the caller's span is passed on.
    let spans = app.config.spans.as_ref().filter(|_| row.is_some_and(|row| row.access != Access::Public));
    let own = spans.map(|_| (trace::below(asked.as_ref()), SystemClock.now()));
    if let Some(trace) = own.as_ref().map(|(trace, _)| trace).or(asked.as_ref()) {
        request.extensions_mut().insert(trace.clone());
    }
    let leftover = Leftover::of(&mut request);
    let mut response = match admit(&app, path, row, &mut request) {
        Err(Turned::Misasked(problem)) if row.is_some_and(|row| row.path.starts_with(tasks::PATH)) => {
            tasks::bad_request(problem.message()).into_response()
        }
        Err(Turned::Misasked(problem) | Turned::Away(problem)) => Refused::from(problem).into_response(),
        Ok((who, place)) => {
            caller = who;
            let act = row.and_then(|row| Act::of(row, &caller, &mut request));
            account = act.map(|act| Account::open(&app, act));
            let answer = AssertUnwindSafe(next.run(request)).catch_unwind();
            let answer = tokio::time::timeout(app.config.request_timeout, answer).await;
            let response = match answer {
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
            };
            held = place;
            let only_reads = row.is_none_or(|row| row.method.is_safe());
            sending::counted(response, held.as_deref(), only_reads)
        }
    };
    finish(&mut response, id, &app);
    if let Some(nested) = &nested {
        relocate(response.headers_mut(), nested);
    }
    if let Some(place) = held {
        response = sending::held(response, place);
    }
    let took = began.elapsed();
    if let Some(account) = account {
        account.close(response.status());
    }
    if let Some(row) = row {
        row.times.count(response.status(), took);
    }
    if let (Some(spans), Some((trace, began)), Some(row)) = (spans, own, row) {
        let (parent, status) = (asked.map(|asked| asked.span), response.status().as_u16());
        let method = row.name_of_method();
        spans.take(Span { trace, parent, method, route: row.path, status, began, took });
    }
    // Logs the route instead of the path, because a path may contain a key.
    let (method, route) = row.map_or(("", ""), |row| (row.method.as_str(), row.path));
    let status = response.status().as_u16();
    tracing::debug!(target: "semel::request", method, route, status, ?took, token = caller.id());
    // The request is already counted, whatever happens to the client from here on.
    if let Some(leftover) = leftover {
        leftover.clear(&mut response).await;
    }
    response
}

/// A route's path as in the table, without what precedes it: the prefix of a program that nests these routes in its own,
/// or the path of the program's own route whose handler calls them. `asked` is the path that these routes were asked for.
fn own_path<'r>(route: &'r str, nested: Option<&NestedPath>, asked: &str) -> &'r str {
    // The page itself, at the prefix without a trailing slash.
    if nested.is_some_and(|nested| nested.as_str().trim_end_matches('/') == route) {
        return "/";
    }
    // A parameter stands for one segment, so the table's path has as many segments as the path that was asked for.
    let begin =
        asked.matches('/').count().checked_sub(1).and_then(|parts| route.rmatch_indices('/').nth(parts));
    begin.and_then(|(at, _)| route.get(at..)).unwrap_or(route)
}

/// Prepends the program's prefix to the answer's `Location`, so that the client finds what was created. A
/// prefix with parameters is unknown here and leaves it unchanged.
fn relocate(headers: &mut HeaderMap, nested: &NestedPath) {
    let prefix = nested.as_str().trim_end_matches('/');
    let Some(place) = headers.get(LOCATION).and_then(|place| place.to_str().ok()) else { return };
    if !prefix.contains('{')
        && let Ok(place) = HeaderValue::try_from(format!("{prefix}{place}"))
    {
        headers.insert(LOCATION, place);
    }
}

/// The answer at a path that does not exist.
pub(crate) async fn no_such_path() -> Refused {
    nothing_there().into()
}

fn nothing_there() -> Problem {
    Problem::new(
        Code::NotFound,
        "there is nothing at this path; GET /ojs/manifest says what this server does",
    )
}

/// The answer at a path that exists, but not for this method.
pub(crate) async fn no_such_method() -> Refused {
    Problem::new(
        Code::MethodNotAllowed,
        "this path does not support the method; use one that the Allow header names",
    )
    .into()
}

/// Why a request is not admitted.
enum Turned {
    /// Its query parameters are not the endpoint's; some endpoints word that refusal themselves.
    Misasked(Problem),
    Away(Problem),
}

impl From<Problem> for Turned {
    fn from(problem: Problem) -> Self {
        Self::Away(problem)
    }
}

/// Decides whether a request is admitted, who its caller is, and takes its place among the requests in
/// progress. Handlers find both, and the app of the request's tenant, in the extensions.
fn admit(
    app: &Arc<App>,
    path: Option<&str>,
    row: Option<&Row>,
    request: &mut Request,
) -> Result<(Caller, Option<Arc<Place>>), Turned> {
    let access = row.map(|row| row.access);
    // Below OJS's path a request for what is no endpoint needs a token too, so that only token holders learn what exists.
    let is_public = match access {
        Some(access) => access == Access::Public,
        None => !request.uri().path().starts_with("/ojs/v1"),
    };
    let caller = if is_public { Caller::default() } else { identify(app, request)? };
    let tenant = tenant_of(request.headers(), &caller)?;
    caller.check_tenant(&tenant)?;
    // For a tenant, endpoints of the whole server do not exist.
    if !tenant.is_default() && path.is_some_and(|path| app.routes.is_global(path)) {
        return Err(nothing_there().into());
    }
    if let Some(access) = access {
        caller.check(access)?;
    }
    if access.map_or(!is_public, Access::is_versioned) {
        check_version(request.headers())?;
    }
    // Requests that only read may carry parameters that other programs understand.
    if let Some(row) = row
        && !request.method().is_safe()
    {
        extract::no_others(request.uri(), &row.query).map_err(Turned::Misasked)?;
    }
    let place = if is_public {
        None
    } else {
        if access != Some(Access::Work) {
            load::check_unread(&app.load, &app.config.bounds, caller.token())?;
        }
        let place = Place::take(&app.load, app.config.bounds, caller.token())?;
        request.extensions_mut().insert(Arc::clone(&place));
        Some(place)
    };
    request.extensions_mut().insert(caller.clone());
    // Without a row nothing was checked: files and refusals need no app, and an endpoint outside the table gets none.
    if row.is_some() {
        request.extensions_mut().insert(Scope::of(app, &tenant));
    }
    Ok((caller, place))
}

pub(crate) fn identify(app: &App, request: &Request) -> Result<Caller, Problem> {
    match app.config.tokens.admit(request.headers(), || SystemClock.now()) {
        Admitted::Open => check_browser(request).map(|()| Caller::default()),
        Admitted::As(token) => Ok(Caller::with(token)),
        Admitted::Twice => Err(twice()),
        Admitted::Refused => Err(unknown()),
    }
}

/// Refuses requests that a browser may send on behalf of another site's page. Without tokens, whoever reaches
/// the server may do everything, and a browser on its machine reaches it for any page that it shows.
fn check_browser(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    // Browsers that do not send the header (old ones, and any over plain HTTP) still send the page's origin.
    let is_foreign = match site {
        Some(site) => matches!(site, b"cross-site" | b"same-site"),
        None => headers.get(ORIGIN).is_some_and(|origin| !is_of(origin, headers.get(HOST))),
    };
    if !request.method().is_safe() && is_foreign {
        return Err(Problem::new(
            Code::Forbidden,
            "the request comes from another site's page, and a server without tokens accepts changes only from its own pages and \
             from programs, whatever token is sent: send it from one of those, or give the server tokens",
        ));
    }
    // DNS rebinding: a page whose name was made to resolve to this machine is same-origin to the browser,
    // which then sends no mark of a foreign site (and none at all over plain HTTP); only the host name tells.
    // A page cannot suppress the browser's `Accept-Language`, and other programs do not send it.
    let is_near = request.extensions().get::<Peer>().is_some_and(|Peer(peer)| peer.ip().is_loopback());
    let is_browser = [FETCH_SITE, ORIGIN, ACCEPT_LANGUAGE].iter().any(|name| headers.contains_key(name));
    if is_near && is_browser && headers.get(HOST).is_some_and(|host| !is_own_name(host)) {
        return Err(Problem::new(
            Code::Forbidden,
            "on its own machine, a server without tokens answers a browser only at localhost or an IP address, because any web page \
             can point another host name at it; use one of those, or give the server tokens",
        ));
    }
    Ok(())
}

/// Whether a page of this origin belongs to the host itself. The opaque origin (`null`) belongs to none.
fn is_of(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let (Ok(origin), Some(Ok(host))) = (origin.to_str(), host.map(HeaderValue::to_str)) else { return false };
    origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

/// Whether the host that a request names cannot be an attacker's: an address, or this machine by its own name.
fn is_own_name(host: &HeaderValue) -> bool {
    let Ok(host) = Authority::try_from(host.as_bytes()) else { return false };
    let name = host.host().trim_end_matches('.').to_ascii_lowercase();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.ends_with(".localhost") || address.parse::<IpAddr>().is_ok()
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

/// Log message for a failed request whose cause is not the request itself.
const FAILED: &str = "a request failed";

fn finish(response: &mut Response, id: HeaderValue, app: &App) {
    if let Some(mut refused) = refusal(response) {
        let request_id = id.to_str().unwrap_or_default();
        if let Some(cause) = &refused.cause {
            let code = refused.problem.code().entry().wire;
            let failures = app.engine.store().repeated_failures();
            // A failing store fails every request: repetitions are counted. Internal errors are all logged, by request id.
            let is_ours = refused.problem.code() == Code::Internal;
            if let Some(repeated) = if is_ours { Some(0) } else { failures.again(FAILED, cause) } {
                tracing::error!(request_id, code, cause, repeated, "{FAILED}");
            }
            if app.config.tells_causes {
                refused.problem = refused.problem.because(cause);
            }
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
                let told = [(QUEUE_DEPTH, refused.problem.depth()), (QUEUE_BOUND, refused.problem.bound())];
                for (name, number) in told {
                    headers.extend(number.map(|number| (name, HeaderValue::from(number))));
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

/// The refusal that a handler returned, or one for an error that the framework answered itself.
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

/// The client's own request id, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Random per process, so that two servers do not give the same request ids.
    static PROCESS: LazyLock<u64> = LazyLock::new(semel_store::random::number);
    let sent = headers.get(REQUEST_ID).filter(|id| {
        !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX && id.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    match sent {
        Some(id) => id.clone(),
        None => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let id = format!("req_{:016x}{:012x}", *PROCESS, number & 0xffff_ffff_ffff);
            HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("req_unknown"))
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
    use crate::auth::Tokens;

    /// Sends a request to a router with two handlers that never answer and an endpoint that is not in its table.
    async fn ask(path: &str) -> (StatusCode, HeaderMap, serde_json::Value) {
        let config = Config { request_timeout: Duration::from_millis(50), ..Config::default() };
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let app = Arc::new(App::new(engine, config, &[]));
        let mut router = Router::new()
            .route("/panics", get(async || -> Refused { panic!("a secret") }))
            .route("/sleeps", get(async || -> Refused { std::future::pending().await }))
            .route("/unlisted", get(crate::whoami::show))
            .layer(axum::middleware::from_fn_with_state(app, edge));
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let (parts, body) = router.call(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap())
    }

    /// The refusal, if any, of a request whose peer is at `peer`, on a server with these tokens.
    fn checked(tokens: Tokens, method: &str, peer: &str, headers: &[(HeaderName, &str)]) -> Option<Code> {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let app = App::new(engine, Config { tokens, ..Config::default() }, &[]);
        let request = Request::builder().method(method).header("authorization", "Bearer one");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, *value));
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(Peer(format!("{peer}:1").parse().unwrap()));
        identify(&app, &request).err().map(|problem| problem.code())
    }

    #[tokio::test]
    async fn without_tokens_a_page_of_another_site_changes_nothing() {
        let no = Some(Code::Forbidden);
        for (method, site, told) in [
            ("POST", "cross-site", no),
            ("DELETE", "same-site", no),
            ("PUT", "cross-site", no),
            ("POST", "same-origin", None),
            ("POST", "none", None),
            ("GET", "cross-site", None),
            ("HEAD", "same-site", None),
        ] {
            let headers = [(FETCH_SITE, site)];
            assert_eq!(checked(Tokens::default(), method, "127.0.0.1", &headers), told, "{method} {site}");
            assert_eq!(checked(Tokens::new(["one"]), method, "127.0.0.1", &headers), None, "{method} {site}");
        }
        assert_eq!(checked(Tokens::default(), "POST", "127.0.0.1", &[]), None, "a program");
    }

    #[tokio::test]
    async fn without_tokens_this_machine_is_asked_by_its_own_names() {
        let no = Some(Code::Forbidden);
        for (host, told) in [
            ("127.0.0.1:8080", None),
            ("[::1]:8080", None),
            ("192.0.2.7", None),
            ("localhost", None),
            ("LocalHost.:8080", None),
            ("semel.localhost:8080", None),
            ("rebound.example:8080", no),
            ("localhost.example", no),
            ("notlocalhost", no),
            ("127.0.0.1.example", no),
            ("", no),
        ] {
            for method in ["GET", "POST"] {
                let headers = [(HOST, host), (ACCEPT_LANGUAGE, "en")];
                assert_eq!(checked(Tokens::default(), method, "127.0.0.1", &headers), told, "{host}");
                assert_eq!(checked(Tokens::default(), method, "[::1]", &headers), told, "{host}");
                assert_eq!(checked(Tokens::default(), method, "192.0.2.1", &headers), None, "{host}");
                assert_eq!(checked(Tokens::new(["one"]), method, "127.0.0.1", &headers), None, "{host}");
            }
        }
        let headers = [(HOST, "rebound.example")];
        assert_eq!(checked(Tokens::default(), "GET", "127.0.0.1", &headers), None, "a program");
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_that_tells_nothing() {
        let (status, headers, body) = ask("/panics").await;
        assert_eq!((status.as_u16(), &body["error"]["code"]), (500, &"internal_error".into()));
        assert_eq!(headers[CONTENT_TYPE], MEDIA_TYPE);
        assert!(!body.to_string().contains("secret"));
    }

    /// Outside the table nothing has checked the caller or its token's permissions.
    #[tokio::test]
    async fn what_is_not_in_the_table_answers_nobody() {
        let (status, _, body) = ask("/unlisted").await;
        assert_eq!((status.as_u16(), &body["error"]["code"]), (500, &"internal_error".into()));
    }

    #[tokio::test]
    async fn a_request_that_takes_too_long_is_answered() {
        let (status, headers, body) = ask("/sleeps").await;
        assert_eq!((status.as_u16(), &body["error"]["retryable"]), (504, &true.into()));
        assert!(headers.contains_key(REQUEST_ID));
    }
}
