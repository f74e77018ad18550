//! What a request for a task says in vain, and is refused for.

use semel_core::error::Invalid;

use crate::enqueue::{is_attribute, meant_of_job};
use crate::members::Value;
use crate::near::{meant, refuse_slip};
use crate::template::is_in_templates;

/// Members of a task's request that may be misspelt. A name of less than five letters has no near ones.
const NAMES: [&str; 7] =
    ["namespace", "version", "context", "idempotency_key", "unique", "priority", "options"];

/// Those of them that decide something in a job's options, and nothing in a task's. `context` and the like may be an author's own there.
const IN_OPTIONS: [&str; 4] = ["idempotency_key", "unique", "priority", "tags"];

/// Refuses what is said of a job and not of a task, and what is nearly spelt as either: kept in the meta it would hold for nothing.
pub(super) fn refuse_member(name: &str, value: Value<'_>) -> Result<(), Invalid> {
    if instead_of(name).is_none() {
        refuse_slip(name, value, &NAMES)?;
    }
    match instead_of(name).or_else(|| meant_of_job(name, value).and_then(instead_of)) {
        Some(instead) => Err(value.refuse(format!("is not a member of a task; {instead}"))),
        None => Ok(()),
    }
}

/// A task has no options, and its author may keep his own under that name. What a task or a job has would hold for nothing there.
pub(super) fn refuse_options(value: Value<'_>) -> Result<(), Invalid> {
    if !value.is_object() {
        return Ok(());
    }
    let (pointer, options) = (value.pointer(), value.members()?);
    for (name, value) in options.iter(&pointer).filter(|(_, value)| !value.is_null()) {
        let instead = if IN_OPTIONS.contains(&name) {
            "send it beside the context".to_owned()
        } else if let Some(meant) = meant(name, value, &IN_OPTIONS) {
            format!("send it beside the context, as {meant}")
        } else if let Some(instead) = instead_of_job(name, value) {
            instead.to_owned()
        } else {
            continue;
        };
        return Err(value.refuse(format!("holds for nothing, for a task has no options; {instead}")));
    }
    Ok(())
}

/// What to send in place of a member of a job's options, or of what is nearly spelt so.
fn instead_of_job(name: &str, value: Value<'_>) -> Option<&'static str> {
    // What is said of any work, and known by these names alone.
    if matches!(name, "id" | "type" | "args" | "meta") {
        return None;
    }
    instead_of(name).or_else(|| meant_of_job(name, value).and_then(instead_of))
}

/// What to send in place of what is said of a job and not of a task; nothing of what a task may have.
fn instead_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "id" => {
            "its id is the server's; to send a request again safely send an Idempotency-Key, or an idempotency_key"
        }
        "type" => "its type is its namespace and its name",
        "args" => "send an object as its context",
        "meta" => "send what is in it beside the context: it is kept as the task's meta",
        "unique_key" => "send the key as idempotency_key",
        name if is_in_templates(name) => "its template says this, for it or for a step",
        "scheduled_at" | "delay_until" | "pending" => {
            "it begins when it is created; create it when it is to begin"
        }
        "expires_at" => "it does not expire; cancel it when it is not wanted any more",
        name if is_attribute(name) => {
            "neither it nor a template can have this; enqueue the step's work as a job of its own"
        }
        _ => return None,
    })
}
