//! What a workflow says in vain, and is refused for.

use semel_core::error::Invalid;

use crate::enqueue::{is_attribute, meant_of_job};
use crate::members::{Members, Value};
use crate::near::refuse_slips;

/// Members of a workflow that may be misspelt; without its steps it is refused as it is.
const NAMES: [&str; 3] = ["steps", "options", "callbacks"];

/// What to do with what is said of jobs.
const IN_OPTIONS: &str =
    "send it in the options of the workflow, which hold for all of its steps, or in the steps";

/// Whoever says of a workflow what is said of jobs believes that it holds for its steps, and it would hold for none. The same goes
/// for what is nearly spelt so, or nearly as a member of a workflow.
pub(super) fn refuse_attributes(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    refuse_slips(members, pointer, &NAMES)?;
    let says = |(_, value): &(&str, Value<'_>)| !matches!(value.text(), "null" | "{}" | "[]");
    let said = members.iter(pointer).filter(says).find_map(|(name, value)| match name {
        "args" | "meta" => Some((value, None, "send it in each step that is to have it")),
        "unique_key" => Some((value, None, "send it in the options of the step that is to have it")),
        _ if is_attribute(name) => Some((value, None, IN_OPTIONS)),
        _ => meant_of_job(name, value).map(|meant| (value, Some(meant), IN_OPTIONS)),
    });
    match said {
        Some((value, meant, instead)) => {
            let nearly = meant.map(|meant| format!("nearly {meant}, which is ")).unwrap_or_default();
            Err(value.refuse(format!(
                "is {nearly}said of jobs, and would hold for no step of this workflow; {instead}"
            )))
        }
        None => Ok(()),
    }
}

/// Refuses callbacks where nothing calls them.
pub(super) fn refuse_callbacks(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    match members.get(pointer, "callbacks") {
        Some(value) if value.members()?.iter("").next().is_some() => {
            Err(value.refuse("are called by a batch alone; send type: batch, or leave them out"))
        }
        _ => Ok(()),
    }
}

/// Refuses `depends_on` where a step's place already says what it waits for, and what is nearly spelt so.
pub(super) fn refuse_depends_on(members: &Members<'_>, pointer: &str) -> Result<(), Invalid> {
    refuse_slips(members, pointer, &["depends_on"])?;
    match members.get(pointer, "depends_on") {
        Some(value) if !value.items()?.is_empty() => Err(value.refuse(
            "has no effect inside of a chain, a group or a batch; send all steps in one list, each with an id and depends_on, or leave it out",
        )),
        _ => Ok(()),
    }
}
