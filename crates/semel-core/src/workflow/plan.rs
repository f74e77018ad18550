//! A workflow as its caller wants it: steps, and which of them wait for which.

use crate::enqueue::Offer;
use crate::error::Invalid;
use crate::ident::WorkflowId;
use crate::limits::{WORKFLOW_NAME_BYTES_MAX, WORKFLOW_STEPS_MAX, WORKFLOW_WAITS_BYTES_MAX};
use crate::tenant::Tenant;

use super::record::{Form, When};

/// A workflow to be created.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tenant that owns the workflow and all its jobs.
    pub owner: Tenant,
    /// The caller's own id.
    pub id: Option<WorkflowId>,
    /// The form in which it was requested: one of the three named forms, or a plain graph.
    pub form: Form,
    /// The workflow's name, for people.
    pub name: Option<String>,
    /// The steps, in the order in which the request names them.
    pub steps: Vec<PlannedStep>,
    /// Digest of the whole request; present if the caller chose the id.
    pub digest: Option<[u8; 32]>,
}

/// A step to be created.
#[derive(Clone, Debug)]
pub struct PlannedStep {
    /// The step's name within the workflow.
    pub id: String,
    /// The numbers of the steps that it waits for.
    pub after: Vec<u32>,
    /// How those steps must have ended.
    pub when: When,
    /// The numbers of the steps whose results its job gets, in order.
    pub results: Vec<u32>,
    /// Whether it is a callback, which does not count among the workflow's jobs.
    pub is_callback: bool,
    /// JSON pointer of the step in the request.
    pub pointer: String,
    /// The step's job.
    pub offer: Offer,
}

impl Plan {
    /// Checks that the plan can be carried out.
    ///
    /// It must have steps, but not too many, each with a unique name. The waits between them must not be too
    /// many, and no step may wait for another twice or for itself, directly or through others.
    ///
    /// # Errors
    /// `invalid_request` at the step's pointer, or that the plan is too large.
    pub fn check(&self) -> Result<(), Invalid> {
        let count = self.steps.len();
        if count == 0 {
            return Err(Invalid::request("", "has no steps; send at least one"));
        }
        if count > WORKFLOW_STEPS_MAX {
            return Err(Invalid::too_large(
                "",
                format!("has {count} steps, more than {WORKFLOW_STEPS_MAX}; split it into several workflows"),
            ));
        }
        if self.name.as_ref().is_some_and(|name| name.len() > WORKFLOW_NAME_BYTES_MAX) {
            return Err(Invalid::request("/name", format!("is longer than {WORKFLOW_NAME_BYTES_MAX} bytes")));
        }
        let mut names: Vec<&str> = Vec::with_capacity(count);
        for step in &self.steps {
            if step.id.is_empty() || step.id.len() > WORKFLOW_NAME_BYTES_MAX {
                return Err(Invalid::request(
                    format!("{}/id", step.pointer),
                    format!("is empty or longer than {WORKFLOW_NAME_BYTES_MAX} bytes"),
                ));
            }
            if step.after.iter().chain(&step.results).any(|other| *other as usize >= count) {
                return Err(Invalid::request(&*step.pointer, "waits for a step that is not in the workflow"));
            }
            if names_twice(&step.after, count) || names_twice(&step.results, count) {
                return Err(Invalid::request(
                    &*step.pointer,
                    "names a step twice in its depends_on; name each step once",
                ));
            }
            names.push(&step.id);
        }
        self.check_waits()?;
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1])
            && let Some(step) = self.steps.iter().rev().find(|step| step.id == pair[0])
        {
            return Err(Invalid::request(
                format!("{}/id", step.pointer),
                "is also the id of another step; give each step its own",
            ));
        }
        match self.in_a_circle() {
            None => Ok(()),
            Some(step) => Err(Invalid::request(
                &*step.pointer,
                "waits for itself, directly or through other steps; break the cycle in depends_on",
            )),
        }
    }

    /// Checks the size of all waits: between two groups there are as many as the product of their sizes.
    fn check_waits(&self) -> Result<(), Invalid> {
        let bytes = waits_bytes(&self.steps);
        if bytes <= WORKFLOW_WAITS_BYTES_MAX {
            return Ok(());
        }
        Err(Invalid::too_large(
            "",
            format!(
                "has too many waits between its steps: they take {bytes} bytes, more than {WORKFLOW_WAITS_BYTES_MAX}; give the steps shorter ids, or put a single step between two groups"
            ),
        ))
    }

    /// Finds a step that can never start, because the waits form a cycle.
    fn in_a_circle(&self) -> Option<&PlannedStep> {
        let mut open: Vec<usize> = self.steps.iter().map(|step| step.after.len()).collect();
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); self.steps.len()];
        for (at, step) in self.steps.iter().enumerate() {
            for other in &step.after {
                if let Some(list) = followers.get_mut(*other as usize) {
                    list.push(at);
                }
            }
        }
        let mut free: Vec<usize> = (0..self.steps.len()).filter(|at| open[*at] == 0).collect();
        while let Some(at) = free.pop() {
            for follower in std::mem::take(&mut followers[at]) {
                open[follower] -= 1;
                if open[follower] == 0 {
                    free.push(follower);
                }
            }
        }
        open.iter().position(|left| *left > 0).and_then(|at| self.steps.get(at))
    }
}

/// Bytes that an answer takes to list what each step waits for: in a checked plan at most [this
/// many](crate::limits::WORKFLOW_WAITS_BYTES_MAX).
pub fn waits_bytes(steps: &[PlannedStep]) -> usize {
    let told: Vec<usize> = steps.iter().map(|step| told_bytes(&step.id)).collect();
    let waits = steps.iter().flat_map(|step| &step.after);
    waits.filter_map(|other| told.get(*other as usize)).sum()
}

/// Bytes that a name takes in a JSON list of an answer.
fn told_bytes(name: &str) -> usize {
    let told = |byte: u8| -> usize {
        match byte {
            b'"' | b'\\' => 2,
            // Escaped by code point.
            0..=0x1f => 6,
            _ => 1,
        }
    };
    name.bytes().map(told).sum::<usize>() + "\"\",".len()
}

/// Whether a list of step numbers below `count` names one twice.
fn names_twice(list: &[u32], count: usize) -> bool {
    let mut is_named = vec![false; count];
    list.iter().any(|step| {
        is_named.get_mut(*step as usize).is_some_and(|is_named| std::mem::replace(is_named, true))
    })
}
