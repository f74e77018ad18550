//! Regular expressions for strings. Matching time is bounded by the length of the text times that of the
//! pattern, both known beforehand.

use regex_lite::{Regex, RegexBuilder};

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 512;
/// Candidate size limits of a compiled pattern, as powers of two in bytes. The smallest one that suffices is
/// the pattern's.
const ROOM_BITS: std::ops::RangeInclusive<u32> = 10..=16;
/// Estimated size of one state of a compiled pattern, in bytes.
const PLACE_BYTES: u64 = 32;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    text: String,
    regex: Regex,
    /// Upper bound on the states that each character may be checked against.
    places: u64,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with the pattern.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("is longer than {PATTERN_BYTES_MAX} bytes; write a shorter one"));
        }
        // A syntax error is the same under every size limit, so the last error will do.
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

    /// Upper bound on the steps of matching the pattern against `text`.
    pub(super) fn steps(&self, text: &str) -> u64 {
        self.places.saturating_mul(text.len() as u64 + 1)
    }

    /// Whether the pattern matches anywhere in the text.
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
