//! The eight states of a job and the only table of moves between them (OJS core 6.3).

use std::fmt;

/// Where a job is in its life (OJS core 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// Waits for its time; a timer makes it available.
    Scheduled = 0,
    /// Waits for a worker.
    Available = 1,
    /// Waits for an activation: by a request, or by the end of the run or job for which it is held back.
    Pending = 2,
    /// Held by one worker under a lease; or a task, of which only the steps run.
    Active = 3,
    /// Failed, will be tried again; a timer makes it available.
    Retryable = 4,
    /// Ended well.
    Completed = 5,
    /// Ended by a caller, an operator or a replacement.
    Cancelled = 6,
    /// Ended badly: attempts used up, not retryable, or expired.
    Discarded = 7,
}

impl State {
    /// Every state, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Available,
        Self::Pending,
        Self::Active,
        Self::Retryable,
        Self::Completed,
        Self::Cancelled,
        Self::Discarded,
    ];

    /// The state's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Available => "available",
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Retryable => "retryable",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Discarded => "discarded",
        }
    }

    /// The state of that name, case-sensitive.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The state of that number, as stored.
    pub const fn from_code(code: u8) -> Option<Self> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }

    /// The state's number, as stored. Frozen.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether only an operator can move a job out of this state.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Discarded)
    }

    /// Whether the job will still run, runs, or may run again.
    pub const fn is_live(self) -> bool {
        !self.is_finished()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StateSet(u8);

impl StateSet {
    /// No state.
    pub const EMPTY: Self = Self(0);
    /// All eight.
    pub const ALL: Self = Self(0xff);
    /// The five live ones: the default of a unique policy (SEMANTICS 3).
    pub const LIVE: Self = Self(0b0001_1111);
    /// The three finished ones.
    pub const FINISHED: Self = Self(0b1110_0000);
    /// The states in which a job may be a dead letter: `discarded` alone. An operator may send it back from there.
    pub const DEAD_LETTERS: Self = Self(0b1000_0000);

    /// The set as stored: bit n is the state with number n.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The set from its stored form.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// This set with one more member.
    #[must_use]
    pub const fn with(self, state: State) -> Self {
        Self(self.0 | 1 << state as u8)
    }

    /// Whether `state` is in the set.
    pub const fn contains(self, state: State) -> bool {
        self.0 & (1 << state as u8) != 0
    }

    /// Whether every member of `other` is in this set.
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the two sets share a member.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set has no member.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = State> {
        State::ALL.into_iter().filter(move |state| self.contains(*state))
    }
}

impl FromIterator<State> for StateSet {
    fn from_iter<I: IntoIterator<Item = State>>(states: I) -> Self {
        states.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Debug for StateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// An event that may move a job from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Its time has come: a scheduled job's start, a retry's backoff.
    Due,
    /// ACTIVATE from outside, or the end of the run a follow-up waits for.
    Activate,
    /// An activation while the job's time lies ahead: its own, or the end of the lease of the run it replaced
    /// (`when_active: wait`).
    ActivateLater,
    /// The steps of a task begin.
    Begin,
    /// A worker is granted a lease.
    Claim,
    /// The worker reports success (ACK).
    Complete,
    /// The worker reports a failure that will be tried again (FAIL), or the execution timeout passed.
    FailRetry,
    /// The worker reports a failure that ends the job, or the last attempt ran out.
    FailEnd,
    /// The worker gives the job back unfinished.
    Release,
    /// The lease ran out with attempts left.
    LeaseExpired,
    /// The lease ran out at the last attempt.
    LeaseExhausted,
    /// A caller, an operator or a replacement ends the job.
    Cancel,
    /// `expires_at` has passed while the job waited (OJS core 5.2).
    Expire,
    /// A worker or operator puts the job off to a later time.
    Snooze,
    /// A follow-up that was released finds another run of its key under way and waits again.
    Hold,
    /// An operator sends a dead job back: a new admission under its old id.
    Revive,
}

impl Event {
    /// Every event, for tables.
    pub const ALL: [Self; 16] = [
        Self::Due,
        Self::Activate,
        Self::ActivateLater,
        Self::Begin,
        Self::Claim,
        Self::Complete,
        Self::FailRetry,
        Self::FailEnd,
        Self::Release,
        Self::LeaseExpired,
        Self::LeaseExhausted,
        Self::Cancel,
        Self::Expire,
        Self::Snooze,
        Self::Hold,
        Self::Revive,
    ];
}

/// The move is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalMove {
    /// The state the job is in.
    pub from: State,
    /// What was to happen.
    pub event: Event,
}

/// The state after `event`: OJS core 6.3, with the additions its attribute text and suites demand (`Expire`,
/// `Release`) and those of SEMANTICS 4 (`ActivateLater`, `Hold`). Nothing else in the workspace decides where a job may go.
///
/// # Errors
/// When the table has no such move.
pub const fn next(from: State, event: Event) -> Result<State, IllegalMove> {
    use State::{Active, Available, Cancelled, Completed, Discarded, Pending, Retryable, Scheduled};
    let to = match (from, event) {
        (Scheduled | Retryable, Event::Due) => Available,
        (Pending, Event::Activate) => Available,
        (Pending, Event::ActivateLater) => Scheduled,
        (Available, Event::Claim) => Active,
        (Pending, Event::Begin) => Active,
        (Active, Event::Complete) => Completed,
        (Active, Event::FailRetry) => Retryable,
        (Active, Event::FailEnd | Event::LeaseExhausted) => Discarded,
        (Active, Event::Release | Event::LeaseExpired) => Available,
        (Active, Event::Snooze) => Scheduled,
        (Available, Event::Hold) => Pending,
        (Discarded, Event::Revive) => Available,
        (Scheduled | Available | Pending | Active | Retryable, Event::Cancel) => Cancelled,
        (Scheduled | Available | Pending | Retryable, Event::Expire) => Discarded,
        _ => return Err(IllegalMove { from, event }),
    };
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_name_leads_back_to_its_state() {
        for state in State::ALL {
            assert_eq!(State::from_code(state.code()), Some(state));
            assert_eq!(State::from_name(state.name()), Some(state));
            assert_ne!(StateSet::LIVE.contains(state), StateSet::FINISHED.contains(state));
        }
        assert_eq!(State::from_code(8), None);
        assert_eq!(State::from_name("Active"), None);
    }

    #[test]
    fn a_dead_letter_is_where_an_operator_may_send_it_back_from() {
        for state in State::ALL {
            let may_be = StateSet::DEAD_LETTERS.contains(state);
            assert_eq!(next(state, Event::Revive).is_ok(), may_be, "{state}");
        }
    }

    #[test]
    fn only_an_operator_moves_a_finished_job() {
        for state in StateSet::FINISHED.iter() {
            for event in Event::ALL {
                let revived = state == State::Discarded && event == Event::Revive;
                assert_eq!(next(state, event).is_ok(), revived, "{state} {event:?}");
            }
        }
    }
}
