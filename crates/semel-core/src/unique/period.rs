//! How long a window lasts: an ISO 8601 duration.

use std::fmt;
use std::time::Duration;

use jiff::tz::Offset;
use jiff::{Span, ToSpan as _, civil};

use crate::error::Invalid;
use crate::limits::PERIOD_DAYS_MAX;
use crate::time::Timestamp;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 24 * 3600 * SECOND;
/// What a month counts towards the bound on periods: a 1200th of a hundred years, in microseconds.
const MONTH_MEAN: u64 = PERIOD_DAYS_MAX.unsigned_abs() * DAY / 1200;
const MICROS_MAX: u64 = PERIOD_DAYS_MAX.unsigned_abs() * DAY;

/// The length of a window: at least a microsecond, at most [`PERIOD_DAYS_MAX`] days. It consists of whole
/// calendar months in UTC, then exact time. A day is 24 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Period {
    months: u32,
    micros: u64,
}

impl Period {
    /// Makes a period from its [months](Self::months) and [microseconds](Self::micros).
    ///
    /// `None` when the sum is zero or exceeds the bound.
    pub const fn new(months: u32, micros: u64) -> Option<Self> {
        // A month is less than 2^42 microseconds and there are less than 2^32 of them, so saturation
        // suffices.
        let length = (months as u64).saturating_mul(MONTH_MEAN).saturating_add(micros);
        if length == 0 || length > MICROS_MAX { None } else { Some(Self { months, micros }) }
    }

    /// Number of calendar months.
    pub const fn months(self) -> u32 {
        self.months
    }

    /// Number of microseconds on top of the months.
    pub const fn micros(self) -> u64 {
        self.micros
    }

    /// Approximate length in seconds, rounded up; a month counts as a 1200th of a hundred years.
    pub const fn about_s(self) -> u64 {
        // Cannot overflow: the bound is far below 2^64.
        (self.months as u64 * MONTH_MEAN + self.micros).div_ceil(SECOND)
    }

    /// Makes a period of milliseconds.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for 0 and for more than [`PERIOD_DAYS_MAX`] days.
    pub fn from_millis(millis: u64, pointer: &str) -> Result<Self, Invalid> {
        Self::new(0, millis.saturating_mul(1_000)).ok_or_else(|| out_of_bounds(pointer))
    }

    /// Makes a period of a duration, rounded up to whole microseconds.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for zero and for more than [`PERIOD_DAYS_MAX`] days.
    pub fn from_duration(duration: Duration, pointer: &str) -> Result<Self, Invalid> {
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::new(0, micros).ok_or_else(|| out_of_bounds(pointer))
    }

    /// Parses an ISO 8601 duration `P[n]Y[n]M[n]W[n]DT[n]H[n]M[n]S`: upper case, in this order, with at least
    /// one part, a fraction of at most nine digits in the seconds only. It is rounded up to whole
    /// microseconds, which changes no answer because time is counted in microseconds.
    ///
    /// # Errors
    /// `invalid_request` at `pointer` for any other text, for zero and for more than [`PERIOD_DAYS_MAX`]
    /// days.
    pub fn parse(text: &str, pointer: &str) -> Result<Self, Invalid> {
        let (months, micros) = read(text).ok_or_else(|| {
            Invalid::request(
                pointer,
                "is not an ISO 8601 duration; write it like PT30S, PT5M, P1D, P1W or P1M, in upper case, with a fraction in the seconds only",
            )
        })?;
        u32::try_from(months)
            .ok()
            .and_then(|months| Self::new(months, micros))
            .ok_or_else(|| out_of_bounds(pointer))
    }

    /// The end of a window that starts at `anchor`; [`Timestamp::MAX`] if that is beyond the calendar.
    ///
    /// A later anchor never gives an earlier end. A window whose day does not exist in its last month (31
    /// January plus one month) lasts to the end of that month, not to the anchor's time of day on its last
    /// day. So of several holders the one with the newest anchor blocks longest, and a store need not hand
    /// over the others.
    pub fn after(self, anchor: Timestamp) -> Timestamp {
        let from = if self.months == 0 {
            anchor
        } else {
            match months_after(anchor, self.months) {
                Some(at) => at,
                None => return Timestamp::MAX,
            }
        };
        from.saturating_add(Duration::from_micros(self.micros))
    }
}

