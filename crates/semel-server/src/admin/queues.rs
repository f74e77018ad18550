//! `/admin/queues`: queues and their settings.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use http::Uri;
use semel_core::state::State as JobState;
use semel_ojs::settings;
use semel_ojs::write::{list as put_list, object};
use semel_store::backend::QueueStats;

use super::Page;
use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::queues::queue_name;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

type Name = Result<Path<String>, PathRejection>;

/// `GET /admin/queues`, by name.
pub(crate) async fn list(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    let page = Page::of(&Parameters::of(&uri)?)?;
    let mut queues = app.engine.queues().await?;
    queues.retain(|stats| caller.sees(stats.row.name.name()));
    let mut out = String::with_capacity(1_024);
    object(&mut out, |outer| {
        put_list(outer.member("items"), page.of_items(&queues), |out, stats| put(stats, out));
        page.put(queues.len(), false, outer);
    });
    Ok(Answer::ok(out))
}

fn put(stats: &QueueStats, out: &mut String) {
    object(out, |object| {
        object.plain("name", &stats.row.name);
        object.flag("paused", stats.row.paused);
        object.plain("status", if stats.row.paused { "paused" } else { "active" });
        semel_ojs::write::object(object.member("counts"), |object| {
            for state in JobState::ALL {
                object.number(state.name(), stats.count(state));
            }
        });
        object.time("oldest_available_at", stats.oldest_ready);
    });
}

/// `GET /admin/queues/{name}/config`.
pub(crate) async fn config(Scope(app): Scope, caller: Caller, name: Name) -> Answered {
    let name = queue_name(name)?;
    caller.check_queue(name.as_str())?;
    let (set, _) = app.engine.queue_settings(&name).await?;
    Ok(Answer::ok(configured(name.as_str(), &set)))
}

/// `PUT /admin/queues/{name}/config`: replaces all settings; a setting that is left out is unset. The queue need not exist.
pub(crate) async fn configure(Scope(app): Scope, caller: Caller, name: Name, request: Request) -> Answered {
    let name = queue_name(name)?;
    caller.check_queue(name.as_str())?;
    let (_, text) = extract::text(request, app.config.body_bytes_max).await?;
    let set = settings::queue(&text)?;
    app.engine.set_queue(name.clone(), set).await?;
    Ok(Answer::ok(configured(name.as_str(), &set)))
}

fn configured(name: &str, set: &semel_core::settings::QueueSettings) -> String {
    let mut out = String::with_capacity(128);
    object(&mut out, |outer| {
        outer.plain("name", name);
        object(outer.member("config"), |object| settings::put_queue(set, object));
    });
    out
}
