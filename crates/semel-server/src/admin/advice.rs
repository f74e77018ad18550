//! `/admin/advice`: what this server's job samples suggest about the policies of job types.

use semel_ojs::write::{list as put_list, object};

use crate::caller::Caller;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

/// `GET /admin/advice`: this server's own samples of its tenant's jobs since the server started. Empty unless
/// sampling was switched on.
pub(crate) async fn show(Scope(app): Scope, caller: Caller) -> Answered {
    caller.check_all_queues()?;
    let now = app.engine.now().await?;
    let (types, left_out) = app.engine.advice();
    let mut out = String::with_capacity(512 * types.len() + 128);
    object(&mut out, |outer| {
        outer.flag("sampling", app.engine.samples_policies());
        outer.time("since", app.began(now));
        put_list(outer.member("types"), &types, |out, of_type| {
            object(out, |object| {
                object.plain("type", &of_type.job_type);
                object.number("jobs", of_type.jobs);
                object.number("duplicates", of_type.duplicates);
                put_list(object.member("advice"), &of_type.findings, |out, finding| {
                    semel_ojs::write::object(out, |object| {
                        object.plain("kind", finding.name());
                        if let Some(pointer) = finding.pointer() {
                            object.text("pointer", pointer);
                        }
                        if let Some((differing, of)) = finding.rate() {
                            object.number("differing", differing);
                            object.number("of", of);
                        }
                        object.text("message", &finding.text());
                    });
                });
            });
        });
        outer.number("left_out", left_out);
    });
    Ok(Answer::ok(out))
}