fn months_after(anchor: Timestamp, months: u32) -> Option<Timestamp> {
    let start = Offset::UTC.to_datetime(jiff::Timestamp::from_microsecond(anchor.as_micros()).ok()?);
    let span = Span::new().try_months(i64::from(months)).ok()?;
    let end = start.checked_add(span).ok()?;
    let end = if end.day() == start.day() {
        end
    } else {
        // The last moment of that day: the latest end of any earlier anchor, hence the earliest end that
        // keeps the order.
        civil::DateTime::from_parts(end.date(), civil::Time::midnight())
            .checked_add(1.day())
            .and_then(|next| next.checked_sub(1.microsecond()))
            .ok()?
    };
    Some(Timestamp::from_micros(Offset::UTC.to_timestamp(end).ok()?.as_microsecond()))
}

/// Reads months and microseconds. Both saturate, since a value that does not fit exceeds the bound anyway.
fn read(text: &str) -> Option<(u64, u64)> {
    let mut rest = text.strip_prefix('P')?;
    let (mut months, mut micros) = (0_u64, 0_u64);
    let mut is_empty = true;
    for (unit, count) in [('Y', 12), ('M', 1)] {
        if let Some(n) = take_part(&mut rest, unit) {
            months = months.saturating_add(n.saturating_mul(count));
            is_empty = false;
        }
    }
    for (unit, length) in [('W', 7 * DAY), ('D', DAY)] {
        if let Some(n) = take_part(&mut rest, unit) {
            micros = micros.saturating_add(n.saturating_mul(length));
            is_empty = false;
        }
    }
    if let Some(time) = rest.strip_prefix('T') {
        rest = time;
        is_empty = true;
        for (unit, length) in [('H', 3600 * SECOND), ('M', 60 * SECOND)] {
            if let Some(n) = take_part(&mut rest, unit) {
                micros = micros.saturating_add(n.saturating_mul(length));
                is_empty = false;
            }
        }
        if let Some(seconds) = rest.strip_suffix('S') {
            micros = micros.saturating_add(read_seconds(seconds)?);
            (rest, is_empty) = ("", false);
        }
    }
    (rest.is_empty() && !is_empty).then_some((months, micros))
}

/// Takes a number and `unit` off the front of `rest`, if they come next.
fn take_part(rest: &mut &str, unit: char) -> Option<u64> {
    let length = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = rest.split_at(length);
    let after = after.strip_prefix(unit)?;
    let n = read_digits(digits)?;
    *rest = after;
    Some(n)
}

/// Reads seconds with an optional fraction, in microseconds rounded up.
fn read_seconds(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let nanos = read_digits(fraction).filter(|_| fraction.len() <= 9)?;
    let scale = 10_u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let micros = (nanos * scale).div_ceil(1_000);
    Some(read_digits(whole)?.saturating_mul(SECOND).saturating_add(micros))
}

fn read_digits(digits: &str) -> Option<u64> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // The only error left is overflow.
    Some(digits.parse().unwrap_or(u64::MAX))
}

fn out_of_bounds(pointer: &str) -> Invalid {
    Invalid::request(
        pointer,
        format!(
            "is zero or longer than {PERIOD_DAYS_MAX} days; leave the period out to hold for as long as a job is in `states`"
        ),
    )
}

