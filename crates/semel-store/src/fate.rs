//! What becomes of a decision once the commit of its group has been told.

use semel_core::planted::{Bug, is_planted};

use crate::backend::Verdict;

/// What becomes of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Somebody else has locked a record of it: it waits for him.
    Waits,
    /// What it was decided on did not hold, or was never in the store: it is taken again.
    Stale,
    /// What it saw may be of somewhere else than where writes go now: it is taken again.
    Moved,
    /// What it saw is to be confirmed before it is answered.
    Unconfirmed,
    /// It is answered.
    Answered,
}

impl Fate {
    /// Whether what it would have written is not there for those who were decided after it and may have seen it.
    pub(crate) fn is_unwritten(self) -> bool {
        matches!(self, Self::Waits | Self::Stale)
    }
}

/// What a decision's fate hangs on, besides what the commit says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    /// Whether a decision before it in its group is [unwritten](Fate::is_unwritten).
    pub(crate) is_overlaid: bool,
    /// Whether something else may take the writes than what was read from.
    pub(crate) has_moved: bool,
    /// Whether the commit has waited until all that was seen before it is durable.
    pub(crate) has_waited: bool,
}

/// The fate of a decision of which the commit says `verdict`. Whoever wrote was looked at where it was applied, so only one who did not
/// has to be taken again for what is around it.
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

    /// The fates of a decision, by whether one before it is unwritten, whether the store has moved, and whether it has waited.
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
        // Whoever is decided after it saw the same, and finds out for itself.
        assert!(!Moved.is_unwritten() && !Unconfirmed.is_unwritten());
    }
}
