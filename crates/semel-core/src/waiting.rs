//! Who is told of a job's end, in the commit that ends it: the steps of workflows that stand for the job, jobs that are
//! held back until it is over, and the steps of the task that it is.

use serde::{Deserialize, Serialize};

use bytes::Bytes;

use crate::body::Corrupt;
use crate::draft::{Draft, Full, Missing, each};
use crate::ident::{JobId, WorkflowId};
use crate::job::{Head, NoteKind};
use crate::life;
use crate::limits::WAITERS_PER_JOB_MAX;
use crate::planted::{Bug, is_planted};
use crate::settle::Settled;
use crate::state::State;
use crate::trail::Marks;
use crate::workflow;

/// Jobs that are looked at for the one that goes on, of those that were held back one behind the other. Each may be a
/// load of its own.
const HELD_LOOKS_MAX: usize = 32;

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
    /// The workflow of a task, which this job is.
    Task {
        /// The workflow's id.
        task: String,
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

    /// Whether the job is a task, whose steps may be kept no more.
    pub fn are_of_task(&self) -> bool {
        self.0.iter().any(|waiter| matches!(waiter, Waiter::Task { .. }))
    }

    /// The workflow, if the job was made or taken for a step of one, and the step's number.
    pub fn workflow(&self) -> Option<(WorkflowId, u32)> {
        self.0.iter().find_map(|waiter| match waiter {
            Waiter::Step { workflow, step } => Some((WorkflowId::parse(workflow, "").ok()?, *step)),
            Waiter::Held { .. } | Waiter::Task { .. } => None,
        })
    }

    /// Takes out those that go with the job and with nobody who takes its place: its own steps.
    pub(crate) fn split_off_own(&mut self) -> Self {
        let is_own = |waiter: &mut Waiter| matches!(waiter, Waiter::Task { .. });
        Self(self.0.extract_if(.., is_own).collect())
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

/// Those who waited for jobs that a new one replaced wait for the new one, and then for whom the replaced were held
/// back.
pub(crate) fn hand_over(draft: &mut Draft, head: &Head, waiters: &Waiters, ahead: Option<JobId>) {
    if waiters.0.is_empty() {
        return;
    }
    draft.note(head.id, NoteKind::Waiters, Some(waiters.encode()));
    if let Some(ahead) = ahead {
        draft.note(head.id, NoteKind::Ahead, Some(encode(ahead)));
    }
}

/// Holds a pending job back until one that goes on has ended. The head of the pending job must have been written in
/// this decision.
pub(crate) fn hold(draft: &mut Draft, id: JobId, ahead: JobId) -> Result<Added, Missing> {
    let added = add(draft, ahead, Waiter::Held { job: id.to_string() })?;
    if added == Added::Waits {
        draft.note(id, NoteKind::Ahead, Some(encode(ahead)));
    }
    Ok(added)
}

/// For whose end the job was held back.
pub(crate) fn ahead_of(full: &Full) -> Option<JobId> {
    let text: String = serde_json::from_slice(full.note(NoteKind::Ahead)?).ok()?;
    JobId::parse(&text, "").ok()
}

fn encode(ahead: JobId) -> Bytes {
    format!("\"{ahead}\"").into()
}

/// The first that goes on, of a job and those that were held back one behind the other before it: one that was
/// cancelled while it was held back has ended before the one it waited for. One that was replaced goes on as the job
/// that took its place, unless that is `but`.
pub(crate) fn first_live(draft: &mut Draft, job: JobId, but: JobId) -> Result<Option<Head>, Missing> {
    let mut id = job;
    for _ in 0..HELD_LOOKS_MAX {
        let Some((head, full)) = draft.full(id)? else { return Ok(None) };
        if head.state.is_live() {
            return Ok(Some(head));
        }
        let Some(next) = replaced_by(&full).filter(|next| *next != but).or_else(|| ahead_of(&full)) else {
            return Ok(None);
        };
        id = next;
    }
    Ok(None)
}

fn replaced_by(full: &Full) -> Option<JobId> {
    let marks = Marks::decode(full.note(NoteKind::Marks)?).ok()?;
    JobId::parse(&marks.replaced_by?, "").ok()
}

/// Tells those who waited that the job has ended.
pub(crate) fn tell(draft: &mut Draft, ended: &Head, waiters: &Waiters) -> Result<(), Missing> {
    let told = each(&waiters.0, |waiter| match waiter {
        Waiter::Step { .. } if is_planted(Bug::StepEndLost) => Ok(()),
        Waiter::Step { workflow, step } => match WorkflowId::parse(workflow, "") {
            Ok(id) => workflow::step_ended(draft, id, *step, ended),
            Err(_) => Ok(()),
        },
        Waiter::Held { job } => match JobId::parse(job, "") {
            Ok(id) => let_go(draft, id, ended),
            Err(_) => Ok(()),
        },
        Waiter::Task { task } => match WorkflowId::parse(task, "") {
            Ok(id) => workflow::task_ended(draft, id, ended),
            Err(_) => Ok(()),
        },
    });
    told.map(drop)
}

/// A job that was held back for one that has ended goes on: it becomes available, or waits for whom that one was held
/// back itself and who has not ended.
fn let_go(draft: &mut Draft, id: JobId, ended: &Head) -> Result<(), Missing> {
    let ahead = if is_planted(Bug::HeldBackOnce) { None } else { first_live(draft, ended.id, id)? };
    if let Some(ahead) = ahead {
        let Some(mut head) = draft.head(id)?.filter(|head| head.state == State::Pending) else {
            return Ok(());
        };
        // Written with the note, so that two writers of one job's notes meet by its version.
        draft.update(&mut head);
        if hold(draft, id, ahead.id)? == Added::Waits {
            return Ok(());
        }
    }
    if let Settled::Done(_) = life::activate(draft, id)? {
        // All before it have ended: who comes after it need not look at them again.
        draft.note(id, NoteKind::Ahead, None);
    }
    Ok(())
}
