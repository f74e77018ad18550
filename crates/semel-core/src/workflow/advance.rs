//! How a workflow advances: which steps' parents have ended, which jobs are offered, which steps are given
//! up, and when the workflow is over.

use bytes::Bytes;

use crate::body::Corrupt;
use crate::deferred;
use crate::draft::{DocumentKind, Draft, Missing};
use crate::enqueue::{Offer, Outcome};
use crate::event::{Event, EventKind};
use crate::ident::JobId;
use crate::job::{Head, NoteKind};
use crate::limits::PARENT_RESULTS_BYTES_MAX;
use crate::planted::{Bug, is_planted};
use crate::waiting::{self, Added, Waiter};

use super::plan::Plan;
use super::record::{Status, Step, StepError, StepStatus, When, Workflow};
use super::{Which, last_failure, omitted, status_of};

/// Error code of a step whose job found no room in its queue.
pub(super) const QUEUE_FULL: &str = "queue_full";

/// Error code and message of a step that would have to wait for a job that has as many waiters as it may.
const TOO_MANY_WAITERS: (&str, &str) = (
    "too_many_waiters",
    "the job that holds the unique key already has too many waiting for its end: let it end, or cancel waiting workflows",
);

/// What is to happen to a waiting step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The step's job is offered.
    Offer,
    /// A step that it waits for did not end as required: it will never be offered.
    GiveUp(StepStatus),
    /// The step keeps waiting.
    Wait,
}

fn turn(workflow: &Workflow, step: &Step) -> Turn {
    let parents = || step.after.iter().filter_map(|at| workflow.steps.get(*at as usize));
    let all_over = parents().all(|parent| parent.status.is_over());
    let any_over = parents().any(|parent| parent.status.is_over());
    let any_bad = parents().any(|parent| parent.status.is_bad());
    match step.when {
        When::Success if any_bad && (all_over || !step.is_callback) => {
            Turn::GiveUp(if step.is_callback { StepStatus::Skipped } else { StepStatus::Cancelled })
        }
        When::Failure if all_over && !any_bad => Turn::GiveUp(StepStatus::Skipped),
        _ if all_over || (any_over && is_planted(Bug::ParentNotAwaited)) => Turn::Offer,
        _ => Turn::Wait,
    }
}

/// How many times one decision looks again at the steps that its own offers have released.
///
/// A step is over at once if it stands for a job that has ended. Each further look needs a few loads of its
/// own while other decisions wait, so a long chain of such steps continues in decisions of its own.
const ROUNDS_MAX: usize = 8;

/// Offers and gives up steps until nothing is left to do, or until it would be too much for one decision:
/// then the workflow becomes due. Ends the workflow when all its steps have ended. While a workflow is being
/// created its jobs are in its plan; afterwards they are in the steps' documents.
pub(super) fn advance(
    draft: &mut Draft,
    which: Which<'_>,
    workflow: &mut Workflow,
    plan: Option<&Plan>,
) -> Result<(), Missing> {
    let mut missing = Ok(());
    workflow.resume_at = None;
    let mut rounds = 0;
    loop {
        give_up(draft, which, workflow, plan);
        let ready = ready(workflow);
        if ready.is_empty() {
            break;
        }
        if rounds == ROUNDS_MAX {
            workflow.resume_at = Some(draft.now().as_micros());
            break;
        }
        rounds += 1;
        for at in ready {
            // Going on finds everything else that is missing in one pass.
            let offered = offer(draft, which, workflow, at, plan);
            if offered.is_err() {
                set_status(workflow, at, StepStatus::Running);
            }
            missing = missing.and(offered);
        }
    }
    missing?;
    if workflow.steps.iter().all(|step| step.status.is_over()) {
        let is_bad = workflow.steps.iter().any(|step| step.status.is_bad());
        workflow.status = if is_bad { Status::Failed } else { Status::Completed };
        workflow.finished_at = Some(draft.now().as_micros());
        let kind = if is_bad { EventKind::WorkflowFailed } else { EventKind::WorkflowCompleted };
        draft.tell_of(workflow.event(which.id, kind));
        drop_leftovers(draft, which, workflow);
    }
    Ok(())
}

