//! `POST /ojs/v1/unique/explain`: what an enqueue request would lead to, and why. Writes nothing.

use axum::extract::Request;
use semel_ojs::Enqueue;
use semel_ojs::explain::{Account, answer};

use crate::caller::Caller;
use crate::extract;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// Reads the body of an enqueue request and explains the decision.
pub(crate) async fn explain(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let templates = app.templates();
    let request = Enqueue::parse_to_explain(&text, caller.terms(&app, &templates))?;
    caller.check_queue(request.offer.queue.name())?;
    let explained = app.engine.explain(request.offer.clone()).await?;
    let account = Account::of(&request, &explained)?;
    let job = match account.absorbing() {
        Some(id) => app.engine.job(id).await?.filter(|job| caller.sees(job.head.queue.name())),
        None => None,
    };
    Ok(Answer::ok(answer(&request, &account, job.as_ref().map(|job| &job.duplicates))))
}
