//! Who is asking, and what they may: the one place that says no.

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

/// What an endpoint asks of its callers. Each endpoint names one, in the table of `routes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing, not even a token.
    Public,
    /// A token, whatever it is for.
    Any,
    /// To enqueue: producers.
    Produce,
    /// To run jobs: workers.
    Work,
    /// To act on a job one knows: producers and workers.
    Touch,
    /// To read of jobs: producers and workers whose token may inspect.
    Inspect,
    /// To read the metrics.
    Metrics,
    /// To administer.
    Admin,
}

impl Access {
    /// The roles that have it; an admin has all.
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

    /// Whether a caller's version of the specification must be one of the server's. Whoever asks what there is, or whether the
    /// server is well, need not know which it speaks.
    pub(crate) const fn is_versioned(self) -> bool {
        !matches!(self, Self::Public | Self::Metrics)
    }
}

/// Nobody that this server knows is asking.
pub(crate) fn unknown() -> Problem {
    Problem::new(
        Code::Unauthorized,
        "the request carries no token that this server knows; send Authorization: Bearer and a token",
    )
}

/// Somebody is asking who says twice who that is.
pub(crate) fn twice() -> Problem {
    Problem::new(
        Code::InvalidRequest,
        "the header Authorization was sent twice; a request is one caller's, so send one token",
    )
}

