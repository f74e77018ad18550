//! `/admin/stats`: the whole server in a few numbers.

use semel_core::state::State as JobState;
use semel_ojs::write::object;

use crate::caller::Caller;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// `GET /admin/stats`. Throughput and workers are this server's own; jobs and queues are the store's.
pub(crate) async fn show(Scope(app): Scope, caller: Caller) -> Answered {
    caller.check_all_queues()?;
    let queues = app.engine.queues().await?;
    let lately = app.engine.throughput();
    let mut out = String::with_capacity(512);
    object(&mut out, |outer| {
        outer.number("queues", queues.len());
        outer.number("workers", app.engine.workers().all(app.engine.tenant()).len());
        object(outer.member("jobs"), |object| {
            for state in JobState::ALL {
                object.number(state.name(), queues.iter().map(|stats| stats.count(state)).sum::<u64>());
            }
        });
        object(outer.member("throughput"), |object| {
            object.number("processed_per_minute", lately.completed);
            object.number("failed_per_minute", lately.failed);
        });
    });
    Ok(Answer::ok(out))
}
