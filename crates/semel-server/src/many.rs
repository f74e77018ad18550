//! Many jobs at once: found by a filter, then each a decision of its own.

use std::future::Future;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_store::StoreError;
use semel_store::backend::Filter;

use crate::App;
use crate::respond::Refused;

/// Jobs read at once.
const CHUNK: u32 = 1_000;
/// Decisions asked for side by side, so that they share commits.
const SIDE_BY_SIDE: usize = 64;

/// The newest jobs that the filter admits, at most so many.
pub(crate) async fn found(app: &App, filter: Filter, most: usize) -> Result<Vec<Head>, Refused> {
    let mut filter = Filter { limit: CHUNK, ..filter };
    let mut heads = Vec::new();
    loop {
        let listing = app.engine.list(filter.clone()).await?;
        heads.extend(listing.heads);
        match listing.next {
            Some(next) if heads.len() < most => filter.before = Some(next),
            _ => break,
        }
    }
    heads.truncate(most);
    Ok(heads)
}

/// Does one thing to each job, in this order, and tells those that it was done to. An error ends it; what was done
/// before stays done.
pub(crate) async fn each<F>(heads: &[Head], act: impl Fn(JobId) -> F) -> Result<Vec<JobId>, StoreError>
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let acts = heads.iter().map(|head| {
        let (id, acted) = (head.id, act(head.id));
        async move { Ok::<_, StoreError>(acted.await?.then_some(id)) }
    });
    let acts: Vec<_> = acts.collect();
    let done: Vec<Option<JobId>> = stream::iter(acts).buffered(SIDE_BY_SIDE).try_collect().await?;
    Ok(done.into_iter().flatten().collect())
}
