//! Workflows: jobs that wait for jobs.
//!
//! Chain, group and batch are forms of one thing: steps. Each is offered when the steps it waits for have ended as
//! it needs, through the one admission path and by its own unique policy.
//!
//! A step is released in the commit that ends its parents: `steps_ended` is called by the one function that ends a job.
//! So there is no moment between the two, and no duty that could be late.

mod advance;
mod plan;
mod record;
mod told;

use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::body::Corrupt;
use crate::deferred;
use crate::draft::{DocumentKey, DocumentKind, Draft, Missing, each};
use crate::enqueue::no_room;
use crate::event::EventKind;
use crate::ident::{JobId, QueueName, WorkflowId};
use crate::job::{Ending, Head, NoteKind};
use crate::life::cancel_head;
use crate::limits::RETENTION_DEFAULT_S;
use crate::settings::Depth;
use crate::state::State;
use crate::task;
use crate::tenant::{Namespace, Tenant};
use crate::trail::Failures;

use self::advance::{advance, drop_leftovers, drop_offer, settle};

pub use self::plan::{Plan, PlannedStep, waits_bytes};
pub use self::record::{Form, Status, Step, StepError, StepStatus, When, Workflow};
pub use self::told::{may_have_successor, shown_successor};

/// A workflow's owner and its id, which is looked up among its owner's workflows only.
#[derive(Clone, Copy, Debug)]
struct Which<'a> {
    owner: &'a Tenant,
    id: WorkflowId,
}

impl Which<'_> {
    fn key(self) -> DocumentKey {
        DocumentKey::new(DocumentKind::Workflow, self.owner.own(&self.id.to_string()))
    }

    /// The document of a step's stored offer, or of its result.
    fn part(self, kind: DocumentKind, step: usize) -> DocumentKey {
        DocumentKey::new(kind, self.owner.own(&format!("{}/{step}", self.id)))
    }

    fn save(self, draft: &mut Draft, workflow: &Workflow) {
        let encoded = workflow.encode(draft);
        draft.set_document(&self.key(), Some(encoded));
    }
}

/// The key of a workflow's document.
pub fn key(owner: &Tenant, id: WorkflowId) -> DocumentKey {
    Which { owner, id }.key()
}

/// The id of the workflow whose document has that name.
pub fn id_of(name: &str) -> Option<WorkflowId> {
    WorkflowId::parse(Tenant::of_own(name).1, "").ok()
}

/// The outcome of a request for a workflow.
#[derive(Clone, Debug)]
pub enum Created {
    /// It was created. Steps that wait for nothing have been offered; a step whose job was refused has failed.
    Done(WorkflowId, Box<Workflow>),
    /// The same request, under the caller's own id, had created it before; this is the workflow now.
    Repeated(WorkflowId, Box<Workflow>),
    /// Another request has used the id.
    IdTaken(WorkflowId),
    /// The queue of one of its first steps is full; nothing was stored.
    QueueFull(Depth),
    /// It cannot be stored, or the stored workflow cannot be read.
    Corrupt(Corrupt),
}

/// Creates a workflow and offers the steps that wait for nothing, in one commit. The plan must have been
/// [checked](Plan::check).
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn create(draft: &mut Draft, plan: &Plan) -> Result<Created, Missing> {
    create_for(draft, plan, None)
}

/// As [`create`]; `task` is the task's own job, if the workflow is a task's.
pub(crate) fn create_for(draft: &mut Draft, plan: &Plan, task: Option<JobId>) -> Result<Created, Missing> {
    let owner = &plan.owner;
    let id = match plan.id {
        // A task's id was minted in this very decision: nobody can have used it.
        Some(id) if task.is_some() => id,
        Some(id) => {
            if let Some(document) = draft.document(&key(owner, id))? {
                return Ok(match Workflow::decode(&document.text) {
                    Ok(known) if known.digest.is_some() && known.digest == plan.digest => {
                        Created::Repeated(id, Box::new(known))
                    }
                    Ok(_) => Created::IdTaken(id),
                    Err(corrupt) => Created::Corrupt(corrupt),
                });
            }
            id
        }
        None if owner.is_default() => WorkflowId::new(draft.mint()),
        // Row numbers are shared by all tenants, and would tell one about the others.
        None => WorkflowId::new(draft.mint_unnumbered()),
    };
    let which = Which { owner, id };
    let steps = plan.steps.iter().map(|step| Step {
        id: step.id.clone(),
        job_type: step.offer.job_type.to_string(),
        after: step.after.clone(),
        when: step.when,
        results: step.results.clone(),
        is_callback: step.is_callback,
        status: StepStatus::Waiting,
        job: None,
        is_own: false,
        error: None,
        has_result: false,
        result_bytes: None,
    });
    let mut workflow = Workflow {
        form: plan.form,
        name: plan.name.clone(),
        status: Status::Running,
        queue: plan.steps.first().map(|step| step.offer.queue.as_str().to_owned()),
        created_at: draft.now().as_micros(),
        finished_at: None,
        resume_at: None,
        digest: plan.digest,
        task: task.map(|job| job.to_string()),
        steps: steps.collect(),
    };
    draft.tell_of(workflow.event(id, EventKind::WorkflowStarted));
    advance(draft, which, &mut workflow, Some(plan))?;
    // A first step that finds no room rolls the whole workflow back.
    for (step, planned) in
        workflow.steps.iter().zip(&plan.steps).filter(|(_, planned)| planned.after.is_empty())
    {
        if step.error.as_ref().is_some_and(|error| error.code == advance::QUEUE_FULL)
            && let Some(depth) = no_room(draft, &planned.offer)?
        {
            draft.roll_back();
            return Ok(Created::QueueFull(depth));
        }
    }
    // Steps that are offered already are stored as jobs, and as nothing else.
    for (at, (step, planned)) in workflow.steps.iter().zip(&plan.steps).enumerate() {
        if step.status == StepStatus::Waiting {
            match deferred::encode(&planned.offer) {
                Ok(text) => {
                    draft.set_document(&which.part(DocumentKind::Step, at), Some((Bytes::from(text), None)));
                }
                Err(corrupt) => {
                    draft.roll_back();
                    return Ok(Created::Corrupt(corrupt));
                }
            }
        }
    }
    which.save(draft, &workflow);
    task::conclude(draft, &workflow)?;
    Ok(Created::Done(id, Box::new(workflow)))
}

