//! `/ojs/v1/queues`: list, inspect, pause, resume, purge.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use semel_core::ident::QueueName;
use semel_core::lease::Bearer;
use semel_core::settle::Settled;
use semel_engine::latency::{Latency, MINUTES, Spread};
use semel_ojs::queue::{LatencyView, QueueView, SpreadView};
use semel_ojs::write::{list as put_list, object};
use semel_ojs::{Problem, bulk};
use semel_store::backend::{Filter, QueueStats};

use crate::App;
use crate::audit::Many;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::many::{check_confirmed, each, found};
use crate::respond::{Answer, Answered, Refused};
use crate::tenancy::Scope;

type Name = Result<Path<String>, PathRejection>;

/// Queues on a page, unless the query asks for fewer: clients that do not know about pages read only the first.
const PAGE_MAX: u64 = 10_000;

/// `GET /queues`, by name: `limit`, `cursor`.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let query = Parameters::of(&uri)?;
    let limit = query.number("limit", 1, PAGE_MAX, PAGE_MAX)?;
    let after = query.get("cursor").unwrap_or_default();
    let mut queues = app.engine.queues().await?;
    queues.retain(|stats| caller.sees(stats.row.name.name()));
    let total = queues.len();
    queues.retain(|stats| stats.row.name.name() > after);
    queues.sort_by(|one, other| one.row.name.cmp(&other.row.name));
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = queues.len() > most;
    queues.truncate(most);
    let mut out = String::with_capacity(300 * queues.len() + 64);
    object(&mut out, |outer| {
        let latencies = app.engine.latencies();
        put_list(outer.member("queues"), &queues, |out, stats| {
            QueueView { latency: latencies.get(stats.row.name.name()).map(latency), ..view(stats) }
                .write(out);
        });
        object(outer.member("pagination"), |page| {
            page.number("total", total);
            page.number("limit", limit);
            page.flag("has_more", has_more);
            match queues.last().filter(|_| has_more) {
                Some(last) => page.plain("next_cursor", last.row.name.name()),
                None => page.raw("next_cursor", "null"),
            }
        });
    });
    Ok(Answer::ok(out))
}

/// `GET /queues/{name}` and `/stats`. The queue need not have had a job.
pub(crate) async fn show(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    let name = queue_name(name)?;
    caller.check_queue(name.as_str())?;
    let found = app.engine.queue(&name).await?;
    let none = QueueView {
        name: name.as_str(),
        paused: false,
        counts: [0; 8],
        created: 0,
        purged: 0,
        oldest_ready: None,
        latency: None,
    };
    let took = app.engine.latencies().get(name.name()).map(latency);
    let (settings, _) = app.engine.queue_settings(&name).await?;
    Ok(Answer::ok(QueueView { latency: took, ..found.as_ref().map_or(none, view) }.answer(&settings)))
}

/// `POST /queues/{name}/pause`.
pub(crate) async fn pause(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    set_paused(&app, &caller, name, true).await
}

/// `POST /queues/{name}/resume`.
pub(crate) async fn resume(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    set_paused(&app, &caller, name, false).await
}

/// Jobs that one purge cancels, at most; the answer says whether more wait.
const PURGED_MAX: usize = 10_000;

/// `POST /queues/{name}/purge`: cancels the jobs that wait in the given `states`, by default the available ones. They
/// end like any other cancelled job: their keys are free at once, and they can be read until their retention is over.
pub(crate) async fn purge(scope: Scope, caller: Caller, name: Name, request: Request) -> Answered {
    purged(scope, caller, name, request, |_| Ok(())).await
}

/// `POST /admin/queues/{name}/purge` and `DELETE /admin/queues/{name}/jobs`: the same, but only if confirmed,
/// as OJS requires for destructive requests below `/admin`.
pub(crate) async fn purge_confirmed(scope: Scope, caller: Caller, name: Name, request: Request) -> Answered {
    purged(scope, caller, name, request, |wish| check_confirmed(wish.is_confirmed)).await
}

async fn purged(
    Scope(app): Scope,
    caller: Caller,
    name: Name,
    request: Request,
    check: impl FnOnce(&bulk::Purge) -> Result<(), Problem>,
) -> Answered {
    let name = queue_name(name)?;
    caller.check_queue(name.as_str())?;
    let (parts, text) = extract::text(request, app.config.body_bytes_max).await?;
    let why = "purges; leave it out, and before you send the request again, check with GET /ojs/v1/jobs what still waits in the queue";
    extract::no_idempotency(&parts, &app, &caller, why)?;
    let wish = bulk::purge(&text)?;
    check(&wish)?;
    let bulk::Purge { states, before, .. } = wish;
    let filter = Filter { states, queue: Some(name.clone()), before, ..Filter::default() };
    let found = found(&app, filter, PURGED_MAX).await?;
    // A worker may have taken the job meanwhile.
    let act =
        async |id| Ok(matches!(app.engine.cancel_waiting(id, &Bearer::default()).await?, Settled::Done(_)));
    let purged = each(&found.heads, act).await?.len();
    Many::done(&parts.extensions, purged);
    let mut out = String::new();
    object(&mut out, |outer| {
        object(outer.member("queue"), |object| object.plain("name", &name));
        outer.number("purged", purged);
        outer.number("purged_count", purged);
        outer.number("count", purged);
        found.put_rest(outer);
    });
    Ok(Answer::ok(out))
}

async fn set_paused(app: &App, caller: &Caller, name: Name, paused: bool) -> Answered {
    let name = queue_name(name)?;
    caller.check_queue(name.as_str())?;
    let row = app.engine.set_paused(name, paused).await?;
    let mut out = String::new();
    object(&mut out, |outer| {
        object(outer.member("queue"), |object| {
            object.plain("name", &row.name);
            object.flag("paused", row.paused);
            object.plain("status", if row.paused { "paused" } else { "active" });
        });
        outer.flag("paused", row.paused);
    });
    Ok(Answer::ok(out))
}

pub(crate) fn queue_name(name: Name) -> Result<QueueName, Refused> {
    Ok(QueueName::parse(&extract::name(name, "queue")?, "/name")?)
}

pub(crate) fn view(stats: &QueueStats) -> QueueView<'_> {
    QueueView {
        name: stats.row.name.name(),
        paused: stats.row.paused,
        counts: stats.counts,
        created: stats.created,
        purged: stats.purged,
        oldest_ready: stats.oldest_ready,
        latency: None,
    }
}

fn latency(Latency { wait, run }: &Latency) -> LatencyView {
    let spread = |of: &Spread| SpreadView { count: of.count, p50: of.p50, p99: of.p99 };
    LatencyView { minutes: MINUTES, wait: spread(wait), run: spread(run) }
}
