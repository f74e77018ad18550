//! Reading the event log: a page at a time, or on and on, woken by commits.

use std::time::Duration;

use semel_core::event::{Event, EventKind, Place};
use semel_core::ident::{JobId, JobType, QueueName};
use semel_core::sight::Queues;
use semel_core::tenant::Namespace;
use semel_store::{Recorded, StoreError};

use crate::deadline;
use crate::engine::Engine;

/// Events read from the store at once.
const CHUNK: u32 = 500;
/// Events one reading looks at; a choice that keeps few of them answers with a cursor to go on from.
const LOOKED_AT_MAX: usize = 20_000;
/// How long a follower rests after he was woken, so that a store under load is not read for every commit.
const REST: Duration = Duration::from_millis(10);

/// Which events a reader wants. What is empty chooses nothing out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of these kinds; of every kind unless it says so.
    pub kinds: Option<Vec<EventKind>>,
    /// Of jobs in these queues.
    pub queues: Vec<QueueName>,
    /// Of jobs of these types.
    pub job_types: Vec<JobType>,
    /// Of these jobs.
    pub jobs: Vec<JobId>,
    /// Of jobs in queues that the reader may know of.
    pub visible: Queues,
}

impl Wanted {
    /// Whether an event of the reader's tenant is wanted, be it as it is stored or as it is shown: its queue has the stored
    /// name either way, and a reader knows the name without the tenant.
    pub fn admits(&self, event: &Event) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&event.kind))
            && (self.queues.is_empty() || self.queues.iter().any(|queue| queue.name() == event.queue.name()))
            && (self.job_types.is_empty()
                || self.job_types.iter().any(|its| its.as_str() == event.type_name()))
            && (self.jobs.is_empty() || self.jobs.contains(&event.job))
            && self.visible.include(event.queue.name())
    }
}

impl Wanted {
    /// The same, of what is stored.
    fn stored(&self, space: &Namespace) -> Self {
        Self {
            kinds: self.kinds.clone(),
            queues: self.queues.clone(),
            job_types: self.job_types.clone(),
            // A workflow's id is stored as its owner knows it.
            jobs: self.jobs.iter().flat_map(|id| [space.stored_id(*id), *id]).collect(),
            visible: self.visible.clone(),
        }
    }
}

/// A piece of the log as a reader wanted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The events, oldest first.
    pub events: Vec<Recorded>,
    /// Where to go on. Moves past events that were not wanted, too.
    pub cursor: u64,
    /// Whether there is more behind it now.
    pub more: bool,
    /// Where the reader stood when he asked. Unless it is [`Place::Kept`] there are no events.
    pub place: Place,
    /// Everything after this place is kept.
    pub kept_after: u64,
    /// Whether something behind it is stored and not shown yet, as [`LogPage::waits`](semel_store::LogPage::waits) says.
    pub waits: bool,
}

impl Engine {
    /// The wanted events after `cursor`, at most `limit`. Cursor 0 is the beginning of what is kept.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn read_log(&self, cursor: u64, wanted: &Wanted, limit: usize) -> Result<Reading, StoreError> {
        let stored = wanted.stored(self.space());
        self.read_log_by(cursor, limit, |event| stored.admits(event)).await
    }

    /// The tenant's events after `cursor` that `admits` wants, at most `limit`. It is asked about each that is looked at, once
    /// and in their order, and sees it as it is stored.
    pub(crate) async fn read_log_by(
        &self,
        cursor: u64,
        limit: usize,
        mut admits: impl FnMut(&Event) -> bool + Send,
    ) -> Result<Reading, StoreError> {
        let space = self.space();
        let mut reading = Reading {
            events: Vec::new(),
            cursor,
            more: true,
            place: Place::Kept,
            kept_after: 0,
            waits: false,
        };
        let mut looked_at = 0;
        while looked_at < LOOKED_AT_MAX {
            let page = self.store().events(reading.cursor, CHUNK).await?;
            (reading.kept_after, reading.waits) = (page.kept_after, page.waits);
            reading.place = page.place(reading.cursor);
            if reading.place != Place::Kept {
                // What was found before the rest was dropped is no whole answer.
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
                reading.cursor = recorded.cursor;
                if space.owns(&recorded.event.queue) && admits(&recorded.event) {
                    let event = space.shown(recorded.event);
                    reading.events.push(Recorded { event, ..recorded });
                }
            }
            if is_last {
                reading.cursor = reading.cursor.max(page.newest);
                reading.more = false;
                return Ok(reading);
            }
        }
        Ok(reading)
    }

    /// The place from which only what is still to come is read.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn log_end(&self) -> Result<u64, StoreError> {
        Ok(self.store().events(u64::MAX, 1).await?.newest)
    }

    /// Reads the log on and on from `cursor`.
    pub fn follow(&self, cursor: u64, wanted: Wanted) -> Follow {
        Follow { engine: self.clone(), wanted, cursor, was_woken: false }
    }
}

/// A reader of the log who goes on with it. Nothing is kept for him between two calls but his cursor: a slow one falls
/// behind in the log, and when the log no longer has what he has not read he is told so.
pub struct Follow {
    engine: Engine,
    wanted: Wanted,
    cursor: u64,
    was_woken: bool,
}

impl Follow {
    /// Up to where everything wanted has been given out.
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The next wanted events, at most `limit`; without any when there was none for as long as `patience` ([`Duration::MAX`] is as
    /// good as for ever), or when the log is not what the reader left ([`Reading::place`]).
    ///
    /// # Errors
    /// When the store cannot be read. The reader may try again.
    pub async fn next(&mut self, limit: usize, patience: Duration) -> Result<Reading, StoreError> {
        let deadline = deadline::after(patience);
        let engine = self.engine.clone();
        let _waiting = engine.store().hints().wait();
        loop {
            if std::mem::take(&mut self.was_woken) {
                tokio::time::sleep(REST).await;
            }
            // Registered before looking, so that nothing that is told in between is slept through.
            let mut logged = std::pin::pin!(engine.store().hints().logged());
            logged.as_mut().enable();
            let reading = engine.read_log(self.cursor, &self.wanted, limit).await?;
            self.cursor = reading.cursor;
            if !reading.events.is_empty() || reading.place != Place::Kept {
                return Ok(reading);
            }
            if !reading.more {
                self.was_woken = tokio::time::timeout_at(deadline, logged).await.is_ok();
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(reading);
            }
        }
    }
}
