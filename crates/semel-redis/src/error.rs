//! What may go wrong with Redis, and what a caller may assume after it.

use redis::{ErrorKind, ServerErrorKind};
use semel_core::ident::JobId;
use semel_store::StoreError;

/// A failure of the store, with its details. Its text contains no address and nothing that is stored.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisError {
    /// Redis refused, or the connection failed.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// No answer came in time.
    #[error("redis: no answer came in time")]
    Silent,
    /// A stored head is not in this program's format.
    #[error("job {id}: its head cannot be read")]
    Head {
        /// The job whose head it is.
        id: JobId,
    },
    /// An answer does not have the expected form.
    #[error("unexpected answer from Redis: {0}")]
    Answer(&'static str),
    /// The stored layout, or the Redis server, is of a version that this program does not handle.
    #[error("{0}")]
    Unsupported(String),
    /// The address is not valid.
    #[error("{0}")]
    Address(String),
    /// The connection was lost during a commit, and Redis could not be asked what became of it.
    #[error(
        "Redis was lost during a commit and did not come back in time: it is unknown whether the commit was applied. Send the \
         same request with the same id again"
    )]
    Unknown,
    /// The commit was done as far as it could be, and too few replicas have it.
    #[error(
        "too few replicas have confirmed the write in time: it may be stored, but a replica that takes over may not have it. \
         Send the same request with the same id again"
    )]
    Lagging,
    /// Too few replicas are there to confirm a commit, and nothing was begun.
    #[error(
        "too few replicas are connected to confirm a write: nothing was stored. Try again when they are back"
    )]
    Behind,
    /// Crossings kept the partition locked, one after the other, until the patience was used up.
    #[error("too many writers compete for these records right now: nothing was done. Try again")]
    Locked,
    /// There is no primary now, or nobody knows which it is.
    #[error("redis: {0}")]
    Astray(String),
    /// The address leads to a replica: it takes no writes, and its answers may be out of date.
    #[error(
        "this Redis is a replica, and takes no writes: name the primary, or a Sentinel or cluster that knows it"
    )]
    Replica,
    /// Redis was just started, and is still loading its data.
    #[error(
        "redis: it is still reading its data from the disk, and takes no requests until it is done: wait until INFO says \
         loading:0, and try again"
    )]
    Loading,
    /// The store's own record (`!`) is gone, while other records of the store are there. No new store is
    /// begun beside them: how many others are gone is unknown, and the log's numbers would be used a second
    /// time.
    #[error(
        "the store's own record (the key that ends in `!`) is gone from Redis, but others of its keys are still there: \
         somebody deleted it, or Redis evicted it (maxmemory-policy must be noeviction). It is unknown which others are gone \
         too, so nothing is read or written. Stop the servers and bring the data back (an append-only file, a snapshot, a \
         replica); or, to start with an empty store, delete all keys that are left under its prefix, or name another prefix \
         with ?prefix="
    )]
    Beheaded,
    /// The task that did the work is gone.
    #[error("the work was abandoned: {0}")]
    GivenUp(String),
}

impl RedisError {
    fn code(&self) -> Option<&str> {
        match self {
            Self::Redis(error) => error.code(),
            _ => None,
        }
    }

