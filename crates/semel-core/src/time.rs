//! Points in time. Always the store's: nothing here reads a clock.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::error::Invalid;

const SIGN: u64 = 1 << 63;

/// A point in time, in microseconds since the Unix epoch, UTC. Saturates instead of overflowing.
// Stored as the microseconds with the sign bit flipped, so that unsigned order is the order of time, and an absent
// time takes no room of its own: a job's head has five.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(NonZeroU64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self::from_micros(0);
    /// Later than anything that can be stored.
    pub const MAX: Self = Self::from_micros(i64::MAX);

    /// The earliest moment that RFC 3339 can write: 0000-01-01T00:00:00Z.
    const YEAR_0: Self = Self::from_micros(-62_167_219_200_000_000);

    /// From microseconds since the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        match NonZeroU64::new((micros as u64) ^ SIGN) {
            Some(turned) => Self(turned),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// From milliseconds since the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        (self.0.get() ^ SIGN) as i64
    }

    /// Milliseconds since the epoch, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.as_micros().div_euclid(1_000)
    }

    /// This point moved forward, at most to [`MAX`](Self::MAX).
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        Self::from_micros(self.as_micros().saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(
            u64::try_from(self.as_micros().saturating_sub(earlier.as_micros())).unwrap_or(0),
        )
    }

    /// Parses an RFC 3339 timestamp with a zone (OJS core 5.5).
    ///
    /// # Errors
    /// `invalid_request` at `pointer` when the text is no timestamp with a zone, or its moment does not exist or
    /// cannot be shown.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        if !has_form_of_timestamp(text) {
            return Err(Invalid::request(
                pointer,
                "is not an RFC 3339 timestamp with a zone; write it like 2026-01-31T12:00:00Z",
            ));
        }
        let parsed = text.parse::<jiff::Timestamp>().ok().map(|at| Self::from_micros(at.as_microsecond()));
        parsed.filter(|at| at.can_be_shown()).ok_or_else(|| {
            Invalid::request(
                pointer,
                format!(
                    "is a time that does not exist or cannot be stored; check its day, time and zone, and keep it between {} and {}",
                    Self::YEAR_0,
                    Self::from_micros(jiff::Timestamp::MAX.as_microsecond())
                ),
            )
        })
    }

    /// Whether the moment can be shown in UTC. A zone east of Greenwich may put it before year 0, which RFC 3339
    /// cannot write, and jiff's timestamps end before the last day of year 9999 does.
    fn can_be_shown(self) -> bool {
        self >= Self::YEAR_0 && jiff::Timestamp::from_millisecond(self.as_millis()).is_ok()
    }
}

/// Whether a text looks like RFC 3339's `date-time`, zone included. jiff alone accepts more: lower case, spaces, bracketed zones,
/// times and offsets without colons or minutes.
pub fn has_form_of_timestamp(text: &str) -> bool {
    let is = |text: &str, form: &str| {
        let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
        text.len() == form.len() && text.bytes().zip(form.bytes()).all(fits)
    };
    let Some((point, rest)) = text.split_at_checked("0000-00-00T00:00:00".len()) else { return false };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => fraction.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    let is_fraction_told = zone.len() == rest.len() || rest.len() > zone.len() + 1;
    is(point, "0000-00-00T00:00:00")
        && is_fraction_told
        && (zone == "Z" || is(zone, "+00:00") || is(zone, "-00:00"))
}

impl Default for Timestamp {
    fn default() -> Self {
        Self::EPOCH
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.as_micros())
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
        assert_eq!(
            Timestamp::parse("2026-01-31T12:00:00+02:00", "").unwrap().to_string(),
            "2026-01-31T10:00:00Z"
        );
        assert_eq!(Timestamp::parse("0000-01-01T00:00:00Z", "").unwrap(), Timestamp::YEAR_0);
    }

    #[test]
    fn points_in_time_are_ordered_across_the_epoch_and_an_absent_one_is_free() {
        let points = [i64::MIN + 1, -1, 0, 1, i64::MAX].map(Timestamp::from_micros);
        assert!(points.is_sorted() && points.map(Timestamp::as_micros) == [i64::MIN + 1, -1, 0, 1, i64::MAX]);
        assert_eq!(size_of::<Option<Timestamp>>(), 8);
    }

    #[test]
    fn a_timestamp_without_a_zone_is_refused_with_its_place() {
        for text in [
            "2026-01-31T12:00:00",
            "2026-01-31",
            "tomorrow",
            "",
            "2026-01-31 12:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-31T12:00:00z",
            "2026-01-31T120000Z",
            "2026-01-31T12:00Z",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00+02",
            "2026-01-31T12:00:00+0200",
            "0000-01-01T00:02:45+02:00",
            "9999-12-31T00:00:00.1456+02:00",
        ] {
            let refused = Timestamp::parse(text, "/options/scheduled_at").unwrap_err();
            assert_eq!(refused.pointer, "/options/scheduled_at", "{text}");
        }
        for text in ["2026-13-01T00:00:00Z", "2026-02-29T00:00:00Z", "9999-12-31T00:00:00Z"] {
            let said = Timestamp::parse(text, "").unwrap_err().message;
            assert!(said.contains("between 0000-01-01T00:00:00Z and 9999-12-30T"), "{text}: {said}");
        }
    }
}
