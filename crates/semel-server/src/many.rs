//! Bulk operations: jobs found by a filter, each then decided individually.

use std::future::Future;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_engine::Engine;
use semel_ojs::write::Object;
use semel_ojs::{Code, Problem};
use semel_store::StoreError;
use semel_store::backend::Filter;

use crate::App;
use crate::respond::Refused;

/// Jobs read by one listing.
const CHUNK: u32 = 1_000;
/// Listings of one request, at most: what a filter admits may lie behind ten million jobs that it does not.
const LISTINGS_MAX: usize = 64;
/// Decisions made concurrently, so that they share commits.
const SIDE_BY_SIDE: usize = 64;

/// Refuses a bulk request that is not confirmed.
pub(crate) fn check_confirmed(is_confirmed: bool) -> Result<(), Problem> {
    if is_confirmed {
        return Ok(());
    }
    Err(Problem::new(
        Code::InvalidRequest,
        "/confirm is not true: this changes many jobs at once; look at them with GET /ojs/v1/jobs first, then send confirm: true",
    )
    .with_details(|object| object.text("pointer", "/confirm")))
}

/// Jobs that a filter admits.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The newest of them.
    pub(crate) heads: Vec<Head>,
    /// Where to go on if there may be more: the wanted number was reached, or the listings were used up.
    pub(crate) rest: Option<JobId>,
}

impl Found {
    /// Writes the total number found.
    pub(crate) fn put_total(&self, object: &mut Object<'_>) {
        object.number("total", self.heads.len());
        object.flag("is_lower_bound", self.rest.is_some());
    }

    /// Writes the cursor to go on from.
    pub(crate) fn put_rest(&self, object: &mut Object<'_>) {
        object.flag("has_more", self.rest.is_some());
        match self.rest {
            Some(next) => object.plain("next_cursor", next),
            None => object.raw("next_cursor", "null"),
        }
    }
}

/// Whether there is a page behind this one, with pages counted from the first item and `found` items found.
/// If the search stopped early, the page that reaches the last item found says that there is more; a page
/// beyond it says that there is none, so that turning pages ends.
pub(crate) const fn has_more(first: u64, size: u64, found: u64, is_lower_bound: bool) -> bool {
    let is_in_reach = first < found || first == 0;
    first.saturating_add(size) < found || (is_in_reach && is_lower_bound)
}

/// The newest jobs that the filter admits, at most `most`.
pub(crate) async fn found(app: &App, filter: Filter, most: usize) -> Result<Found, Refused> {
    look(&app.engine, Filter { limit: CHUNK, ..filter }, most, LISTINGS_MAX).await
}

async fn look(engine: &Engine, filter: Filter, most: usize, listings: usize) -> Result<Found, Refused> {
    let mut filter = filter;
    let mut heads = Vec::new();
    for _ in 0..listings {
        let mut listing = engine.list(filter.clone()).await?;
        let room = most.saturating_sub(heads.len());
        if listing.heads.len() > room {
            // Only the store knows where the next page begins: a job's id need not tell once the job is deleted, and all
            // of these may be. Had the limit been this low at first, it would not have shown whether there are more.
            filter.limit = u32::try_from(room).unwrap_or(u32::MAX);
            listing = engine.list(filter.clone()).await?;
        }
        heads.extend(listing.heads);
        filter.before = listing.next;
        if filter.before.is_none() || heads.len() >= most {
            break;
        }
    }
    Ok(Found { heads, rest: filter.before })
}

/// Applies one operation to each job, in order, and returns those it was done to. An error ends it; what was
/// done before stays done.
pub(crate) async fn each<F>(heads: &[Head], act: impl Fn(JobId) -> F) -> Result<Vec<JobId>, StoreError>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let answers = answers(heads, act).await?;
    Ok(answers.into_iter().filter(|(_, was_done)| *was_done).map(|(id, _)| id).collect())
}

/// As [`each`], and returns the result for each job.
pub(crate) async fn answers<T, F>(
    heads: &[Head],
    act: impl Fn(JobId) -> F,
) -> Result<Vec<(JobId, T)>, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let acts = heads.iter().map(|head| {
        let (id, acted) = (head.id, act(head.id));
        async move { Ok::<_, StoreError>((id, acted.await?)) }
    });
    let acts: Vec<_> = acts.collect();
    stream::iter(acts).buffered(SIDE_BY_SIDE).try_collect().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use http::Request;
    use http::header::CONTENT_TYPE;
    use semel_store::memory::Memory;
    use tower_service::Service as _;

    use super::*;

    #[test]
    fn pages_say_what_was_not_counted_and_come_to_an_end() {
        for (first, is_cut, more) in [(0, false, true), (5, false, false), (5, true, true), (10, true, false)]
        {
            assert_eq!(has_more(first, 5, 10, is_cut), more, "{first} {is_cut}");
        }
        // The scan ended at its bound without finding one.
        assert!(has_more(0, 5, 0, true) && !has_more(5, 5, 0, true));
    }

    /// A request for a job type that nobody uses must not scan the whole store.
    #[tokio::test]
    async fn a_look_ends_after_so_many_listings_and_the_next_goes_on() {
        let engine = Engine::start(Arc::new(Memory::default())).unwrap();
        let mut router = crate::router(engine.clone(), crate::Config::default());
        let jobs = [r#"{"type":"a.b","args":[]}"#; 5].join(",");
        let body = Body::from(format!(r#"{{"jobs":[{jobs}]}}"#));
        let request = Request::post("/ojs/v1/jobs/bulk").header(CONTENT_TYPE, "application/json");
        let response = router.call(request.body(body).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        let page = |limit, before| Filter { limit, before, ..Filter::default() };
        // A listing returns what it finds: here one job, elsewhere possibly none at all.
        let found = look(&engine, page(1, None), 10, 2).await.unwrap();
        assert_eq!(found.heads.len(), 2);
        let mut seen: Vec<JobId> = found.heads.iter().map(|head| head.id).collect();
        // Exactly as many as were wanted: the jobs behind them must not be skipped.
        let found =
            look(&engine, page(3, Some(found.rest.expect("a place to go on from"))), 2, 9).await.unwrap();
        assert_eq!(found.heads.len(), 2);
        seen.extend(found.heads.iter().map(|head| head.id));
        let found = look(&engine, page(3, Some(found.rest.expect("one is left"))), 2, 9).await.unwrap();
        assert_eq!((found.heads.len(), found.rest), (1, None));
        seen.extend(found.heads.iter().map(|head| head.id));
        let all = look(&engine, page(3, None), 9, 9).await.unwrap();
        assert_eq!((all.heads.iter().map(|head| head.id).collect::<Vec<_>>(), all.rest), (seen, None));
    }
}
