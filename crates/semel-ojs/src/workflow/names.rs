//! Ids of steps: their own ids, else their names if these are distinct, else their numbers.

use std::collections::{HashMap, HashSet};

use semel_core::error::Invalid;
use semel_core::limits::{WORKFLOW_NAME_BYTES_MAX, WORKFLOW_WAITS_BYTES_MAX};
use semel_core::workflow::{PlannedStep, waits_bytes};

use crate::members::Members;

#[derive(Default)]
pub(super) struct Names {
    /// Steps that have a name but go by their number for now: their indices and names.
    open: Vec<(usize, String)>,
    /// Steps that go by their names.
    settled: Vec<usize>,
}

fn by_number(at: usize) -> String {
    format!("step-{at}")
}

impl Names {
    /// The id of the next step, whose index is given: its own, or one made of the index until all names are known.
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
            self.open.push((next, name.into_owned()));
        }
        Ok(by_number(next))
    }

    /// Gives each step its name as id, unless another step has that id: names need not be distinct, ids must
    /// be. The steps known so far are settled for good.
    pub(super) fn settle(&mut self, steps: &mut [PlannedStep]) {
        let mut named = std::mem::take(&mut self.open);
        let mut uses: HashMap<String, usize> = HashMap::with_capacity(named.len());
        for (_, name) in &named {
            *uses.entry(name.clone()).or_default() += 1;
        }
        let by_name: HashSet<usize> = named.iter().map(|(at, _)| *at).collect();
        let others = steps.iter().enumerate().filter(|(at, _)| !by_name.contains(at));
        let mut ids: HashSet<String> = others.map(|(_, step)| step.id.clone()).collect();
        loop {
            let is_alone = |(_, name): &(usize, String)| !ids.contains(name) && uses.get(name) == Some(&1);
            let (alone, others): (Vec<_>, Vec<_>) = named.into_iter().partition(is_alone);
            named = alone;
            if others.is_empty() {
                break;
            }
            // These keep their numbers, which may equal other steps' names.
            ids.extend(others.iter().filter_map(|(at, _)| steps.get(*at)).map(|step| step.id.clone()));
        }
        for (at, name) in named {
            if let Some(step) = steps.get_mut(at) {
                step.id = name;
                self.settled.push(at);
            }
        }
    }

    /// Renames steps back to their numbers if their names would make the lists of what each step waits for
    /// too long: a name need not be an id, so no workflow is refused for its names.
    pub(super) fn fit(self, steps: &mut [PlannedStep]) {
        if waits_bytes(steps) <= WORKFLOW_WAITS_BYTES_MAX {
            return;
        }
        for at in self.settled {
            if let Some(step) = steps.get_mut(at) {
                step.id = by_number(at);
            }
        }
    }
}
