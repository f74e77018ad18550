//! Audit log of operators: what was done, by whom and when. Each act is one log line (target `semel::audit`), and the API
//! returns the newest. The API's entries are this server's, held in memory since it started; only the log is durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::extract::Request;
use http::{Extensions, HeaderMap, Method, StatusCode, Uri};
use semel_core::state::State;
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_ojs::bulk::Bulk;
use semel_ojs::write::{list as put_list, object};
use semel_store::clock::{Clock as _, SystemClock};

use crate::App;
use crate::caller::{Access, Caller};
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered};
use crate::routes::Row;
use crate::tenancy::Scope;

/// Acts that are kept, for all tenants together. Beyond that the tenant with the most entries gives up its oldest.
const KEPT_MAX: usize = 2_000;
const PAGE_DEFAULT: u64 = 100;
const PAGE_MAX: u64 = 1_000;
/// The longest path that is kept, in characters; longer than any name that it may hold.
const PATH_CHARS_MAX: usize = 600;
/// Status recorded for an act whose client closed the connection before the answer.
const CLIENT_GONE: u16 = 499;
/// Offering work is not an operator's act, whoever does it.
const OFFERS: [&str; 7] =
    ["enqueue", "enqueueBatch", "enqueueBulk", "explain", "createWorkflow", "createTask", "registerCron"];
/// This endpoint's handler writes its own audit line, which lists the jobs, when it succeeds.
const OWN_LINE: &str = "releaseKey";

/// The reason given for an act; the handler that reads it leaves it here for the audit entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reason(pub(crate) Arc<OnceLock<String>>);

/// What a bulk operation was meant to do and did; the handler leaves it here for the audit entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Many(Arc<OnceLock<String>>, Arc<OnceLock<usize>>);

impl Many {
    /// Records which jobs were selected. Called before anything is done, so the entry has it even if the rest fails.
    pub(crate) fn meant(extensions: &Extensions, bulk: &Bulk) {
        let Some(Self(filter, _)) = extensions.get::<Self>() else { return };
        let states: Vec<&str> = bulk.states.iter().map(State::name).collect();
        let parts = [
            ("state", (!states.is_empty()).then(|| states.join(","))),
            ("queue", bulk.queue.as_ref().map(|queue| queue.name().to_owned())),
            ("type", bulk.job_type.as_ref().map(ToString::to_string)),
        ];
        let parts = parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        let text = parts.collect::<Vec<_>>().join(" ");
        drop(filter.set(if text.is_empty() { "all".to_owned() } else { text }));
    }

    /// Records how many jobs the operation was done to.
    pub(crate) fn done(extensions: &Extensions, count: usize) {
        if let Some(Self(_, done)) = extensions.get::<Self>() {
            done.get_or_init(|| count);
        }
    }
}

/// What is known of a request before it is answered.
pub(crate) struct Act {
    tenant: Tenant,
    by: String,
    action: &'static str,
    method: Method,
    path: String,
    route: &'static str,
    reason: Reason,
    many: Many,
}

/// An act in progress. The server finishes what it began even if the client hangs up, so such an act is recorded as well.
pub(crate) struct Account {
    app: Arc<App>,
    act: Option<Act>,
}

/// An act and its result.
#[derive(Debug)]
struct Entry {
    at: Timestamp,
    tenant: Tenant,
    by: String,
    action: &'static str,
    method: Method,
    path: String,
    status: StatusCode,
    reason: Option<String>,
    filter: Option<String>,
    jobs: Option<usize>,
}

/// The newest acts.
#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<VecDeque<Entry>>);

impl Act {
    /// Opens an entry if the act is to be recorded: one that changes something, by a caller who may do
    /// everything. The ordinary requests of workers and producers are not recorded.
    pub(crate) fn of(row: &Row, caller: &Caller, request: &mut Request) -> Option<Self> {
        let changes = !request.method().is_safe() && row.access != Access::Work;
        if !changes || OFFERS.contains(&row.name) || !caller.is_operator() {
            return None;
        }
        let tenant = request.extensions().get::<Scope>()?.0.engine.tenant().clone();
        let reason = Reason::default();
        request.extensions_mut().insert(reason.clone());
        let many = Many::default();
        request.extensions_mut().insert(many.clone());
        let by = by(caller, request.extensions(), request.headers());
        let path = request.uri().path().chars().take(PATH_CHARS_MAX).collect();
        let method = request.method().clone();
        Some(Self { tenant, by, action: row.name, method, path, route: row.path, reason, many })
    }
}

/// Names who does something. A request's own claims are anybody's to make; a token belongs to somebody.
pub(crate) fn by(caller: &Caller, extensions: &Extensions, headers: &HeaderMap) -> String {
    caller.id().map_or_else(|| extract::source_of(extensions, headers), |token| format!("token {token}"))
}

impl Account {
    pub(crate) fn open(app: &Arc<App>, act: Act) -> Self {
        Self { app: Arc::clone(app), act: Some(act) }
    }

    /// Closes the entry: the act was answered.
    pub(crate) fn close(mut self, status: StatusCode) {
        self.note(status);
    }

