//! When a cron ticks: an expression evaluated in a zone's wall-clock time.
//!
//! # Where clocks change
//! - A wall-clock time that is skipped (clocks go forward) never comes: no tick.
//! - A wall-clock time that comes twice (clocks go back) ticks the first time (OJS cron 5.2). An expression
//!   that ticks in every hour of the day ticks both times: to it the repeated hour is an hour like any other,
//!   so that a job that runs every ten minutes does not pause for an hour.

use std::fmt;
use std::time::Duration;

use croner::Cron as Expression;
use croner::errors::CronError;
use croner::parser::{CronParser, Year};
use jiff::civil;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use crate::error::Invalid;
use crate::limits::CRON_EXPRESSION_BYTES_MAX;
use crate::time::Timestamp;

/// The shortest interval of `@every`, in milliseconds (OJS cron 7.3).
const EVERY_MS_MIN: u64 = 1_000;
/// The longest interval of `@every`, in milliseconds: ten years.
const EVERY_MS_MAX: u64 = 10 * 366 * 24 * 3_600 * 1_000;
/// Most wall-clock times tried to find one that exists: enough for everything that one clock change can skip,
/// second by second.
const LOOKS_MAX: usize = 100_000;

/// The fields of an expression and their allowed values. With five fields, the seconds are left out.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of month", "1-31 or L"),
    ("month", "1-12 or JAN-DEC"),
    ("day of week", "0-7 or SUN-SAT"),
];

/// When a cron ticks.
#[derive(Clone)]
pub struct Schedule {
    kind: Kind,
    zone: TimeZone,
}

#[derive(Clone)]
enum Kind {
    /// Ticks by the wall clock.
    Calendar {
        expression: Box<Expression>,
        /// Whether it ticks in every hour of the day.
        is_hourly: bool,
    },
    /// Ticks at this interval after the registration or the last tick.
    Every(Duration),
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Calendar { expression, .. } => write!(f, "{}", expression.as_str()),
            Kind::Every(interval) => write!(f, "every {interval:?}"),
        }
    }
}

impl Schedule {
    /// Parses an expression: five fields, or six with seconds first; `@yearly`, `@annually`, `@monthly`,
    /// `@weekly`, `@daily`, `@midnight`, `@hourly`; or `@every` with an interval such as `1h30m`. `zone` is
    /// the name of an IANA zone.
    ///
    /// # Errors
    /// `invalid_request` at `/expression` or `/timezone`; also for an expression that never matches any time.
    pub fn parse(expression: &str, zone: &str) -> Result<Self, Invalid> {
        let zone = read_zone(zone)?;
        let text = expression.trim();
        let refuse = |message: String| Invalid::request("/expression", message);
        if text.is_empty() || text.len() > CRON_EXPRESSION_BYTES_MAX {
            return Err(refuse(format!(
                "is empty or longer than {CRON_EXPRESSION_BYTES_MAX} bytes; write five fields, such as 0 9 * * MON-FRI"
            )));
        }
        if let Some(interval) = text.strip_prefix("@every") {
            let interval = read_interval(interval.trim()).ok_or_else(|| {
                refuse(
                    "is not an interval from one second to ten years; write it like @every 30m or @every 1h30m"
                        .to_owned(),
                )
            })?;
            return Ok(Self { kind: Kind::Every(interval), zone });
        }
        let long = alias(text)?;
        let fields = long.split_ascii_whitespace().count();
        if !(5..=6).contains(&fields) {
            return Err(refuse(format!(
                "has {fields} fields; write minute, hour, day of month, month, day of week, optionally with seconds first"
            )));
        }
        let parsed = parse_fields(long);
        let parsed = parsed.map_err(|error| {
            refuse(odd_fields(long).unwrap_or_else(|| format!("is not a cron expression ({error})")))
        });
        let expression = Box::new(parsed?);
        // Tests the hours themselves, so it does not matter how they are written.
        let is_hourly = (0..24).all(|hour| expression.pattern.hour_match(hour).unwrap_or(false));
        let schedule = Self { kind: Kind::Calendar { expression, is_hourly }, zone };
        if schedule.next_after(Timestamp::from_millis(1_767_225_600_000), Timestamp::EPOCH).is_none() {
            return Err(refuse("never matches, like 30 February; correct the day or the month".to_owned()));
        }
        Ok(schedule)
    }

    /// The first tick after `after`. `anchor` is what an interval counts from: the registration or the last
    /// tick.
    pub fn next_after(&self, after: Timestamp, anchor: Timestamp) -> Option<Timestamp> {
        match &self.kind {
            Kind::Every(interval) => Some(next_of(*interval, after, anchor)),
            Kind::Calendar { expression, is_hourly } => {
                let after = jiff::Timestamp::from_microsecond(after.as_micros()).ok()?;
                let first = self.next_by_wall_clock(expression, *is_hourly, after);
                let again = if *is_hourly { self.next_in_repeated(expression, after) } else { None };
                let next = match (first, again) {
                    (Some(first), Some(again)) => first.min(again),
                    (first, again) => first.or(again)?,
                };
                Some(Timestamp::from_micros(next.as_microsecond()))
            }
        }
    }