/// Formats as ISO 8601, in years, months, days, hours, minutes and seconds.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P")?;
        let part = |f: &mut fmt::Formatter<'_>, n: u64, unit: char| {
            if n == 0 { Ok(()) } else { write!(f, "{n}{unit}") }
        };
        part(f, u64::from(self.months / 12), 'Y')?;
        part(f, u64::from(self.months % 12), 'M')?;
        part(f, self.micros / DAY, 'D')?;
        let time = self.micros % DAY;
        if time > 0 {
            f.write_str("T")?;
            part(f, time / (3600 * SECOND), 'H')?;
            part(f, time / (60 * SECOND) % 60, 'M')?;
            let (seconds, fraction) = (time / SECOND % 60, time % SECOND);
            if fraction > 0 {
                let digits = format!("{fraction:06}");
                write!(f, "{seconds}.{}S", digits.trim_end_matches('0'))?;
            } else {
                part(f, seconds, 'S')?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text, "").unwrap()
    }

    #[test]
    fn a_period_is_read_strictly() {
        for (text, months, micros) in [
            ("PT1S", 0, SECOND),
            ("PT0.5S", 0, SECOND / 2),
            ("PT0.000000001S", 0, 1),
            ("PT1.5S", 0, 3 * SECOND / 2),
            ("P1D", 0, DAY),
            ("P1W", 0, 7 * DAY),
            ("P1W2D", 0, 9 * DAY),
            ("PT36H", 0, DAY + DAY / 2),
            ("P1M", 1, 0),
            ("P1Y2M3DT4H5M6.5S", 14, 3 * DAY + (4 * 3600 + 5 * 60 + 6) * SECOND + SECOND / 2),
            ("P100Y", 1200, 0),
            ("P36525D", 0, MICROS_MAX),
            ("P0Y0M1DT0H", 0, DAY),
        ] {
            let period = Period::parse(text, "").unwrap();
            assert_eq!((period.months(), period.micros()), (months, micros), "{text}");
        }
        for text in [
            "",
            "P",
            "PT",
            "P1DT",
            "p1d",
            "PT1h",
            "-PT1H",
            "P-1D",
            "+P1D",
            "1 hour",
            "1h 30m",
            "3600s",
            "3600",
            "PT1.5H",
            "P1.5D",
            "PT1,5S",
            "PT.5S",
            "PT1.S",
            "PT1.1234567890S",
            "P1H",
            "PT1D",
            "P1D1W",
            "P1M1Y",
            "PT1S1M",
            "PT1S1S",
            "PT5S1.5S",
            "PT1.5S5S",
            " P1D",
            "P1D ",
            "P1D\0",
            "P１D",
            "PT0S",
            "P0D",
            "PT0.0S",
            "P36526D",
            "P101Y",
            "P100YT0.000001S",
            "P99999999999999999999Y",
            "PT99999999999999999999999S",
            "P1YT",
            "PTS",
            "PY",
            "PT1.5.5S",
            "PT1M.5S",
            "PT-1.5S",
        ] {
            let refused = Period::parse(text, "/options/unique/period").unwrap_err();
            assert_eq!(refused.pointer, "/options/unique/period", "{text}");
        }
    }

    #[test]
    fn months_are_calendar_time_in_utc() {
        let month = Period::parse("P1M", "").unwrap();
        assert_eq!(month.after(at("2026-01-28T10:00:00Z")), at("2026-02-28T10:00:00Z"));
        assert_eq!(month.after(at("2026-03-31T00:00:00Z")).to_string(), "2026-04-30T23:59:59.999Z");
        assert_eq!(month.after(at("2026-01-31T10:00:00Z")).to_string(), "2026-02-28T23:59:59.999Z");
        // Exact to the microsecond: a holder of the day before, however late in that day, blocks no longer.
        let before = |text: &str| Timestamp::from_micros(at(text).as_micros() - 1);
        assert_eq!(month.after(at("2026-01-31T10:00:00Z")), before("2026-03-01T00:00:00Z"));
        assert_eq!(month.after(before("2026-01-29T00:00:00Z")), before("2026-03-01T00:00:00Z"));
        assert_eq!(
            Period::parse("P1Y", "").unwrap().after(at("2026-01-28T10:00:00Z")),
            at("2027-01-28T10:00:00Z")
        );
        assert_eq!(
            Period::parse("P1MT1H", "").unwrap().after(at("2026-01-28T10:00:00Z")),
            at("2026-02-28T11:00:00Z")
        );
        assert_eq!(month.after(Timestamp::MAX), Timestamp::MAX);
        assert_eq!(Period::parse("P1D", "").unwrap().after(Timestamp::MAX), Timestamp::MAX);
    }

    #[test]
    fn a_period_from_elsewhere_obeys_the_same_bounds() {
        assert_eq!(Period::from_millis(1_500, "").unwrap().to_string(), "PT1.5S");
        assert_eq!(Period::from_duration(Duration::from_nanos(1), "").unwrap().micros(), 1);
        for refused in [
            Period::from_millis(0, "/p"),
            Period::from_millis(u64::MAX, "/p"),
            Period::from_duration(Duration::ZERO, "/p"),
            Period::from_duration(Duration::MAX, "/p"),
        ] {
            assert_eq!(refused.unwrap_err().pointer, "/p");
        }
        assert_eq!(Period::new(u32::MAX, u64::MAX), None);
    }

    fn period() -> impl Strategy<Value = Period> {
        (0..=1200_u32, prop_oneof![Just(0), 0..=MICROS_MAX, 0..=100 * SECOND])
            .prop_filter_map("no period", |(months, micros)| Period::new(months, micros))
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(period in period()) {
            prop_assert_eq!(Period::parse(&period.to_string(), "").unwrap(), period);
        }

        #[test]
        fn a_later_anchor_never_ends_earlier(period in period(), from in 0..4_000_000_000_000_000_i64, by in 0..5 * DAY as i64) {
            let (early, late) = (Timestamp::from_micros(from), Timestamp::from_micros(from + by));
            prop_assert!(period.after(early) <= period.after(late));
            prop_assert!(period.after(early) > early);
        }
    }
}
