//! `/admin/stats/history`: request outcomes by minute or by hour.

use std::collections::BTreeMap;

use http::Uri;
use semel_engine::counters::Series;
use semel_engine::history::{HOURS_MAX, MINUTES_MAX, Step};
use semel_ojs::write::{list as put_list, object};

use crate::caller::Caller;
use crate::extract::{self, Parameters};
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// Pairs of job type and queue that are listed by name: those with the most activity.
const TOP_MAX: usize = 20;

/// `GET /admin/stats/history`: `step` (`minute` or `hour`), `type`, `queue`. This server's own counters for
/// its tenant since it started; empty slots are left out.
pub(crate) async fn show(Scope(app): Scope, caller: Caller, uri: Uri) -> Answered {
    caller.check_all_queues()?;
    let query = Parameters::of(&uri)?;
    let (step, slots_max) = match query.get("step").unwrap_or("minute") {
        "minute" => (Step::Minute, MINUTES_MAX),
        "hour" => (Step::Hour, HOURS_MAX),
        _ => return Err(extract::refuse("step", "must be `minute` or `hour`").into()),
    };
    let (job_type, queue) = (query.get("type"), query.get("queue"));
    let own = app.engine.tenant().as_str();
    let is_wanted = |(of_type, of_queue, _): &Series| {
        of_queue.tenant() == own
            && job_type.is_none_or(|name| name == of_type.as_str())
            && queue.is_none_or(|name| name == of_queue.name())
    };
    let slots = app.engine.counters().history(step, is_wanted);
    let now = app.engine.now().await?;
    let since = app.began(now);
    let mut top: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for ((job_type, queue, _), count) in slots.iter().flat_map(|slot| &slot.moved) {
        *top.entry((job_type.as_str(), queue.name())).or_default() += count;
    }
    let mut top: Vec<_> = top.into_iter().collect();
    top.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut out = String::with_capacity(128 * slots.len() + 512);
    object(&mut out, |outer| {
        outer.time("since", since);
        outer.time("now", now);
        outer.number("step_s", step.seconds());
        outer.number("slots_max", slots_max);
        put_list(outer.member("slots"), &slots, |out, slot| {
            let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
            for ((_, _, outcome), count) in &slot.moved {
                *outcomes.entry(outcome).or_default() += count;
            }
            object(out, |object_of_slot| {
                object_of_slot.time("at", since.saturating_add(slot.began));
                object(object_of_slot.member("outcomes"), |object| {
                    outcomes.iter().for_each(|(outcome, count)| object.number(outcome, count));
                });
            });
        });
        put_list(outer.member("top"), top.iter().take(TOP_MAX), |out, ((job_type, queue), count)| {
            object(out, |object| {
                object.plain("type", job_type);
                object.plain("queue", queue);
                object.number("count", count);
            });
        });
    });
    Ok(Answer::ok(out))
}
