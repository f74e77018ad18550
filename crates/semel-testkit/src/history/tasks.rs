//! Judges tasks: all of their steps exist or none, one task per identity, ended with their steps and never
//! without.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::ident::{JobId, WorkflowId};
use semel_core::job::{Ending, Head};
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::unique::UniqueKey;
use semel_core::workflow::{Status, Workflow};

use super::moves::check_update;
use super::{Checked, Mark, Witness};

/// The tasks that were asked for.
#[derive(Debug, Default)]
pub struct Tasks {
    /// The number of steps of each request's task.
    asked: BTreeMap<u64, usize>,
    /// Identities that are held for ever.
    strict: BTreeSet<UniqueKey>,
    /// How many tasks each of these identities has had.
    stored: BTreeMap<UniqueKey, u64>,
}

impl Tasks {
    /// Notes that this request is for a task with this many steps. `strict` is its identity, if that is held
    /// for ever.
    pub fn ask(&mut self, number: u64, steps: usize, strict: Option<UniqueKey>) {
        self.asked.insert(number, steps);
        self.strict.extend(strict);
    }

    /// Whether this request is for a task.
    pub fn is_task(&self, mark: Mark) -> bool {
        self.asked.contains_key(&mark.n)
    }
}

/// A task has neither a lease nor an attempt of its own: by the rules of jobs it counts as waiting for as
/// long as it lives.
fn as_waiting(head: &Head) -> Head {
    Head { state: State::Pending, started_at: None, ..head.clone() }
}

/// Judges whether `after` may follow `before` for a task.
pub(super) fn check_task(before: &Head, after: &Head, now: Timestamp) -> Checked {
    if after.lease.is_some() || after.attempt > 0 {
        return Err("somebody runs a task".to_owned());
    }
    match (before.state, after.state) {
        // A task begins in the commit that admits it.
        (State::Pending | State::Active, State::Active) => {
            check_update(&as_waiting(before), &as_waiting(after), now)
        }
        (State::Active, State::Cancelled) => check_update(&as_waiting(before), after, now),
        (State::Active, State::Completed) if after.ending == Some(Ending::Completed) => Ok(()),
        (State::Active, State::Discarded) if after.ending == Some(Ending::Failed) => Ok(()),
        (from, to) if from == to && from.is_finished() => check_update(before, after, now),
        (from, to) => Err(format!("a task went from {from} to {to}")),
    }
}

impl Witness {
    /// Takes in a new task: its identity, if held for ever, must not have had another task before.
    pub(super) fn check_one_task(&mut self, head: &Head) -> Checked {
        let Some(key) = head.key.filter(|key| self.tasks.strict.contains(key)) else { return Ok(()) };
        let stored = self.tasks.stored.entry(key).or_default();
        *stored += 1;
        if *stored > 1 { Err(format!("{} is a second task of one identity", head.id)) } else { Ok(()) }
    }

    /// Judges a task after a commit that wrote it: it has its workflow with all of its steps, those that can
    /// begin have begun, and its state follows from theirs.
    pub(super) fn check_task_whole(&self, id: JobId) -> Checked {
        let Some(task) = self.jobs.get(&id) else { return Ok(()) };
        let name = WorkflowId::new(id).to_string();
        let Some(workflow) = self.workflows.get(&*name) else {
            // Its workflow is kept no longer than the body of an ended task.
            let is_over = task.head.state.is_finished();
            return if is_over { Ok(()) } else { Err(format!("the task {id} has no steps")) };
        };
        self.check_steps(task.mark, workflow).and_then(|()| check_same_end(&task.head, workflow))
    }

    fn check_steps(&self, mark: Mark, workflow: &Workflow) -> Checked {
        let asked = self.tasks.asked.get(&mark.n).copied().unwrap_or_default();
        if workflow.steps.len() != asked {
            return Err(format!("a task of {asked} steps has {}", workflow.steps.len()));
        }
        let is_begun = |step: &&semel_core::workflow::Step| {
            step.status.is_over() || step.job().is_some() || step.error.is_some()
        };
        let mut first = workflow.steps.iter().filter(|step| step.after.is_empty());
        match first.find(|step| !is_begun(step)) {
            Some(step) => Err(format!("the step {} of a task was not begun with it", step.id)),
            None => Ok(()),
        }
    }

    /// Asserts, at the end, that every task's state follows from its steps.
    ///
    /// # Errors
    /// The first task for which that does not hold.
    pub fn check_tasks(&self) -> Checked {
        let tasks = self.jobs.iter().filter(|(_, job)| self.tasks.is_task(job.mark));
        for (id, job) in tasks {
            if job.head.state.is_live() {
                return Err(format!("the task {id} never ends: {:?}", job.head));
            }
            self.check_task_whole(*id)?;
        }
        Ok(())
    }
}

fn check_same_end(task: &Head, workflow: &Workflow) -> Checked {
    let expected = match workflow.status {
        Status::Running => State::Active,
        Status::Completed => State::Completed,
        Status::Failed => State::Discarded,
        Status::Cancelled => State::Cancelled,
    };
    if task.state == expected {
        return Ok(());
    }
    Err(format!("the task {} is {}, its steps are {:?}", task.id, task.state, workflow.status))
}
