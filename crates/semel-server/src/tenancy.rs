//! Tenants: whose request it is, and the routes that answer it.
//!
//! Every tenant has the same routes over an engine of its own ([`Engine::within`](semel_engine::Engine::within)), so a
//! handler cannot tell tenants apart and cannot forget to. Which tenant a request belongs to is decided once, here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::HeaderName;
use semel_core::state::State as JobState;
use semel_core::tenant::Tenant;
use semel_ojs::write::object;
use semel_ojs::{Code, Problem};
use tower_service::Service as _;

use crate::App;
use crate::extract;
use crate::respond::{Answer, Answered};

const TENANT: HeaderName = HeaderName::from_static("x-ojs-tenant");
/// Tenants whose routes are kept; beyond it they are put together again.
const KEPT_MAX: usize = 256;

/// The tenant that a request's credential is bound to. Whoever checks credentials puts it into the request; a request
/// without it may name any tenant, or none.
#[derive(Clone, Debug)]
pub struct Bound(pub Tenant);

/// The routes of tenants that were asked for lately.
#[derive(Debug, Default)]
pub(crate) struct Tenants(Mutex<HashMap<Tenant, Router>>);

/// Whose request it is: the tenant its credential is bound to, else the one its header names, else the default one.
pub(crate) fn of(request: &Request) -> Result<Tenant, Problem> {
    let mut named = request.headers().get_all(TENANT).iter();
    let bound = request.extensions().get::<Bound>().map(|Bound(tenant)| tenant);
    let name = match (named.next(), named.next()) {
        (None, _) => return Ok(bound.cloned().unwrap_or_default()),
        (Some(name), None) => name.to_str().unwrap_or("?"),
        (Some(_), Some(_)) => {
            return Err(Problem::new(
                Code::InvalidRequest,
                "the header X-OJS-Tenant was sent twice; a request is one tenant's",
            ));
        }
    };
    let named = Tenant::parse(name, "").map_err(|refused| {
        Problem::new(Code::InvalidRequest, format!("the header X-OJS-Tenant {}", refused.message))
    })?;
    match bound {
        // Nothing is said about whether there is such a tenant.
        Some(bound) if *bound != named => Err(Problem::new(
            Code::Unauthorized,
            "the token is another tenant's; leave X-OJS-Tenant out, or send that tenant's token",
        )),
        _ => Ok(named),
    }
}

/// Answers a request within a tenant.
pub(crate) async fn answer(app: &App, tenant: &Tenant, request: Request<Body>) -> Response {
    let mut router = router(app, tenant);
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn router(app: &App, tenant: &Tenant) -> Router {
    let mut known = app.tenants.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(router) = known.get(tenant) {
        return router.clone();
    }
    if known.len() >= KEPT_MAX {
        known.clear();
    }
    let theirs = App {
        engine: app.engine.within(tenant),
        config: app.config.clone(),
        streams: Arc::clone(&app.streams),
        tenants: Tenants::default(),
    };
    let router: Router = crate::routes().with_state(Arc::new(theirs));
    known.insert(tenant.clone(), router.clone());
    router
}

/// `GET /admin/tenants/{id}/stats`: for who runs the server. A tenant without jobs is one that nobody has used.
pub(crate) async fn stats(State(app): State<Arc<App>>, id: Result<Path<String>, PathRejection>) -> Answered {
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
