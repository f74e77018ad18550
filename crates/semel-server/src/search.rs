//! A page of jobs: those that a filter admits, or those of them that have a value at some place. And how much an answer has
//! room for, whatever it lists.

use semel_core::body::Body;
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::trail::Failure;
use semel_core::unique::{MetaPart, UniquePolicy};
use semel_engine::{Engine, Job};
use semel_ojs::JobView;
use semel_ojs::place::Place;
use semel_ojs::write::list as put_list;
use semel_store::StoreError;
use semel_store::backend::Filter;

use crate::caller::Caller;
use crate::respond::view_for;

/// Listings of one page: a store looks at a bounded number of rows for each, and people are spared empty pages.
const LISTINGS_MAX: usize = 17;
/// Jobs of a listing where something in them is looked for.
const LOOKED_AT_ONCE: u32 = 100;
/// Of those, and of whatever else may be large, read at once.
pub(crate) const READ_AT_ONCE: usize = 10;
/// Bytes of args and meta that one search looks at.
const LOOKED_BYTES_MAX: usize = 16 << 20;

/// Bytes of jobs, or of whatever else it lists, that an answer tells whole: beyond them a list ends, or goes on with heads alone.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Jobs at or below this size on average are small: more of them are had at once.
const SMALL_BYTES: usize = 16 << 10;
/// Small jobs that are had at once.
const SMALL_AT_ONCE: usize = 64;

/// About how much of an answer a job takes.
pub(crate) fn weight(job: &Job) -> usize {
    const HEAD_BYTES: usize = 700;
    let bytes = |part: &Option<bytes::Bytes>| part.as_ref().map_or(0, bytes::Bytes::len);
    // The last of them is told twice, as the job's error too.
    let failures = job.failures.0.iter().chain(job.failures.0.last()).map(Failure::bytes);
    let parts = [&job.result, &job.progress, &job.parent_results].into_iter().map(bytes);
    HEAD_BYTES + asked(&job.body) + parts.chain(failures).sum::<usize>()
}

/// Bytes of what was asked for: of every member that may be longer than a few words.
fn asked(body: &Body) -> usize {
    let policy = body.unique.iter();
    let key = policy.clone().filter_map(UniquePolicy::key_text).map(str::len);
    let names = policy.flat_map(|policy| {
        let (MetaPart::Only(meta) | MetaPart::Except(meta)) = policy.meta_part();
        policy.args_keys().iter().chain(meta)
    });
    let listed = body.tags.iter().chain(&body.sensitive).chain(&body.retry.non_retryable_errors);
    let texts = listed.chain(names).map(String::len);
    body.args.len() + body.meta.len() + body.extra.len() + key.chain(texts).sum::<usize>()
}

/// How many jobs are had at once, so that an answer has room for them whatever their size: few at first, more where those
/// before were small.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    bytes: usize,
    are_small: bool,
}

impl Room {
    /// For jobs that can be given back if they do not fit after all: mostly they are small.
    pub(crate) const fn hopeful() -> Self {
        Self { bytes: 0, are_small: true }
    }

    /// Whether there is some for more.
    pub(crate) const fn is_left(self) -> bool {
        self.bytes < ANSWER_BYTES_MAX
    }

    /// How many more to have at once.
    pub(crate) const fn next(self) -> usize {
        if self.are_small { SMALL_AT_ONCE } else { READ_AT_ONCE }
    }

    /// These were had.
    pub(crate) fn take(&mut self, jobs: &[Job]) {
        self.had(jobs.len(), jobs.iter().map(weight).sum());
    }

    /// So many were had, of so many bytes together.
    pub(crate) fn had(&mut self, count: usize, bytes: usize) {
        self.bytes += bytes;
        self.are_small = bytes <= SMALL_BYTES * count;
    }
}

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