    /// The first tick after `after` by the wall clock. A time that comes twice counts the first time; the
    /// second one counts if the first is past and the expression is hourly.
    fn next_by_wall_clock(
        &self,
        expression: &Expression,
        is_hourly: bool,
        after: jiff::Timestamp,
    ) -> Option<jiff::Timestamp> {
        let mut wall = self.zone.to_datetime(after);
        for _ in 0..LOOKS_MAX {
            wall = expression.find_next_occurrence(&wall, false).ok()?;
            let instants = match self.zone.to_ambiguous_timestamp(wall).offset() {
                AmbiguousOffset::Unambiguous { offset } => [offset.to_timestamp(wall).ok(), None],
                AmbiguousOffset::Gap { .. } => [None, None],
                AmbiguousOffset::Fold { before, after } => {
                    let second = if is_hourly { after.to_timestamp(wall).ok() } else { None };
                    [before.to_timestamp(wall).ok(), second]
                }
            };
            if let Some(next) = instants.into_iter().flatten().find(|instant| *instant > after) {
                return Some(next);
            }
        }
        None
    }

    /// The first tick in the second pass of the next repeated hour.
    fn next_in_repeated(&self, expression: &Expression, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let change = self.zone.following(after).next()?;
        let begins = change.timestamp();
        let wall: civil::DateTime = change.offset().to_datetime(begins);
        let next = expression.find_next_occurrence(&wall, true).ok()?;
        match self.zone.to_ambiguous_timestamp(next).offset() {
            AmbiguousOffset::Fold { after: offset, .. } => {
                offset.to_timestamp(next).ok().filter(|instant| *instant >= begins)
            }
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Gap { .. } => None,
        }
    }
}

fn parse_fields(text: &str) -> Result<Expression, CronError> {
    CronParser::builder().year(Year::Disallowed).build().parse(text)
}

/// For a text that is not an expression, names the fields that are wrong on their own and what each may
/// contain; `None` if each field is valid on its own.
fn odd_fields(text: &str) -> Option<String> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let first = FIELDS.len().checked_sub(fields.len())?;
    let is_odd = |at: usize, field: &str| {
        let mut alone = vec!["*"; fields.len()];
        alone[at] = field;
        parse_fields(&alone.join(" ")).is_err()
    };
    let odd = fields.iter().zip(&FIELDS[first..]).enumerate().filter(|(at, (field, _))| is_odd(*at, field));
    let odd: Vec<String> =
        odd.map(|(at, (_, (name, may)))| format!("field {} ({name}) must be {may}", at + 1)).collect();
    (!odd.is_empty()).then(|| {
        format!("is not a cron expression: {}; or *, or a list, range or step of these", odd.join("; "))
    })
}

/// Expands names that stand for other expressions (OJS cron 4).
fn alias(text: &str) -> Result<&str, Invalid> {
    if !text.starts_with('@') {
        return Ok(text);
    }
    Ok(match text.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            return Err(Invalid::request(
                "/expression",
                "is not the name of a schedule; use @yearly, @monthly, @weekly, @daily, @hourly or @every 30m",
            ));
        }
    })
}

/// Looks up a zone by its IANA name in the compiled-in database. Offsets do not know summer time, and an
/// abbreviation stands for several zones (OJS cron 5.1).
fn read_zone(name: &str) -> Result<TimeZone, Invalid> {
    let refuse = || {
        Invalid::request(
            "/timezone",
            "is not the name of an IANA time zone; write UTC, or a place such as Europe/Berlin, not an offset or an abbreviation",
        )
    };
    if name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    if !name.contains('/') || name.starts_with("Etc/GMT+") || name.starts_with("Etc/GMT-") {
        return Err(refuse());
    }
    TimeZoneDatabase::bundled().get(name).map_err(|_| refuse())
}

/// Parses an interval as Go writes it: numbers with the units `h`, `m`, `s`, `ms`, in any order.
fn read_interval(text: &str) -> Option<Duration> {
    let mut millis = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let unit = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let factor = match rest.get(..unit)? {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        millis = millis.checked_add(number.checked_mul(factor)?)?;
        rest = rest.get(unit..)?;
    }
    (EVERY_MS_MIN..=EVERY_MS_MAX).contains(&millis).then(|| Duration::from_millis(millis))
}

/// The first multiple of the interval from the anchor that is after `after`.
fn next_of(interval: Duration, after: Timestamp, anchor: Timestamp) -> Timestamp {
    let micros = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
    let passed = u64::try_from(after.since(anchor).as_micros()).unwrap_or(u64::MAX);
    let ticks = passed / micros + 1;
    anchor.saturating_add(Duration::from_micros(micros.saturating_mul(ticks)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_expression_is_said_by_its_fields() {
        let said = |expression| Schedule::parse(expression, "UTC").unwrap_err().message;
        let all = said("99 25 32 13 8");
        for (at, (name, may)) in FIELDS[1..].iter().enumerate() {
            assert!(all.contains(&format!("field {} ({name}) must be {may}", at + 1)), "{all}");
        }
        let hour = said("0 0 24 * * *");
        assert!(hour.contains("field 3 (hour) must be 0-23") && !hour.contains("minute"), "{hour}");
        assert!(said("*/0 * * * *").contains("field 1 (minute)"));
    }
}
