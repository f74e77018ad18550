//! Pages of jobs that have a value at some place, pages by number, and the items of any page as far as the
//! answer has room for them.

use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_engine::room::{ANSWER_BYTES_MAX, LISTINGS_MAX, Page, READ_AT_ONCE, weight};
use semel_engine::{Engine, Job};
use semel_ojs::JobView;
use semel_ojs::place::Place;
use semel_ojs::write::list as put_list;
use semel_store::StoreError;
use semel_store::backend::Filter;

use crate::caller::Caller;
use crate::respond::view_for;

/// Jobs read at once by a search inside them.
const LOOKED_AT_ONCE: u32 = 100;
/// Bytes of args and meta that one search reads, at most.
const LOOKED_BYTES_MAX: usize = 16 << 20;

/// The written items of a page, as many as the answer has room for.
#[derive(Debug, Default)]
pub(crate) struct Told {
    items: Vec<String>,
    bytes: usize,
}

impl Told {
    /// Adds an item that the answer contains `times` times, if there is room: otherwise the page ends before
    /// it. The first item always fits, so that every page makes progress.
    pub(crate) fn push(&mut self, item: String, times: usize) -> bool {
        let bytes = item.len().saturating_mul(times);
        let fits = self.items.is_empty() || self.bytes + bytes <= ANSWER_BYTES_MAX;
        if fits {
            self.bytes += bytes;
            self.items.push(item);
        }
        fits
    }

    pub(crate) fn items(&self) -> &[String] {
        &self.items
    }
}

/// A page by number: all of its jobs, those beyond the room for whole ones by their heads.
pub(crate) struct Listed<'h> {
    jobs: Vec<Job>,
    heads: Vec<&'h Head>,
}

impl<'h> Listed<'h> {
    pub(crate) async fn read(engine: &Engine, mut heads: Vec<&'h Head>) -> Result<Self, StoreError> {
        let ids: Vec<JobId> = heads.iter().map(|head| head.id).collect();
        let (jobs, looked) = engine.whole(&ids).await?;
        heads.drain(..looked);
        Ok(Self { jobs, heads })
    }

    pub(crate) fn put(&self, out: &mut String, caller: &Caller) {
        let whole = self.jobs.iter().map(|job| view_for(job, caller));
        let all = whole.chain(self.heads.iter().map(|head| JobView::bare(head)));
        put_list(out, all, |out, view| view.write(out));
    }
}

/// The jobs that have the value at the place. No index covers this, so the search is bounded and may end with
/// a cursor to go on from.
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
            // A job that cannot be read has no known value at any place.
            for job in engine.listed(piece.to_vec()).await? {
                bytes += weight(&job);
                if job.is_readable && place.is_in(&job.body) {
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
