//! Settings and directives that operators send.

use semel_core::error::Invalid;
use semel_core::limits::INTEGER_MAX;
use semel_core::settings::{Backpressure, Directive, QueueSettings};

use crate::members::{Members, Value};
use crate::near::Guarded;
use crate::write::{Object, object};

/// Reads a queue's settings: `{"backpressure": {"max_depth", "strategy", "warning_threshold"}}`, or `null` for none.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn queue(text: &str) -> Result<QueueSettings, Invalid> {
    let members = Members::request(text, r#"{"backpressure": {"max_depth": 1000}}"#)?;
    let mut settings = QueueSettings::default();
    for (name, value) in members.iter("") {
        match name {
            "backpressure" if value.is_null() => {}
            "backpressure" => settings.backpressure = Some(backpressure(value)?),
            _ => return Err(value.refuse("is not a queue setting; the only one is backpressure")),
        }
    }
    Ok(settings)
}

fn backpressure(value: Value<'_>) -> Result<Backpressure, Invalid> {
    let base = value.pointer();
    let members = value.members()?;
    let (mut max_depth, mut warning_threshold) = (None, Backpressure::WARNING_DEFAULT);
    for (name, value) in members.iter(&base) {
        match name {
            "max_depth" => max_depth = Some(value.within(1, INTEGER_MAX)?.unsigned_abs()),
            "strategy" => {
                if value.string()? != "reject" {
                    return Err(
                        value.refuse("is not \"reject\", the only strategy: no admitted job is dropped")
                    );
                }
            }
            "warning_threshold" => {
                let number: Option<f64> = if value.is_number() { value.text().parse().ok() } else { None };
                warning_threshold = number
                    .filter(|number| (0.0..=1.0).contains(number))
                    .ok_or_else(|| value.refuse("is not a number from 0 to 1"))?;
            }
            _ => {
                return Err(value.refuse(
                    "is not a member of backpressure; use max_depth, strategy and warning_threshold",
                ));
            }
        }
    }
    let max_depth = max_depth.ok_or_else(|| value.refuse("has no max_depth; send how many jobs may wait"))?;
    Ok(Backpressure { max_depth, warning_threshold })
}

/// Writes a queue's settings into an object.
pub fn put_queue(settings: &QueueSettings, outer: &mut Object<'_>) {
    if let Some(bound) = settings.backpressure {
        object(outer.member("backpressure"), |object| {
            object.number("max_depth", bound.max_depth);
            object.plain("strategy", "reject");
            object.number("warning_threshold", bound.warning_threshold);
        });
    }
}

/// Members of an operator's directive.
pub const DIRECTIVE_MEMBERS: &[&str] = &["directive", "state"];

/// Reads an operator's directive to a worker: `{"directive": "running" | "quiet" | "terminate"}`.
///
/// # Errors
/// What is wrong, where, and what to send instead.
pub fn directive(text: &str) -> Result<Directive, Invalid> {
    let members = Guarded::request(text, r#"{"directive": "quiet"}"#, DIRECTIVE_MEMBERS)?;
    let Some(value) = members.get("directive").or_else(|| members.get("state")) else {
        return Err(Invalid::request("/directive", "is missing; send running, quiet or terminate"));
    };
    Directive::from_name(&value.string()?)
        .ok_or_else(|| value.refuse("is not a directive; send running, quiet or terminate"))
}
