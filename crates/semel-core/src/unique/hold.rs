//! The part of a job's own policy that is kept after its admission.

use super::admit::{Blocking, blocks, blocks_by};
use super::choice::{Disclose, PeriodFrom};
use super::key::PROFILE_NUMBER;
use super::period::Period;
use super::policy::UniquePolicy;
use crate::job::{Ending, Head};
use crate::state::StateSet;
use crate::time::Timestamp;

/// What a stored job's own policy determines later: how long the job must be remembered, and whether it may
/// be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// States in which the job blocks its duplicates.
    pub states: StateSet,
    /// When the job's window starts.
    pub from: PeriodFrom,
    /// Whether answers may show the job.
    pub disclose: Disclose,
    // Both are zero without a period. Two fields, because an `Option<Period>` would add eight bytes to every
    // head.
    months: u32,
    micros: u64,
}

impl Hold {
    /// The hold of a job without a policy: the job blocks no other and hides nothing.
    pub const NONE: Self = Self {
        states: StateSet::EMPTY,
        from: PeriodFrom::Created,
        disclose: Disclose::Always,
        months: 0,
        micros: 0,
    };

    /// Length of the stored form in bytes.
    pub const BYTES: usize = 16;

    /// A hold of these parts. Without a period its window has no end.
    pub const fn new(states: StateSet, from: PeriodFrom, period: Option<Period>, disclose: Disclose) -> Self {
        let (months, micros) = match period {
            Some(period) => (period.months(), period.micros()),
            None => (0, 0),
        };
        Self { states, from, disclose, months, micros }
    }

    /// Length of the window; `None` when it has no end.
    pub const fn period(&self) -> Option<Period> {
        Period::new(self.months, self.micros)
    }

    /// Whether the job's own policy lets answers show the job.
    pub const fn is_disclosed(&self) -> bool {
        matches!(self.disclose, Disclose::Always)
    }

