//! `/ojs/v1/rate-limits`: rate and concurrency limits that jobs have asked for.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use semel_engine::limits::LimitSeen;
use semel_ojs::Problem;
use semel_ojs::limit::LimitView;

use crate::caller::Caller;
use crate::extract;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// `GET /rate-limits/{key}`. The key of a queue's own limit is `queue:NAME`.
pub(crate) async fn show(
    Scope(app): Scope,
    caller: Caller,
    key: Result<Path<String>, PathRejection>,
) -> Answered {
    caller.check_all_queues()?;
    let key = extract::name(key, "rate limit")?;
    match app.engine.limit(&key).await? {
        Some(seen) => Ok(Answer::ok(view(&seen).answer())),
        None => Err(Problem::not_found("rate limit").naming(key).into()),
    }
}

pub(crate) const fn view(seen: &LimitSeen) -> LimitView<'_> {
    LimitView { usage: &seen.usage, running: seen.running, now: seen.now }
}
