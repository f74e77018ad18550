//! Tenants: which tenant a request belongs to, and the app that answers it.
//!
//! Every tenant has the same routes over an engine of its own ([`Engine::within`](semel_engine::Engine::within)). A
//! handler cannot tell tenants apart, nor forget to separate them: the app of the request's tenant, its [`Scope`], is
//! all that it gets. Which tenant that is, and whether the caller may act for it, is decided once, at the edge.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use semel_core::state::State as JobState;
use semel_core::tenant::Tenant;
use semel_ojs::write::object;
use semel_ojs::{Code, Problem};

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::respond::{Answer, Answered, Refused};

const TENANT: HeaderName = HeaderName::from_static("x-ojs-tenant");

/// The app of the request's tenant. The edge puts it into the request; the router has no other.
#[derive(Clone)]
pub(crate) struct Scope(pub(crate) Arc<App>);

impl<S: Sync> FromRequestParts<S> for Scope {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let cause = || Refused {
            problem: Problem::internal(),
            cause: Some("a request reached its handler without passing the edge".to_owned()),
        };
        parts.extensions.get::<Self>().cloned().ok_or_else(cause)
    }
}

impl Scope {
    /// The tenant's view of the app. Made for each request: an engine within a tenant is a few hashes.
    pub(crate) fn of(app: &Arc<App>, tenant: &Tenant) -> Self {
        if tenant.is_default() {
            return Self(Arc::clone(app));
        }
        Self(Arc::new(App { engine: app.engine.within(tenant), ..app.as_ref().clone() }))
    }
}

/// The request's tenant: the one that its header names, else the one that its token is bound to, else the
/// default. Whether the token may act for it is still to be checked.
pub(crate) fn tenant_of(headers: &HeaderMap, caller: &Caller) -> Result<Tenant, Problem> {
    let mut named = headers.get_all(TENANT).iter();
    match (named.next(), named.next(), caller.token().and_then(|token| token.tenant.as_deref())) {
        (Some(name), None, _) => Tenant::parse(name.to_str().unwrap_or("?"), "").map_err(|refused| {
            let message = format!("the header X-OJS-Tenant {}", refused.message);
            Problem::new(Code::InvalidRequest, message)
        }),
        (Some(_), Some(_), _) => Err(Problem::new(
            Code::InvalidRequest,
            "the header X-OJS-Tenant was sent twice; send it once, because a request acts for one tenant",
        )),
        (None, _, Some(bound)) => Tenant::parse(bound, "").map_err(|_| Problem::internal()),
        (None, _, None) => Ok(Tenant::default()),
    }
}

/// `GET /admin/tenants/{id}/stats`: for the operator of the server. A tenant without jobs is one that nobody has used.
pub(crate) async fn stats(
    Scope(app): Scope,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let tenant = Tenant::parse(&extract::name(id, "tenant")?, "/id")?;
    let queues = app.engine.within(&tenant).queues().await?;
    let total: u64 = queues.iter().flat_map(|stats| stats.counts).sum();
    let mut out = String::new();
    object(&mut out, |outer| {
        outer.plain("tenant_id", &tenant);
        outer.number("total_jobs", total);
        outer.number("queues", queues.len());
        object(outer.member("jobs_by_state"), |states| {
            for state in JobState::ALL {
                states.number(state.name(), queues.iter().map(|stats| stats.count(state)).sum::<u64>());
            }
        });
    });
    Ok(Answer::ok(out))
}
