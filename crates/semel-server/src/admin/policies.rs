//! `/admin/stats/policies`: the policies in use, and their outcomes.

use std::cmp::Reverse;

use semel_core::unique::advice;
use semel_core::unique::explain::policy_sentence;
use semel_engine::policies::POLICIES_MAX;
use semel_ojs::unique;
use semel_ojs::write::{list as put_list, object};

use crate::caller::Caller;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// `GET /admin/stats/policies`: most used first, from this server's own counters for its tenant since it
/// started. Keys that callers supplied are not shown.
pub(crate) async fn show(Scope(app): Scope, caller: Caller) -> Answered {
    caller.check_all_queues()?;
    let (mut policies, others) = app.engine.policies_in_use();
    policies.sort_by_key(|each| Reverse(each.uses.created + each.uses.hits()));
    let now = app.engine.now().await?;
    let mut out = String::with_capacity(700 * policies.len() + 128);
    object(&mut out, |outer| {
        outer.time("since", app.began(now));
        outer.number("policies_max", POLICIES_MAX);
        outer.number("uncounted", others);
        put_list(outer.member("items"), &policies, |out, each| {
            object(out, |object_of_policy| {
                object_of_policy.plain("type", &each.job_type);
                unique::write(&each.policy, object_of_policy.member("policy"));
                object_of_policy.text("sentence", &policy_sentence(&each.policy));
                object_of_policy.number("created", each.uses.created);
                object_of_policy.number("replaced", each.uses.replaced);
                object_of_policy.number("followed_up", each.uses.followed_up);
                object_of_policy.number("suppressed", each.uses.suppressed);
                object_of_policy.texts("advice", advice(&each.policy).into_iter().map(|it| it.trace()));
            });
        });
    });
    Ok(Answer::ok(out))
}
