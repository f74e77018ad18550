//! `/ojs/v1/admin`: what operators ask and do. Each file has one resource.

pub(crate) mod dead_letter;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod queues;
pub(crate) mod stats;
pub(crate) mod workers;

use semel_ojs::Problem;
use semel_ojs::write::Object;

use crate::caller::Caller;
use crate::extract::Parameters;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

const PER_PAGE_DEFAULT: u64 = 25;
const PER_PAGE_MAX: u64 = 100;
/// The last page of a listing that may be asked for.
const PAGES_MAX: u64 = 10_000;

/// `POST /admin/reset`: deletes everything, if the server was started to allow it.
pub(crate) async fn reset(Scope(app): Scope, caller: Caller) -> Answered {
    caller.check_all_queues()?;
    if !app.config.allow_reset {
        return Err(Problem::not_found("endpoint on this server").into());
    }
    app.engine.store().clear().await?;
    app.engine.forget_what_was_seen();
    Ok(Answer::ok("{\"reset\":true}".to_owned()))
}

/// Which page of a listing is wanted: `page` from 1, `per_page`.
#[derive(Clone, Copy, Debug)]
struct Page {
    number: u64,
    size: u64,
}

impl Page {
    fn of(query: &Parameters) -> Result<Self, Problem> {
        Ok(Self {
            number: query.number("page", 1, 1, PAGES_MAX)?,
            size: query.number("per_page", 1, PER_PAGE_DEFAULT, PER_PAGE_MAX)?,
        })
    }

    /// The items of the page.
    fn of_items<T>(self, items: &[T]) -> &[T] {
        let first = usize::try_from((self.number - 1) * self.size).unwrap_or(usize::MAX).min(items.len());
        let last = first.saturating_add(usize::try_from(self.size).unwrap_or(0)).min(items.len());
        &items[first..last]
    }

    fn put(self, total: usize, is_lower_bound: bool, outer: &mut Object<'_>) {
        let pages = (total as u64).div_ceil(self.size);
        semel_ojs::write::object(outer.member("pagination"), |object| {
            object.number("total", total);
            object.flag("is_lower_bound", is_lower_bound);
            object.number("page", self.number);
            object.number("per_page", self.size);
            object.number("total_pages", pages);
            object.flag("has_more", self.number < pages);
        });
    }
}