/// The steps whose jobs are to be offered now.
fn ready(workflow: &Workflow) -> Vec<usize> {
    let steps = workflow.steps.iter().enumerate();
    let waiting = steps.filter(|(_, step)| step.status == StepStatus::Waiting);
    waiting.filter(|(_, step)| turn(workflow, step) == Turn::Offer).map(|(at, _)| at).collect()
}

/// Gives up the steps that will never be offered, and those that wait for them.
fn give_up(draft: &mut Draft, which: Which<'_>, workflow: &mut Workflow, plan: Option<&Plan>) {
    loop {
        let mut moved = false;
        for at in 0..workflow.steps.len() {
            let Some(step) = workflow.steps.get(at).filter(|step| step.status == StepStatus::Waiting) else {
                continue;
            };
            if let Turn::GiveUp(status) = turn(workflow, step) {
                if plan.is_none() {
                    drop_offer(draft, which, at);
                }
                set_status(workflow, at, status);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
}

/// Sets a step's status and drops its list of results. The results are looked up when the step is offered; in
/// a long chain the lists would make up most of the document.
fn set_status(workflow: &mut Workflow, at: usize, status: StepStatus) {
    if let Some(step) = workflow.steps.get_mut(at) {
        step.status = status;
        step.results = Vec::new();
    }
}

/// Offers a step's job.
fn offer(
    draft: &mut Draft,
    which: Which<'_>,
    workflow: &mut Workflow,
    at: usize,
    plan: Option<&Plan>,
) -> Result<(), Missing> {
    let results = parent_results(draft, which, workflow, at);
    let stored = match plan.and_then(|plan| plan.steps.get(at)) {
        Some(step) => Ok(step.offer.clone()),
        None => load_offer(draft, which, at)?,
    };
    let results = results?;
    if plan.is_none() {
        drop_offer(draft, which, at);
    }
    let offer = match stored {
        Ok(offer) => Offer { awaited: true, ..offer },
        Err(corrupt) => {
            refuse(workflow, at, "internal", corrupt.to_string());
            return Ok(());
        }
    };
    let outcome = deferred::offer(draft, &offer, &format!("workflow {}", which.id))?;
    let waiter =
        || Waiter::Step { workflow: which.id.to_string(), step: u32::try_from(at).unwrap_or(u32::MAX) };
    let is_amended = matches!(outcome, Outcome::Amended(_));
    match outcome {
        Outcome::Created(head) | Outcome::Replaced { head, .. } | Outcome::FollowUp(head) => {
            if let Some(results) = results {
                draft.note(head.id, NoteKind::ParentResults, Some(results));
            }
            waiting::begin(draft, head.id, waiter())?;
            bind(workflow, at, &head, true);
        }
        Outcome::Existing(head) | Outcome::Amended(head) | Outcome::Repeated(head) => {
            if let (true, Some(results)) = (is_amended, results) {
                // The job runs with this step's args, so it gets the results for this step.
                draft.note(head.id, NoteKind::ParentResults, Some(results));
            }
            match waiting::add(draft, head.id, waiter())? {
                Added::Waits => bind(workflow, at, &head, false),
                Added::Over => {
                    bind(workflow, at, &head, false);
                    settle(draft, which, workflow, at, &head)?;
                }
                Added::TooMany => {
                    refuse_for(
                        workflow,
                        at,
                        TOO_MANY_WAITERS.0,
                        TOO_MANY_WAITERS.1.to_owned(),
                        Some(head.id),
                    );
                }
            }
        }
        Outcome::Rejected { holder, .. } => {
            let named = holder.named();
            let message = match named {
                Some(head) => format!("another job ({}) holds the unique key", head.state),
                None => "another job holds the unique key".to_owned(),
            };
            let named = named.map(|head| head.id);
            refuse_for(workflow, at, "duplicate", message, named);
        }
        Outcome::Mismatch { .. } | Outcome::KeyReused(_) => {
            let message = "the unique key is already used for different work".to_owned();
            refuse(workflow, at, "payload_mismatch", message);
        }
        Outcome::TooManyHolders if !is_held_by_too_many(draft, &offer)? => {
            refuse(workflow, at, TOO_MANY_WAITERS.0, TOO_MANY_WAITERS.1.to_owned());
        }
        Outcome::TooManyHolders => {
            let message = "more jobs hold the unique key than one commit may change".to_owned();
            refuse(workflow, at, "too_many_holders", message);
        }
        Outcome::QueueFull(_) => {
            refuse(workflow, at, QUEUE_FULL, "its queue is full: no more jobs may wait in it".to_owned());
        }
        // A step has neither an idempotency key nor an id of its own.
        Outcome::KeySpent | Outcome::IdTaken(_) | Outcome::Corrupt(_) => {
            refuse(workflow, at, "internal", "a stored record cannot be read".to_owned());
        }
    }
    Ok(())
}

fn is_held_by_too_many(draft: &mut Draft, offer: &Offer) -> Result<bool, Missing> {
    offer.unique.as_ref().map_or(Ok(false), |identity| identity.is_held_by_too_many(draft))
}

fn bind(workflow: &mut Workflow, at: usize, head: &Head, is_own: bool) {
    set_status(workflow, at, StepStatus::Running);
    if let Some(step) = workflow.steps.get_mut(at) {
        step.job = Some(head.id.to_string());
        step.is_own = is_own;
    }
}

/// Fails a step without giving it a job.
fn refuse(workflow: &mut Workflow, at: usize, code: &str, message: String) {
    refuse_for(workflow, at, code, message, None);
}

/// Fails a step because of another job. The message must not contain that job's id: a tenant knows the job by
/// another id.
fn refuse_for(workflow: &mut Workflow, at: usize, code: &str, message: String, holder: Option<JobId>) {
    set_status(workflow, at, StepStatus::Failed);
    if let Some(step) = workflow.steps.get_mut(at) {
        let holder = holder.map(|id| id.to_string());
        step.error = Some(StepError { code: code.to_owned(), message, attempt: 0, holder });
    }
}

/// Ends a step the way its job has ended.
pub(super) fn settle(
    draft: &mut Draft,
    which: Which<'_>,
    workflow: &mut Workflow,
    at: usize,
    ended: &Head,
) -> Result<(), Missing> {
    let status = status_of(ended.state);
    let error = if status == StepStatus::Failed { last_failure(draft, ended.id)? } else { None };
    let is_asked_for = status == StepStatus::Completed
        && workflow.steps.iter().any(|step| {
            step.status == StepStatus::Waiting && step.results.iter().any(|asked| *asked as usize == at)
        });
    if is_asked_for {
        let result = draft.full(ended.id)?.and_then(|(_, full)| full.note(NoteKind::Result).cloned());
        if let Some(result) = result {
            // A result too long for any step to be given is not stored a second time: its job has it.
            let is_too_long = result.len() >= PARENT_RESULTS_BYTES_MAX;
            let result = if is_too_long { omitted(&ended.id.to_string()).into() } else { result };
            let bytes = u64::try_from(result.len()).ok();
            draft.set_document(&which.part(DocumentKind::StepResult, at), Some((result, None)));
            if let Some(step) = workflow.steps.get_mut(at) {
                step.has_result = true;
                step.result_bytes = bytes;
            }
        }
    }
    if status == StepStatus::Completed {
        draft.tell_of(Event {
            kind: EventKind::WorkflowStepCompleted,
            job: which.id.as_job(),
            job_type: ended.job_type.clone(),
            queue: ended.queue.clone(),
            attempt: ended.attempt,
            amount: u32::try_from(at).unwrap_or(u32::MAX),
        });
    }
    if let Some(step) = workflow.steps.get_mut(at) {
        step.status = status;
        step.error = error;
        // The last job of a chain of replacements.
        step.job = Some(ended.id.to_string());
    }
    Ok(())
}

/// The results of the steps that this one asks for, as a JSON array: null for a step that returned nothing or
/// did not end well.
fn parent_results(
    draft: &mut Draft,
    which: Which<'_>,
    workflow: &Workflow,
    at: usize,
) -> Result<Option<Bytes>, Missing> {
    let Some(asked) = workflow.steps.get(at).map(|step| &step.results).filter(|asked| !asked.is_empty())
    else {
        return Ok(None);
    };
    let mut text = b"[".to_vec();
    let mut missing = Ok(());
    let mut given = 0;
    for other in asked {
        let step = workflow.steps.get(*other as usize).filter(|step| step.has_result);
        let fits = |bytes: usize| given + bytes < PARENT_RESULTS_BYTES_MAX;
        let known = step.and_then(|step| step.result_bytes).and_then(|bytes| usize::try_from(bytes).ok());
        // What does not fit is not loaded: the results of many steps could exceed the server's memory.
        let result = match step {
            Some(_) if known.is_none_or(fits) => {
                draft.document(&which.part(DocumentKind::StepResult, *other as usize))
            }
            _ => Ok(None),
        };
        if text.len() > 1 {
            text.push(b',');
        }
        match (result, step) {
            (Ok(Some(result)), _) if fits(result.text.len()) => {
                given += result.text.len() + 1;
                text.extend_from_slice(&result.text);
            }
            // Too large to be passed on: the step's job has the result.
            (Ok(Some(_)), Some(step)) => text.extend_from_slice(omitted_of(step).as_bytes()),
            (Ok(None), Some(step)) if !known.is_none_or(fits) => {
                text.extend_from_slice(omitted_of(step).as_bytes());
            }
            (Ok(_), _) => text.extend_from_slice(b"null"),
            (Err(Missing), _) => {
                given += known.unwrap_or(0) + 1;
                missing = Err(Missing);
            }
        }
    }
    missing?;
    text.push(b']');
    Ok(Some(text.into()))
}

fn omitted_of(step: &Step) -> String {
    omitted(step.job.as_deref().unwrap_or_default())
}

/// Deletes what was kept for later steps.
pub(super) fn drop_leftovers(draft: &mut Draft, which: Which<'_>, workflow: &mut Workflow) {
    for (at, step) in workflow.steps.iter_mut().enumerate() {
        if std::mem::take(&mut step.has_result) {
            draft.set_document(&which.part(DocumentKind::StepResult, at), None);
        }
    }
}

/// The job of a step. Only the workflow, whose version is checked, writes to the step's document.
fn load_offer(draft: &mut Draft, which: Which<'_>, at: usize) -> Result<Result<Offer, Corrupt>, Missing> {
    Ok(match draft.document(&which.part(DocumentKind::Step, at))? {
        Some(document) => deferred::decode(&document.text),
        None => Err(Corrupt("a step's job is missing".to_owned())),
    })
}

/// Deletes the job of a step that has been offered or never will be.
pub(super) fn drop_offer(draft: &mut Draft, which: Which<'_>, at: usize) {
    draft.set_document(&which.part(DocumentKind::Step, at), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The turn of a step after two parents whose stored statuses are the given letters.
    fn of(parents: [&str; 2], when: &str, is_callback: bool) -> Turn {
        let [a, b] = parents.map(|at| format!(r#"{{"id":"{at}","type":"a.b","s":"{at}"}}"#));
        let step = format!(
            r#"{{"id":"x","type":"a.b","after":[0,1],"when":"{when}","is_callback":{is_callback},"s":"w"}}"#
        );
        let text =
            format!(r#"{{"form":"graph","status":"running","created_at":0,"steps":[{a},{b},{step}]}}"#);
        let workflow = Workflow::decode(text.as_bytes()).unwrap();
        turn(&workflow, &workflow.steps[2])
    }

    /// A step is given up as soon as one that it needs has ended badly; a callback, which covers all, only
    /// when all have ended.
    #[test]
    fn a_step_is_offered_or_given_up_by_how_those_before_it_ended() {
        let (skipped, cancelled) = (Turn::GiveUp(StepStatus::Skipped), Turn::GiveUp(StepStatus::Cancelled));
        for (parents, when, step, callback) in [
            (["c", "r"], "success", Turn::Wait, Turn::Wait),
            (["c", "c"], "success", Turn::Offer, Turn::Offer),
            (["f", "r"], "success", cancelled, Turn::Wait),
            (["x", "c"], "success", cancelled, skipped),
            (["s", "c"], "success", Turn::Offer, Turn::Offer),
            (["f", "r"], "failure", Turn::Wait, Turn::Wait),
            (["c", "r"], "failure", Turn::Wait, Turn::Wait),
            (["c", "c"], "failure", skipped, skipped),
            (["c", "f"], "failure", Turn::Offer, Turn::Offer),
            (["f", "r"], "always", Turn::Wait, Turn::Wait),
            (["f", "x"], "always", Turn::Offer, Turn::Offer),
        ] {
            assert_eq!(of(parents, when, false), step, "{parents:?} {when}");
            assert_eq!(of(parents, when, true), callback, "{parents:?} {when}, a callback");
        }
    }
}