/// Settles the steps that stand for an ended job, in the commit that ends it; whatever waited for the steps is
/// offered or given up.
pub(crate) fn steps_ended(
    draft: &mut Draft,
    id: WorkflowId,
    steps: &[u32],
    ended: &Head,
) -> Result<(), Missing> {
    // A step's job belongs to the workflow's owner, even if it existed before the workflow.
    let owner = Tenant::from_stored(ended.queue.tenant());
    let which = Which { owner: &owner, id };
    let Some(document) = draft.document(&which.key())? else { return Ok(()) };
    // Nothing can be done for an unreadable workflow, and the job's end must not fail because of it.
    let Ok(mut workflow) = Workflow::decode(&document.text) else { return Ok(()) };
    if workflow.status != Status::Running {
        return Ok(());
    }
    let mut is_settled = false;
    for at in steps.iter().map(|step| *step as usize) {
        if workflow.steps.get(at).is_some_and(|step| step.status == StepStatus::Running) {
            settle(draft, which, &mut workflow, at, ended)?;
            is_settled = true;
        }
    }
    if !is_settled {
        return Ok(());
    }
    advance(draft, which, &mut workflow, None)?;
    which.save(draft, &workflow);
    task::conclude(draft, &workflow)
}

/// Whether the workflow is to be told of a job's end. Its jobs are in that queue, which names its owner.
pub(crate) fn goes_on(draft: &mut Draft, queue: &QueueName, id: WorkflowId) -> Result<bool, Missing> {
    // A workflow that this very decision creates is only written at its end.
    if draft.tells_of(EventKind::WorkflowStarted, id.as_job()) {
        return Ok(true);
    }
    let owner = Tenant::from_stored(queue.tenant());
    let Some(document) = draft.document(&key(&owner, id))? else { return Ok(false) };
    // An unreadable workflow may not have ended.
    Ok(Workflow::status_in(&document.text).is_none_or(|status| status == Status::Running))
}

/// Cancels what is left of a task's workflow: the task's job has ended otherwise than by its workflow.
pub(crate) fn task_ended(draft: &mut Draft, id: WorkflowId, ended: &Head) -> Result<(), Missing> {
    let owner = Tenant::from_stored(ended.queue.tenant());
    cancel(draft, &owner, id).map(drop)
}

/// The outcome of a request to cancel a workflow.
#[derive(Clone, Debug)]
pub enum Cancelled {
    /// It is cancelled, and so are the jobs that were created for its steps.
    Done(Box<Workflow>),
    /// There is no such workflow.
    NotFound,
    /// It had ended already.
    Over(Status),
    /// The stored workflow cannot be read.
    Corrupt(Corrupt),
}

/// Cancels a workflow and all jobs that were created for it and have not ended, in one commit. Jobs that existed
/// before a step was bound to them go on.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn cancel(draft: &mut Draft, owner: &Tenant, id: WorkflowId) -> Result<Cancelled, Missing> {
    let which = Which { owner, id };
    let Some(document) = draft.document(&which.key())? else { return Ok(Cancelled::NotFound) };
    let mut workflow = match Workflow::decode(&document.text) {
        Ok(workflow) => workflow,
        Err(corrupt) => return Ok(Cancelled::Corrupt(corrupt)),
    };
    if workflow.status != Status::Running {
        return Ok(Cancelled::Over(workflow.status));
    }
    let mut jobs: Vec<JobId> = Vec::new();
    for (at, step) in workflow.steps.iter_mut().enumerate() {
        match step.status {
            StepStatus::Waiting => drop_offer(draft, which, at),
            StepStatus::Running if step.is_own => jobs.extend(step.job()),
            _ => {}
        }
        if !step.status.is_over() {
            step.status = StepStatus::Cancelled;
        }
    }
    workflow.status = Status::Cancelled;
    workflow.finished_at = Some(draft.now().as_micros());
    drop_leftovers(draft, which, &mut workflow);
    draft.tell_of(workflow.event(id, EventKind::WorkflowCancelled));
    // Saved before the jobs end: whatever their ends reach must find the workflow over.
    which.save(draft, &workflow);
    let told = each(jobs, |job| match draft.head(job)? {
        Some(mut head) if head.state.is_live() => cancel_head(draft, &mut head, Ending::Cancelled).map(drop),
        _ => Ok(()),
    });
    let concluded = task::conclude(draft, &workflow);
    told?;
    concluded?;
    Ok(Cancelled::Done(Box::new(workflow)))
}

