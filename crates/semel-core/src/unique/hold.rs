//! What stays of a job's own policy after its admission.

use super::admit::{Blocking, blocks, blocks_by};
use super::choice::{Disclose, PeriodFrom};
use super::key::PROFILE_NUMBER;
use super::period::Period;
use super::policy::UniquePolicy;
use crate::job::{Ending, Head};
use crate::state::StateSet;
use crate::time::Timestamp;

/// What a stored job's own policy says for later: how long the job must be remembered, and whether it may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// States in which the job blocks its like.
    pub states: StateSet,
    /// When its window starts.
    pub from: PeriodFrom,
    /// Whether answers may show it.
    pub disclose: Disclose,
    // Both zero without a period. Apart because an `Option<Period>` would cost eight bytes more in every head.
    months: u32,
    micros: u64,
}

impl Hold {
    /// Of a job without a policy: it blocks nobody and hides nothing.
    pub const NONE: Self = Self {
        states: StateSet::EMPTY,
        from: PeriodFrom::Created,
        disclose: Disclose::Always,
        months: 0,
        micros: 0,
    };

    /// Bytes of the stored form.
    pub const BYTES: usize = 16;

    /// A hold of these parts.
    pub const fn new(states: StateSet, from: PeriodFrom, period: Option<Period>, disclose: Disclose) -> Self {
        let (months, micros) = match period {
            Some(period) => (period.months(), period.micros()),
            None => (0, 0),
        };
        Self { states, from, disclose, months, micros }
    }

    /// How long the window is; none when it has no end.
    pub const fn period(&self) -> Option<Period> {
        Period::new(self.months, self.micros)
    }

    /// Whether answers may show the job, as far as its own policy says.
    pub const fn is_disclosed(&self) -> bool {
        matches!(self.disclose, Disclose::Always)
    }

    /// The stored form: states, anchor, disclosure, the number of the key's [profile](super::PROFILE), months and microseconds in
    /// little endian. Frozen.
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

    /// The hold from its stored form.
    ///
    /// # Errors
    /// [`Unreadable`] when the bytes are none, or those of a key that was made by other rules.
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
    /// Its key was made by the rules of another profile, of this number: whether it is the same as one that is made by these cannot
    /// be said.
    Profile(u8),
    /// It is damaged.
    Hold,
}

impl Unreadable {
    /// What is wrong, for people.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Profile(_) => {
                "its unique key is of a profile that this version does not know; open the store with a newer one"
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
    /// What of this policy is kept with a job that was admitted under it.
    pub const fn hold(&self) -> Hold {
        Hold::new(self.states(), self.period_from(), self.period(), self.disclose())
    }
}

/// How long a job's head must be kept for the sake of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// For as long as it carries the key.
    Forever,
    /// Until then, which is later than now.
    Until(Timestamp),
    /// No longer: nobody with the job's own policy is blocked by it.
    Forget,
}

impl Remember {
    /// The same as a time from which nobody need remember it; nothing when nobody need now.
    pub const fn until(self) -> Option<Timestamp> {
        match self {
            Self::Forget => None,
            Self::Until(until) => Some(until),
            Self::Forever => Some(Timestamp::MAX),
        }
    }
}

/// Whether a job may still block somebody by its own policy, so that purging its head would free its key early
/// (SEMANTICS 3). An unfinished job is never forgotten.
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

/// What a job's head tells of whether it holds its key: whether it would block another one of its own policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Whether it would. One that would not may still carry the key.
    Known(bool),
    /// Its window is over and it has not ended: it would if its policy says `while_active`, which its head does not tell.
    AskPolicy,
}

/// What a job's head tells of whether it holds its key. Where that is not all, [`holds`] answers by its policy.
pub fn holding(head: &Head, now: Timestamp) -> Holding {
    match blocks_by(&head.hold, false, head, now) {
        Blocking::WindowOver { .. } if head.state.is_live() => Holding::AskPolicy,
        blocking => Holding::Known(blocking.is_blocking()),
    }
}

/// Whether a job holds its key. `policy` is its own, which matters where its [head does not tell](holding); of a job whose policy
/// is not known then nobody says that it does.
pub fn holds(policy: Option<&UniquePolicy>, head: &Head, now: Timestamp) -> bool {
    match holding(head, now) {
        Holding::Known(holds) => holds,
        Holding::AskPolicy => policy.is_some_and(|policy| blocks(policy, head, now).is_blocking()),
    }
}

/// Whether only a job's own policy tells until when it holds its key: a job that has not ended may hold it beyond its window
/// (`while_active`). So it is for every job of which [`holding`] asks the policy.
pub fn until_asks_policy(head: &Head) -> bool {
    head.state.is_live() && head.hold.period().is_some()
}

/// When a job stops holding its key by time alone, if that is certain: `policy` is its own, which has to be given [where its head
/// does not tell](until_asks_policy).
pub fn held_until(policy: Option<&UniquePolicy>, head: &Head, now: Timestamp) -> Option<Timestamp> {
    match policy {
        Some(policy) => blocks(policy, head, now).until(),
        None if until_asks_policy(head) => None,
        None => blocks_by(&head.hold, false, head, now).until(),
    }
}

/// Whether a head that is kept for its key's sake until then is one of the key's holders at `now`. Whether its store has
/// deleted it by then makes no difference.
pub fn is_kept(until: Timestamp, now: Timestamp) -> bool {
    now < until
}

/// When the holder's window starts; not yet, when it is to start at an end that has not come.
pub(super) fn anchor(from: PeriodFrom, head: &Head) -> Option<Timestamp> {
    match from {
        PeriodFrom::Created => Some(head.created_at),
        // A finished row without the time of its end does not occur; its creation bounds it from below.
        PeriodFrom::Finished if head.state.is_finished() => Some(head.finished_at.unwrap_or(head.created_at)),
        PeriodFrom::Finished => None,
        PeriodFrom::LastDuplicate => {
            Some(head.renewed_at.map_or(head.created_at, |at| at.max(head.created_at)))
        }
    }
}
