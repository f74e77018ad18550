//! A page of jobs that have a value at some place, a page by its number, and the items of any page as far as an answer has room for
//! them.

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

/// Jobs of a listing where something in them is looked for.
const LOOKED_AT_ONCE: u32 = 100;
/// Bytes of args and meta that one search looks at.
const LOOKED_BYTES_MAX: usize = 16 << 20;

/// The items of a page, each as it is told, as many as an answer has room for.
#[derive(Debug, Default)]
pub(crate) struct Told {
    items: Vec<String>,
    bytes: usize,
}

impl Told {
    /// Adds an item that the answer tells so many times, if there is room for it: else the page ends before it. For the first
    /// there is, so that every page goes on from the one before.
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

/// A page by its number: all the jobs that are on it, those beyond the room for whole ones by their heads.
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
            // Of one that cannot be read nobody knows what is where in it.
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
