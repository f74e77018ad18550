//! Durations and points in time, in every spelling that clients send.

use std::fmt;
use std::time::Duration;

use semel_core::enqueue::When;
use semel_core::error::Invalid;
use semel_core::limits::{PERIOD_DAYS_MAX, TIMEOUT_MS_MAX};
use semel_core::time::{Timestamp, has_form_of_timestamp};
use semel_core::unique::Period;

use crate::members::Value;

/// The longest duration, in either spelling: a time this far from now can still be shown as it is stored.
const LENGTH_MAX: Duration = Duration::from_secs(PERIOD_DAYS_MAX.unsigned_abs() * 24 * 3600);

/// Reads a duration: ISO 8601 (`PT1M30S`; days are 24 hours; calendar months have no fixed length and are
/// refused) or Go's notation (`1m30s`, `250ms`).
///
/// # Errors
/// `invalid_request` at `pointer` for any other text, and for more than [`PERIOD_DAYS_MAX`] days.
pub fn parse(text: &str, pointer: &str) -> Result<Duration, Invalid> {
    let refuse = || {
        let advice = format!(
            "is not a duration of at most {PERIOD_DAYS_MAX} days; write it in ISO 8601, such as PT30S, PT5M or PT0.5S"
        );
        Invalid::request(pointer, advice)
    };
    if !text.starts_with('P') {
        return go(text).filter(|length| *length <= LENGTH_MAX).ok_or_else(refuse);
    }
    if is_zero(text) {
        return Ok(Duration::ZERO);
    }
    let period = Period::parse(text, pointer).map_err(|_| refuse())?;
    if period.months() > 0 {
        return Err(Invalid::request(
            pointer,
            "has months or years, whose length is not fixed; write days, such as P30D",
        ));
    }
    Ok(Duration::from_micros(period.micros()))
}

/// A duration in whole milliseconds, rounded up, so that a short one never becomes zero.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Reads the member `visibility_timeout`, a duration, in milliseconds. `millis` is the value of
/// `visibility_timeout_ms` beside it, 0 if not given.
pub(crate) fn visibility(value: Value<'_>, millis: u32) -> Result<u32, Invalid> {
    let length = parse(&value.string()?, &value.pointer())?;
    // Less than a millisecond is not 0, which would mean the default.
    let own = u32::try_from(self::millis(length)).ok();
    let own = own.filter(|own| u64::from(*own) <= TIMEOUT_MS_MAX);
    let own = own.ok_or_else(|| {
        value.refuse(format!("is longer than {} days; send a shorter one", TIMEOUT_MS_MAX / 86_400_000))
    })?;
    if millis != 0 && own != 0 && own != millis {
        return Err(value.refuse("differs from visibility_timeout_ms; send one of them"));
    }
    Ok(millis.max(own))
}

/// Whether the text is a well-formed ISO 8601 duration of zero.
fn is_zero(text: &str) -> bool {
    let has_digits = text.bytes().any(|byte| byte == b'0');
    has_digits
        && !text.bytes().any(|byte| matches!(byte, b'1'..=b'9'))
        && Period::parse(&text.replace('0', "1"), "").is_ok()
}

/// Reads a duration in Go's notation: numbers, each with its unit.
pub(crate) fn go(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0_f64;
    while !rest.is_empty() {
        let length = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (digits, after) = rest.split_at(length);
        let unit_length = after.bytes().take_while(|byte| !byte.is_ascii_digit() && *byte != b'.').count();
        let (unit, next) = after.split_at(unit_length);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        // Of texts of digits and dots only "." and those with two dots do not parse as numbers.
        seconds += digits.parse::<f64>().ok()? * scale;
        rest = next;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// Reads a point in time: RFC 3339 with a zone, or a duration from the admission, prefixed with `+` unless it begins with `P`.
///
/// # Errors
/// `invalid_request` at `pointer` for any other text.
pub fn when(text: &str, pointer: &str) -> Result<When, Invalid> {
    // No timestamp begins with a P, so the sign may be left out there.
    match text.strip_prefix('+').or_else(|| text.starts_with('P').then_some(text)) {
        Some(after) => parse(after, pointer).map(When::In),
        None => match Timestamp::parse(text, pointer) {
            Ok(at) => Ok(When::At(at)),
            Err(no_moment) if has_form_of_timestamp(text) => Err(no_moment),
            Err(_) => Err(Invalid::request(
                pointer,
                "is neither an RFC 3339 timestamp with a zone nor relative; write it like 2026-01-31T12:00:00Z, or +PT5M for five minutes from now",
            )),
        },
    }
}

/// A duration in ISO 8601, in seconds or whole minutes and hours, to the microsecond, which is the store's resolution.
pub(crate) struct Iso(pub(crate) Duration);

impl fmt::Display for Iso {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.subsec_micros()) {
            (s, 0) if s > 0 && s % 3600 == 0 => write!(f, "PT{}H", s / 3600),
            (s, 0) if s > 0 && s % 60 == 0 => write!(f, "PT{}M", s / 60),
            (s, 0) => write!(f, "PT{s}S"),
            (s, us) if us % 1000 == 0 => write!(f, "PT{s}.{:03}S", us / 1000),
            (s, us) => write!(f, "PT{s}.{us:06}S"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for (micros, text) in [
            (0, "PT0S"),
            (1, "PT0.000001S"),
            (250_000, "PT0.250S"),
            (1_500_001, "PT1.500001S"),
            (61_000_000, "PT61S"),
            (300_000_000, "PT5M"),
            (7_200_000_000, "PT2H"),
        ] {
            let length = Duration::from_micros(micros);
            assert_eq!((Iso(length).to_string().as_str(), parse(text, "").unwrap()), (text, length));
        }
    }

    #[test]
    fn both_spellings_are_read() {
        for (text, millis) in [
            ("PT1S", 1_000),
            ("PT0.25S", 250),
            ("PT0S", 0),
            ("P1DT1H", 25 * 3_600_000),
            ("1s", 1_000),
            ("300s", 300_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("250ms", 250),
            ("P36525D", 36_525 * 86_400_000),
            ("36525d", 36_525 * 86_400_000),
        ] {
            assert_eq!(parse(text, "").unwrap(), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "1", "s", "P", "PT", "P1M", "1 hour", "-1s", "1x", "..s", "pt1s", "P0"] {
            assert_eq!(parse(text, "/x").unwrap_err().pointer, "/x", "{text}");
        }
        for text in ["P36526D", "36526d", "99999999999h"] {
            let refused = parse(text, "/x").unwrap_err();
            assert!(refused.message.contains("at most 36525 days"), "{text}: {refused}");
        }
    }

    #[test]
    fn times_are_absolute_or_relative() {
        assert_eq!(when("+PT2S", "").unwrap(), When::In(Duration::from_secs(2)));
        assert_eq!(when("PT2S", "").unwrap(), When::In(Duration::from_secs(2)));
        assert_eq!(when("1970-01-01T00:00:01Z", "").unwrap(), When::At(Timestamp::from_millis(1_000)));
        for text in ["2026-01-31T12:00:00", "+", "+2", "soon", "P", "2s", "-PT2S"] {
            assert!(when(text, "/x").is_err(), "{text}");
        }
        assert!(when("soon", "/x").unwrap_err().message.contains("or +PT5M"));
        let there_is_none = when("2026-02-30T12:00:00Z", "/x").unwrap_err().message;
        assert!(there_is_none.contains("a time that does not exist"), "{there_is_none}");
    }
}
