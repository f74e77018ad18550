//! A piece of the event log, and what it says about who has read how far.

use semel_core::event::{Event, Place, place};
use semel_core::time::Timestamp;

/// One event, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its place in the log: ascending, not gapless.
    pub cursor: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// A piece of the log: what came after a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPage {
    /// The events, oldest first.
    pub events: Vec<Recorded>,
    /// Everything after this place is kept; older events were dropped. Moves with every drop, and survives a restart.
    pub kept_after: u64,
    /// No event has a later place yet. Whoever reads on from here misses nothing that is still to come.
    pub newest: u64,
    /// Whether something behind this is stored and not shown yet, because a transaction that began before it may still tell something.
    pub waits: bool,
}

impl LogPage {
    /// Where a reader stands who asked for what came after `cursor`.
    pub const fn place(&self, cursor: u64) -> Place {
        place(cursor, self.kept_after, self.newest)
    }
}
