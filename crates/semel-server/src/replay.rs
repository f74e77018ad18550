//! Repeated requests with an `Idempotency-Key` that can no longer be read or are no longer permitted. A repeated request
//! is answered as the first time, even if a template or rule that it was read by has changed since (SEMANTICS 7).

use http::request::Parts;
use semel_core::enqueue::Outcome;
use semel_core::enqueue::once::Once;
use semel_ojs::Problem;

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::respond::Refused;

/// Looks up the earlier answers to these requests; `None` for a request that stored nothing or has no key. If
/// the answer is a job in a queue that the caller's token does not cover, it is that refusal instead.
pub(crate) async fn answers(
    app: &App,
    caller: &Caller,
    parts: &Parts,
    requests: Vec<Option<Once>>,
) -> Result<Vec<Option<Result<Outcome, Problem>>>, Refused> {
    let sent: Vec<Once> = requests.iter().flatten().copied().collect();
    if sent.is_empty() {
        return Ok(requests.iter().map(|_| None).collect());
    }
    let found = app.engine.answered(sent, caller.sight(), &extract::source(parts)).await?;
    let mut found =
        found.into_iter().map(|told| told.map(|outcome| caller.check_named(&outcome).map(|()| outcome)));
    Ok(requests.iter().map(|request| request.and_then(|_| found.next().flatten())).collect())
}

/// As [`answers`], for one request.
pub(crate) async fn answer(
    app: &App,
    caller: &Caller,
    parts: &Parts,
    request: Option<Once>,
) -> Result<Option<Outcome>, Refused> {
    Ok(answers(app, caller, parts, vec![request]).await?.pop().flatten().transpose()?)
}
