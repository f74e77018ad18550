//! What happened to one key, by the log: to the jobs that carry it, and to those that did and may be gone.

use std::collections::HashSet;

use semel_core::event::Event;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::StoreError;

use crate::engine::Engine;
use crate::follow::Reading;

/// Jobs without an end that one place of a reading names; more than a key has but for policies that differ.
pub const OPEN_MAX: usize = 16;

/// Where a reading of a key's events goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPlace {
    /// Up to where the log was read.
    pub cursor: u64,
    /// Jobs that were admitted with the key before that and had not ended.
    pub open: Vec<JobId>,
}

/// A piece of the log, as it is about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReading {
    /// The piece, and where to go on in the log.
    pub log: Reading,
    /// What has to be known to go on there: [`KeyPlace::open`].
    pub open: Vec<JobId>,
}

impl Engine {
    /// Events after `from`, at most `limit`, of jobs that carry the key, by the store, or were admitted with it, by the
    /// part of the log that is read. A job whose policy does not disclose its key is not told of. Looks at so many events
    /// at most, and says where to go on.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn key_log(
        &self,
        key: UniqueKey,
        from: KeyPlace,
        limit: usize,
    ) -> Result<KeyReading, StoreError> {
        let space = self.space();
        let stored = space.other_key(key);
        let holders = self.holders(key).await?.heads;
        let shown = holders.iter().filter(|head| head.hold.is_disclosed()).map(|head| head.id);
        let mut jobs: HashSet<JobId> =
            shown.chain(from.open.iter().copied()).map(|id| space.stored_id(id)).collect();
        let KeyPlace { cursor, mut open } = from;
        let admits = |event: &Event| {
            let is_admission = event.admits_with(&stored);
            if is_admission {
                jobs.insert(event.job);
            }
            let is_its = jobs.contains(&event.job) && !event.kind.is_of_workflow();
            if is_its {
                let job = space.shown_id(event.job);
                if event.kind.is_end() {
                    open.retain(|open| *open != job);
                } else if is_admission {
                    remember(&mut open, job);
                }
            }
            is_its
        };
        let log = self.read_log_by(cursor, limit, admits).await?;
        Ok(KeyReading { log, open })
    }

    /// A place after which everything since `time` is found: by halves, in at most 64 looks at one event.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn log_since(&self, time: Timestamp) -> Result<u64, StoreError> {
        let begin = self.store().events(0, 1).await?;
        let mut low = match begin.events.first() {
            Some(first) if first.at < time => first.cursor,
            _ => return Ok(0),
        };
        let mut high = begin.newest;
        while high > low {
            let middle = low + (high - low) / 2;
            match self.store().events(middle, 1).await?.events.first() {
                Some(next) if next.at < time => low = next.cursor,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// The job was admitted and has not ended, as far as was read. The newest are remembered.
fn remember(open: &mut Vec<JobId>, job: JobId) {
    open.push(job);
    if open.len() > OPEN_MAX {
        open.remove(0);
    }
}
