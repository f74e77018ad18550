//! What operators did, by whom and when: a line of the log each (target `semel::audit`), and the newest of them over the
//! API. Those are this server's, in memory, and begin with it; the log is what lasts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::extract::Request;
use http::{Method, StatusCode, Uri};
use semel_core::tenant::Tenant;
use semel_core::time::Timestamp;
use semel_ojs::write::{list as put_list, object};

use crate::caller::{Access, Caller};
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered};
use crate::routes::Row;
use crate::tenancy::Scope;

/// Acts that are kept, of all tenants together.
const KEPT_MAX: usize = 2_000;
const PAGE_DEFAULT: u64 = 100;
const PAGE_MAX: u64 = 1_000;
/// The longest path that is kept, in characters; names in it are shorter.
const PATH_CHARS_MAX: usize = 600;
/// What offers work is no act of an operator, whoever does it.
const OFFERS: [&str; 6] =
    ["enqueue", "enqueueBatch", "enqueueBulk", "explain", "createWorkflow", "registerCron"];
/// Its handler writes a line of its own, with the jobs.
const OWN_LINE: &str = "releaseKey";

/// Why something was done, which the handler that read it leaves here for the account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reason(pub(crate) Arc<OnceLock<String>>);

/// What is known of a request before it is answered.
pub(crate) struct Act {
    tenant: Tenant,
    by: String,
    action: &'static str,
    method: Method,
    path: String,
    route: &'static str,
    reason: Reason,
}

/// An act, and what became of it.
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
}

/// The newest acts.
#[derive(Debug, Default)]
pub(crate) struct Audit(Mutex<VecDeque<Entry>>);

impl Act {
    /// An act that goes into the account: one that changes something, by somebody who may do everything. Workers and
    /// producers go about their work and are not in it.
    pub(crate) fn of(row: &Row, caller: &Caller, request: &mut Request) -> Option<Self> {
        let changes = !request.method().is_safe() && row.access != Access::Work;
        if !changes || OFFERS.contains(&row.name) || !caller.is_operator() {
            return None;
        }
        let tenant = request.extensions().get::<Scope>()?.0.engine.tenant().clone();
        let reason = Reason::default();
        request.extensions_mut().insert(reason.clone());
        // What a request says of itself anybody may say; a token is somebody's.
        let by = match caller.id() {
            Some(token) => format!("token {token}"),
            None => extract::source_of(request.extensions(), request.headers()),
        };
        let path = request.uri().path().chars().take(PATH_CHARS_MAX).collect();
        let method = request.method().clone();
        Some(Self { tenant, by, action: row.name, method, path, route: row.path, reason })
    }
}

impl Audit {
    /// Puts down what became of an act.
    pub(crate) fn note(&self, act: Act, status: StatusCode, at: Timestamp) {
        let Act { tenant, by, action, method, path, route, reason } = act;
        if action != OWN_LINE {
            // A path may name a key, which is in no log.
            let path = if route.contains("{key}") { route } else { path.as_str() };
            tracing::info!(target: "semel::audit", action, path, status = status.as_u16(), by, tenant = tenant.as_str());
        }
        let reason = reason.0.get().cloned();
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT_MAX {
            entries.pop_front();
        }
        entries.push_back(Entry { at, tenant, by, action, method, path, status, reason });
    }
}

/// `GET /admin/audit`: `limit`. What operators did by way of this server, newest first.
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
                object.plain("at", entry.at);
                object.text("by", &entry.by);
                object.plain("action", entry.action);
                object.plain("method", &entry.method);
                object.text("path", &entry.path);
                object.number("status", entry.status.as_u16());
                if let Some(reason) = &entry.reason {
                    object.text("reason", reason);
                }
            });
        });
        outer.plain("since", since);
        outer.flag("is_whole", entries.len() < KEPT_MAX && own().count() <= limit);
    });
    Ok(Answer::ok(out))
}
