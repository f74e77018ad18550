//! Requests that cannot be read, or may not be made any more, and carry an `Idempotency-Key`: whoever sends a request again is answered as the first
//! time, also when what it was read by (a template, a rule) has changed since (SEMANTICS 7).

use http::request::Parts;
use semel_core::enqueue::Outcome;
use semel_core::enqueue::once::Once;
use semel_ojs::Problem;

use crate::App;
use crate::caller::Caller;
use crate::extract;
use crate::respond::Refused;

/// What was answered to each of these requests when it was sent before; none to one that stored nothing, or has no key.
/// Where it is a job in a queue that the caller's token is not for, that refusal is the answer.
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

/// As [`answers`], of one request.
pub(crate) async fn answer(
    app: &App,
    caller: &Caller,
    parts: &Parts,
    request: Option<Once>,
) -> Result<Option<Outcome>, Refused> {
    Ok(answers(app, caller, parts, vec![request]).await?.pop().flatten().transpose()?)
}
