//! The caller of a request and its permissions: the one place that denies access.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use semel_core::enqueue::Outcome;
use semel_core::hex;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::job::Head;
use semel_core::sight::Sight;
use semel_core::tenant::Tenant;
use semel_engine::Job;
use semel_engine::workers::WorkerSeen;
use semel_ojs::{Code, JobView, Problem};
use semel_store::clock::{Clock as _, SystemClock};

use crate::App;
use crate::auth::{Queues, Role, Token, Tokens};
use crate::respond::{Refused, show};

/// Access that an endpoint requires of its callers. Each endpoint in the table of `routes` names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing, not even a token.
    Public,
    /// A token with any role.
    Any,
    /// Enqueueing: producers.
    Produce,
    /// Running jobs: workers.
    Work,
    /// Acting on a job whose id is known: producers and workers.
    Touch,
    /// Reading jobs: producers and workers whose token may inspect.
    Inspect,
    /// Reading the metrics.
    Metrics,
    /// Administration.
    Admin,
}

impl Access {
    /// The roles that grant this access; an admin has every access.
    pub(crate) const fn roles(self) -> &'static [Role] {
        match self {
            Self::Public => &[],
            Self::Any => &Role::ALL,
            Self::Produce => &[Role::Producer, Role::Admin],
            Self::Work => &[Role::Worker, Role::Admin],
            Self::Touch | Self::Inspect => &[Role::Producer, Role::Worker, Role::Admin],
            Self::Metrics => &[Role::Metrics, Role::Admin],
            Self::Admin => &[Role::Admin],
        }
    }

    /// Whether the server checks the version of the specification that the caller asks for. A caller that
    /// only asks what the server offers, or whether it is well, need not know its version.
    pub(crate) const fn is_versioned(self) -> bool {
        !matches!(self, Self::Public | Self::Metrics)
    }
}

/// The refusal for a request without a known token.
pub(crate) fn unknown() -> Problem {
    Problem::new(
        Code::Unauthorized,
        "the request has no token that this server knows; send the header Authorization: Bearer TOKEN",
    )
}

/// The refusal for a request with two `Authorization` headers.
pub(crate) fn twice() -> Problem {
    Problem::new(
        Code::InvalidRequest,
        "the header Authorization was sent twice; send it once, with one token",
    )
}

/// The caller of a request. Without tokens anybody who reaches the server is let in, and only its own machine can.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller(Option<Arc<Token>>);

impl Caller {
    pub(crate) const fn with(token: Arc<Token>) -> Self {
        Self(Some(token))
    }

    /// The token's name for logs.
    pub(crate) fn id(&self) -> Option<&str> {
        self.0.as_ref().map(|token| token.id.as_str())
    }

    /// Checks that the caller may act for a tenant: the one its token is bound to; any tenant, for an admin whose
    /// token is bound to none; otherwise the default tenant. The result does not reveal whether the tenant exists.
    pub(crate) fn check_tenant(&self, tenant: &Tenant) -> Result<(), Problem> {
        let Some(token) = &self.0 else { return Ok(()) };
        let may = match &token.tenant {
            Some(bound) => bound == tenant.as_str(),
            None => tenant.is_default() || token.roles.contains(&Role::Admin),
        };
        if may {
            return Ok(());
        }
        Err(Problem::new(
            Code::Forbidden,
            "the token is not for this tenant; leave X-OJS-Tenant out, or use a token that is for it",
        ))
    }

    /// The queues that the caller may see.
    pub(crate) fn queues(&self) -> &Queues {
        self.0.as_ref().map_or(&Queues::All, |token| &token.queues)
    }

    /// Identifies the caller's token (SEMANTICS 7), independently of the token's current name; empty on a
    /// server that requires no token.
    pub(crate) fn credential(&self) -> String {
        self.0.as_ref().map_or_else(String::new, |token| hex::text(&token.digest))
    }

    /// Whether the caller would still be admitted: its token may have been removed, changed or expired meanwhile.
    pub(crate) fn is_still(&self, tokens: &Tokens) -> bool {
        self.0.as_ref().is_none_or(|token| tokens.still_have(token, SystemClock.now()))
    }

    /// Checks [`is_still`](Self::is_still) before an answer that had to be waited for.
    pub(crate) fn check_still(&self, app: &App) -> Result<(), Problem> {
        if self.is_still(&app.config.tokens) { Ok(()) } else { Err(unknown()) }
    }

    pub(crate) fn token(&self) -> Option<&Arc<Token>> {
        self.0.as_ref()
    }

    /// Whether the caller may do everything within its tenant and queues.
    pub(crate) fn is_operator(&self) -> bool {
        self.0.as_ref().is_none_or(|token| token.roles.contains(&Role::Admin))
    }

    /// Whether answers may show the caller jobs that others enqueued.
    pub(crate) fn inspect(&self) -> bool {
        self.0.as_ref().is_none_or(|token| token.inspect || token.roles.contains(&Role::Admin))
    }

    /// Whether the caller may see every job: everybody's, in all queues.
    pub(crate) fn knows_others(&self) -> bool {
        self.inspect() && !self.is_limited()
    }

    /// A refusal as the caller may see it: without the number of waiting jobs, if it may not inspect them.
    pub(crate) fn may_hear(&self, refusal: Problem) -> Problem {
        if self.inspect() { refusal } else { refusal.without_depth() }
    }

