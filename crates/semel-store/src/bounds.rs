//! Bounds on what a store examines at once, and the numbering of log positions: the same in every store, so
//! that callers and tests meet one behaviour.

/// How many ready jobs a claim examines beyond its limit, so that a few that may not be granted do not hide the rest.
///
/// A claim that has granted none and is filled up by jobs under limits goes on to the first job under none.
pub const CLAIM_LOOKS_EXTRA: u16 = 64;
/// The most jobs per limit that a claim examines: a limit mostly lets few of them start.
pub const LANE_LOOKS: u16 = 16;
/// The number of a key's ended holders at which a store looks for outlived ones among them, and again at each
/// doubling.
pub const CROWD_MIN: u32 = 8;
/// The most rows that one page for people examines.
pub const LIST_LOOKS_MAX: usize = 5_000;
/// A log cursor is a record number followed by this many bits for the event's place in the record.
pub const PLACE_BITS: u32 = 24;
/// How often a decision is tried at most when records keep moving under it.
pub const COMMIT_ATTEMPTS_MAX: u32 = 16;
/// The most additional loads ([`Loads`]) for one decision that asks for more; it is tried once more often than that.
///
/// The end of a workflow's step needs the most: the job, its waiters, the workflow; then, for each step that the
/// core lets a workflow advance in one decision, the next step, its key's holders, their limit, what they leave
/// behind. Every bound of the core on a path from job to job respects this: a decision that needs more can never be
/// taken.
pub const LOADS_PER_DECISION_MAX: u32 = 64;
/// Bytes of text after which a group takes no further decision; the last one taken may exceed it.
///
/// Later decisions go into the next group. Far below what any store accepts at once, so that no caller is
/// refused because of others.
pub const GROUP_BYTES_MAX: usize = 64 << 20;

/// A count of the loads for one decision. All code that takes decisions uses it, so that the bound is the same
/// inside a caller's transaction as outside.
#[derive(Debug, Default)]
pub struct Loads(u32);

impl Loads {
    /// Counts one more load, before it is made. Returns `false` if the bound is reached: then load nothing,
    /// since the decision would not be tried again.
    #[must_use]
    pub fn one_more(&mut self) -> bool {
        let is_allowed = self.0 < LOADS_PER_DECISION_MAX;
        self.0 += u32::from(is_allowed);
        is_allowed
    }
}
