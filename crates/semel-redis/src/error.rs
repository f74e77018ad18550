//! What may go wrong with Redis, and what that means for callers.

use redis::{ErrorKind, ServerErrorKind};
use semel_core::ident::JobId;
use semel_store::StoreError;

/// A failure of the store, with its details. No address and nothing that is stored is in its text.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// Redis refused, or the connection failed.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// No answer came in time.
    #[error("redis: no answer came in time")]
    Silent,
    /// A head is not what this program wrote.
    #[error("job {id}: its head is not understood")]
    Head {
        /// Which job.
        id: JobId,
    },
    /// An answer is not of the form that was asked for.
    #[error("an answer is not understood: {0}")]
    Answer(&'static str),
    /// What is stored, or who stores it, is of a version that this program does not handle.
    #[error("{0}")]
    Unsupported(String),
    /// The address is none.
    #[error("{0}")]
    Address(String),
    /// The connection was lost during a commit, and Redis could not be asked what became of it.
    #[error(
        "Redis was lost during a commit and did not come back in time: whether it was applied is unknown. Send the same \
         request with the same id again"
    )]
    Unknown,
    /// What could be done of it is done, and too few replicas have that.
    #[error(
        "too few replicas have confirmed it in time: it may be stored, and a primary that takes over may not have it. Send the same \
         request with the same id again"
    )]
    Lagging,
    /// Replicas are waited for that are not there, and nothing was begun.
    #[error("too few replicas are there to confirm it: nothing was stored. Ask again when they are back")]
    Behind,
    /// Commits over several partitions hold what was asked for, one after the other.
    #[error("what was asked for is in too much demand right now: nothing was done. Ask again")]
    Locked,
    /// Nobody is the primary now, or nobody knows who is.
    #[error("redis: {0}")]
    Astray(String),
    /// What the address leads to takes no writes, and what it would answer may be of long ago.
    #[error(
        "this Redis is a replica, and takes no writes: name the primary, or a Sentinel or cluster that knows it"
    )]
    Replica,
    /// It was started, and has not read its data yet.
    #[error(
        "redis: it is still reading its data from the disk, and takes no requests before it has: wait until INFO says loading:0, and \
         try again"
    )]
    Loading,
    /// What the store says of itself is gone, and other records of it are there. It is not begun anew beside them: what is gone of the
    /// others is unknown, and the numbers of its log would be taken.
    #[error(
        "what the store says of itself (the key that ends in `!`) is gone from Redis, and others of its keys are still there: somebody deleted \
         it, or Redis evicted it (maxmemory-policy must be noeviction). Which others are gone too is unknown, so nothing is read or written. \
         Stop the servers and bring the data back (an append-only file, a snapshot, a replica); or, to begin with an empty store, delete all \
         keys that are left under its prefix, or name another by ?prefix="
    )]
    Beheaded,
    /// The task that did the work is gone.
    #[error("the work was given up: {0}")]
    GivenUp(String),
}

impl RedisError {
    fn code(&self) -> Option<&str> {
        match self {
            Self::Redis(error) => error.code(),
            _ => None,
        }
    }

