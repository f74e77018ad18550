//! The choices that a policy consists of, with their names on the wire and their numbers in a store.

use std::fmt;

/// Defines an enum of choices with names on the wire.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $wire:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every choice, the default first.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The choice's name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $wire,)+ }
            }

            /// The choice with that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.name() == name)
            }

            /// The choice's number, as stored.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The choice with that number, as stored.
            pub fn from_code(code: u8) -> Option<Self> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

choice! {
    /// How a duplicate is handled (SEMANTICS 4).
    OnConflict {
        /// The duplicate is refused.
        #[default]
        Reject = "reject",
        /// The answer is the existing job.
        Ignore = "ignore",
        /// Every blocking holder is cancelled and the new job is created.
        Replace = "replace",
        /// Like `replace`, but at the time a scheduled holder was to start.
        ReplaceExceptSchedule = "replace_except_schedule",
        /// The job runs once more after the present run, or overwrites one that is still waiting.
        FollowUp = "follow_up",
    }
}

choice! {
    /// How the same key with another type or other args is handled.
    OnMismatch {
        /// As a duplicate like any other.
        #[default]
        Accept = "accept",
        /// As an error of its own, `payload_mismatch`.
        Reject = "reject",
    }
}

choice! {
    /// Whether an answer may show the existing job. Ordered by strictness.
    #[derive(PartialOrd, Ord)]
    Disclose {
        /// The answer shows the job's id, state and key.
        #[default]
        Always = "always",
        /// The answer shows nothing of the job.
        Never = "never",
    }
}

choice! {
    /// When a window starts.
    PeriodFrom {
        /// When the holder was created.
        #[default]
        Created = "created",
        /// When the holder ended; before that its window has not begun.
        Finished = "finished",
        /// When the last duplicate was offered; each duplicate renews the window.
        LastDuplicate = "last_duplicate",
    }
}

choice! {
    /// When a job that replaced an active one may run.
    WhenActive {
        /// At once: the old run is fenced off, not waited for.
        #[default]
        Now = "now",
        /// When the lease of the old run has ended.
        Wait = "wait",
    }
}

choice! {
    /// Which jobs share a caller's own key.
    Scope {
        /// Jobs of one type.
        #[default]
        Type = "type",
        /// Jobs of all types.
        Global = "global",
    }
}

choice! {
    /// A part of a job that its key may be computed from.
    Dimension {
        /// The type; part of every key except a global one.
        #[default]
        Type = "type",
        /// The queue's name.
        Queue = "queue",
        /// All of args, or only the members in `args_keys`.
        Args = "args",
        /// The members of meta that `meta_keys` or `meta_except` select.
        Meta = "meta",
        /// The version of the job's template.
        Version = "version",
    }
}

/// A set of dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dimensions(u8);

impl Dimensions {
    /// This set with one more member.
    #[must_use]
    pub const fn with(self, dimension: Dimension) -> Self {
        Self(self.0 | 1 << dimension as u8)
    }

    /// Whether `dimension` is in the set.
    pub const fn contains(self, dimension: Dimension) -> bool {
        self.0 & (1 << dimension as u8) != 0
    }

    /// The members, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = Dimension> {
        Dimension::ALL.iter().copied().filter(move |dimension| self.contains(*dimension))
    }
}
