//! Misspelt members: names that are no member but nearly one. Unknown members are kept with a job (OJS core
//! 5.4), so a misspelling would be ignored silently, and a job without its policy runs twice.

use semel_core::error::Invalid;

use crate::members::{Members, Value};

/// Shorter names are too close to others that have a meaning, as `time` is to `type`.
const NAME_LEAST: usize = 5;
/// Longer names are no misspelling.
const NAME_MOST: usize = 40;

/// Prefixes of a sender's own names, which are never taken for misspellings.
const OWN: [&str; 4] = ["x_", "x-", "_", "ext_"];

/// The known name that the value's name misspells by one slip, or writes in another style (`maxAttempts`).
/// Must not be called with a name that is itself known.
pub(crate) fn meant<'k>(name: &str, value: Value<'_>, known: &[&'k str]) -> Option<&'k str> {
    let is_own = OWN.iter().any(|own| name.starts_with(own));
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if value.is_null() || is_own || !is_word || !(NAME_LEAST - 1..=NAME_MOST).contains(&name.len()) {
        return None;
    }
    let is_near = |known: &&str| {
        known.len() >= NAME_LEAST
            && (plain(name).eq(plain(known))
                || name.len().abs_diff(known.len()) <= 1 && strsim::osa_distance(name, known) <= 1)
    };
    known.iter().copied().find(is_near)
}

/// Refuses a value whose name [misspells](meant) a known one.
pub(crate) fn refuse_slip(name: &str, value: Value<'_>, known: &[&str]) -> Result<(), Invalid> {
    match meant(name, value, known) {
        Some(meant) => Err(value.refuse(format!(
            "is not a known member; did you mean {meant}? A member of your own needs a name less similar to it"
        ))),
        None => Ok(()),
    }
}

/// As [`refuse_slip`], for all members whose names are not known.
pub(crate) fn refuse_slips(members: &Members<'_>, base: &str, known: &[&str]) -> Result<(), Invalid> {
    let mut odd = members.iter(base).filter(|(name, _)| !known.contains(name));
    odd.try_for_each(|(name, value)| refuse_slip(name, value, known))
}

/// The members of an object in which only known ones have a meaning: misspellings of these have been refused,
/// and no others can be read, so code cannot read a new member without it being guarded.
pub(crate) struct Guarded<'a> {
    members: Members<'a>,
    base: &'static str,
    known: &'static [&'static str],
}

impl<'a> Guarded<'a> {
    /// Reads the body of a request, as [`Members::request`].
    pub(crate) fn request(
        text: &'a str,
        example: &str,
        known: &'static [&'static str],
    ) -> Result<Self, Invalid> {
        Self::of(Members::request(text, example)?, "", known)
    }

    /// Guards the members of an object whose place is `base`.
    pub(crate) fn of(
        members: Members<'a>,
        base: &'static str,
        known: &'static [&'static str],
    ) -> Result<Self, Invalid> {
        refuse_slips(&members, base, known)?;
        Ok(Self { members, base, known })
    }

    /// The value of that name, unless it is null.
    pub(crate) fn get<'m>(&'m self, name: &str) -> Option<Value<'m>> {
        debug_assert!(
            self.known.contains(&name),
            "{name} is read and not listed: its slips would be passed over"
        );
        self.members.get(self.base, name)
    }
}

/// The name without its word separators and in one case, for comparing styles.
fn plain(name: &str) -> impl Iterator<Item = u8> {
    name.bytes().filter(|byte| !b"_-".contains(byte)).map(|byte| byte.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_a_member_is_refused_with_the_one_that_was_meant() {
        let known = ["unique", "max_attempts", "type", "queue", "timezone"];
        let refused = |name: &str| {
            let text = format!("{{\"{name}\": 1}}");
            let members = Members::read(&text, "").unwrap();
            refuse_slips(&members, "", &known).err().map(|refused| refused.to_string())
        };
        let slips = [
            ("unqiue", 0),
            ("uniqe", 0),
            ("Unique", 0),
            ("maxAttempts", 1),
            ("max_attempt", 1),
            ("Max-Attempts", 1),
            ("quue", 3),
            ("timezon", 4),
        ];
        for (name, meant) in slips {
            let said = refused(name).unwrap_or_default();
            assert!(said.contains(known[meant]), "{name}: {said}");
        }
        for own in [
            "time",
            "types",
            "source",
            "uniquely_mine",
            "x",
            "queue",
            "attempts",
            "queue_of_mine",
            "/queue",
            "x_queue",
            "x-unique",
            "_queue",
            "ext_queue",
        ] {
            assert_eq!(refused(own), None, "{own}");
        }
    }
}
