//! `/ojs/v1/cron`: register, list, show, change, delete, trigger, history.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::{StatusCode, Uri};
use semel_core::cron::{Change, Cron, Decision, Tick};
use semel_core::ident::{CronName, JobId};
use semel_engine::crons::{CRONS_BYTES_PER_TENANT_MAX, CRONS_PER_TENANT_MAX};
use semel_engine::room::Room;
use semel_ojs::cron::{
    self as ojs, Register, TIMES_LISTED, answer_list, change, history as show_history, listed,
};
use semel_ojs::{Code, Problem};

use crate::App;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered, Refused};
use crate::search::Told;
use crate::tenancy::Scope;

/// Crons on a page, by default and at most.
const PAGE_DEFAULT: u64 = 200;
const PAGE_MAX: u64 = 1_000;

type Name = Result<Path<String>, PathRejection>;

/// Reads a cron's name in the path. A text that is no valid name is reported as a cron that does not exist.
fn cron_name(name: Name) -> Result<CronName, Problem> {
    let text = extract::name(name, "cron")?;
    CronName::parse(&text, "").map_err(|_| Problem::not_found("cron").naming(text))
}

fn found<T>(name: &CronName, found: Option<T>) -> Result<T, Problem> {
    found.ok_or_else(|| Problem::not_found("cron").naming(name))
}

/// Checks that the cron's queue is one of the caller's; otherwise the cron is reported as not found.
fn check(caller: &Caller, cron: &Cron) -> Result<(), Refused> {
    let offer = cron.offer().map_err(semel_store::StoreError::from)?;
    if caller.sees(offer.queue.name()) { Ok(()) } else { Err(Problem::not_found("cron").into()) }
}

/// Hides the jobs that ticks ran into, unless they are in the caller's queues. Jobs that ticks fired stay visible.
async fn hide_jobs(app: &App, caller: &Caller, ticks: &mut [Tick]) -> Result<(), Refused> {
    if !caller.is_limited() {
        return Ok(());
    }
    let id = |tick: &Tick| tick.job.as_deref().and_then(|id| JobId::parse(id, "").ok());
    let seen = caller.sees_jobs(app, ticks.iter().filter_map(id).collect()).await?;
    for tick in ticks.iter_mut().filter(|tick| tick.decision != Decision::Fired) {
        if id(tick).is_none_or(|id| !seen.contains(&id)) {
            tick.job = None;
        }
    }
    Ok(())
}

async fn one(app: &App, caller: &Caller, name: &CronName) -> Result<Cron, Refused> {
    let cron = found(name, app.engine.cron(name).await?)?;
    check(caller, &cron)?;
    Ok(cron)
}

/// A cron as the caller may see it.
fn shown(caller: &Caller, name: &CronName, cron: &Cron) -> String {
    if caller.inspect() { ojs::answer(name, cron) } else { ojs::answer_curt(name, cron) }
}

/// `POST /cron`: 201 for a new cron and for a repetition of the same registration; 200 if it replaced another of that name.
pub(crate) async fn register(Scope(app): Scope, caller: Caller, request: Request) -> Answered {
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let Register { name, registration, says_cron } =
        Register::parse(&text, caller.terms(&app, &app.templates()))?;
    caller.check_queue(registration.offer.queue.as_str())?;
    if !app.engine.has_room_for_cron(&name, &registration).await? {
        return Err(as_many_as_may_be().into());
    }
    let registered = app.engine.register_cron(name.clone(), registration).await?;
    if registered.is_anothers {
        // Names are shared by the tenant, so that a name is taken cannot be hidden from this caller; whose it is can.
        return Err(
            Problem::new(Code::Duplicate, "the name is taken; register the cron under another name").into()
        );
    }
    let text = if says_cron && caller.inspect() {
        ojs::answer_by_cron(&name, &registered.cron)
    } else {
        shown(&caller, &name, &registered.cron)
    };
    Ok(if registered.is_same {
        Answer::status(StatusCode::CREATED, text).replayed()
    } else if registered.is_new {
        Answer::status(StatusCode::CREATED, text)
    } else {
        Answer::ok(text)
    })
}

fn as_many_as_may_be() -> Problem {
    let (limit, mebibytes) = (CRONS_PER_TENANT_MAX, CRONS_BYTES_PER_TENANT_MAX >> 20);
    Problem::new(
        Code::Conflict,
        format!("the tenant has reached its limit of {limit} crons, or of {mebibytes} MiB for them; delete one that is not needed"),
    )
    .with_details(|object| object.number("limit", limit))
}

