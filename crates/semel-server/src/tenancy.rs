//! Tenants: whose request it is, and the routes that answer it.
//!
//! Every tenant has the same routes over an engine of its own ([`Engine::within`](semel_engine::Engine::within)), so a
//! handler cannot tell tenants apart and cannot forget to. Which tenant a request is for is decided once, here, and
//! whether its token is for that tenant once, at the edge.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::{HeaderMap, HeaderName};
use semel_core::state::State as JobState;
use semel_core::tenant::Tenant;
use semel_ojs::write::object;
use semel_ojs::{Code, Problem};
use semel_store::clock::{Clock as _, SystemClock};
use tower_service::Service as _;

use crate::App;
use crate::auth::Admitted;
use crate::extract;
use crate::respond::{Answer, Answered};
use crate::routes::{self, Endpoint};

const TENANT: HeaderName = HeaderName::from_static("x-ojs-tenant");
/// Tenants whose routers are kept; beyond it they are put together again.
const KEPT_MAX: usize = 256;

/// What is wrong with how a request names its tenant; for the edge, which answers.
#[derive(Clone, Debug)]
pub(crate) struct Misnamed(pub(crate) Problem);

/// The router of every tenant.
struct Tenants {
    /// What a tenant has for itself.
    routes: Router<Arc<App>>,
    /// Those who name no tenant, and all that is about the whole server.
    default: Router,
    app: Arc<App>,
    /// Tenants that were asked for lately.
    known: Mutex<HashMap<Tenant, Router>>,
}

/// The whole server: each request is answered by its tenant's router. That comes first, before there is a route, so
/// that what is done for a route is done by the tenant's own.
pub(crate) fn router(table: Vec<Endpoint>, app: App) -> Router {
    let app = Arc::new(app);
    let (global, own): (Vec<Endpoint>, Vec<Endpoint>) = table.into_iter().partition(|row| row.is_global);
    let routes = routes::routes(own);
    let everything = routes.clone().merge(routes::only(global));
    let default = routes::router(everything, Arc::clone(&app));
    let tenants = Arc::new(Tenants { routes, default, app, known: Mutex::default() });
    Router::new().fallback(answer).with_state(tenants)
}

async fn answer(State(tenants): State<Arc<Tenants>>, mut request: Request) -> Response {
    let mut router = match tenants.of(request.headers()) {
        Ok(tenant) => tenants.router(&tenant),
        Err(problem) => {
            request.extensions_mut().insert(Misnamed(problem));
            tenants.default.clone()
        }
    };
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

impl Tenants {
    /// Whose request it is: the tenant its header names, else the one its token is bound to, else the default one.
    /// Whether the token may ask in its name is the edge's to check.
    fn of(&self, headers: &HeaderMap) -> Result<Tenant, Problem> {
        let mut named = headers.get_all(TENANT).iter();
        match (named.next(), named.next()) {
            (Some(name), None) => Tenant::parse(name.to_str().unwrap_or("?"), "").map_err(|refused| {
                let message = format!("the header X-OJS-Tenant {}", refused.message);
                Problem::new(Code::InvalidRequest, message)
            }),
            (Some(_), Some(_)) => Err(Problem::new(
                Code::InvalidRequest,
                "the header X-OJS-Tenant was sent twice; a request is one tenant's",
            )),
            (None, _) => match self.app.config.tokens.admit(headers, || SystemClock.now()) {
                Admitted::As(token) => match &token.tenant {
                    Some(tenant) => Tenant::parse(tenant, ""),
                    None => Ok(Tenant::default()),
                },
                Admitted::Open | Admitted::Refused => Ok(Tenant::default()),
            }
            .map_err(|_| Problem::internal()),
        }
    }

    fn router(&self, tenant: &Tenant) -> Router {
        if tenant.is_default() {
            return self.default.clone();
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(router) = known.get(tenant) {
            return router.clone();
        }
        if known.len() >= KEPT_MAX {
            known.clear();
        }
        let app = App {
            engine: self.app.engine.within(tenant),
            config: self.app.config.clone(),
            routes: Arc::clone(&self.app.routes),
            load: Arc::clone(&self.app.load),
            openapi: Arc::clone(&self.app.openapi),
            streams: Arc::clone(&self.app.streams),
        };
        let router = routes::router(self.routes.clone(), Arc::new(app));
        known.insert(tenant.clone(), router.clone());
        router
    }
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
