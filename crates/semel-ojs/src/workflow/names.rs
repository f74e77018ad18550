//! What steps are called: by their own ids, else by their names where these tell them apart, else by their numbers.

use std::collections::{HashMap, HashSet};

use semel_core::error::Invalid;
use semel_core::limits::WORKFLOW_NAME_BYTES_MAX;
use semel_core::workflow::PlannedStep;

use crate::members::Members;

/// The steps that are called by their numbers for now and bring a name: their places among the steps, and the names.
#[derive(Default)]
pub(super) struct Names(Vec<(usize, String)>);

impl Names {
    /// The id of the step that is the next of so many: its own, or one made of its number until all names are known.
    pub(super) fn id(
        &mut self,
        members: &Members<'_>,
        pointer: &str,
        next: usize,
    ) -> Result<String, Invalid> {
        if let Some(id) = members.get(pointer, "id") {
            return Ok(id.string()?.into_owned());
        }
        let name = members.get(pointer, "name").and_then(|name| name.string().ok());
        if let Some(name) = name.filter(|name| (1..=WORKFLOW_NAME_BYTES_MAX).contains(&name.len())) {
            self.0.push((next, name.into_owned()));
        }
        Ok(format!("step-{next}"))
    }

    /// Calls each step by its name, unless another one is called so: a name need not tell steps apart, an id does.
    pub(super) fn settle(&self, steps: &mut [PlannedStep]) {
        let mut uses: HashMap<&str, usize> = HashMap::with_capacity(self.0.len());
        for (_, name) in &self.0 {
            *uses.entry(name).or_default() += 1;
        }
        let ids: HashSet<&str> = steps.iter().map(|step| &*step.id).collect();
        let is_alone = |name: &str| !ids.contains(name) && uses.get(name) == Some(&1);
        let alone: Vec<&(usize, String)> = self.0.iter().filter(|(_, name)| is_alone(name)).collect();
        for (at, name) in alone {
            if let Some(step) = steps.get_mut(*at) {
                step.id.clone_from(name);
            }
        }
    }
}
