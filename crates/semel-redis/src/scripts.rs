//! The scripts' texts. Each is sent to Redis once per connection, and then called by its digest.
//!
//! The files of `lua/` contain marks for values that are defined elsewhere; they are replaced by numbers
//! before a script is sent, so that it looks none up when it runs.

use std::sync::LazyLock;

use semel_core::lease::Unclaimable;
use semel_core::slot::Slot;
use semel_store::bounds::CROWD_MIN;

use crate::dealing::GRANTED;
use crate::head::{KEPT, flag, part};

/// The texts, in the order of the scripts' numbers.
static TEXTS: LazyLock<[String; Script::ALL.len()]> = LazyLock::new(|| {
    let marks = marks();
    Script::ALL.map(|script| {
        marks.iter().fold(script.source().to_owned(), |text, (mark, value)| text.replace(mark, value))
    })
});

/// The value of each mark. No mark is the beginning of another.
fn marks() -> Vec<(&'static str, String)> {
    let numbers = [
        ("@SLOT_READY", Slot::Ready as u8),
        ("@SLOT_TIMER", Slot::Timer as u8),
        ("@SLOT_LEASE", Slot::Lease as u8),
        ("@SLOT_DONE", Slot::Done as u8),
        ("@SLOT_KEPT", KEPT),
        ("@FLAG_EXHAUSTED", flag::EXHAUSTED),
        ("@FLAG_ALONE", flag::ALONE),
        ("@FLAG_DEAD", flag::DEAD),
        ("@FLAG_LIMITED", flag::LIMITED),
        ("@FLAG_KEY", flag::KEY),
        ("@ALL_BUT_DEAD", !flag::DEAD),
        ("@WHY_EXPIRED", Unclaimable::Expired.code()),
        ("@WHY_EXHAUSTED", Unclaimable::Exhausted.code()),
        ("@WHY_OVERLAPS", Unclaimable::Overlaps.code()),
        ("@WHY_LIMITED", Unclaimable::Limited.code()),
        ("@WHY_GRANTED", GRANTED),
    ];
    // First and last byte, as Lua's `sub` takes them.
    let parts = [
        ("@AT_VERSION", part::VERSION),
        ("@AT_FENCE", part::FENCE),
        ("@AT_PLACE", part::PLACE),
        ("@AT_EXPIRY", part::EXPIRY),
        ("@AT_VISIBLE", part::VISIBLE),
        ("@AT_LIMIT", part::LIMIT),
    ];
    let numbers = numbers.into_iter().map(|(mark, number)| (mark, number.to_string()));
    let parts = parts.into_iter().map(|(mark, (first, last))| (mark, format!("{first}, {last}")));
    numbers.chain(parts).chain([("@CROWD_MIN", CROWD_MIN.to_string())]).collect()
}

/// One of the store's scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Script {
    /// Loads what a decision reads.
    Load,
    /// Applies groups of writes.
    Commit,
    /// Serves claims.
    Claim,
    /// Answers questions of people and background duties.
    Look,
    /// Does housekeeping.
    Upkeep,
    /// Opens the store on a new connection.
    Open,
    /// Performs the steps of a crossing.
    Cross,
}

impl Script {
    /// All scripts, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Load, Self::Commit, Self::Claim, Self::Look, Self::Upkeep, Self::Open, Self::Cross];

    /// The script's text, ready to be sent.
    pub fn text(self) -> &'static str {
        &TEXTS[self as usize]
    }

    /// The script's text with its marks.
    const fn source(self) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::{Script, marks};

    #[test]
    fn each_mark_is_replaced() {
        for script in Script::ALL {
            // An `@` alone is part of a key's name.
            let is_mark = |(at, _): &(usize, &str)| script.text()[at + 1..].starts_with(char::is_alphabetic);
            let left = script.text().match_indices('@').find(is_mark);
            assert_eq!(left.map(|(at, _)| script.text()[at..].lines().next()), None, "{script:?}");
        }
        for (mark, _) in marks() {
            assert!(Script::ALL.iter().any(|script| script.source().contains(mark)), "{mark} stands nowhere");
            let begins = marks().iter().filter(|(other, _)| other.starts_with(mark)).count();
            assert_eq!(begins, 1, "another one begins with {mark}");
        }
    }

    /// The text that follows each occurrence of `what`.
    fn behind<'a>(text: &'a str, what: &'a str) -> impl Iterator<Item = &'a str> {
        text.match_indices(what).map(move |(at, _)| &text[at + what.len()..])
    }

    #[test]
    fn slots_flags_and_reasons_are_known_by_name() {
        let mut looked_at = 0;
        for script in Script::ALL {
            let text = script.source();
            let slots = ["h", "old", "new"].map(|head| format!("byte({head}, 1)"));
            let slots = slots.iter().flat_map(|slot| behind(text, slot));
            let compared = slots.chain(behind(text, "slot ")).chain(behind(text, "why "));
            let compared = compared.filter_map(|rest| {
                ["== ", "~= ", " == ", " ~= "].iter().find_map(|sign| rest.strip_prefix(sign))
            });
            let flags = behind(text, "flag(").filter_map(|rest| Some(rest.split_once(", ")?.1));
            for value in compared.chain(flags) {
                looked_at += 1;
                let is_bare = value.starts_with(|first: char| first.is_ascii_digit());
                assert!(!is_bare, "{script:?}: {}", value.lines().next().unwrap());
            }
        }
        assert!(looked_at > 20, "{looked_at}");
    }

    /// These numbers are stored, and read by servers of other versions.
    #[test]
    fn the_numbers_stand_where_the_marks_are() {
        assert!(Script::Claim.text().contains("if why ~= 3 then"));
        assert!(Script::Commit.text().contains("[1] = 't', [3] = 'a', [4] = 'd'"));
        assert!(Script::Upkeep.text().contains("if n >= 8 and bit.band(n, n - 1) == 0 then"));
    }
}
