//! Who is told of a job's end, in the commit that ends it: the steps of workflows that stand for the job, and jobs that
//! are held back until it is over.

use serde::{Deserialize, Serialize};

use bytes::Bytes;

use crate::body::Corrupt;
use crate::draft::{Draft, Missing};
use crate::event::EventKind;
use crate::ident::{JobId, WorkflowId};
use crate::job::{Head, NoteKind};
use crate::limits::WAITERS_PER_JOB_MAX;
use crate::planted::{Bug, is_planted};
use crate::state::{Event, State, next};
use crate::workflow;

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Waiter {
    /// A step of a workflow, which stands for this job.
    Step {
        /// The workflow's id.
        workflow: String,
        /// The step's number.
        step: u32,
    },
    /// A pending job that is to become available then.
    Held {
        /// Its id.
        job: String,
    },
}

/// Those who wait for a job's end. They stay noted when it has come, so that people see what the job was for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiters(pub Vec<Waiter>);

impl Waiters {
    /// The stored form.
    pub fn encode(&self) -> Bytes {
        // Strings and numbers only: nothing here can fail to serialise.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// When the bytes are not what [`encode`](Self::encode) writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Corrupt> {
        serde_json::from_slice(bytes).map_err(|error| Corrupt(error.to_string()))
    }

    /// The workflow, if the job was made or taken for a step of one, and the step's number.
    pub fn workflow(&self) -> Option<(WorkflowId, u32)> {
        self.0.iter().find_map(|waiter| match waiter {
            Waiter::Step { workflow, step } => Some((WorkflowId::parse(workflow, "").ok()?, *step)),
            Waiter::Held { .. } => None,
        })
    }
}

/// Whether somebody waits now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It will be told.
    Waits,
    /// So many wait already that one more would make the job's end too much for one commit.
    TooMany,
    /// The job has ended, or is gone.
    Over,
}

/// Adds one who waits for the end of a live job.
pub(crate) fn add(draft: &mut Draft, id: JobId, waiter: Waiter) -> Result<Added, Missing> {
    let Some((mut head, full)) = draft.full(id)? else { return Ok(Added::Over) };
    if head.state.is_finished() {
        return Ok(Added::Over);
    }
    let noted = full.note(NoteKind::Waiters).map(|text| Waiters::decode(text));
    // Of a note that cannot be read nobody could be told anything.
    let mut waiters = noted.and_then(Result::ok).unwrap_or_default();
    if waiters.0.len() >= WAITERS_PER_JOB_MAX {
        return Ok(Added::TooMany);
    }
    waiters.0.push(waiter);
    head.awaited = true;
    // Written with the head, so that two writers of one job's notes meet by its version.
    draft.update(&mut head);
    draft.note(id, NoteKind::Waiters, Some(waiters.encode()));
    Ok(Added::Waits)
}

/// Adds the one for whose sake a job was created in this very decision, as its offer announced.
pub(crate) fn begin(draft: &mut Draft, id: JobId, waiter: Waiter) -> Result<(), Missing> {
    let noted = draft.full(id)?.and_then(|(_, full)| full.note(NoteKind::Waiters).cloned());
    let mut waiters = noted.and_then(|text| Waiters::decode(&text).ok()).unwrap_or_default();
    waiters.0.push(waiter);
    draft.note(id, NoteKind::Waiters, Some(waiters.encode()));
    Ok(())
}

/// Those who wait for a job; its head is to be written without the flag.
pub(crate) fn take(draft: &mut Draft, head: &mut Head) -> Result<Waiters, Missing> {
    let Some((_, full)) = draft.full(head.id)? else { return Ok(Waiters::default()) };
    head.awaited = false;
    let noted = full.note(NoteKind::Waiters).map(|text| Waiters::decode(text));
    Ok(noted.and_then(Result::ok).unwrap_or_default())
}

/// Those who waited for jobs that a new one replaced wait for the new one.
pub(crate) fn hand_over(draft: &mut Draft, head: &Head, waiters: &Waiters) {
    if !waiters.0.is_empty() {
        draft.note(head.id, NoteKind::Waiters, Some(waiters.encode()));
    }
}

/// Tells those who waited that the job has ended.
pub(crate) fn tell(draft: &mut Draft, ended: &Head, waiters: &Waiters) -> Result<(), Missing> {
    let mut told = Ok(());
    for waiter in &waiters.0 {
        let one = match waiter {
            Waiter::Step { .. } if is_planted(Bug::StepEndLost) => Ok(()),
            Waiter::Step { workflow, step } => match WorkflowId::parse(workflow, "") {
                Ok(id) => workflow::step_ended(draft, id, *step, ended),
                Err(_) => Ok(()),
            },
            Waiter::Held { job } => match JobId::parse(job, "") {
                Ok(id) => let_go(draft, id),
                Err(_) => Ok(()),
            },
        };
        // Going on finds what else is missing, in one go.
        told = told.and(one);
    }
    told
}

/// A job that was held back becomes available.
fn let_go(draft: &mut Draft, id: JobId) -> Result<(), Missing> {
    let Some(mut head) = draft.head(id)? else { return Ok(()) };
    if head.state != State::Pending {
        return Ok(());
    }
    if let Ok(state) = next(head.state, Event::Activate) {
        head.state = state;
        head.available_at = head.available_at.max(draft.now());
        draft.update(&mut head);
        draft.tell(EventKind::Available, &head, 0);
    }
    Ok(())
}
