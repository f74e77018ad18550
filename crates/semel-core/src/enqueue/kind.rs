//! What became of an offer, in a word, and what of it counts together.

/// Each kind with its name and its class, those of one class together.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $class:ident;)+) => {
        /// What became of an offer: an [`Outcome`](super::Outcome) without the particulars.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum OutcomeKind { $($(#[$doc])* $kind,)+ }

        impl OutcomeKind {
            /// Every kind, those of one class together.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)+];

            /// The name it is counted under.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// What it counts together with.
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
    /// The same request, sent again.
    Repeated = "repeated", Suppressed;
    /// Refused as a duplicate.
    Rejected = "rejected", Suppressed;
    /// Refused as a duplicate of a job that has ended.
    RejectedFinished = "rejected_finished", Suppressed;
    /// Refused as a duplicate of a job that may not be shown.
    RejectedUndisclosed = "rejected_undisclosed", Suppressed;
    /// Its unique key stands for other work.
    Mismatch = "mismatch", Mismatched;
    /// Its `Idempotency-Key` stands for another request.
    KeyReused = "key_reused", Mismatched;
    /// What was created under its `Idempotency-Key` is deleted.
    KeySpent = "key_spent", Refused;
    /// Another request has used its id.
    IdTaken = "id_taken", Refused;
    /// More jobs hold its key, or wait, than one commit may touch.
    TooManyHolders = "too_many_holders", Refused;
    /// As many jobs wait in its queue as may.
    QueueFull = "queue_full", Refused;
    /// What is stored of the job it meets cannot be read.
    Corrupt = "corrupt", Refused;
}

impl OutcomeKind {
    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether the unique policy of an offer that has one came to this. It is not asked where the same request was sent before
    /// (`repeated`, `key_reused`), and has no say in what is refused for something else.
    pub const fn is_by_policy(self) -> bool {
        match self.class() {
            OutcomeClass::Created | OutcomeClass::Replaced => true,
            OutcomeClass::Suppressed => !matches!(self, Self::Repeated),
            OutcomeClass::Mismatched => matches!(self, Self::Mismatch),
            OutcomeClass::Refused => false,
        }
    }
}

/// What counts together where outcomes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeClass {
    /// A job was created that took nobody's place.
    Created,
    /// A job was created in place of others.
    Replaced,
    /// A job kept it from being one of its own: that one stands for what was asked for, whether it is the answer or it was refused.
    Suppressed,
    /// Refused, for its content is not what its key stands for.
    Mismatched,
    /// Refused for anything else.
    Refused,
}

impl OutcomeClass {
    /// The names of its kinds.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        OutcomeKind::ALL.iter().filter(move |kind| kind.class() == self).map(|kind| kind.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of runs are counted beside them, by names of their own.
    #[test]
    fn a_name_is_that_of_one_kind() {
        for kind in OutcomeKind::ALL {
            assert_eq!(OutcomeKind::from_name(kind.name()), Some(*kind));
        }
        for end in ["completed", "failed", "cancelled"] {
            assert_eq!(OutcomeKind::from_name(end), None);
        }
    }

    /// What a policy turned away is not what is called suppressed: each has one that the other lacks.
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
