//! Checks attribute values. The rules are the server's; a test in `semel` keeps both the same.

use syn::{Error, LitFloat, LitInt, LitStr, Result};

/// Longest timeout or lease, in days.
pub const TIMEOUT_DAYS_MAX: u64 = 30;
/// Longest wait between two attempts, in days.
pub const INTERVAL_DAYS_MAX: u64 = 366;
/// Longest period of a unique policy, and longest wait of a job for its run, in days.
pub const PERIOD_DAYS_MAX: u64 = 36_525;
/// Most jobs of a limit that may run at once.
pub const CONCURRENCY_MAX: u32 = 1_000;
/// Most starts per period of a rate.
pub const RATE_MAX: u32 = 1_000_000;
/// Longest period of a rate, in days.
pub const RATE_PERIOD_DAYS_MAX: u64 = 1;
/// Most tags of a job, most members that a part of a unique policy names, and most errors that are never
/// retried.
const NAMES_MAX: usize = 64;
/// Longest name of such a member or error, in bytes.
const NAME_BYTES_MAX: usize = 255;
const DAY_MS: u64 = 86_400_000;

/// A job type: lower-case words joined by dots, each starting with a letter.
pub fn job_type(text: &LitStr) -> Result<()> {
    let value = text.value();
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_lowercase())
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
    };
    if value.len() <= 255 && value.split('.').all(is_part) {
        return Ok(());
    }
    refuse(
        text,
        "is not a job type; write lower-case words joined by dots, each starting with a letter, like \"email.send\"",
    )
}

/// A queue's name.
pub fn queue(text: &LitStr) -> Result<()> {
    let value = text.value();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if value.len() <= 128
        && value.starts_with(is_plain)
        && value.chars().all(|c| is_plain(c) || c == '-' || c == '.')
    {
        return Ok(());
    }
    refuse(text, "is not a queue name; use lower-case letters, digits, dots and hyphens, like \"mail\"")
}

/// A length of time as Rust programmers write it: `250ms`, `30s`, `5m`, `12h`, `7d`, and sums such as `1h30m`.
fn millis(text: &LitStr) -> Result<u64> {
    let value = text.value();
    match parse_millis(&value) {
        Some(millis) if millis > 0 => Ok(millis),
        _ => refuse(
            text,
            "is not a length of time; write it like \"250ms\", \"30s\", \"5m\", \"12h\" or \"7d\"",
        ),
    }
}

/// As [`millis`], of at most so many days.
pub fn millis_within(text: &LitStr, days_max: u64) -> Result<u64> {
    let millis = millis(text)?;
    if millis > days_max * DAY_MS {
        return refuse(text, &format!("is too long; the maximum is \"{days_max}d\""));
    }
    Ok(millis)
}

/// The factor by which waits grow.
pub fn coefficient(number: &LitFloat) -> Result<()> {
    if (1.0..=1_000.0).contains(&number.base10_parse::<f64>()?) {
        return Ok(());
    }
    Err(Error::new_spanned(number, "a coefficient must be from 1.0 to 1000.0; with 1.0, waits do not grow"))
}

/// At most as many names as are allowed.
pub fn number(names: &[LitStr]) -> Result<()> {
    match names.get(NAMES_MAX) {
        Some(more) => refuse(more, &format!("is one too many; name at most {NAMES_MAX}")),
        None => Ok(()),
    }
}

/// As [`number`], and none longer than allowed.
pub fn names(names: &[LitStr]) -> Result<()> {
    number(names)?;
    match names.iter().find(|name| name.value().len() > NAME_BYTES_MAX) {
        Some(long) => Err(Error::new_spanned(
            long,
            format!("a name may have at most {NAME_BYTES_MAX} bytes; this one has {}", long.value().len()),
        )),
        None => Ok(()),
    }
}

/// A count of at least one.
pub fn count(number: &LitInt, most: u32) -> Result<u32> {
    match number.base10_parse::<u32>() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(Error::new_spanned(number, format!("this must be from 1 to {most}"))),
    }
}

/// The name of a limit.
pub fn limit_key(text: &LitStr) -> Result<()> {
    let value = text.value();
    if value.is_empty() || value.len() > NAME_BYTES_MAX || value.contains(char::is_control) {
        return refuse(
            text,
            &format!(
                "is not a valid limit key; write 1 to {NAME_BYTES_MAX} bytes without control characters"
            ),
        );
    }
    Ok(())
}

/// Checks that a meta member may be part of a key: those that tracing or the queue itself writes may not,
/// because they differ from call to call.
pub fn counts(name: &LitStr) -> Result<()> {
    let value = name.value();
    if value.starts_with("semel.") || ["traceparent", "tracestate", "baggage"].contains(&value.as_str()) {
        return refuse(
            name,
            "cannot be part of a key: trace headers and `semel.*` differ from call to call; leave it out",
        );
    }
    Ok(())
}

fn parse_millis(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let unit = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let factor = match rest.get(..unit)? {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => DAY_MS,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(factor)?)?;
        rest = rest.get(unit..)?.trim_start();
    }
    Some(sum)
}

/// One word out of a list.
pub fn one_of(text: &LitStr, words: &[&str]) -> Result<()> {
    let value = text.value();
    if words.contains(&value.as_str()) {
        return Ok(());
    }
    Err(Error::new_spanned(text, format!("\"{value}\" is not one of {}", words.join(", "))))
}

fn refuse<T>(text: &LitStr, advice: &str) -> Result<T> {
    Err(Error::new_spanned(text, format!("\"{}\" {advice}", text.value())))
}
