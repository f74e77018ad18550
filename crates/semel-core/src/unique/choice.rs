//! The choices a policy is made of, by their names on the wire and their numbers in a store.

use std::fmt;

/// An enum of choices with names on the wire.
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

            /// The choice of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.name() == name)
            }

            /// The choice's number, as stored.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The choice of that number, as stored.
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
    /// What happens to a duplicate (SEMANTICS 4).
    OnConflict {
        /// It is refused.
        #[default]
        Reject = "reject",
        /// It is answered with the existing job.
        Ignore = "ignore",
        /// Every blocking holder is cancelled and the new job created.
        Replace = "replace",
        /// As `replace`, at the time a scheduled holder was to start.
        ReplaceExceptSchedule = "replace_except_schedule",
        /// It runs once more after the present run, or takes the place of what still waits.
        FollowUp = "follow_up",
    }
}

choice! {
    /// What the same key with another type or other args means.
    OnMismatch {
        /// A duplicate like any other.
        #[default]
        Accept = "accept",
        /// An error of its own, `payload_mismatch`.
        Reject = "reject",
    }
}

choice! {
    /// Whether an answer may show the existing job. Orders by strictness.
    #[derive(PartialOrd, Ord)]
    Disclose {
        /// It shows the job's id, state and key.
        #[default]
        Always = "always",
        /// It shows nothing of it.
        Never = "never",
    }
}

choice! {
    /// When a window starts.
    PeriodFrom {
        /// When the holder was created.
        #[default]
        Created = "created",
        /// When the holder ended; until then its window has not begun.
        Finished = "finished",
        /// When the last duplicate was offered; each one starts the window again.
        LastDuplicate = "last_duplicate",
    }
}

choice! {
    /// When a job that replaced an active one may run.
    WhenActive {
        /// At once: the old run is fenced off, not waited for.
        #[default]
        Now = "now",
        /// When the old run's lease has ended.
        Wait = "wait",
    }
}

choice! {
    /// Who shares a caller's own key.
    Scope {
        /// Jobs of one type.
        #[default]
        Type = "type",
        /// Jobs of all types.
        Global = "global",
    }
}

choice! {
    /// A part of a job that its key may be made of.
    Dimension {
        /// The type; in every key but a global one.
        #[default]
        Type = "type",
        /// The queue's name.
        Queue = "queue",
        /// Args, or those of `args_keys`.
        Args = "args",
        /// Meta, as far as `meta_keys` or `meta_except` say.
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
