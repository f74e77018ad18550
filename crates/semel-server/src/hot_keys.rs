//! `/ojs/v1/unique-jobs?sort=duplicates`: the holders that absorbed most duplicates, by this server's own bounded counters.

use semel_core::job::Head;
use semel_engine::holding::Asked;
use semel_ojs::write::{list as put_list, object};

use crate::App;
use crate::extract::Parameters;
use crate::respond::{Answer, Answered};
use crate::unique_jobs::put_holder;

/// Holders that duplicates met since the server started, most first. The filters are those of the default order.
/// There is only one page: it shows the top of the bounded list of holders that are counted.
pub(crate) async fn list(app: &App, query: &Parameters, per_page: u64) -> Answered {
    let mut filter = crate::jobs::filter(query)?;
    // A head has the stored queue name; all of these are the tenant's, so the shown names can be compared.
    let queue = filter.queue.take();
    let is_in_queue = |head: &Head| queue.as_ref().is_none_or(|queue| queue.name() == head.queue.name());
    let most = usize::try_from(per_page).unwrap_or(usize::MAX);
    let is_wanted = |head: &Head| {
        head.hold.is_disclosed() && head.key.is_some() && is_in_queue(head) && filter.admits(head)
    };
    let (mut shown, may_lack) = app.engine.hottest_holders(most.saturating_add(1), is_wanted).await?;
    let has_more = shown.len() > most;
    shown.truncate(most);
    let now = app.engine.now().await?;
    let heads: Vec<Head> = shown.iter().map(|(head, _)| head.clone()).collect();
    let holdings = app.engine.holdings(&heads, now, Asked::Until).await?;
    let mut out = String::with_capacity(320 * shown.len() + 128);
    object(&mut out, |outer| {
        put_list(outer.member("items"), &shown, |out, (head, count)| {
            object(out, |object| {
                put_holder(&holdings, head, object);
                object.flag("holds", holdings.holds(head));
                object.number("absorbed", count);
            });
        });
        object(outer.member("pagination"), |object| {
            object.number("page", 1);
            object.number("per_page", per_page);
            object.flag("has_more", has_more);
            object.raw("next_cursor", "null");
        });
        object(outer.member("counted"), |object| {
            object.time("since", app.began(now));
            object.number("may_lack", may_lack);
        });
    });
    Ok(Answer::ok(out))
}