/// `GET /cron`, by name.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    let limit = query.number("limit", 1, PAGE_DEFAULT, PAGE_MAX)?;
    let enabled = match query.get("enabled") {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(extract::refuse("enabled", "is neither true nor false").into()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (mut told, mut room, mut last) = (Told::default(), Room::default(), None);
    let mut from = query.get("cursor").map(str::to_owned);
    let leaves_out = enabled.is_some() || caller.is_limited();
    // Reads on until there is one more than the answer has: the next page then begins at a cron that the caller may see.
    let has_more = 'looking: loop {
        let left = if leaves_out { usize::MAX } else { limit + 1 - told.items().len() };
        let piece = room.next().min(left);
        let found = app.engine.crons(from.as_deref(), u32::try_from(piece).unwrap_or(u32::MAX)).await?;
        let is_last = found.len() < piece;
        room.had(found.len(), found.iter().map(|(_, cron)| cron.template().len()).sum());
        from = found.last().map(|(name, _)| name.name().to_owned());
        for (name, cron) in found {
            if enabled.is_some_and(|wanted| wanted != cron.enabled) || check(&caller, &cron).is_err() {
                continue;
            }
            if told.items().len() == limit || !told.push(listed(&name, &cron), TIMES_LISTED) {
                break 'looking true;
            }
            last = Some(name);
        }
        if is_last {
            break 'looking false;
        }
    };
    let next = last.filter(|_| has_more);
    let is_first = query.get("cursor").is_none();
    Ok(Answer::ok(answer_list(told.items(), next.as_ref().map(CronName::name), is_first)))
}

/// `GET /cron/{name}`.
pub(crate) async fn show(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    let name = cron_name(name)?;
    let cron = one(&app, &caller, &name).await?;
    Ok(Answer::ok(shown(&caller, &name, &cron)))
}

/// `GET /cron/{name}/history`, the newest tick first.
pub(crate) async fn history(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    let name = cron_name(name)?;
    let mut cron = one(&app, &caller, &name).await?;
    hide_jobs(&app, &caller, &mut cron.history).await?;
    Ok(Answer::ok(show_history(&name, &cron)))
}

/// `PATCH /cron/{name}`.
pub(crate) async fn patch(Scope(app): Scope, caller: Caller, name: Name, request: Request) -> Answered {
    let name = cron_name(name)?;
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let before = one(&app, &caller, &name).await?;
    let wanted = change(&text, &before)?;
    changed(&app, &caller, name, wanted).await
}

/// `POST /cron/{name}/enable`.
pub(crate) async fn enable(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    set_enabled(&app, &caller, name, true).await
}

/// `POST /cron/{name}/disable`.
pub(crate) async fn disable(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    set_enabled(&app, &caller, name, false).await
}

async fn set_enabled(app: &App, caller: &Caller, name: Name, enabled: bool) -> Answered {
    let name = cron_name(name)?;
    one(app, caller, &name).await?;
    changed(app, caller, name, Change { enabled: Some(enabled), ..Change::default() }).await
}

async fn changed(app: &App, caller: &Caller, name: CronName, wanted: Change) -> Answered {
    let cron = found(&name, app.engine.change_cron(name.clone(), caller.queues().clone(), wanted).await?)?;
    Ok(Answer::ok(shown(caller, &name, &cron)))
}

/// `DELETE /cron/{name}`. The jobs it has admitted stay.
pub(crate) async fn remove(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    let name = cron_name(name)?;
    one(&app, &caller, &name).await?;
    let cron = found(&name, app.engine.remove_cron(name.clone(), caller.queues().clone()).await?)?;
    Ok(Answer::ok(shown(&caller, &name, &cron)))
}

/// `POST /cron/{name}/trigger`.
pub(crate) async fn trigger(Scope(app): Scope, caller: Caller, name: Name, request: Request) -> Answered {
    let name = cron_name(name)?;
    let (parts, _) = request.into_parts();
    let why = "triggering a cron; leave it out, or enqueue the job itself with that header";
    extract::no_idempotency(&parts, &app, &caller, why)?;
    one(&app, &caller, &name).await?;
    let (cron, mut tick) =
        found(&name, app.engine.trigger_cron(name.clone(), caller.queues().clone()).await?)?;
    // The cron has ticked: a caller that was told of a failure would trigger it again.
    if let Err(refused) = hide_jobs(&app, &caller, std::slice::from_mut(&mut tick)).await {
        let error = refused.cause.unwrap_or_default();
        tracing::warn!(error, "the answer about a cron's tick leaves out the job that blocked it");
        tick.job = tick.job.filter(|_| tick.decision == Decision::Fired);
    }
    let show = if caller.inspect() { ojs::triggered } else { ojs::triggered_curt };
    Ok(Answer::ok(show(&name, &cron, &tick)))
}
