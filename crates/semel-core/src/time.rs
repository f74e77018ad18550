//! Points in time. Always the store's: nothing here reads a clock.

use std::fmt;
use std::time::Duration;

use crate::error::Invalid;

/// A point in time, in microseconds since the Unix epoch, UTC. Saturates instead of overflowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// Later than anything that can be stored.
    pub const MAX: Self = Self(i64::MAX);

    /// From microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the epoch, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// This point moved forward.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses an RFC 3339 timestamp with a zone (OJS core 5.5).
    ///
    /// # Errors
    /// `invalid_request` at `pointer` when the text has no zone or is no timestamp.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        // jiff alone accepts more than RFC 3339 does (lower case, spaces, bracketed zones).
        let plain = text.len() >= 20
            && text.as_bytes().get(10) == Some(&b'T')
            && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b':' | b'.' | b'T' | b'Z' | b'+'));
        let parsed = plain.then(|| text.parse::<jiff::Timestamp>().ok()).flatten();
        match parsed {
            Some(at) => Ok(Self(at.as_microsecond())),
            None => Err(Invalid::request(
                pointer,
                "is not an RFC 3339 timestamp with a zone; write it like 2026-01-31T12:00:00Z",
            )),
        }
    }
}

/// RFC 3339 in UTC with `Z`, with milliseconds only when there are any, so that a caller's whole second is echoed
/// as it was sent.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = jiff::Timestamp::from_millisecond(self.as_millis()).unwrap_or(jiff::Timestamp::MAX);
        fmt::Display::fmt(&shown, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_echoed_as_it_was_sent() {
        for text in ["2099-12-31T23:59:59Z", "2026-01-31T12:00:00.25Z", "1970-01-01T00:00:00Z"] {
            assert_eq!(Timestamp::parse(text, "").unwrap().to_string(), text);
        }
        assert_eq!(Timestamp::parse("2026-01-31T12:00:00+02:00", "").unwrap().to_string(), "2026-01-31T10:00:00Z");
    }

    #[test]
    fn a_timestamp_without_a_zone_is_refused_with_its_place() {
        for text in ["2026-01-31T12:00:00", "2026-01-31", "tomorrow", "", "2026-01-31 12:00:00Z", "2026-13-01T00:00:00Z"] {
            let refused = Timestamp::parse(text, "/options/scheduled_at").unwrap_err();
            assert_eq!(refused.pointer, "/options/scheduled_at", "{text}");
        }
    }
}
