//! How far a store looks in one go, and how the places of its log are numbered: the same in every store, so that callers
//! and tests meet one behaviour.

/// Ready jobs a claim looks at beyond its limit, so that a few that may not be granted do not hide the rest. Where it has granted
/// nothing and shown as many under limits as it has room for, it goes on to show those that come next, up to the first under none.
pub const CLAIM_LOOKS_EXTRA: u16 = 64;
/// Jobs of one limit that a claim looks at, at most: their limit mostly lets few of them start.
pub const LANE_LOOKS: u16 = 16;
/// Ended holders of a key that have a store look for those among them that another outlives: so many, and again whenever they have
/// doubled.
pub const CROWD_MIN: u32 = 8;
/// Rows that one page for people looks at.
pub const LIST_LOOKS_MAX: usize = 5_000;
/// A cursor of the log is the number of a record and, in so many bits, the event's place in it.
pub const PLACE_BITS: u32 = 24;
/// How often a decision is taken again because a record moved under it.
pub const COMMIT_ATTEMPTS_MAX: u32 = 16;
/// How often more may be loaded for one decision that asks for it ([`Loads`]): it is taken once more often than that. The end of a
/// workflow's step is the longest way: the job, who waits for it, the workflow; then, as often as the core lets a workflow go on in
/// one decision, the next step, its key's holders, their limit, what they leave behind. Every bound of the core on a way from job to
/// job keeps within this: a decision that needs more is never taken.
pub const LOADS_PER_DECISION_MAX: u32 = 64;
/// Texts that one group brings to a commit, in bytes, but for its last decision, which may go beyond: those after it are taken in
/// the next group. Far below what any store takes in one piece, so that no caller is refused for strangers' sake.
pub const GROUP_BYTES_MAX: usize = 64 << 20;

/// What has been loaded for one decision because it asked for it. Whoever takes decisions counts with this, so that the bound is the
/// same inside a caller's transaction as outside.
#[derive(Debug, Default)]
pub struct Loads(u32);

impl Loads {
    /// Counts one more, before it is made. False where there have been as many as there may be: then nothing is loaded, for the
    /// decision would not be taken again.
    #[must_use]
    pub fn one_more(&mut self) -> bool {
        let is_allowed = self.0 < LOADS_PER_DECISION_MAX;
        self.0 += u32::from(is_allowed);
        is_allowed
    }
}
