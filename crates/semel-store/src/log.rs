//! Pages of the event log, and where a reader stands relative to what is kept.

use semel_core::event::{Event, Place, place};
use semel_core::time::Timestamp;

/// One event as recorded in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its position in the log: ascending, with gaps.
    pub cursor: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// A page of the log: what follows a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The events, oldest first.
    pub events: Vec<Recorded>,
    /// Everything after this position is kept; older events were dropped. It moves with every drop, and
    /// survives a restart.
    pub kept_after: u64,
    /// No event has a later position yet. A reader that continues from here misses nothing.
    pub newest: u64,
    /// Whether later events are stored but withheld, because an older open transaction may still add earlier ones.
    pub waits: bool,
}

impl LogPage {
    /// Where a reader stands that asked for events after `cursor`.
    pub const fn place(&self, cursor: u64) -> Place {
        place(cursor, self.kept_after, self.newest)
    }
}
