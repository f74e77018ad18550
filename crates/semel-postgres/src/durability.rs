//! What an answer survives: this depends on the settings of the database, and of any server that takes its
//! place.

use crate::load::{AWAITS_STANDBY, COMMITS_LAZILY, SYNCS_NOTHING};

/// What an acknowledged commit survives, according to the database's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It is on the disk, and on the standbys that commits wait for.
    Standby,
    /// It is on the disk of the only database server named.
    Disk,
    /// It is on the disk of one of several servers named, and waits for no other one.
    Failover,
    /// `synchronous_commit = off`: a crash loses the last answered commits.
    Lazily,
    /// `fsync = off`: the system writes when it likes.
    #[default]
    Never,
}

impl Durability {
    /// Determines it from the flags of `look`, and from whether another server may take over by itself.
    pub(crate) const fn by(state: i16, fails_over: bool) -> Self {
        if state & SYNCS_NOTHING != 0 {
            Self::Never
        } else if state & COMMITS_LAZILY != 0 {
            Self::Lazily
        } else if state & AWAITS_STANDBY != 0 {
            Self::Standby
        } else if fails_over {
            Self::Failover
        } else {
            Self::Disk
        }
    }

    /// Whether no acknowledged commit is lost, neither by a crash nor by a failover that servers follow.
    pub(crate) const fn is_strong(self) -> bool {
        matches!(self, Self::Standby | Self::Disk)
    }

    /// A description for people.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Standby => {
                "acknowledged only after the commit is on the disk and the standbys that commits wait for have it \
                 (synchronous_standby_names)"
            }
            Self::Disk => {
                "acknowledged only after the commit is on the disk (synchronous_commit); a standby that is put in its place \
                 has only what it had received"
            }
            Self::Failover => {
                "acknowledged only after the commit is on the disk: a failover loses what the standby that takes over had not \
                 received yet, and lost jobs may be accepted again (set synchronous_standby_names)"
            }
            Self::Lazily => {
                "acknowledged after the commit, which is on the disk a moment later (synchronous_commit off): a crash may \
                 lose what was acknowledged in between (set synchronous_commit on)"
            }
            Self::Never => {
                "acknowledged after the commit, which the system writes to the disk at some later time (fsync off): a crash \
                 of the machine may lose all of it (set fsync on)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AWAITS_STANDBY, COMMITS_LAZILY, Durability, SYNCS_NOTHING};

    #[test]
    fn only_what_no_crash_and_no_failover_forgets_is_strong() {
        assert_eq!(Durability::by(0, false), Durability::Disk);
        assert_eq!(Durability::by(0, true), Durability::Failover);
        assert_eq!(Durability::by(AWAITS_STANDBY, true), Durability::Standby);
        assert_eq!(Durability::by(COMMITS_LAZILY, false), Durability::Lazily);
        assert_eq!(Durability::by(AWAITS_STANDBY | SYNCS_NOTHING, true), Durability::Never);
        assert_eq!(Durability::by(COMMITS_LAZILY | SYNCS_NOTHING, false), Durability::Never);
        let strong = [Durability::Standby, Durability::Disk];
        let weak = [Durability::Failover, Durability::Lazily, Durability::Never];
        assert!(strong.into_iter().all(Durability::is_strong));
        assert!(!weak.into_iter().any(Durability::is_strong));
    }
}
