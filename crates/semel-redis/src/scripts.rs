//! The scripts' texts. Each is sent once to a connection's Redis and then called by its sum.

/// A script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Script {
    /// What a decision reads.
    Load,
    /// Groups of writes.
    Commit,
    /// A claim.
    Claim,
    /// What people and duties look at.
    Look,
    /// Housekeeping.
    Upkeep,
    /// What is said first on a connection.
    Open,
    /// The steps of a commit over several partitions.
    Cross,
}

impl Script {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Load, Self::Commit, Self::Claim, Self::Look, Self::Upkeep, Self::Open, Self::Cross];

    /// Its text.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Load => concat!(include_str!("lua/common.lua"), include_str!("lua/load.lua")),
            Self::Commit => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/writes.lua"),
                include_str!("lua/fresh.lua"),
                include_str!("lua/commit.lua")
            ),
            Self::Claim => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/writes.lua"),
                include_str!("lua/claim.lua")
            ),
            Self::Look => concat!(include_str!("lua/common.lua"), include_str!("lua/look.lua")),
            Self::Upkeep => concat!(
                include_str!("lua/common.lua"),
                include_str!("lua/writes.lua"),
                include_str!("lua/upkeep.lua")
            ),
            Self::Open => concat!(include_str!("lua/common.lua"), include_str!("lua/open.lua")),
            Self::Cross => concat!(include_str!("lua/common.lua"), include_str!("lua/cross.lua")),
        }
    }
}