/// The jobs of these ids as far as an answer has room for them, and how many of the ids were looked at.
pub(crate) async fn whole(engine: &Engine, ids: &[JobId]) -> Result<(Vec<Job>, usize), StoreError> {
    let (mut jobs, mut looked, mut room) = (Vec::new(), 0, Room::default());
    while looked < ids.len() && room.is_left() {
        let piece: Vec<JobId> = ids.iter().skip(looked).take(room.next()).copied().collect();
        looked += piece.len();
        let read = engine.jobs(piece).await?;
        room.take(&read);
        jobs.extend(read);
    }
    Ok((jobs, looked))
}

/// A page by its number: all the jobs that are on it, those beyond the room for whole ones by their heads.
pub(crate) struct Listed<'h> {
    jobs: Vec<Job>,
    heads: Vec<&'h Head>,
}

impl<'h> Listed<'h> {
    pub(crate) async fn read(engine: &Engine, mut heads: Vec<&'h Head>) -> Result<Self, StoreError> {
        let ids: Vec<JobId> = heads.iter().map(|head| head.id).collect();
        let (jobs, looked) = whole(engine, &ids).await?;
        heads.drain(..looked);
        Ok(Self { jobs, heads })
    }

    pub(crate) fn put(&self, out: &mut String, caller: &Caller) {
        let whole = self.jobs.iter().map(|job| view_for(job, caller));
        let all = whole.chain(self.heads.iter().map(|head| JobView::bare(head)));
        put_list(out, all, |out, view| view.write(out));
    }
}

/// At most so many, the newest first; and where to go on.
type Page = (Vec<Job>, Option<JobId>);

/// Those that the filter admits; fewer where they are large.
pub(crate) async fn page(engine: &Engine, filter: Filter, most: usize) -> Result<Page, StoreError> {
    let mut filter = Filter { limit: u32::try_from(most).unwrap_or(u32::MAX), ..filter };
    for _ in 0..LISTINGS_MAX {
        let listing = engine.list(filter.clone()).await?;
        filter.before = listing.next;
        if filter.before.is_none() || !listing.heads.is_empty() {
            let ids: Vec<JobId> = listing.heads.iter().map(|head| head.id).collect();
            let (jobs, looked) = whole(engine, &ids).await?;
            let last =
                if looked < ids.len() { ids.get(looked.saturating_sub(1)).copied() } else { filter.before };
            return Ok((jobs, last));
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
                bytes += weight(&job);
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

#[cfg(test)]
mod tests {
    use semel_ojs::Enqueue;

    use super::*;

    /// An answer tells all of it.
    #[test]
    fn whatever_a_request_may_say_at_length_has_weight() {
        let asked_for = |options: &str| {
            let text = format!(r#"{{"type":"a.b","args":[{{}}],"meta":{{}},"options":{{{options}}}}}"#);
            asked(&Enqueue::parse(&text, true).unwrap().into_parts().1)
        };
        let name = "n".repeat(255);
        let nothing = asked_for("");
        for options in [
            format!(r#""tags":["{name}"]"#),
            format!(r#""retry":{{"non_retryable_errors":["{name}"]}}"#),
            format!(r#""sensitive":["/args/{}"]"#, "n".repeat(249)),
            format!(r#""unique":{{"keys":["meta"],"meta_keys":["{name}"]}}"#),
            format!(r#""unique":{{"keys":["meta"],"meta_except":["{name}"]}}"#),
            format!(r#""unique":{{"key":"{name}"}}"#),
        ] {
            assert_eq!(asked_for(&options), nothing + 255, "{options}");
        }
        let by_args = format!(
            r#"{{"type":"a.b","args":[{{"{name}":1}}],"unique":{{"keys":["args"],"args_keys":["{name}"]}}}}"#
        );
        let body = Enqueue::parse(&by_args, true).unwrap().into_parts().1;
        assert_eq!(asked(&body), body.args.len() + body.meta.len() + body.extra.len() + 255);
    }
}