    /// The caller's visibility, for decisions that the engine takes on its behalf.
    pub(crate) fn sight(&self) -> Sight<'_> {
        Sight { inspect: self.inspect(), queues: self.queues() }
    }

    /// Checks that the caller may use an endpoint at all.
    pub(crate) fn check(&self, access: Access) -> Result<(), Problem> {
        let Some(token) = &self.0 else { return Ok(()) };
        if access == Access::Public {
            return Ok(());
        }
        if !access.roles().iter().any(|role| token.roles.contains(role)) {
            let wanted: Vec<&str> = access.roles().iter().map(|role| role.name()).collect();
            return Err(Problem::new(
                Code::Forbidden,
                format!("the token does not allow this; use one with the role {}", wanted.join(" or ")),
            )
            .with_details(|object| object.texts("roles", &wanted)));
        }
        if access == Access::Inspect && !self.inspect() {
            return Err(Problem::new(
                Code::Forbidden,
                "the token may not read jobs; use one that may inspect them",
            ));
        }
        Ok(())
    }

    /// Whether the caller may see a queue and its jobs.
    pub(crate) fn sees(&self, queue: &str) -> bool {
        self.queues().include(queue)
    }

    /// Whether the caller may see all the queues that a worker takes jobs from.
    pub(crate) fn sees_worker(&self, worker: &WorkerSeen) -> bool {
        worker.queues.iter().all(|queue| self.sees(queue.name()))
    }

    /// Checks that the queue is one of the caller's.
    pub(crate) fn check_queue(&self, queue: &str) -> Result<(), Problem> {
        if self.sees(queue) {
            return Ok(());
        }
        Err(Problem::new(
            Code::Forbidden,
            "the token is not for this queue; use one that is, or another queue",
        )
        .with_details(|object| object.text("queue", queue)))
    }

    /// Checks that the job an outcome names is in one of the caller's queues. The outcome may date from an
    /// earlier request of its own, made when its token covered more queues or its template named another queue.
    pub(crate) fn check_named(&self, outcome: &Outcome) -> Result<(), Problem> {
        match outcome {
            Outcome::Repeated(head) | Outcome::Amended(head) | Outcome::Existing(head) => {
                self.check_queue(head.queue.name())
            }
            _ => Ok(()),
        }
    }

    /// Whether the caller's token is limited to some queues.
    pub(crate) fn is_limited(&self) -> bool {
        *self.queues() != Queues::All
    }

    /// Refuses a caller limited to some queues: keys and resets span all of them.
    pub(crate) fn check_all_queues(&self) -> Result<(), Problem> {
        if self.is_limited() {
            return Err(Problem::new(
                Code::Forbidden,
                "this concerns every queue, and the token is for some queues only; use one for all queues",
            ));
        }
        Ok(())
    }

    /// Checks the queue that a list is asked for: a caller limited to some queues must name one of them.
    pub(crate) fn check_listed(&self, queue: Option<&str>) -> Result<(), Problem> {
        match queue {
            _ if !self.is_limited() => Ok(()),
            Some(queue) => self.check_queue(queue),
            None => Err(Problem::new(
                Code::Forbidden,
                "the token is for some queues only; name one of them: queue=mail in the query, or semel's option --queue mail",
            )),
        }
    }

    /// Checks that a job is in one of the caller's queues; otherwise the answer is that there is no such job.
    pub(crate) async fn check_job(&self, app: &App, id: JobId) -> Result<(), Refused> {
        if self.is_limited() && !self.sees_jobs(app, vec![id]).await?.contains(&id) {
            return Err(Problem::not_found("job").naming(id).into());
        }
        Ok(())
    }

    /// As [`check_job`](Self::check_job), for a cancellation: cancelling a task cancels its steps too, whatever their queues.
    pub(crate) async fn check_cancel(&self, app: &App, id: JobId) -> Result<(), Refused> {
        self.check_job(app, id).await?;
        if self.is_limited() && app.engine.task(WorkflowId::new(id)).await?.is_some() {
            self.check_all_queues()?;
        }
        Ok(())
    }

    /// Reads a job in one of the caller's queues; any other job is reported as not found.
    pub(crate) async fn job(&self, app: &App, id: JobId) -> Result<Job, Refused> {
        let job = app.engine.job(id).await?.filter(|job| self.sees(job.head.queue.name()));
        Ok(job.ok_or_else(|| Problem::not_found("job").naming(id))?)
    }

    /// Shows the job that the caller has acted on. A caller who may inspect sees all of it, if it still
    /// exists; others see only the result of their request.
    pub(crate) async fn show(
        &self,
        app: &App,
        head: &Head,
        write: impl FnOnce(&JobView<'_>) -> String,
    ) -> String {
        if self.inspect() { show(&app.engine, self, head, write).await } else { write(&JobView::curt(head)) }
    }

    /// The jobs among these that the caller may see.
    pub(crate) async fn sees_jobs(&self, app: &App, ids: Vec<JobId>) -> Result<HashSet<JobId>, Refused> {
        if !self.is_limited() {
            return Ok(ids.into_iter().collect());
        }
        let heads = app.engine.heads(ids).await?;
        Ok(heads.iter().filter(|head| self.sees(head.queue.name())).map(|head| head.id).collect())
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
