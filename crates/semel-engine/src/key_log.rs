//! The events of one key: those of jobs that carry it, and of jobs that did and may be gone.

use std::collections::HashSet;

use semel_core::event::Event;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_store::StoreError;

use crate::engine::Engine;
use crate::follow::Reading;

/// The most unfinished jobs that a reading's position names; a key has more only if policies differ.
pub const OPEN_MAX: usize = 16;

/// The position where reading a key's events continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPlace {
    /// The position up to which the log was read.
    pub cursor: u64,
    /// Jobs that were admitted with the key before that position and had not ended.
    pub open: Vec<JobId>,
}

/// A page of the log, restricted to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReading {
    /// The page, and where to continue in the log.
    pub log: Reading,
    /// What must be known to continue there: [`KeyPlace::open`].
    pub open: Vec<JobId>,
}

impl Engine {
    /// Events after `from`, at most `limit`, of jobs that carry the key in the store, or were admitted with it
    /// in the part of the log that is read. A job whose policy does not disclose its key is left out. Examines
    /// a bounded number of events, and says where to continue.
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

    /// A position after which everything since `time` is found, by bisection in at most 64 reads of one event.
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

/// Remembers a job that was admitted and has not ended, as far as was read. Only the newest are kept.
fn remember(open: &mut Vec<JobId>, job: JobId) {
    open.push(job);
    if open.len() > OPEN_MAX {
        open.remove(0);
    }
}
