//! Whole jobs, as many as fit into one answer: those with given ids, or a page of those that a filter admits.

use semel_core::body::Body;
use semel_core::ident::JobId;
use semel_core::trail::Failure;
use semel_core::unique::{MetaPart, UniquePolicy};
use semel_store::StoreError;
use semel_store::backend::Filter;

use crate::apart::{Apart, apart};
use crate::engine::Engine;
use crate::job::Job;

/// Bytes of jobs, or other listed items, that an answer holds whole: beyond this a list ends, or continues
/// with heads only.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Jobs of at most this average size are small: more of them are read at once.
const SMALL_BYTES: usize = 16 << 10;
/// Small jobs read at once.
const SMALL_AT_ONCE: usize = 64;
/// Possibly large items read at once.
pub const READ_AT_ONCE: usize = 10;
/// Listings per page: a store examines a bounded number of rows for each, and people are spared empty pages.
pub const LISTINGS_MAX: usize = 17;

/// The approximate size of a job in an answer.
pub fn weight(job: &Job) -> usize {
    const HEAD_BYTES: usize = 700;
    let bytes = |part: &Option<bytes::Bytes>| part.as_ref().map_or(0, bytes::Bytes::len);
    // The last failure appears twice, as the job's error too.
    let failures = job.failures.0.iter().chain(job.failures.0.last()).map(Failure::bytes);
    let parts = [&job.result, &job.progress, &job.parent_results].into_iter().map(bytes);
    HEAD_BYTES + asked(&job.body) + parts.chain(failures).sum::<usize>()
}

/// The size of the request: of every member that may be longer than a few words.
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

/// How many jobs to read at once so that an answer can hold them whatever their size: few at first, more if
/// those before were small.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    bytes: usize,
    are_small: bool,
}

impl Room {
    /// For jobs that can be left out again if they do not fit: mostly they are small.
    pub const fn hopeful() -> Self {
        Self { bytes: 0, are_small: true }
    }

    /// Whether there is room for more.
    pub const fn is_left(self) -> bool {
        self.bytes < ANSWER_BYTES_MAX
    }

    /// How many more to read at once.
    pub const fn next(self) -> usize {
        if self.are_small { SMALL_AT_ONCE } else { READ_AT_ONCE }
    }

    /// Records that these jobs were read.
    pub fn take(&mut self, jobs: &[Job]) {
        self.had(jobs.len(), jobs.iter().map(weight).sum());
    }

    /// Records that `count` items with this total size were read.
    pub fn had(&mut self, count: usize, bytes: usize) {
        self.bytes += bytes;
        self.are_small = bytes <= SMALL_BYTES * count;
    }
}

/// A page of jobs, newest first, and where to continue, if there may be more.
pub type Page = (Vec<Job>, Option<JobId>);

impl Engine {
    /// The jobs with these ids, as [`listed`](Self::listed) returns them, as far as an answer can hold them,
    /// and how many of the ids were examined.
    ///
    /// # Errors
    /// As [`listed`](Self::listed).
    pub async fn whole(&self, ids: &[JobId]) -> Result<(Vec<Job>, usize), StoreError> {
        let (mut jobs, mut looked, mut room) = (Vec::new(), 0, Room::default());
        while looked < ids.len() && room.is_left() {
            let piece: Vec<JobId> = ids.iter().skip(looked).take(room.next()).copied().collect();
            looked += piece.len();
            let read = self.listed(piece).await?;
            room.take(&read);
            jobs.extend(read);
        }
        Ok((jobs, looked))
    }

    /// Those of these jobs that exist, in order. An unreadable job does not affect the others: it is included
    /// [by its head](Job::is_readable), or left out if that is unreadable too.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn listed(&self, ids: Vec<JobId>) -> Result<Vec<Job>, StoreError> {
        let mut jobs = Vec::with_capacity(ids.len());
        // The pieces come back in order.
        for (ids, read) in apart(ids, |ids| self.jobs(ids)).await {
            match read {
                Apart::Done(read) => jobs.extend(read),
                Apart::Unreadable(why) => {
                    let job = ids.first().map(ToString::to_string);
                    tracing::error!(job, %why, "a job in a listing cannot be read");
                    match self.heads(ids).await {
                        Ok(heads) => {
                            let now = self.now().await?;
                            jobs.extend(heads.into_iter().map(|head| Job::unreadable(head, now)));
                        }
                        Err(StoreError::Corrupt(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Apart::HeldUp => return Err(StoreError::Contended),
                Apart::Stalled => return Err(StoreError::Stalled),
                Apart::Failed(error) => return Err(error),
            }
        }
        Ok(jobs)
    }

    /// A page of whole jobs that the filter admits, ignoring its own limit: at most `most`, fewer if they are
    /// large. A page may be short, or empty, and still say where to continue. Unreadable jobs are as in
    /// [`listed`](Self::listed).
    ///
    /// # Errors
    /// When the store cannot be read; [`StoreError::CursorGone`] if the position to continue from is lost.
    pub async fn page(&self, filter: Filter, most: usize) -> Result<Page, StoreError> {
        let mut filter = Filter { limit: u32::try_from(most).unwrap_or(u32::MAX), ..filter };
        for _ in 0..LISTINGS_MAX {
            let listing = self.list(filter.clone()).await?;
            filter.before = listing.next;
            if filter.before.is_none() || !listing.heads.is_empty() {
                let ids: Vec<JobId> = listing.heads.iter().map(|head| head.id).collect();
                let (jobs, looked) = self.whole(&ids).await?;
                let is_cut = looked < ids.len();
                let last = if is_cut { ids.get(looked.saturating_sub(1)).copied() } else { filter.before };
                return Ok((jobs, last));
            }
        }
        Ok((Vec::new(), filter.before))
    }
}

#[cfg(test)]
mod tests {
    use semel_ojs::{Enqueue, Terms};

    use super::asked;

    /// An answer contains all of it.
    #[test]
    fn whatever_a_request_may_say_at_length_has_weight() {
        let asked_for = |options: &str| {
            let text = format!(r#"{{"type":"a.b","args":[{{}}],"meta":{{}},"options":{{{options}}}}}"#);
            asked(&Enqueue::parse(&text, Terms::trusted()).unwrap().into_parts().1)
        };
        let name = "n".repeat(255);
        let nothing = asked_for("");
        for options in [
            format!(r#""tags":["{name}"]"#),
            format!(r#""retry":{{"non_retryable_errors":["{name}"]}}"#),
            format!(r#""sensitive":["/args/0/{}"]"#, "n".repeat(247)),
            format!(r#""unique":{{"keys":["meta"],"meta_keys":["{name}"]}}"#),
            format!(r#""unique":{{"keys":["meta"],"meta_except":["{name}"]}}"#),
            format!(r#""unique":{{"key":"{name}"}}"#),
        ] {
            assert_eq!(asked_for(&options), nothing + 255, "{options}");
        }
        let by_args = format!(
            r#"{{"type":"a.b","args":[{{"{name}":1}}],"unique":{{"keys":["args"],"args_keys":["{name}"]}}}}"#
        );
        let body = Enqueue::parse(&by_args, Terms::trusted()).unwrap().into_parts().1;
        assert_eq!(asked(&body), body.args.len() + body.meta.len() + body.extra.len() + 255);
    }
}