/// Who is asking. Without a token the server is open to everybody who reaches it, which only its own machine can.
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

    /// Whether the caller may ask in the name of a tenant: the one its token is bound to; any, for an admin whose token
    /// is bound to none; else the default one. Nothing is said about whether there is such a tenant.
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

    /// The queues that the caller sees.
    pub(crate) fn queues(&self) -> &Queues {
        self.0.as_ref().map_or(&Queues::All, |token| &token.queues)
    }

    /// What tells the caller from all others who may ask (SEMANTICS 7), whatever its token is named now: nothing where
    /// nobody needs one.
    pub(crate) fn credential(&self) -> String {
        self.0.as_ref().map_or_else(String::new, |token| hex::text(&token.digest))
    }

    /// Whether it would still be let in, for the same: its token may have been taken away, or be over, since the request came.
    pub(crate) fn is_still(&self, tokens: &Tokens) -> bool {
        self.0.as_ref().is_none_or(|token| tokens.still_have(token, SystemClock.now()))
    }

    /// The same, for an answer that was waited for.
    pub(crate) fn check_still(&self, app: &App) -> Result<(), Problem> {
        if self.is_still(&app.config.tokens) { Ok(()) } else { Err(unknown()) }
    }

    pub(crate) fn token(&self) -> Option<&Arc<Token>> {
        self.0.as_ref()
    }

    /// Whether the caller may do everything that its tenant and queues have.
    pub(crate) fn is_operator(&self) -> bool {
        self.0.as_ref().is_none_or(|token| token.roles.contains(&Role::Admin))
    }

    /// Whether answers may tell the caller of other people's jobs.
    pub(crate) fn inspect(&self) -> bool {
        self.0.as_ref().is_none_or(|token| token.inspect || token.roles.contains(&Role::Admin))
    }

    /// Whether it may know of whatever jobs there are: everybody's, in all queues.
    pub(crate) fn knows_others(&self) -> bool {
        self.inspect() && !self.is_limited()
    }

    /// A refusal as the caller may hear it: not how many jobs of others wait, where it may not look.
    pub(crate) fn may_hear(&self, refusal: Problem) -> Problem {
        if self.inspect() { refusal } else { refusal.without_depth() }
    }

    /// What decisions go by that are taken for the caller.
    pub(crate) fn sight(&self) -> Sight<'_> {
        Sight { inspect: self.inspect(), queues: self.queues() }
    }

    /// Whether the caller may use an endpoint at all.
    pub(crate) fn check(&self, access: Access) -> Result<(), Problem> {
        let Some(token) = &self.0 else { return Ok(()) };
        if access == Access::Public {
            return Ok(());
        }
        if !access.roles().iter().any(|role| token.roles.contains(role)) {
            let wanted: Vec<&str> = access.roles().iter().map(|role| role.name()).collect();
            return Err(Problem::new(
                Code::Forbidden,
                format!("the token is not for this; use one with the role {}", wanted.join(" or ")),
            )
            .with_details(|object| object.texts("roles", &wanted)));
        }
        if access == Access::Inspect && !self.inspect() {
            return Err(Problem::new(
                Code::Forbidden,
                "the token may not read of jobs; use one that may inspect",
            ));
        }
        Ok(())
    }

    /// Whether the caller sees a queue and its jobs.
    pub(crate) fn sees(&self, queue: &str) -> bool {
        self.queues().include(queue)
    }

    /// Whether the caller sees all the queues that a worker takes jobs from.
    pub(crate) fn sees_worker(&self, worker: &WorkerSeen) -> bool {
        worker.queues.iter().all(|queue| self.sees(queue.name()))
    }

    /// The queue must be one of the caller's.
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

    /// The job that an outcome names must be in a queue of the caller's: it may be its own request's, of a time when its
    /// token was for more, or its template named another queue.
    pub(crate) fn check_named(&self, outcome: &Outcome) -> Result<(), Problem> {
        match outcome {
            Outcome::Repeated(head) | Outcome::Amended(head) | Outcome::Existing(head) => {
                self.check_queue(head.queue.name())
            }
            _ => Ok(()),
        }
    }

    /// Whether the caller has some queues only.
    pub(crate) fn is_limited(&self) -> bool {
        *self.queues() != Queues::All
    }

    /// Keys go across queues, and so does a reset.
    pub(crate) fn check_all_queues(&self) -> Result<(), Problem> {
        if self.is_limited() {
            return Err(Problem::new(
                Code::Forbidden,
                "this concerns every queue and the token is for some only; use one that is for all",
            ));
        }
        Ok(())
    }

    /// The queue that a list is asked for: whoever has some queues only must name one of them.
    pub(crate) fn check_listed(&self, queue: Option<&str>) -> Result<(), Problem> {
        match queue {
            _ if !self.is_limited() => Ok(()),
            Some(queue) => self.check_queue(queue),
            None => Err(Problem::new(
                Code::Forbidden,
                "the token is for some queues only; name one of them: queue=mail in the query, --queue mail of semel",
            )),
        }
    }

    /// A job of another queue is not there, as far as the caller can tell.
    pub(crate) async fn check_job(&self, app: &App, id: JobId) -> Result<(), Refused> {
        if self.is_limited() && !self.sees_jobs(app, vec![id]).await?.contains(&id) {
            return Err(Problem::not_found("job").naming(id).into());
        }
        Ok(())
    }

    /// As [`check_job`](Self::check_job), for who would cancel it: with a task go its steps, whatever their queues.
    pub(crate) async fn check_cancel(&self, app: &App, id: JobId) -> Result<(), Refused> {
        self.check_job(app, id).await?;
        if self.is_limited() && app.engine.task(WorkflowId::new(id)).await?.is_some() {
            self.check_all_queues()?;
        }
        Ok(())
    }

    /// A job of a queue that the caller sees; else there is none.
    pub(crate) async fn job(&self, app: &App, id: JobId) -> Result<Job, Refused> {
        let job = app.engine.job(id).await?.filter(|job| self.sees(job.head.queue.name()));
        Ok(job.ok_or_else(|| Problem::not_found("job").naming(id))?)
    }

    /// Shows the job that the caller has acted on: the whole of it, as far as it is still there, to who may inspect;
    /// to others what became of their request.
    pub(crate) async fn show(
        &self,
        app: &App,
        head: &Head,
        write: impl FnOnce(&JobView<'_>) -> String,
    ) -> String {
        if self.inspect() { show(&app.engine, self, head, write).await } else { write(&JobView::curt(head)) }
    }

    /// Those of the jobs that the caller sees.
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
