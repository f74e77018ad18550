//! Tasks: workflow steps under one identity.
//!
//! A task is a stored job that no worker runs. It alone carries the key, is admitted like any other job, lives
//! while its workflow runs and ends with it, in the same commit (SEMANTICS 6).

use crate::body::Corrupt;
use crate::draft::{Draft, Missing};
use crate::enqueue::{Offer, Outcome, Start, enqueue};
use crate::event::EventKind;
use crate::ident::{JobId, WorkflowId};
use crate::job::{Ending, Head, NoteKind};
use crate::life::cancel_head;
use crate::planted::{Bug, is_planted};
use crate::settle::end;
use crate::state::{Event, next};
use crate::tenant::Namespace;
use crate::trail::{Failure, Failures};
use crate::unique::{OnConflict, UniquePolicy, WhenActive};
use crate::waiting::{self, Waiter};
use crate::workflow::{self, Created, Plan, Status, StepStatus, Workflow};

/// A task to be created.
#[derive(Clone, Debug)]
pub struct TaskPlan {
    /// The task itself: its identity, and its context as the one element of its args.
    pub offer: Offer,
    /// Its steps. The plan has been [checked](Plan::check), and has no id of its own.
    pub steps: Plan,
}

/// Why a policy cannot be a task's. A task begins when it is admitted: its steps exist at once, with the context of
/// the request that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// `follow_up`: what would be put off has already begun, and two runs of one key would overlap.
    FollowsUp,
    /// `replace_except_schedule`: a task has no schedule to take over.
    KeepsSchedule,
    /// `when_active: wait`: a task cannot begin later than it is admitted.
    Waits,
}

/// Why a policy cannot be a task's; `None` when it can.
pub fn unfit(policy: &UniquePolicy) -> Option<Unfit> {
    match policy.on_conflict() {
        OnConflict::FollowUp => Some(Unfit::FollowsUp),
        OnConflict::ReplaceExceptSchedule => Some(Unfit::KeepsSchedule),
        OnConflict::Replace if policy.when_active() == WhenActive::Wait => Some(Unfit::Waits),
        OnConflict::Replace | OnConflict::Reject | OnConflict::Ignore => None,
    }
}

/// The outcome of a request for a task.
#[derive(Clone, Debug)]
pub enum TaskOutcome {
    /// It was created, with its steps, in one commit.
    Created {
        /// The task's id, which is its workflow's too.
        id: WorkflowId,
        /// The outcome for the task's own job: created, or created in place of others.
        outcome: Outcome,
        /// Its workflow.
        workflow: Box<Workflow>,
    },
    /// The task was not created: another task is the answer, or blocks it. No step was looked at.
    Decided(Outcome),
    /// It was refused: its policy cannot be a task's.
    Unfit(Unfit),
    /// It cannot be stored.
    Corrupt(Corrupt),
}

/// Admits a task and, if it is created, begins its steps: one decision, one commit. The identity is decided before any
/// step exists.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn create(draft: &mut Draft, plan: &TaskPlan, space: &Namespace) -> Result<TaskOutcome, Missing> {
    if let Some(why) = plan.offer.unique.as_ref().and_then(|identity| unfit(&identity.policy)) {
        return Ok(TaskOutcome::Unfit(why));
    }
    let offer = Offer { start: Start::OnActivation, awaited: true, bounded: false, ..plan.offer.clone() };
    let outcome = enqueue(draft, &offer)?;
    let Some(job) = outcome.inserted() else { return Ok(TaskOutcome::Decided(outcome)) };
    let Some(mut head) = draft.head(job)? else { return Ok(TaskOutcome::Decided(outcome)) };
    let id = WorkflowId::new(space.shown_id(job));
    waiting::begin(draft, job, Waiter::Task { task: id.to_string() })?;
    let Ok(state) = next(head.state, Event::Begin) else {
        let cannot = format!("a task that is {} cannot begin", head.state);
        draft.roll_back();
        return Ok(TaskOutcome::Corrupt(Corrupt(cannot)));
    };
    head.state = state;
    head.started_at = Some(draft.now());
    draft.update(&mut head);
    match workflow::create_for(draft, &Plan { id: Some(id), ..plan.steps.clone() }, Some(job))? {
        Created::Done(id, workflow) => {
            let outcome = with_head(outcome, draft.newest(head));
            Ok(TaskOutcome::Created { id, outcome, workflow })
        }
        Created::QueueFull(depth) => {
            draft.roll_back();
            Ok(TaskOutcome::Decided(Outcome::QueueFull(depth)))
        }
        Created::Corrupt(corrupt) => {
            draft.roll_back();
            Ok(TaskOutcome::Corrupt(corrupt))
        }
        // Cannot happen: the id was minted in this very decision.
        Created::Repeated(..) | Created::IdTaken(_) => {
            draft.roll_back();
            Ok(TaskOutcome::Corrupt(Corrupt("a new task's id already exists".to_owned())))
        }
    }
}

fn with_head(outcome: Outcome, now: Head) -> Outcome {
    match outcome {
        Outcome::Replaced { cancelled, disclose, .. } => {
            Outcome::Replaced { head: Box::new(now), cancelled, disclose }
        }
        _ => Outcome::Created(Box::new(now)),
    }
}

/// Ends a task as its workflow has ended or been cancelled, in the same commit.
pub(crate) fn conclude(draft: &mut Draft, workflow: &Workflow) -> Result<(), Missing> {
    let Some(job) = workflow.task() else { return Ok(()) };
    let Some(mut head) = draft.head(job)?.filter(|head| head.state.is_live()) else { return Ok(()) };
    match workflow.status {
        Status::Running => Ok(()),
        Status::Cancelled => cancel_head(draft, &mut head, Ending::Cancelled).map(drop),
        Status::Completed => finish(draft, &mut head, Event::Complete),
        Status::Failed if is_planted(Bug::TaskOutlivesSteps) => Ok(()),
        Status::Failed => {
            note_failure(draft, job, workflow);
            finish(draft, &mut head, Event::FailEnd)
        }
    }
}

fn finish(draft: &mut Draft, head: &mut Head, event: Event) -> Result<(), Missing> {
    let Ok(state) = next(head.state, event) else { return Ok(()) };
    head.state = state;
    match event {
        Event::Complete => end(draft, head, Ending::Completed, EventKind::Completed),
        _ => end(draft, head, Ending::Failed, EventKind::Discarded),
    }
}

fn note_failure(draft: &mut Draft, job: JobId, workflow: &Workflow) {
    let bad = workflow.steps.iter().find(|step| step.status == StepStatus::Failed);
    let message = match bad {
        Some(step) => format!("the step {} failed", step.id),
        None => "a step did not succeed".to_owned(),
    };
    let mut failures = Failures::default();
    failures.push(Failure {
        code: "step_failed".to_owned(),
        message,
        error_type: "step_failed".to_owned(),
        attempt: 0,
        at: draft.now().as_micros(),
        retry_delay_ms: None,
        details: None,
    });
    draft.note(job, NoteKind::Failures, Some(failures.encode()));
}
