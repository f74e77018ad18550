//! Outcomes of an offer as single words, and the classes in which they are counted together.

/// Defines every kind with its name and its class; the kinds of one class must be adjacent.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $class:ident;)+) => {
        /// The outcome of an offer: an [`Outcome`](super::Outcome) without the details.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum OutcomeKind { $($(#[$doc])* $kind,)+ }

        impl OutcomeKind {
            /// Every kind, those of one class adjacent.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)+];

            /// The name under which the kind is counted.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// The class with which the kind is counted.
            pub const fn class(self) -> OutcomeClass {
                match self { $(Self::$kind => OutcomeClass::$class,)+ }
            }
        }
    };
}

kinds! {
    /// A job was created.
    Created = "created", Created;
    /// A job was created as the follow-up of a run.
    FollowUp = "follow_up", Created;
    /// A job was created in place of others.
    Replaced = "replaced", Replaced;
    /// The existing job is the answer.
    Existing = "existing", Suppressed;
    /// The existing job is the answer, and took over args and meta.
    Amended = "amended", Suppressed;
    /// The same request was sent again.
    Repeated = "repeated", Suppressed;
    /// Refused as a duplicate.
    Rejected = "rejected", Suppressed;
    /// Refused as a duplicate of a job that has ended.
    RejectedFinished = "rejected_finished", Suppressed;
    /// Refused as a duplicate of a job that may not be shown.
    RejectedUndisclosed = "rejected_undisclosed", Suppressed;
    /// Refused: its unique key stands for other work.
    Mismatch = "mismatch", Mismatched;
    /// Refused: its `Idempotency-Key` stands for another request.
    KeyReused = "key_reused", Mismatched;
    /// Refused: what was created under its `Idempotency-Key` has been deleted.
    KeySpent = "key_spent", Refused;
    /// Refused: another request has used its id.
    IdTaken = "id_taken", Refused;
    /// Refused: more jobs hold its key, or wait, than one commit may touch.
    TooManyHolders = "too_many_holders", Refused;
    /// Refused: its queue holds as many waiting jobs as it may.
    QueueFull = "queue_full", Refused;
    /// Refused: the stored record of a job it meets cannot be read.
    Corrupt = "corrupt", Refused;
}

impl OutcomeKind {
    /// The kind with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether the offer's unique policy led to this outcome, if it has one. The policy is not consulted when
    /// the same request was sent before (`repeated`, `key_reused`), nor does it decide what is refused for
    /// another reason.
    pub const fn is_by_policy(self) -> bool {
        match self.class() {
            OutcomeClass::Created | OutcomeClass::Replaced => true,
            OutcomeClass::Suppressed => !matches!(self, Self::Repeated),
            OutcomeClass::Mismatched => matches!(self, Self::Mismatch),
            OutcomeClass::Refused => false,
        }
    }
}

/// Outcomes that are counted together wherever they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeClass {
    /// A job was created that replaced no other.
    Created,
    /// A job was created in place of others.
    Replaced,
    /// No job of its own was created because another job stands for what was asked for, whether that job was
    /// the answer or the offer was refused.
    Suppressed,
    /// Refused, because its content is not what its key stands for.
    Mismatched,
    /// Refused for another reason.
    Refused,
}

impl OutcomeClass {
    /// The names of the class's kinds.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        OutcomeKind::ALL.iter().filter(move |kind| kind.class() == self).map(|kind| kind.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of runs are counted next to the outcomes, under names of their own.
    #[test]
    fn a_name_is_that_of_one_kind() {
        for kind in OutcomeKind::ALL {
            assert_eq!(OutcomeKind::from_name(kind.name()), Some(*kind));
        }
        for end in ["completed", "failed", "cancelled"] {
            assert_eq!(OutcomeKind::from_name(end), None);
        }
    }

    /// What the policy turned away and what counts as suppressed differ: each has a kind that the other
    /// lacks.
    #[test]
    fn a_policy_has_no_part_in_what_was_sent_again_and_one_in_other_work_under_its_key() {
        let by_policy = |class: OutcomeClass| {
            let kinds = class.names().filter_map(OutcomeKind::from_name);
            kinds.filter(|kind| kind.is_by_policy()).map(OutcomeKind::name).collect::<Vec<_>>()
        };
        assert_eq!(
            by_policy(OutcomeClass::Suppressed),
            ["existing", "amended", "rejected", "rejected_finished", "rejected_undisclosed"]
        );
        assert_eq!(by_policy(OutcomeClass::Mismatched), ["mismatch"]);
        assert_eq!(by_policy(OutcomeClass::Refused), [""; 0]);
    }
}
