//! Retry policies on the wire.

use std::sync::LazyLock;
use std::time::Duration;

use semel_core::error::{Invalid, InvalidKind};
use semel_core::limits::FAILURE_NAME_BYTES_MAX;
use semel_core::retry::{OnExhaustion, RetryPolicy, RetrySpec};

use crate::duration::{self, Iso};
use crate::members::{Value, below};
use crate::write::Object;

/// The longest interval that a policy may set.
const INTERVAL_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Errors that one policy may name, at most.
const ERRORS_MAX: usize = 64;
/// The longest name or pattern of an error, in bytes; longer names of failures are not stored either.
const ERROR_BYTES_MAX: usize = FAILURE_NAME_BYTES_MAX;

/// Reads a retry policy: intervals as durations or as `*_ms`, the strategy by any of its names.
pub(crate) fn read(sent: Option<Value<'_>>, max_attempts: Option<Value<'_>>) -> Result<RetryPolicy, Invalid> {
    read_spec(sent, max_attempts)
        // Any error in a retry policy is answered alike (NOTES of OJS: 422 with the member's name, with which its place ends).
        .map_err(|refused| Invalid { kind: InvalidKind::RetryPolicy, ..refused })
}

fn read_spec(sent: Option<Value<'_>>, max_attempts: Option<Value<'_>>) -> Result<RetryPolicy, Invalid> {
    let mut spec = RetrySpec::default();
    if let Some(sent) = sent {
        let pointer = sent.pointer();
        let members = sent.members()?;
        for (name, value) in members.iter(&pointer) {
            if value.is_null() {
                continue;
            }
            read_member(&mut spec, name, value)?;
        }
    }
    if let Some(value) = max_attempts {
        let number = value.integer()?;
        if spec.max_attempts.is_some_and(|other| other != number) {
            return Err(value.refuse("differs from the one in the retry policy; send only one of them"));
        }
        spec.max_attempts = Some(number);
    }
    RetryPolicy::build(&spec, "").map_err(|refused| {
        refused.placed(|pointer| *pointer = as_sent(pointer.trim_start_matches('/'), sent, max_attempts))
    })
}

/// The place of a policy's member in the request: in the policy under the name that was sent, or beside it.
fn as_sent(member: &str, sent: Option<Value<'_>>, max_attempts: Option<Value<'_>>) -> String {
    let base = sent.map(|value| value.pointer()).unwrap_or_default();
    let said = sent.and_then(|value| value.members().ok()).and_then(|members| {
        let is_it = |(name, value): &(&str, Value<'_>)| known_as(name) == member && !value.is_null();
        members.iter(&base).find(is_it).map(|(_, value)| value.pointer())
    });
    let beside = max_attempts.filter(|_| member == "max_attempts").map(|value| value.pointer());
    said.or(beside).unwrap_or_else(|| below(&base, member))
}

/// The name of a policy's member in refusals.
fn known_as(name: &str) -> &str {
    match name {
        "backoff_type" | "backoff" => "backoff_strategy",
        other => other,
    }
}

fn read_member(spec: &mut RetrySpec, name: &str, value: Value<'_>) -> Result<(), Invalid> {
    match name {
        "max_attempts" => spec.max_attempts = Some(value.integer()?),
        "initial_interval" => once(&mut spec.initial_interval, interval(value)?, value)?,
        "initial_interval_ms" => once(&mut spec.initial_interval, millis(value)?, value)?,
        "max_interval" => once(&mut spec.max_interval, interval(value)?, value)?,
        "max_interval_ms" => once(&mut spec.max_interval, millis(value)?, value)?,
        "backoff_coefficient" => {
            let number: Option<f64> = if value.is_number() { value.text().parse().ok() } else { None };
            let refuse = || value.refuse("is not a number; send one of at least 1.0");
            spec.coefficient = Some(number.ok_or_else(refuse)?);
        }
        "jitter" => spec.jitter = Some(value.flag()?),
        "backoff_strategy" | "backoff_type" | "backoff" => {
            once(&mut spec.backoff, value.string()?.into_owned(), value)?;
        }
        "non_retryable_errors" => {
            spec.non_retryable_errors = Some(value.names(ERRORS_MAX, ERROR_BYTES_MAX)?);
        }
        "on_exhaustion" => spec.on_exhaustion = Some(value.string()?.into_owned()),
        _ => {
            return Err(value.refuse(
                "is not a member of a retry policy; use max_attempts, initial_interval, backoff_coefficient, max_interval, jitter, backoff_strategy, non_retryable_errors and on_exhaustion",
            ));
        }
    }
    Ok(())
}

fn once<T: PartialEq>(slot: &mut Option<T>, new: T, value: Value<'_>) -> Result<(), Invalid> {
    if slot.as_ref().is_some_and(|old| *old != new) {
        return Err(value.refuse("contradicts another spelling of the same member; send only one of them"));
    }
    *slot = Some(new);
    Ok(())
}

fn interval(value: Value<'_>) -> Result<Duration, Invalid> {
    let length = duration::parse(&value.string()?, &value.pointer())?;
    // Checked with the precision that is stored.
    bounded(Duration::from_millis(duration::millis(length)), value)
}

fn millis(value: Value<'_>) -> Result<Duration, Invalid> {
    match u64::try_from(value.integer()?) {
        Ok(number) => bounded(Duration::from_millis(number), value),
        Err(_) => Err(value.refuse("is negative; send 0 or more milliseconds")),
    }
}

fn bounded(interval: Duration, value: Value<'_>) -> Result<Duration, Invalid> {
    if interval > INTERVAL_MAX {
        return Err(value.refuse("is longer than 366 days; send a shorter interval"));
    }
    Ok(interval)
}

/// The policy of nearly every job, already written.
static ORDINARY: LazyLock<(RetryPolicy, String)> = LazyLock::new(|| {
    let (policy, mut text) = (RetryPolicy::default(), String::new());
    write(&policy, &mut text);
    (policy, text)
});

/// Writes the effective policy.
pub(crate) fn put(policy: &RetryPolicy, object: &mut Object<'_>) {
    let out = object.member("retry");
    let (ordinary, text) = &*ORDINARY;
    if policy == ordinary { out.push_str(text) } else { write(policy, out) }
}

fn write(policy: &RetryPolicy, out: &mut String) {
    crate::write::object(out, |object| {
        object.number("max_attempts", policy.max_attempts);
        object.plain("initial_interval", Iso(policy.initial_interval));
        object.number("backoff_coefficient", format_args!("{:?}", policy.coefficient));
        object.plain("max_interval", Iso(policy.max_interval));
        object.flag("jitter", policy.jitter);
        object.plain("backoff_strategy", policy.backoff.name());
        object.texts("non_retryable_errors", &policy.non_retryable_errors);
        object.plain(
            "on_exhaustion",
            match policy.on_exhaustion {
                OnExhaustion::Discard => "discard",
                OnExhaustion::DeadLetter => "dead_letter",
            },
        );
    });
}
