//! Patterns of texts. They are matched in a time that grows with the text and the pattern and no faster, and both are known
//! before.

use regex_lite::{Regex, RegexBuilder};

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 512;
/// Room that a pattern may take when it has been read, in bytes: powers of two up to this.
const ROOM_BITS: std::ops::RangeInclusive<u32> = 10..=16;
/// Room of one of a pattern's places, in bytes.
const PLACE_BYTES: u64 = 32;

/// A pattern that was read.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    text: String,
    regex: Regex,
    /// Places that a text's character may be looked at in.
    places: u64,
}

impl Pattern {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("is longer than {PATTERN_BYTES_MAX} bytes; write a shorter one"));
        }
        // The first one tells what is wrong, whatever the room.
        let mut wrong = String::new();
        for bits in ROOM_BITS {
            let room = 1_usize << bits;
            match RegexBuilder::new(text).size_limit(room).build() {
                Ok(regex) => {
                    return Ok(Self { text: text.to_owned(), regex, places: (room as u64) / PLACE_BYTES });
                }
                Err(error) => wrong = error.to_string(),
            }
        }
        Err(format!("is not a pattern that can be matched in bounded time: {wrong}"))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// What looking for it in a text may cost.
    pub(super) fn steps(&self, text: &str) -> u64 {
        self.places.saturating_mul(text.len() as u64 + 1)
    }

    /// Whether it is anywhere in the text.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_read_with_what_it_costs() {
        let small = Pattern::read("^[a-z]+$").unwrap();
        let large = Pattern::read("^([a-z]{3}x){50}$").unwrap();
        assert!(small.steps("abc") < large.steps("abc"));
        assert!(small.is_in("abc") && !small.is_in("ABC"));
        for (text, part) in [
            ("(a", "pattern"),
            ("(?=a)b", "pattern"),
            ("(a)\\1", "pattern"),
            ("((a{100}){100}){100}", "bounded time"),
            (&"a".repeat(600), "longer"),
        ] {
            let refused = Pattern::read(text).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
