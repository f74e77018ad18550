//! The fate of a decision, given the result of its group's commit.

use semel_core::planted::{Bug, is_planted};

use crate::backend::Verdict;

/// What to do with a decision after the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Another transaction has locked one of its records: it waits.
    Waits,
    /// What it relied on did not hold, or never reached the store: it is taken again.
    Stale,
    /// What it saw may come from another server than the one that now takes the writes: it is taken again.
    Moved,
    /// What it saw must be confirmed before it is answered.
    Unconfirmed,
    /// It is answered now.
    Answered,
}

impl Fate {
    /// Whether its writes are missing although later decisions of its group may have seen them.
    pub(crate) fn is_unwritten(self) -> bool {
        matches!(self, Self::Waits | Self::Stale)
    }
}

/// What a decision's fate depends on, besides its verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    /// Whether an earlier decision of its group is [unwritten](Fate::is_unwritten).
    pub(crate) is_overlaid: bool,
    /// Whether writes may now go to another server than the one that was read.
    pub(crate) has_moved: bool,
    /// Whether the commit has waited until all that was seen before it is durable.
    pub(crate) has_waited: bool,
}

/// The fate of a decision with this `verdict`. A decision that wrote was checked where it was applied, so
/// `around` matters only to one that wrote nothing: whether it is taken again, or must be confirmed first.
pub(crate) fn fate(verdict: Verdict, is_written: bool, around: Around) -> Fate {
    let is_stale = verdict == Verdict::Stale || (around.is_overlaid && !is_written);
    if verdict == Verdict::Busy {
        Fate::Waits
    } else if is_stale && !is_planted(Bug::StaleAnswered) {
        Fate::Stale
    } else if around.has_moved && !is_written {
        Fate::Moved
    } else if is_written || around.has_waited {
        Fate::Answered
    } else {
        Fate::Unconfirmed
    }
}

#[cfg(test)]
mod tests {
    use super::{Around, Fate, fate};
    use crate::backend::Verdict::{self, Applied, Busy, Stale};

    /// All fates of a decision, by whether an earlier one is unwritten, the store has moved, and the commit
    /// has waited.
    fn fates(verdict: Verdict, is_written: bool) -> [Fate; 8] {
        std::array::from_fn(|bits| {
            let around =
                Around { is_overlaid: bits & 4 != 0, has_moved: bits & 2 != 0, has_waited: bits & 1 != 0 };
            fate(verdict, is_written, around)
        })
    }

    #[test]
    fn what_did_not_hold_is_never_answered() {
        for is_written in [true, false] {
            assert_eq!(fates(Busy, is_written), [Fate::Waits; 8]);
            assert_eq!(fates(Stale, is_written), [Fate::Stale; 8]);
        }
        assert!(Fate::Waits.is_unwritten() && Fate::Stale.is_unwritten());
    }

    #[test]
    fn what_was_applied_is_answered_whatever_is_around_it() {
        assert_eq!(fates(Applied, true), [Fate::Answered; 8]);
        assert!(!Fate::Answered.is_unwritten());
    }

    #[test]
    fn what_wrote_nothing_is_answered_once_what_it_saw_is_there_and_durable() {
        use Fate::{Answered, Moved, Unconfirmed};
        let overlaid = [Fate::Stale; 4];
        assert_eq!(fates(Applied, false)[..4], [Unconfirmed, Answered, Moved, Moved]);
        assert_eq!(fates(Applied, false)[4..], overlaid);
        // A decision after it saw the same, and is checked on its own.
        assert!(!Moved.is_unwritten() && !Unconfirmed.is_unwritten());
    }
}
