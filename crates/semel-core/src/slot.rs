//! Where a row is filed: the index or set of a store that holds the job, and the time it is ordered by.
//!
//! A pure function of the row, so that no query and no script needs to know a state.

use crate::job::Head;
use crate::state::State;
use crate::time::Timestamp;

/// The index of a store that a job is in; exactly one at any time. Stored by number; frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Slot {
    /// May be claimed, in the order (priority descending, `at`, id).
    Ready = 0,
    /// Becomes ready at `at`.
    Timer = 1,
    /// Waits for something other than a time.
    Held = 2,
    /// Runs until `at`, unless a heartbeat moves it.
    Lease = 3,
    /// Has ended; its body may be deleted at `at`.
    Done = 4,
}

/// A row's place in the indexes of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filing {
    /// The index.
    pub slot: Slot,
    /// The row's place in it.
    pub at: Timestamp,
    /// When the job expires if it is still waiting then: a second index, over waiting jobs only.
    pub expires: Option<Timestamp>,
}

impl Filing {
    /// The filing of a row.
    pub fn of(head: &Head) -> Self {
        let (slot, at) = match head.state {
            State::Available => (Slot::Ready, head.available_at),
            State::Scheduled | State::Retryable => (Slot::Timer, head.available_at),
            State::Pending => (Slot::Held, head.available_at),
            State::Active => match &head.lease {
                Some(lease) => (Slot::Lease, lease.ends_at()),
                // A task: its steps run, and they end at no known time.
                None => (Slot::Held, head.available_at),
            },
            State::Completed | State::Cancelled | State::Discarded => {
                (Slot::Done, head.purge_at().unwrap_or(Timestamp::EPOCH))
            }
        };
        let expires = match slot {
            Slot::Ready | Slot::Timer | Slot::Held => head.expires_at,
            Slot::Lease | Slot::Done => None,
        };
        Self { slot, at, expires }
    }
}

/// What a background duty asks a store for: the ids whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Due {
    /// Scheduled and retryable jobs that may become available.
    Timer,
    /// Active jobs whose lease or execution time has run out.
    Lease,
    /// Waiting jobs past their `expires_at`.
    Expiry,
    /// Finished jobs whose retention is over.
    Purge,
}

impl Due {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Timer, Self::Lease, Self::Expiry, Self::Purge];
}