/// The outcome of looking at a workflow that may be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// There is no such workflow, it is not due, or the stored workflow cannot be read.
    NotDue,
    /// It went on from where one decision would have been too much.
    WentOn,
    /// It was deleted, because its retention is over.
    Forgotten,
}

/// Does what is due for the workflow of that document: continues one that stopped in the middle, deletes one whose
/// retention is over.
///
/// # Errors
/// [`Missing`] when the snapshot lacks something.
pub fn look(draft: &mut Draft, key: &DocumentKey) -> Result<Looked, Missing> {
    let Some(document) = draft.document(key)? else { return Ok(Looked::NotDue) };
    if document.due.is_none_or(|at| at > draft.now()) {
        return Ok(Looked::NotDue);
    }
    let Ok(mut workflow) = Workflow::decode(&document.text) else {
        // Kept for a program that can read it, and looked at again later, so that it delays none of those behind it.
        let later = draft.now().saturating_add(Duration::from_secs(RETENTION_DEFAULT_S));
        draft.set_document(key, Some((document.text, Some(later))));
        return Ok(Looked::NotDue);
    };
    if workflow.status != Status::Running {
        draft.set_document(key, None);
        return Ok(Looked::Forgotten);
    }
    let (owner, id) = Tenant::of_own(&key.name);
    let Ok(id) = WorkflowId::parse(id, "") else { return Ok(Looked::NotDue) };
    let which = Which { owner: &Tenant::from_stored(owner), id };
    advance(draft, which, &mut workflow, None)?;
    which.save(draft, &workflow);
    task::conclude(draft, &workflow)?;
    Ok(Looked::WentOn)
}

/// Whether the stored workflow has ended: once due, it is only deleted. `false` for one that cannot be read.
pub fn has_ended(text: &[u8]) -> bool {
    Workflow::status_in(text).is_some_and(|status| status != Status::Running)
}

/// Stands for a step's result that was too large to be handed on, and names the job that has it.
fn omitted(job: &str) -> String {
    format!("{OMITTED}{job}\"}}")
}

/// How such a stand-in begins. Members whose names begin with `semel.` are the server's.
const OMITTED: &str = "{\"semel.omitted\":true,\"job_id\":\"";

/// The results of earlier steps as a tenant sees them: stand-ins name their jobs by the ids that the tenant knows.
pub fn shown_results(results: &Bytes, space: &Namespace) -> Bytes {
    let is_omitted = |item: &&RawValue| item.get().starts_with(OMITTED);
    let Ok(items) = serde_json::from_slice::<Vec<&RawValue>>(results) else { return results.clone() };
    if space.is_default() || !items.iter().any(is_omitted) {
        return results.clone();
    }
    let shown = |item: &&RawValue| {
        let job = item
            .get()
            .strip_prefix(OMITTED)
            .and_then(|rest| JobId::parse(rest.strip_suffix("\"}")?, "").ok());
        job.map_or_else(|| item.get().to_owned(), |job| omitted(&space.shown_id(job).to_string()))
    };
    format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(",")).into()
}

/// The status of a step whose job is in this state.
const fn status_of(ended: State) -> StepStatus {
    match ended {
        State::Completed => StepStatus::Completed,
        State::Cancelled => StepStatus::Cancelled,
        State::Discarded => StepStatus::Failed,
        State::Scheduled | State::Available | State::Pending | State::Active | State::Retryable => {
            StepStatus::Running
        }
    }
}

/// The last failure of a failed job.
fn last_failure(draft: &mut Draft, job: JobId) -> Result<Option<StepError>, Missing> {
    let Some((_, full)) = draft.full(job)? else { return Ok(None) };
    let failures = full.note(NoteKind::Failures).and_then(|text| Failures::decode(text).ok());
    let last = failures.and_then(|mut failures| failures.0.pop());
    Ok(last.map(|failure| StepError {
        code: failure.code,
        message: failure.message.chars().take(ERROR_CHARS_MAX).collect(),
        attempt: failure.attempt,
        holder: None,
    }))
}

/// Characters of a failure's message that a workflow repeats; the job has the whole message.
const ERROR_CHARS_MAX: usize = 200;