    fn note(&mut self, status: StatusCode) {
        if let Some(act) = self.act.take() {
            self.app.audit.note(act, status, SystemClock.now());
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.note(StatusCode::from_u16(CLIENT_GONE).unwrap_or(StatusCode::REQUEST_TIMEOUT));
    }
}

impl Audit {
    /// Records the result of an act.
    fn note(&self, act: Act, status: StatusCode, at: Timestamp) {
        let Act { tenant, by, action, method, path, route, reason, many: Many(filter, jobs) } = act;
        let (filter, jobs) = (filter.get().cloned(), jobs.get().copied());
        if action != OWN_LINE || !status.is_success() {
            // A path may contain a key, which is never logged.
            let path = if route.contains("{key}") { route } else { path.as_str() };
            let (status, tenant, filter) = (status.as_u16(), tenant.as_str(), filter.as_deref());
            tracing::info!(target: "semel::audit", action, path, status, filter, jobs, by, tenant);
        }
        let reason = reason.0.get().cloned();
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT_MAX {
            make_room(&mut entries);
        }
        entries.push_back(Entry { at, tenant, by, action, method, path, status, reason, filter, jobs });
    }
}

/// Drops the oldest act of the tenant that has the most, so that no tenant pushes out another's.
fn make_room(entries: &mut VecDeque<Entry>) {
    let mut counts: BTreeMap<&Tenant, usize> = BTreeMap::new();
    for entry in entries.iter() {
        *counts.entry(&entry.tenant).or_default() += 1;
    }
    let busiest = counts.into_iter().max_by_key(|(_, count)| *count).map(|(tenant, _)| tenant);
    let oldest = busiest.and_then(|busiest| entries.iter().position(|entry| entry.tenant == *busiest));
    drop(oldest.and_then(|oldest| entries.remove(oldest)));
}

/// `GET /admin/audit`: `limit`. What operators did through this server, newest first.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    caller.check_all_queues()?;
    let limit = Parameters::of(&uri)?.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?;
    let limit = usize::try_from(limit).unwrap_or(1);
    let mut out = String::with_capacity(256 * limit.min(64));
    let since = app.began(app.engine.now().await?);
    let entries = app.audit.0.lock().unwrap_or_else(PoisonError::into_inner);
    let own = || entries.iter().rev().filter(|entry| entry.tenant == *app.engine.tenant());
    object(&mut out, |outer| {
        put_list(outer.member("entries"), own().take(limit), |out, entry| {
            object(out, |object| {
                object.time("at", entry.at);
                object.text("by", &entry.by);
                object.plain("action", entry.action);
                object.plain("method", &entry.method);
                object.text("path", &entry.path);
                object.number("status", entry.status.as_u16());
                if let Some(reason) = &entry.reason {
                    object.text("reason", reason);
                }
                if let Some(filter) = &entry.filter {
                    object.text("filter", filter);
                }
                if let Some(jobs) = entry.jobs {
                    object.number("jobs", jobs);
                }
            });
        });
        outer.time("since", since);
        outer.flag("is_whole", entries.len() < KEPT_MAX && own().count() <= limit);
    });
    Ok(Answer::ok(out))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use axum::Router;
    use axum::body::Body;
    use axum::routing::{delete, post};
    use semel_engine::Engine;
    use semel_store::memory::Memory;
    use tower_service::Service as _;

    use super::*;
    use crate::Config;
    use crate::respond::Refused;

    /// One tenant's acts must not push out those of the others.
    #[test]
    fn a_busy_tenant_pushes_out_its_own_acts() {
        let audit = Audit::default();
        let note = |tenant: &str, count: usize| {
            for at in 0..count {
                let tenant = Tenant::parse(tenant, "").unwrap();
                let (by, path, method) = ("me".to_owned(), at.to_string(), Method::POST);
                let act = Act {
                    tenant,
                    by,
                    action: "pauseQueue",
                    method,
                    path,
                    route: "",
                    reason: Reason::default(),
                    many: Many::default(),
                };
                audit.note(act, StatusCode::OK, SystemClock.now());
            }
        };
        note("acme", 3);
        note("loud", 2 * KEPT_MAX);
        note("mild", 3);
        let entries = audit.0.lock().unwrap();
        let of = |tenant: &str| entries.iter().filter(|entry| entry.tenant.as_str() == tenant).count();
        assert_eq!((of("acme"), of("mild"), entries.len()), (3, 3, KEPT_MAX));
        let newest = entries.iter().rfind(|entry| entry.tenant.as_str() == "loud").unwrap();
        assert_eq!(newest.path, (2 * KEPT_MAX - 1).to_string());
    }

    /// The handlers never answer; each client hangs up once its handler has begun.
    #[tokio::test]
    async fn what_was_begun_is_in_the_account_though_its_client_is_gone() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let app = Arc::new(App::new(engine, Config::default(), &crate::routes::table()));
        let never = async || -> Refused { std::future::pending().await };
        let mut router = Router::new()
            .route("/ojs/v1/queues/{name}/pause", post(never))
            .route("/ojs/v1/unique-jobs/{key}", delete(never))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), crate::edge::edge));
        for (method, path) in [("POST", "/ojs/v1/queues/mail/pause"), ("DELETE", "/ojs/v1/unique-jobs/ab")] {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let mut answer = Box::pin(router.call(request));
            let is_under_way =
                poll_fn(|context| Poll::Ready(answer.as_mut().poll(context).is_pending())).await;
            assert!(is_under_way);
            assert!(!app.audit.0.lock().unwrap().iter().any(|entry| entry.path == path), "not yet");
            drop(answer);
        }
        let entries = app.audit.0.lock().unwrap();
        let told: Vec<(&str, u16)> =
            entries.iter().map(|entry| (entry.action, entry.status.as_u16())).collect();
        assert_eq!(told, [("pauseQueue", CLIENT_GONE), ("releaseKey", CLIENT_GONE)]);
    }
}
