//! Members of a task's request that would have no effect, and are therefore refused.

use semel_core::error::Invalid;

use crate::enqueue::{is_attribute, meant_of_job};
use crate::members::Value;
use crate::near::{meant, refuse_slip};
use crate::template::is_in_templates;

/// Members of a task's request whose misspellings are refused. Names with fewer than five letters are not matched.
const NAMES: [&str; 7] =
    ["namespace", "version", "context", "idempotency_key", "unique", "priority", "options"];

/// Members that have a meaning in a job's options, but not in a task's. Others, such as `context`, may be an author's own there.
const IN_OPTIONS: [&str; 4] = ["idempotency_key", "unique", "priority", "tags"];

/// Refuses job members that tasks do not have, and misspellings of either: kept in the meta they would have no effect.
pub(super) fn refuse_member(name: &str, value: Value<'_>) -> Result<(), Invalid> {
    if instead_of(name).is_none() {
        refuse_slip(name, value, &NAMES)?;
    }
    match instead_of(name).or_else(|| meant_of_job(name, value).and_then(instead_of)) {
        Some(instead) => Err(value.refuse(format!("is not a member of a task; {instead}"))),
        None => Ok(()),
    }
}

/// Refuses known members in `options`, where they would have no effect: a task has none. Authors may keep their own there.
pub(super) fn refuse_options(value: Value<'_>) -> Result<(), Invalid> {
    if !value.is_object() {
        return Ok(());
    }
    let (pointer, options) = (value.pointer(), value.members()?);
    for (name, value) in options.iter(&pointer).filter(|(_, value)| !value.is_null()) {
        let instead = if IN_OPTIONS.contains(&name) {
            "send it next to the context".to_owned()
        } else if let Some(meant) = meant(name, value, &IN_OPTIONS) {
            format!("send it next to the context, as {meant}")
        } else if let Some(instead) = instead_of_job(name, value) {
            instead.to_owned()
        } else {
            continue;
        };
        return Err(value.refuse(format!("has no effect, because a task has no options; {instead}")));
    }
    Ok(())
}

/// What to send instead of a member of a job's options, or a misspelling of one.
fn instead_of_job(name: &str, value: Value<'_>) -> Option<&'static str> {
    // Names of general use, for which misspellings are not considered.
    if matches!(name, "id" | "type" | "args" | "meta") {
        return None;
    }
    instead_of(name).or_else(|| meant_of_job(name, value).and_then(instead_of))
}

/// What to send instead of a job member that tasks do not have; `None` for what a task may have.
fn instead_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "id" => {
            "the server makes its id; to repeat a request safely, send an Idempotency-Key or an idempotency_key"
        }
        "type" => "its type is made of its namespace and its name",
        "args" => "send an object as its context",
        "meta" => "send its members next to the context: they are kept as the task's meta",
        "unique_key" => "send the key as idempotency_key",
        name if is_in_templates(name) => "its template sets this, for the task or for a step",
        "scheduled_at" | "delay_until" | "pending" => {
            "a task begins when it is created; create it when it should begin"
        }
        "expires_at" => "a task does not expire; cancel it when it is no longer wanted",
        name if is_attribute(name) => {
            "neither a task nor a template can have this; enqueue the step's work as a job of its own"
        }
        _ => return None,
    })
}