    /// Whether Redis does not know the script: it was started anew, or its scripts were flushed. Nothing was done.
    pub(crate) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
    }

    /// Whether Redis answered that it cannot do it right now: it reads its files, or another script is at work. Nothing was done.
    pub(crate) fn is_not_yet(&self) -> bool {
        matches!(self.code(), Some("LOADING" | "BUSY" | "TRYAGAIN" | "MASTERDOWN"))
    }

    /// Whether Redis takes no writes for as long as too few replicas are there. Nothing was done.
    pub(crate) fn lacks_replicas(&self) -> bool {
        self.code() == Some("NOREPLICAS")
    }

    /// Whether Redis reads its data. Nothing was done.
    pub(crate) fn is_loading(&self) -> bool {
        self.code() == Some("LOADING")
    }

    fn server(&self) -> Option<ServerErrorKind> {
        match self {
            Self::Redis(error) => match error.kind() {
                ErrorKind::Server(kind) => Some(kind),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a commit over several partitions has locked what was asked. Nothing was done.
    pub(crate) fn is_locked(&self) -> bool {
        self.code() == Some("SEMELLOCK")
    }

    /// Whether nothing is left of the store: it is to be made anew by who connects. Nothing was done.
    pub(crate) fn is_emptied(&self) -> bool {
        self.code() == Some("SEMELEMPTY")
    }

    /// The same, as it is told of an introduction.
    pub(crate) fn introduced(self) -> Self {
        if self.code() == Some("SEMELHEAD") { Self::Beheaded } else { self }
    }

    /// Whether the account may not do it.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some("NOPERM")
    }

    /// Whether a partition knows nothing of the commit over several that it is told of.
    pub(crate) fn is_given_up(&self) -> bool {
        self.code() == Some("SEMELOLD")
    }

    /// The number of the commit that has locked it.
    pub(crate) fn lock(&self) -> u64 {
        let text = self.to_string();
        text.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Whether something may have been done that was answered with this.
    pub(crate) fn may_be_done(&self) -> bool {
        matches!(self, Self::Unknown | Self::Lagging | Self::GivenUp(_)) || self.is_lost_connection()
    }

    /// Whether nobody has answered for as long as somebody is waited for.
    pub(crate) const fn is_nobody_there(&self) -> bool {
        matches!(self, Self::Unknown | Self::Astray(_) | Self::Replica)
    }

    /// The same, as it is told of what had to come first: that of which it is asked was not begun.
    pub(crate) fn before_it_began(self) -> Self {
        match self {
            Self::Lagging => Self::Behind,
            error if error.may_be_done() => Self::Astray(format!("nothing was done: {error}")),
            error => error,
        }
    }

    /// The same, as it is told where something of it may have been done before.
    pub(crate) fn after_it_began(self) -> Self {
        if matches!(self, Self::Behind) { Self::Unknown } else { self }
    }

    /// The same, as it is told of a batch of which something may have been done: who heard that nothing was would send it again, and
    /// what has no key and no id would be there twice.
    pub(crate) fn in_doubt(self) -> Self {
        match self {
            Self::Redis(_) | Self::Silent => Self::Unknown,
            error => error,
        }
    }

    /// Whether another node has what was asked about, or takes the writes. Nothing was done.
    pub(crate) fn is_another_node(&self) -> bool {
        matches!(self.server(), Some(ServerErrorKind::Moved | ServerErrorKind::ReadOnly))
    }

    /// Whether it is a matter of a failover, or of a slot on its way, and passes with these. Nothing was done.
    ///
    /// Who hears `ASK` is not to go where it points: as long as a slot is on its way, some keys are here and some there, and a
    /// script that finds none would take it for a job that was never offered.
    pub(crate) fn is_on_its_way(&self) -> bool {
        let kinds = [ServerErrorKind::Ask, ServerErrorKind::ClusterDown];
        matches!(self, Self::Astray(_) | Self::Replica)
            || self.is_another_node()
            || self.server().is_some_and(|kind| kinds.contains(&kind))
    }

    /// Whether it may be otherwise in a moment: nobody answers now, somebody else is about to take over from a Redis that is gone, or
    /// it has not read its data yet.
    pub fn passes(&self) -> bool {
        // Who waits for replicas of a primary that is made a replica itself is told that he waits no more.
        let has_waited_in_vain = self.code() == Some("UNBLOCKED");
        self.is_lost_connection()
            || self.is_on_its_way()
            || self.is_not_yet()
            || matches!(self, Self::Loading)
            || has_waited_in_vain
    }

    /// Whether the connection was lost, no answer came, or replicas did not confirm it: what was asked may have been done or not.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Silent | Self::Lagging => true,
            Self::Redis(error) => matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse),
            _ => false,
        }
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        let message = error.to_string();
        match &error {
            RedisError::Head { .. } | RedisError::Answer(_) => Self::Corrupt(message),
            RedisError::Unsupported(_) | RedisError::Address(_) => Self::Unsupported(message),
            RedisError::Redis(_) if matches!(error.code(), Some("WRONGTYPE")) => Self::Corrupt(message),
            RedisError::Unknown | RedisError::GivenUp(_) => Self::Unknown(message),
            RedisError::Lagging => Self::Lagging(message),
            RedisError::Behind => Self::Behind(message),
            RedisError::Redis(_)
            | RedisError::Silent
            | RedisError::Locked
            | RedisError::Loading
            | RedisError::Beheaded
            | RedisError::Astray(_)
            | RedisError::Replica => Self::Unavailable(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_store::StoreError;

    use super::RedisError;

    #[test]
    fn of_a_batch_that_may_be_done_it_is_not_said_that_nothing_was_stored() {
        let lost = || RedisError::Redis(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        for error in [RedisError::Silent, lost(), RedisError::Lagging, RedisError::Unknown] {
            assert!(error.may_be_done(), "{error}");
            let told = StoreError::from(error.in_doubt());
            assert!(told.is_in_doubt(), "{told:?}");
        }
        // What had to come first was not answered: that was not begun.
        for error in [RedisError::Silent, lost(), RedisError::Lagging] {
            let told = error.before_it_began();
            assert!(!told.may_be_done() && !StoreError::from(told).is_in_doubt());
        }
    }

    /// A server answers by which of them it is.
    #[test]
    fn of_what_too_few_replicas_have_it_is_told_apart_whether_it_is_stored() {
        let behind = StoreError::from(RedisError::Lagging.before_it_began());
        assert!(
            matches!(&behind, StoreError::Behind(why) if why.contains("nothing was stored")),
            "{behind:?}"
        );
        let lagging = StoreError::from(RedisError::Lagging.in_doubt());
        assert!(matches!(&lagging, StoreError::Lagging(why) if why.contains("may be stored")), "{lagging:?}");
        let unknown = StoreError::from(RedisError::Behind.after_it_began());
        assert!(matches!(unknown, StoreError::Unknown(_)), "{unknown:?}");
    }
}
