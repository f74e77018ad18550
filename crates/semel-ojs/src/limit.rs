//! Rate and concurrency limits on the wire: what jobs ask for, and how a limit is shown.

use std::time::Duration;

use semel_core::error::Invalid;
use semel_core::ident::QueueName;
use semel_core::limit::{Limit, Rate, Usage};
use semel_core::limits::{CONCURRENCY_MAX, LIMIT_KEY_BYTES_MAX, RATE_COUNT_MAX, RATE_PERIOD_S_MAX};
use semel_core::time::Timestamp;

use crate::duration;
use crate::members::Value;
use crate::write::{Object, object};

/// The period of a rate that names none.
const PERIOD_DEFAULT: Duration = Duration::from_secs(1);
/// Members that are a count with a fixed period.
const PER: [(&str, u64); 3] = [("max_per_second", 1), ("max_per_minute", 60), ("max_per_hour", 3_600)];

/// Reads a job's limit: `{key, concurrency, rate, period, on_limit}`, or a count such as `max_per_second`.
/// Without a key it is the queue's own limit.
pub(crate) fn read(value: Value<'_>, queue: &QueueName) -> Result<Limit, Invalid> {
    let base = value.pointer();
    let members = value.members()?;
    let (mut key, mut concurrency) = (None, None);
    let (mut count, mut period): (Option<u32>, Option<Duration>) = (None, None);
    for (name, value) in members.iter(&base) {
        if value.is_null() {
            continue;
        }
        match name {
            "key" => key = Some(read_key(value)?),
            "concurrency" => concurrency = Some(small(value, CONCURRENCY_MAX)?),
            "rate" => count = Some(once(count, small(value, RATE_COUNT_MAX)?, value)?),
            "period" => period = Some(once(period, read_period(value)?, value)?),
            "on_limit" => {
                if value.string()? != "wait" {
                    return Err(value.refuse(
                        "is not \"wait\", the only choice: a job over the limit waits in its queue",
                    ));
                }
            }
            _ => match PER.iter().find(|(known, _)| *known == name) {
                Some((_, seconds)) => {
                    count = Some(once(count, small(value, RATE_COUNT_MAX)?, value)?);
                    period = Some(once(period, Duration::from_secs(*seconds), value)?);
                }
                None => {
                    return Err(value.refuse(
                        "is not a member of a rate limit; use key, concurrency, rate, period, max_per_second, max_per_minute, max_per_hour and on_limit",
                    ));
                }
            },
        }
    }
    let rate = match (count, period) {
        (Some(count), period) => {
            let period = period.unwrap_or(PERIOD_DEFAULT);
            Some(Rate { count, period_us: u64::try_from(period.as_micros()).unwrap_or(u64::MAX) })
        }
        (None, Some(_)) => {
            return Err(value.refuse("has a period but no rate; send how many jobs may start in it"));
        }
        (None, None) => None,
    };
    if rate.is_none() && concurrency.is_none() {
        return Err(value.refuse("limits nothing; send concurrency, or rate and period"));
    }
    Ok(Limit { key: key.unwrap_or_else(|| Limit::key_of_queue(queue)), concurrency, rate })
}

fn once<T: PartialEq>(old: Option<T>, new: T, value: Value<'_>) -> Result<T, Invalid> {
    match old {
        Some(old) if old != new => Err(value.refuse("contradicts another member; send only one of them")),
        _ => Ok(new),
    }
}

fn small(value: Value<'_>, most: u32) -> Result<u32, Invalid> {
    let number = value.within(1, i64::from(most))?;
    u32::try_from(number).map_err(|_| value.refuse("is out of range"))
}

fn read_key(value: Value<'_>) -> Result<Box<str>, Invalid> {
    let key = value.string()?;
    if key.is_empty() || key.contains(char::is_control) || key.len() > LIMIT_KEY_BYTES_MAX {
        return Err(value.refuse(format!(
            "is empty, longer than {LIMIT_KEY_BYTES_MAX} bytes, or has control characters"
        )));
    }
    Ok(key.as_ref().into())
}

fn read_period(value: Value<'_>) -> Result<Duration, Invalid> {
    let text = value.string()?;
    let period = match &*text {
        "second" => Duration::from_secs(1),
        "minute" => Duration::from_secs(60),
        "hour" => Duration::from_secs(3_600),
        "day" => Duration::from_secs(24 * 3_600),
        other => duration::parse(other, &value.pointer())?,
    };
    if period < Duration::from_millis(1) || period > Duration::from_secs(RATE_PERIOD_S_MAX) {
        return Err(value.refuse("is not between a millisecond and a day"));
    }
    Ok(period)
}

/// A limit to be shown.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'a> {
    /// The limit, and the starts that it has allowed.
    pub usage: &'a Usage,
    /// Jobs running under it.
    pub running: usize,
    /// The store's time.
    pub now: Timestamp,
}

impl LimitView<'_> {
    /// Starts that the rate allows per period; without a rate, the concurrency.
    pub fn most(&self) -> u32 {
        let limit = &self.usage.limit;
        limit.rate.map(|rate| rate.count).or(limit.concurrency).unwrap_or(0)
    }

    /// How many more jobs may start now.
    pub fn remaining(&self) -> u32 {
        let limit = &self.usage.limit;
        let rate = limit.rate.map(|rate| rate.count.saturating_sub(self.usage.started_lately(self.now)));
        let running = u32::try_from(self.running).unwrap_or(u32::MAX);
        let places = limit.concurrency.map(|most| most.saturating_sub(running));
        [rate, places].into_iter().flatten().min().unwrap_or(0)
    }

    /// The answer about a limit.
    pub fn answer(&self) -> String {
        let mut out = String::with_capacity(256);
        object(&mut out, |object| self.put(object));
        out
    }

    fn put(&self, object: &mut Object<'_>) {
        let limit = &self.usage.limit;
        object.text("key", &limit.key);
        object.plain("on_limit", "wait");
        if let Some(most) = limit.concurrency {
            crate::write::object(object.member("concurrency"), |object| {
                object.number("limit", most);
                object.number("active", self.running);
            });
        }
        if let Some(rate) = limit.rate {
            crate::write::object(object.member("rate"), |object| {
                object.number("limit", rate.count);
                object.number("period_ms", rate.period_us / 1_000);
                object.number("started", self.usage.started_lately(self.now));
            });
        }
        object.number("remaining", self.remaining());
    }
}