    /// Whether Redis does not know the script: it was restarted, or its scripts were flushed. Nothing was
    /// done.
    pub(crate) fn is_unknown_script(&self) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
    }

    /// Whether Redis cannot serve the request right now: it is loading its data, or another script is
    /// running. Nothing was done.
    pub(crate) fn is_not_yet(&self) -> bool {
        matches!(self.code(), Some("LOADING" | "BUSY" | "TRYAGAIN" | "MASTERDOWN"))
    }

    /// Whether Redis refuses writes because too few replicas are connected. Nothing was done.
    pub(crate) fn lacks_replicas(&self) -> bool {
        self.code() == Some("NOREPLICAS")
    }

    /// Whether Redis is loading its data. Nothing was done.
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

    /// Whether a crossing has locked the partition. Nothing was done.
    pub(crate) fn is_locked(&self) -> bool {
        self.code() == Some("SEMELLOCK")
    }

    /// Whether nothing is left of the store: the next connection makes it anew. Nothing was done.
    pub(crate) fn is_emptied(&self) -> bool {
        self.code() == Some("SEMELEMPTY")
    }

    /// Converts an error of a connection's introduction into what callers are told.
    pub(crate) fn introduced(self) -> Self {
        if self.code() == Some("SEMELHEAD") { Self::Beheaded } else { self }
    }

    /// Whether the account may not use the command.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some("NOPERM")
    }

    /// Whether a partition no longer knows the crossing that a step belongs to.
    pub(crate) fn is_given_up(&self) -> bool {
        self.code() == Some("SEMELOLD")
    }

    /// The number of the crossing that holds the lock.
    pub(crate) fn lock(&self) -> u64 {
        let text = self.to_string();
        text.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Whether a request that failed with this error may have been applied.
    pub(crate) fn may_be_done(&self) -> bool {
        matches!(self, Self::Unknown | Self::Lagging | Self::GivenUp(_)) || self.is_lost_connection()
    }

    /// Whether no primary answered for as long as requests are retried.
    pub(crate) const fn is_nobody_there(&self) -> bool {
        matches!(self, Self::Unknown | Self::Astray(_) | Self::Replica)
    }

    /// Converts the error of a preliminary step: the actual request was not begun.
    pub(crate) fn before_it_began(self) -> Self {
        match self {
            Self::Lagging => Self::Behind,
            error if error.may_be_done() => Self::Astray(format!("nothing was done: {error}")),
            error => error,
        }
    }

    /// Converts an error after which part of the request may already have been applied.
    pub(crate) fn after_it_began(self) -> Self {
        if matches!(self, Self::Behind) { Self::Unknown } else { self }
    }

    /// Converts an error of a batch of which something may have been applied: told that nothing was, the
    /// caller would send it again, and a job without key and id would be there twice.
    pub(crate) fn in_doubt(self) -> Self {
        match self {
            Self::Redis(_) | Self::Silent => Self::Unknown,
            error => error,
        }
    }

    /// Whether another node holds the slot or takes the writes. Nothing was done.
    pub(crate) fn is_another_node(&self) -> bool {
        matches!(self.server(), Some(ServerErrorKind::Moved | ServerErrorKind::ReadOnly))
    }

    /// Whether a failover, or a slot on its way to another node, is the cause; the error passes with these.
    /// Nothing was done.
    ///
    /// `ASK` must not be followed: while a slot is on its way, some keys are on one node and some on the
    /// other, and a script that finds none would conclude that the job was never offered.
    pub(crate) fn is_on_its_way(&self) -> bool {
        let kinds = [ServerErrorKind::Ask, ServerErrorKind::ClusterDown];
        matches!(self, Self::Astray(_) | Self::Replica)
            || self.is_another_node()
            || self.server().is_some_and(|kind| kinds.contains(&kind))
    }

    /// Whether the request may succeed in a moment: no server answers now, another is about to take over from
    /// a Redis that is gone, or Redis has not loaded its data yet.
    pub fn passes(&self) -> bool {
        // A `WAIT` on a primary that becomes a replica ends with `UNBLOCKED`.
        let has_waited_in_vain = self.code() == Some("UNBLOCKED");
        self.is_lost_connection()
            || self.is_on_its_way()
            || self.is_not_yet()
            || matches!(self, Self::Loading)
            || has_waited_in_vain
    }

    /// Whether the connection was lost, no answer came, or the replicas did not confirm: the request may have
    /// been applied or not.
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
        // A preliminary step was not answered: the actual request was not begun.
        for error in [RedisError::Silent, lost(), RedisError::Lagging] {
            let told = error.before_it_began();
            assert!(!told.may_be_done() && !StoreError::from(told).is_in_doubt());
        }
    }

    /// The server's HTTP answer depends on which of the two it is.
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
