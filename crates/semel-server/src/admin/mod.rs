//! `/ojs/v1/admin`: what operators ask and do, one file per resource.

pub(crate) mod advice;
pub(crate) mod dead_letter;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod policies;
pub(crate) mod queues;
pub(crate) mod stats;
pub(crate) mod workers;

use semel_ojs::Problem;
use semel_ojs::write::Object;

use crate::caller::Caller;
use crate::extract::{Parameters, refuse};
use crate::many::has_more;
use crate::respond::{Answer, Answered};
use crate::tenancy::Scope;

const PER_PAGE_DEFAULT: u64 = 25;
const PER_PAGE_MAX: u64 = 100;
/// The highest page number that a listing accepts.
const PAGES_MAX: u64 = 10_000;

/// `POST /admin/reset`: deletes everything, if the server was started with resets allowed.
pub(crate) async fn reset(Scope(app): Scope, caller: Caller) -> Answered {
    caller.check_all_queues()?;
    if !app.config.allow_reset {
        return Err(Problem::not_found("endpoint on this server").into());
    }
    app.engine.store().clear().await?;
    app.engine.forget_what_was_seen();
    Ok(Answer::ok("{\"reset\":true}".to_owned()))
}

/// Which items of a listing are wanted: `page` (from 1) and `per_page`, or the equivalent `offset` and
/// `limit` of OJS's OpenAPI document.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Number of items before this page.
    first: u64,
    size: u64,
    by_offset: bool,
}

impl Page {
    fn of(query: &Parameters) -> Result<Self, Problem> {
        for (name, other) in [("limit", "per_page"), ("offset", "page")] {
            if query.get(name).is_some() && query.get(other).is_some() {
                return Err(refuse(
                    name,
                    format_args!("is given together with {other}, which means the same"),
                ));
            }
        }
        let name = if query.get("limit").is_some() { "limit" } else { "per_page" };
        let size = query.number(name, 1, PER_PAGE_DEFAULT, PER_PAGE_MAX)?;
        let first = match query.get("offset") {
            Some(_) => query.number("offset", 0, 0, PAGES_MAX * PER_PAGE_MAX)?,
            None => (query.number("page", 1, 1, PAGES_MAX)? - 1) * size,
        };
        Ok(Self { first, size, by_offset: name == "limit" || query.get("offset").is_some() })
    }

    /// The items of the page.
    fn of_items<T>(self, items: &[T]) -> &[T] {
        let first = usize::try_from(self.first).unwrap_or(usize::MAX).min(items.len());
        let last = first.saturating_add(usize::try_from(self.size).unwrap_or(0)).min(items.len());
        &items[first..last]
    }

    fn put(self, total: usize, is_lower_bound: bool, outer: &mut Object<'_>) {
        let items = total as u64;
        semel_ojs::write::object(outer.member("pagination"), |object| {
            object.number("total", total);
            object.flag("is_lower_bound", is_lower_bound);
            object.number("page", self.first / self.size + 1);
            object.number("per_page", self.size);
            object.number("total_pages", items.div_ceil(self.size));
            if self.by_offset {
                object.number("limit", self.size);
                object.number("offset", self.first);
            }
            object.flag("has_more", has_more(self.first, self.size, items, is_lower_bound));
        });
    }
}
