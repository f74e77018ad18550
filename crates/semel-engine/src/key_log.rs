//! What happened to one key, by the log: to the jobs that carry it, and to those that did and may be gone.

use std::collections::HashSet;

use semel_core::event::Place;
use semel_core::ident::JobId;
use semel_core::time::Timestamp;
use semel_core::unique::{Disclose, UniqueKey};
use semel_store::{Recorded, StoreError};

use crate::engine::Engine;
use crate::follow::{CHUNK, LOOKED_AT_MAX};

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
    /// The events, oldest first.
    pub events: Vec<Recorded>,
    /// Where to go on.
    pub next: KeyPlace,
    /// Whether there is more of the log behind it now.
    pub more: bool,
    /// Where the reader stood when he asked. Unless it is [`Place::Kept`] there are no events.
    pub place: Place,
    /// Everything after this place is kept.
    pub kept_after: u64,
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
        let (holders, _) = self.holders(key).await?;
        let shown = holders.iter().filter(|head| head.hold.disclose == Disclose::Always).map(|head| head.id);
        let mut jobs: HashSet<JobId> =
            shown.chain(from.open.iter().copied()).map(|id| space.stored_id(id)).collect();
        let mut reading =
            KeyReading { events: Vec::new(), next: from, more: true, place: Place::Kept, kept_after: 0 };
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX {
            let page = self.store().events(reading.next.cursor, CHUNK).await?;
            reading.kept_after = page.kept_after;
            reading.place = page.place(reading.next.cursor);
            if reading.place != Place::Kept {
                reading.events.clear();
                reading.more = false;
                return Ok(reading);
            }
            let is_last = page.events.len() < CHUNK as usize;
            looked_at += page.events.len();
            for recorded in page.events {
                if reading.events.len() >= limit {
                    return Ok(reading);
                }
                reading.next.cursor = recorded.cursor;
                let event = &recorded.event;
                if !space.owns(&event.queue) {
                    continue;
                }
                let admits = event.admits_with(&stored);
                if admits {
                    jobs.insert(event.job);
                }
                if !jobs.contains(&event.job) || event.kind.is_of_workflow() {
                    continue;
                }
                let ends = event.kind.is_end();
                let event = space.shown(recorded.event);
                reading.next.note(event.job, admits, ends);
                reading.events.push(Recorded { event, ..recorded });
            }
            if is_last {
                reading.next.cursor = reading.next.cursor.max(page.newest);
                reading.more = false;
                return Ok(reading);
            }
        }
        Ok(reading)
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

impl KeyPlace {
    /// An event of the job was read. The newest are remembered.
    fn note(&mut self, job: JobId, admits: bool, ends: bool) {
        if ends {
            self.open.retain(|open| *open != job);
        } else if admits {
            self.open.push(job);
            if self.open.len() > OPEN_MAX {
                self.open.remove(0);
            }
        }
    }
}
