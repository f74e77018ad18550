//! Defaults for all steps of a workflow: its `options` apply where a step does not set the same.

use semel_core::error::Invalid;
use semel_core::limits::WORKFLOW_OPTIONS_BYTES_MAX;

use crate::enqueue::{is_alike, is_attribute};
use crate::members::{Members, Value, below};
use crate::write::object;

/// Options that a workflow may have, at most: each is compared with each that a step sets.
const OPTIONS_MAX: usize = 64;

/// The options of the workflows that contain a step, outermost first.
#[derive(Default)]
pub(super) struct Defaults {
    levels: Vec<Level>,
    /// Bytes of defaults copied into steps so far. What a request expands to is bounded, like its own size.
    bytes: usize,
}

/// The options of one workflow.
struct Level {
    /// The pointer of the workflow.
    place: String,
    /// The text of the options object; empty without options.
    text: String,
}

/// A step, as an enqueue request.
pub(super) struct Job {
    /// The text of the request.
    pub(super) text: String,
    given: Vec<Given>,
}

/// An option that a step got from a workflow.
struct Given {
    /// Its pointer in the step's request.
    pointer: String,
    /// The pointer of the workflow that sets it.
    place: String,
}

impl Defaults {
    /// Enters the workflow at this place: the following steps are in it, too.
    pub(super) fn enter(&mut self, members: &Members<'_>, place: &str) -> Result<(), Invalid> {
        let text = match members.get(place, "options") {
            Some(options) => {
                if options.members()?.iter("").count() > OPTIONS_MAX {
                    return Err(options.refuse(format!("has more than {OPTIONS_MAX} members; send fewer")));
                }
                options.text().to_owned()
            }
            None => String::new(),
        };
        self.levels.push(Level { place: place.to_owned(), text });
        Ok(())
    }

    /// Leaves the workflow that was entered last.
    pub(super) fn leave(&mut self) {
        self.levels.pop();
    }

    /// A step with its own members and the defaults. Inner workflows take precedence.
    pub(super) fn job(&mut self, text: &str, pointer: &str) -> Result<Job, Invalid> {
        self.count()?;
        let members = Members::read(text, pointer)?;
        let own = members.get(pointer, "options").map(|value| value.members()).transpose()?;
        let is_said = |name: &str| {
            let says = |its: &str, value: Value<'_>| !value.is_null() && is_alike(its, name);
            own.as_ref().is_some_and(|own| own.iter("").any(|(its, value)| says(its, value)))
                || members.iter("").any(|(its, value)| is_attribute(its) && says(its, value))
        };
        let levels = self.levels.iter().rev().filter(|level| !level.text.is_empty());
        let levels = levels.map(|level| Members::read(&level.text, &level.place).map(|read| (level, read)));
        let levels: Vec<(&Level, Members<'_>)> = levels.collect::<Result<_, Invalid>>()?;
        let mut filled: Vec<(&Level, &str, &str)> = Vec::new();
        for (level, options) in &levels {
            let options = options.iter("").filter(|(name, value)| {
                let is_nearer = filled.iter().any(|(_, its, _)| is_alike(its, name));
                !value.is_null() && !is_nearer && !is_said(name)
            });
            let options: Vec<_> = options.map(|(name, value)| (*level, name, value.text())).collect();
            filled.extend(options);
        }
        let mut job = String::with_capacity(text.len());
        object(&mut job, |job| {
            for (name, value) in members.iter("").filter(|(name, _)| is_of_job(name)) {
                if name != "options" || filled.is_empty() {
                    job.raw(name, value.text());
                }
            }
            if !filled.is_empty() {
                object(job.member("options"), |options| {
                    let own = own.iter().flat_map(|own| own.iter(""));
                    for (name, value) in own.filter(|(_, value)| !value.is_null()) {
                        options.raw(name, value.text());
                    }
                    for (_, name, json) in &filled {
                        options.raw(name, json);
                    }
                });
            }
        });
        let given = filled
            .iter()
            .map(|(level, name, _)| Given { pointer: below("/options", name), place: level.place.clone() });
        Ok(Job { text: job, given: given.collect() })
    }

    fn count(&mut self) -> Result<(), Invalid> {
        self.bytes += self.levels.iter().map(|level| level.text.len()).sum::<usize>();
        match self.levels.iter().find(|level| !level.text.is_empty()) {
            Some(outermost) if self.bytes > WORKFLOW_OPTIONS_BYTES_MAX => Err(Invalid::too_large(
                below(&outermost.place, "options"),
                format!(
                    "would take more than {WORKFLOW_OPTIONS_BYTES_MAX} bytes in all, because every step is given them; send less, or put them into the steps that need them"
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl Job {
    /// Moves an error's place from the step's request to the workflow's: an error in an option that the step
    /// got from a workflow is placed at that option.
    pub(super) fn placed(&self, refused: Invalid, step: &str) -> Invalid {
        refused.placed(|pointer| {
            let is_in = |given: &&Given| {
                let rest = pointer.strip_prefix(&*given.pointer);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let place = self.given.iter().find(is_in).map_or(step, |given| &*given.place);
            pointer.insert_str(0, place);
        })
    }
}

/// Whether a member of a step belongs to its job.
fn is_of_job(name: &str) -> bool {
    !matches!(name, "id" | "depends_on" | "name" | "state" | "job_id")
}