    /// The stored form: states, anchor, disclosure, the number of the key's [profile](super::PROFILE), then
    /// months and microseconds in little endian. Frozen.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.states.bits();
        bytes[1] = self.from.code();
        bytes[2] = self.disclose.code();
        bytes[3] = PROFILE_NUMBER;
        bytes[4..8].copy_from_slice(&self.months.to_le_bytes());
        bytes[8..].copy_from_slice(&self.micros.to_le_bytes());
        bytes
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Unreadable`] when the bytes are not a hold, or belong to a key of another profile.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        if let Some(profile) = bytes.get(3).filter(|profile| **profile != PROFILE_NUMBER) {
            return Err(Unreadable::Profile(*profile));
        }
        Self::of_known_profile(bytes).ok_or(Unreadable::Hold)
    }

    fn of_known_profile(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let (months, rest) = rest.split_first_chunk::<4>()?;
        let micros: &[u8; 8] = rest.try_into().ok()?;
        let [states, from, disclose, _] = *head;
        let (months, micros) = (u32::from_le_bytes(*months), u64::from_le_bytes(*micros));
        if (months, micros) != (0, 0) {
            Period::new(months, micros)?;
        }
        Some(Self {
            states: StateSet::from_bits(states),
            from: PeriodFrom::from_code(from)?,
            disclose: Disclose::from_code(disclose)?,
            months,
            micros,
        })
    }
}

/// Why a stored hold cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Its key was made by the rules of the profile with this number, so it cannot be compared with keys made
    /// by the present rules.
    Profile(u8),
    /// The stored hold is damaged.
    Hold,
}

impl Unreadable {
    /// What is wrong, for people.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Profile(_) => {
                "its unique key uses a profile that this version does not know; open the store with a newer version"
            }
            Self::Hold => "no such hold",
        }
    }
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.what())
    }
}

impl std::error::Error for Unreadable {}

impl Default for Hold {
    fn default() -> Self {
        Self::NONE
    }
}

impl UniquePolicy {
    /// The part of this policy that is stored with a job admitted under it.
    pub const fn hold(&self) -> Hold {
        Hold::new(self.states(), self.period_from(), self.period(), self.disclose())
    }
}

/// How long a job's head must be kept because of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// For as long as the job carries the key.
    Forever,
    /// Until that time, which is later than now.
    Until(Timestamp),
    /// No longer: the job does not block any other job with the same policy as its own.
    Forget,
}

impl Remember {
    /// The time at which the head may be forgotten; `None` if it may be forgotten now.
    pub const fn until(self) -> Option<Timestamp> {
        match self {
            Self::Forget => None,
            Self::Until(until) => Some(until),
            Self::Forever => Some(Timestamp::MAX),
        }
    }
}

/// How long a job may still block others under its own policy, so that purging its head would free its key
/// early (SEMANTICS 3). An unfinished job is never forgotten.
pub fn must_remember(head: &Head, now: Timestamp) -> Remember {
    let hold = &head.hold;
    if head.state.is_live() {
        return Remember::Forever;
    }
    if !hold.states.contains(head.state) || head.ending == Some(Ending::Expired) {
        return Remember::Forget;
    }
    let Some(period) = hold.period() else { return Remember::Forever };
    let until = period.after(anchor(hold.from, head).unwrap_or(head.created_at));
    if now < until { Remember::Until(until) } else { Remember::Forget }
}

/// What a job's head alone tells about whether the job holds its key, that is, whether it would block another
/// job with the same policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Whether it would. A job that would not may still carry the key.
    Known(bool),
    /// Its window is over but it is unfinished: it blocks only if its policy says `while_active`, which the
    /// head does not record.
    AskPolicy,
}

/// Tells from a job's head whether the job holds its key. Where the head is not enough, [`holds`] answers
/// with the policy.
pub fn holding(head: &Head, now: Timestamp) -> Holding {
    match blocks_by(&head.hold, false, head, now) {
        Blocking::WindowOver { .. } if head.state.is_live() => Holding::AskPolicy,
        blocking => Holding::Known(blocking.is_blocking()),
    }
}

/// Whether a job holds its key. `policy` is the job's own; it matters where the [head does not
/// tell](holding). If it is not known then, the answer is no.
pub fn holds(policy: Option<&UniquePolicy>, head: &Head, now: Timestamp) -> bool {
    match holding(head, now) {
        Holding::Known(holds) => holds,
        Holding::AskPolicy => policy.is_some_and(|policy| blocks(policy, head, now).is_blocking()),
    }
}

/// Whether only a job's own policy tells until when the job holds its key: an unfinished job may hold it
/// beyond its window (`while_active`). True for every job for which [`holding`] asks the policy.
pub fn until_asks_policy(head: &Head) -> bool {
    head.state.is_live() && head.hold.period().is_some()
}

/// When a job stops holding its key by time alone, if that is certain. `policy` is the job's own; it must be
/// given [where the head does not tell](until_asks_policy).
pub fn held_until(policy: Option<&UniquePolicy>, head: &Head, now: Timestamp) -> Option<Timestamp> {
    match policy {
        Some(policy) => blocks(policy, head, now).until(),
        None if until_asks_policy(head) => None,
        None => blocks_by(&head.hold, false, head, now).until(),
    }
}

/// Whether a head that is kept for its key until `until` still counts as a holder at `now`. Whether the store
/// has already deleted it makes no difference.
pub fn is_kept(until: Timestamp, now: Timestamp) -> bool {
    now < until
}

/// When the holder's window starts; `None` if it starts at an end that is still to come.
pub(super) fn anchor(from: PeriodFrom, head: &Head) -> Option<Timestamp> {
    match from {
        PeriodFrom::Created => Some(head.created_at),
        // A finished row always has the time of its end; its creation is a lower bound in any case.
        PeriodFrom::Finished if head.state.is_finished() => Some(head.finished_at.unwrap_or(head.created_at)),
        PeriodFrom::Finished => None,
        PeriodFrom::LastDuplicate => {
            Some(head.renewed_at.map_or(head.created_at, |at| at.max(head.created_at)))
        }
    }
}
