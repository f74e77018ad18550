//! Findings of a sample about a policy.

use super::super::advice::Advice;

/// A hint about a policy, based on a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A gap that the policy alone shows.
    Open(Advice),
    /// Hardly any job was a duplicate, and a member that counts differs in nearly every one.
    NeverMatches {
        /// JSON pointer of the member.
        pointer: String,
        /// Number of distinct values.
        differing: usize,
        /// Number of sampled jobs that have the member.
        of: usize,
        /// How many of the jobs would equal an earlier one without the member; `None` when nothing else of
        /// them counts.
        alike_without: Option<usize>,
    },
    /// Duplicates were turned away that differ in a member from the job they count as duplicates of.
    OverBroad {
        /// JSON pointer of the member.
        pointer: String,
        /// How many duplicates differ in it.
        differing: usize,
        /// How many duplicates were turned away and could be compared.
        of: usize,
    },
}

impl Finding {
    /// Stable name for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open(Advice::OpenUnderRetry) => "open_under_retry",
            Self::Open(Advice::OpenAfterLostRun) => "open_after_lost_run",
            Self::NeverMatches { .. } => "never_matches",
            Self::OverBroad { .. } => "over_broad",
        }
    }

    /// JSON pointer of the member it is about.
    pub fn pointer(&self) -> Option<&str> {
        match self {
            Self::Open(_) => None,
            Self::NeverMatches { pointer, .. } | Self::OverBroad { pointer, .. } => Some(pointer),
        }
    }

    /// How many jobs differ in the member, and out of how many.
    pub const fn rate(&self) -> Option<(usize, usize)> {
        match self {
            Self::Open(_) => None,
            Self::NeverMatches { differing, of, .. } | Self::OverBroad { differing, of, .. } => {
                Some((*differing, *of))
            }
        }
    }

    /// What was observed and what can be done, for people.
    pub fn text(&self) -> String {
        match self {
            Self::Open(advice) => advice.trace().to_owned(),
            Self::NeverMatches { pointer, differing, of, alike_without } => {
                let without = match alike_without {
                    Some(0) | None => String::new(),
                    Some(alike) => {
                        format!("; without it, {alike} of the jobs would have matched an earlier one")
                    }
                };
                format!(
                    "hardly any job was a duplicate, and {pointer} had {differing} distinct values in {of} jobs{without}: if it does not identify the work, leave it out with args_keys or meta_keys"
                )
            }
            Self::OverBroad { pointer, differing, of } => format!(
                "{differing} of {of} duplicates that were turned away differ in {pointer} from the job that they were taken to duplicate: if that makes them different work, let it count, or use on_mismatch: reject, or follow_up"
            ),
        }
    }
}
