//! A page of jobs: those that a filter admits, or those of them that have a value at some place.

use semel_core::ident::JobId;
use semel_engine::{Engine, Job};
use semel_ojs::place::Place;
use semel_store::StoreError;
use semel_store::backend::Filter;

/// Listings of one page: a store looks at a bounded number of rows for each, and people are spared empty pages.
const LISTINGS_MAX: usize = 17;
/// Jobs of a listing where something in them is looked for.
const LOOKED_AT_ONCE: u32 = 100;
/// Of those, read at once.
const READ_AT_ONCE: usize = 10;
/// Bytes of args and meta that one search looks at.
const LOOKED_BYTES_MAX: usize = 16 << 20;

/// At most so many, the newest first; and where to go on.
type Page = (Vec<Job>, Option<JobId>);

/// Those that the filter admits.
pub(crate) async fn page(engine: &Engine, filter: Filter, most: usize) -> Result<Page, StoreError> {
    let mut filter = Filter { limit: u32::try_from(most).unwrap_or(u32::MAX), ..filter };
    for _ in 0..LISTINGS_MAX {
        let listing = engine.list(filter.clone()).await?;
        filter.before = listing.next;
        if filter.before.is_none() || !listing.heads.is_empty() {
            let ids = listing.heads.iter().map(|head| head.id).collect();
            return Ok((engine.jobs(ids).await?, filter.before));
        }
    }
    Ok((Vec::new(), filter.before))
}

/// Those of them that have the value at the place. No index knows them, so it ends with a place to go on from when it has
/// looked at enough.
pub(crate) async fn by_place(
    engine: &Engine,
    filter: Filter,
    place: &Place,
    most: usize,
) -> Result<Page, StoreError> {
    let mut filter = Filter { limit: LOOKED_AT_ONCE, ..filter };
    let (mut found, mut bytes) = (Vec::new(), 0);
    for _ in 0..LISTINGS_MAX {
        let listing = engine.list(filter.clone()).await?;
        let ids: Vec<JobId> = listing.heads.iter().map(|head| head.id).collect();
        for piece in ids.chunks(READ_AT_ONCE) {
            for job in engine.jobs(piece.to_vec()).await? {
                bytes += job.body.args.len() + job.body.meta.len();
                if place.is_in(&job.body) {
                    found.push(job);
                }
            }
            if found.len() > most {
                found.truncate(most);
                let last = found.last().map(|job| job.head.id);
                return Ok((found, last));
            }
            if bytes >= LOOKED_BYTES_MAX && piece.last() != ids.last() {
                return Ok((found, piece.last().copied()));
            }
        }
        filter.before = listing.next;
        if filter.before.is_none() || found.len() == most || bytes >= LOOKED_BYTES_MAX {
            break;
        }
    }
    Ok((found, filter.before))
}
