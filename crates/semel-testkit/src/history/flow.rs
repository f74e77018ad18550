//! Judges workflows and ticks of crons by what must hold in any order of the commits.

use std::sync::Arc;

use semel_core::draft::{Document, DocumentKey, DocumentKind};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::workflow::{Status, Step, StepStatus, When, Workflow};

use super::stored::Stored;
use super::{Checked, Mark, Witness};

impl Witness {
    /// Asserts that a cron that skips ticks has one job at a time, unless an operator sent an old one back.
    pub(super) fn check_alone(&self, mark: Mark) -> Checked {
        if !self.alone.contains(&mark.n) {
            return Ok(());
        }
        let goes_on =
            |job: &&super::Stored| job.mark.n == mark.n && job.head.state.is_live() && !job.was_revived;
        match self.jobs.values().find(goes_on) {
            Some(other) => Err(format!("a tick was to be skipped while {} goes on", other.head.id)),
            None => Ok(()),
        }
    }

    /// Takes in a write of a document.
    pub(super) fn document(
        &mut self,
        key: &DocumentKey,
        document: Option<&Document>,
        now: Timestamp,
    ) -> Checked {
        if key.kind == DocumentKind::Request {
            return self.request(&key.name, document, now);
        }
        if key.kind != DocumentKind::Workflow {
            return Ok(());
        }
        let Some(document) = document else {
            return match self.workflows.remove(&key.name) {
                Some(known) if known.status == Status::Running => {
                    Err(format!("the workflow {} was forgotten while it runs", key.name))
                }
                _ => Ok(()),
            };
        };
        let workflow = Workflow::decode(&document.text).map_err(|corrupt| corrupt.0)?;
        let known = self.workflows.get(&key.name);
        for (at, step) in workflow.steps.iter().enumerate() {
            let before = known.and_then(|known| known.steps.get(at));
            check_step(&workflow, step, before)
                .map_err(|what| format!("step {at} of workflow {}: {what}", key.name))?;
        }
        let is_over = workflow.steps.iter().all(|step| step.status.is_over());
        if is_over == (workflow.status == Status::Running) {
            return Err(format!("the workflow {} is {:?}, its steps are not", key.name, workflow.status));
        }
        self.workflows.insert(Arc::clone(&key.name), workflow);
        Ok(())
    }

    /// Asserts, at the end, that every workflow is over and its steps ended as their jobs did.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check_workflows(&self) -> Checked {
        for (name, workflow) in &self.workflows {
            if workflow.status == Status::Running {
                return Err(format!("the workflow {name} never ends: {workflow:?}"));
            }
            for step in &workflow.steps {
                let Some(id) = step.job() else { continue };
                // The id of a job that is gone may be another's by now, even before the workflow ends.
                let jobs: Vec<&Stored> = self
                    .of_id(id)
                    .filter(|job| workflow.finished_at.is_none_or(|at| job.head.created_at.as_micros() <= at))
                    .collect();
                if jobs.iter().any(|job| job.was_revived) {
                    continue;
                }
                let is_right = |job: &&Stored| match step.status {
                    StepStatus::Completed => job.head.state == State::Completed,
                    StepStatus::Failed => job.head.state == State::Discarded,
                    // Its own job is cancelled with the workflow; a job that was there before goes on.
                    StepStatus::Cancelled => job.head.state == State::Cancelled || !step.is_own,
                    StepStatus::Skipped | StepStatus::Waiting | StepStatus::Running => false,
                };
                if !jobs.is_empty() && !jobs.iter().any(is_right) {
                    return Err(format!(
                        "a step of workflow {name} is not as its job: {step:?}, {:?}",
                        jobs.iter().map(|job| &job.head).collect::<Vec<_>>()
                    ));
                }
            }
        }
        Ok(())
    }
}

fn check_step(workflow: &Workflow, step: &Step, before: Option<&Step>) -> Checked {
    let was = before.map_or(StepStatus::Waiting, |before| before.status);
    if was.is_over() && was != step.status {
        return Err(format!("{was:?} became {:?}", step.status));
    }
    if was == StepStatus::Running && step.status == StepStatus::Waiting {
        return Err("it ran, and waits again".to_owned());
    }
    let parents = || step.after.iter().filter_map(|at| workflow.steps.get(*at as usize));
    let was_offered = step.job.is_some() || step.error.is_some();
    if !was_offered || was != StepStatus::Waiting {
        return Ok(());
    }
    if let Some(parent) = parents().find(|parent| !parent.status.is_over()) {
        return Err(format!("it was offered before {} had ended", parent.id));
    }
    let any_bad = parents().any(|parent| parent.status.is_bad());
    match step.when {
        When::Success if any_bad => Err("it was offered after a failure".to_owned()),
        When::Failure if !any_bad => Err("it was offered without a failure".to_owned()),
        When::Success | When::Failure | When::Always => Ok(()),
    }
}
