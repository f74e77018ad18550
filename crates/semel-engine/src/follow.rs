//! Reading the event log: one page at a time, or continuously, woken by commits.

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
/// Events that one reading examines; a narrow filter gets an answer with a cursor to continue from.
const LOOKED_AT_MAX: usize = 20_000;
/// The pause of a follower after a wake-up, so that under load it does not read the store for every commit.
const REST: Duration = Duration::from_millis(10);

/// Which events a reader wants. An empty list excludes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Events of these kinds; `None` means all.
    pub kinds: Option<Vec<EventKind>>,
    /// Events of jobs in these queues.
    pub queues: Vec<QueueName>,
    /// Events of jobs of these types.
    pub job_types: Vec<JobType>,
    /// Events of these jobs.
    pub jobs: Vec<JobId>,
    /// Events of jobs in queues that the reader is allowed to see.
    pub visible: Queues,
}

impl Wanted {
    /// Whether an event of the reader's tenant is wanted, in its stored or its shown form: the queue has the
    /// stored name in both, and the filter compares names without the tenant.
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
    /// The same filter for stored events.
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

/// A page of the log as a reader wanted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The events, oldest first.
    pub events: Vec<Recorded>,
    /// Where to continue. It moves past unwanted events, too.
    pub cursor: u64,
    /// Whether there is more to read now.
    pub more: bool,
    /// Where the reader stood when it asked. Unless this is [`Place::Kept`], there are no events.
    pub place: Place,
    /// Everything after this position is kept.
    pub kept_after: u64,
    /// Whether later events are stored but withheld, as [`LogPage::waits`](semel_store::LogPage::waits) says.
    pub waits: bool,
}

impl Engine {
    /// The wanted events after `cursor`, at most `limit`. Cursor 0 means the beginning of what is kept.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn read_log(&self, cursor: u64, wanted: &Wanted, limit: usize) -> Result<Reading, StoreError> {
        let stored = wanted.stored(self.space());
        self.read_log_by(cursor, limit, |event| stored.admits(event)).await
    }

    /// The tenant's events after `cursor` that `admits` accepts, at most `limit`. It is called once per
    /// examined event, in log order, with the event as stored.
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
                // Events found before the rest was dropped are not a complete answer.
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

    /// The position from which only future events are read.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn log_end(&self) -> Result<u64, StoreError> {
        Ok(self.store().events(u64::MAX, 1).await?.newest)
    }

    /// Follows the log from `cursor`.
    pub fn follow(&self, cursor: u64, wanted: Wanted) -> Follow {
        Follow { engine: self.clone(), wanted, cursor, was_woken: false }
    }
}

/// A continuous reader of the log. Only its cursor is kept between two calls: a slow reader falls behind in
/// the log, and is told when the log no longer has what it has not read.
pub struct Follow {
    engine: Engine,
    wanted: Wanted,
    cursor: u64,
    was_woken: bool,
}

impl Follow {
    /// The position up to which every wanted event has been returned.
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The next wanted events, at most `limit`. None if there were none within `patience` ([`Duration::MAX`]:
    /// practically forever), or if the log is not the one the reader left ([`Reading::place`]).
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
            // Registered before looking, so that no event in between is missed.
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
