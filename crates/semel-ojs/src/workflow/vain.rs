//! Members of a workflow that would have no effect, and are therefore refused.

use semel_core::error::Invalid;

use crate::enqueue::{is_attribute, meant_of_job};
use crate::members::{Members, Value};
use crate::near::refuse_slips;

/// Members of a workflow whose misspellings are refused; without its steps a workflow is refused anyway.
const NAMES: [&str; 3] = ["steps", "options", "callbacks"];

/// The remedy for job attributes.
const IN_OPTIONS: &str =
    "send it in the options of the workflow, which apply to all of its steps, or in the steps";

/// Refuses job attributes on a workflow: the sender expects them to apply to its steps, but they would not.
/// The same goes for misspellings of them, and of a workflow's members.
pub(super) fn refuse_attributes(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    refuse_slips(members, pointer, &NAMES)?;
    let says = |(_, value): &(&str, Value<'_>)| !matches!(value.text(), "null" | "{}" | "[]");
    let said = members.iter(pointer).filter(says).find_map(|(name, value)| match name {
        "args" | "meta" => Some((value, None, "send it in each step that needs it")),
        "unique_key" => Some((value, None, "send it in the options of the step that needs it")),
        _ if is_attribute(name) => Some((value, None, IN_OPTIONS)),
        _ => meant_of_job(name, value).map(|meant| (value, Some(meant), IN_OPTIONS)),
    });
    match said {
        Some((value, meant, instead)) => {
            let nearly = meant.map(|meant| format!("nearly {meant}, which is ")).unwrap_or_default();
            Err(value.refuse(format!(
                "is {nearly}a member of jobs, and would apply to no step of this workflow; {instead}"
            )))
        }
        None => Ok(()),
    }
}

/// Refuses callbacks that would never be called.
pub(super) fn refuse_callbacks(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    match members.get(pointer, "callbacks") {
        Some(value) if value.members()?.iter("").next().is_some() => {
            Err(value.refuse("are called only by a batch; send type: batch, or leave them out"))
        }
        _ => Ok(()),
    }
}

/// Refuses `depends_on`, and misspellings of it, where a step's position already says what it waits for.
pub(super) fn refuse_depends_on(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    refuse_slips(members, pointer, &["depends_on"])?;
    match members.get(pointer, "depends_on") {
        Some(value) if !value.items()?.is_empty() => Err(value.refuse(
            "has no effect inside a chain, a group or a batch; send all steps in one list, each with an id and depends_on, or leave it out",
        )),
        _ => Ok(()),
    }
}
