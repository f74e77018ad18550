//! What a workflow says in vain, and is refused for.

use semel_core::error::Invalid;

use crate::enqueue::is_attribute;
use crate::members::Members;

/// Whoever says of a workflow what is said of jobs believes that it holds for its steps, and it would hold for none.
pub(super) fn refuse_attributes(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    let said =
        members.iter(pointer).filter(|(_, value)| !value.is_null()).find_map(|(name, value)| match name {
            "args" | "meta" => Some((value, "send it in each step that is to have it")),
            "unique_key" => Some((value, "send it in the options of the step that is to have it")),
            _ if is_attribute(name) => Some((
                value,
                "send it in the options of the workflow, which hold for all of its steps, or in the steps",
            )),
            _ => None,
        });
    match said {
        Some((value, instead)) => {
            Err(value
                .refuse(format!("is said of jobs, and would hold for no step of this workflow; {instead}")))
        }
        None => Ok(()),
    }
}

/// They would never be called.
pub(super) fn refuse_callbacks(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    match members.get(pointer, "callbacks") {
        Some(value) if value.members()?.iter("").next().is_some() => {
            Err(value.refuse("are called by a batch alone; send type: batch, or leave them out"))
        }
        _ => Ok(()),
    }
}

/// What a step of a chain, a group or a batch waits for is said by its place in it.
pub(super) fn refuse_depends_on(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    match members.get(pointer, "depends_on") {
        Some(value) if !value.items()?.is_empty() => Err(value.refuse(
            "has no effect inside of a chain, a group or a batch; send all steps in one list, each with an id and depends_on, or leave it out",
        )),
        _ => Ok(()),
    }
}
