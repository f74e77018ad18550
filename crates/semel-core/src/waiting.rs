//! Who is told of a job's end, in the commit that ends it: the steps of workflows that stand for the job, jobs that are
//! held back until it is over, and the steps of the task that it is.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::Corrupt;
use crate::draft::{Draft, Full, Missing, each};
use crate::ident::{JobId, QueueName, WorkflowId};
use crate::job::{Head, NoteKind};
use crate::life;
use crate::limits::WAITERS_PER_JOB_MAX;
use crate::planted::{Bug, is_planted};
use crate::settle::Settled;
use crate::state::State;
use crate::trail::Marks;
use crate::workflow;

/// How far is looked from a job that has ended for those that go on in its stead. Each step may be a load of its own.
const HELD_LOOKS_MAX: usize = 32;
/// How far is looked from jobs that wait for whether it is for a new one, beside what was looked at for those that go on: a decision has
/// so many loads.
const BEHIND_LOOKS_MAX: usize = 16;
/// So many jobs that wait for one are tried for one more to wait behind, where the one can have no more.
const BEHIND_TRIES: usize = 8;

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

    /// The numbers of a workflow's steps among them.
    fn steps_of(&self, id: &str) -> Vec<u32> {
        let steps = self.0.iter().filter_map(|waiter| match waiter {
            Waiter::Step { workflow, step } if workflow == id => Some(*step),
            Waiter::Step { .. } | Waiter::Held { .. } | Waiter::Task { .. } => None,
        });
        steps.collect()
    }

    /// What of them is read of a job whose waiters wait for another by now: that it was a task, and whose step it was.
    pub(crate) fn kept_after_end(&self) -> Self {
        let is_step = |waiter: &&Waiter| matches!(waiter, Waiter::Step { .. });
        let tasks = self.0.iter().filter(|waiter| matches!(waiter, Waiter::Task { .. }));
        Self(tasks.chain(self.0.iter().find(is_step)).cloned().collect())
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
    if !fit(draft, &head.queue, &mut waiters, 1)? {
        return Ok(Added::TooMany);
    }
    waiters.0.push(waiter);
    head.awaited = true;
    // Written with the head, so that two writers of one job's notes meet by its version.
    draft.update(&mut head);
    draft.note(id, NoteKind::Waiters, Some(waiters.encode()));
    Ok(Added::Waits)
}

/// Whether they may all wait for one job of that queue, with so many more. Where they are too many those are left out who wait no
/// more.
pub(crate) fn fit(
    draft: &mut Draft,
    queue: &QueueName,
    waiters: &mut Waiters,
    more: usize,
) -> Result<bool, Missing> {
    if waiters.0.len() + more > WAITERS_PER_JOB_MAX {
        forget_the_gone(draft, queue, waiters)?;
    }
    Ok(waiters.0.len() + more <= WAITERS_PER_JOB_MAX)
}

/// Workflows that are looked at, whether they go on, in one go: each is read as a whole. More may have ended, and are found when these
/// are left out.
const WORKFLOWS_LOOKED_AT: usize = 256;

/// Leaves out held-back jobs that wait no more, and steps of workflows that have ended: nobody took them out when they did.
fn forget_the_gone(draft: &mut Draft, queue: &QueueName, waiters: &mut Waiters) -> Result<(), Missing> {
    let mut known = HashMap::new();
    let waits = each(&waiters.0, |waiter| match waiter {
        Waiter::Held { job } => match JobId::parse(job, "") {
            Ok(id) => Ok(draft.head(id)?.is_some_and(|head| head.state == State::Pending)),
            Err(_) => Ok(false),
        },
        Waiter::Step { workflow, .. } => {
            match (known.get(workflow.as_str()), WorkflowId::parse(workflow, "")) {
                (Some(goes_on), _) => Ok(*goes_on),
                (None, _) if known.len() >= WORKFLOWS_LOOKED_AT => Ok(true),
                (None, Ok(id)) => {
                    let goes_on = workflow::goes_on(draft, queue, id);
                    // Also where it is missed: it is asked for once, however many of its steps wait.
                    known.insert(workflow.as_str(), goes_on != Ok(false));
                    goes_on
                }
                (None, Err(_)) => Ok(false),
            }
        }
        Waiter::Task { .. } => Ok(true),
    })?;
    drop(known);
    let mut waits = waits.into_iter();
    waiters.0.retain(|_| waits.next().unwrap_or(true));
    Ok(())
}

/// Adds the one for whose sake a job was created in this very decision, as its offer announced.
pub(crate) fn begin(draft: &mut Draft, id: JobId, waiter: Waiter) -> Result<(), Missing> {
    let noted = draft.full(id)?.and_then(|(_, full)| full.note(NoteKind::Waiters).cloned());
    let mut waiters = noted.and_then(|text| Waiters::decode(&text).ok()).unwrap_or_default();
    // Before those that it has from jobs whose place it took: whose it is is told by the first.
    waiters.0.insert(0, waiter);
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
pub(crate) fn hand_over(draft: &mut Draft, head: &Head, waiters: &Waiters, ahead: &[JobId]) {
    if waiters.0.is_empty() {
        return;
    }
    draft.note(head.id, NoteKind::Waiters, Some(waiters.encode()));
    if !ahead.is_empty() {
        draft.note(head.id, NoteKind::Ahead, Some(encode(ahead)));
    }
}

/// Holds a pending job back until all of these have ended. It is told of the end of one of them and then looks at the others. The
/// head of the pending job must have been written in this decision. `behind` are those of whom it is known that they wait for it.
pub(crate) fn hold(
    draft: &mut Draft,
    id: JobId,
    ahead: &[JobId],
    behind: &HashSet<JobId>,
) -> Result<Added, Missing> {
    let mut too_many = Vec::new();
    for other in ahead {
        match add(draft, *other, held(id))? {
            Added::Waits => {
                draft.note(id, NoteKind::Ahead, Some(encode(ahead)));
                return Ok(Added::Waits);
            }
            Added::TooMany => too_many.push(*other),
            Added::Over => {}
        }
    }
    // Behind one that waits for such a one itself.
    for other in &too_many {
        for last in held_behind(draft, *other)?.into_iter().take(BEHIND_TRIES) {
            if last != id && !behind.contains(&last) && add(draft, last, held(id))? == Added::Waits {
                let all: Vec<JobId> = ahead.iter().copied().chain([last]).collect();
                draft.note(id, NoteKind::Ahead, Some(encode(&all)));
                return Ok(Added::Waits);
            }
        }
    }
    Ok(if too_many.is_empty() { Added::Over } else { Added::TooMany })
}

fn held(id: JobId) -> Waiter {
    Waiter::Held { job: id.to_string() }
}

/// The jobs that are held back for the end of another, the last first.
fn held_behind(draft: &mut Draft, id: JobId) -> Result<Vec<JobId>, Missing> {
    let noted = draft.full(id)?.and_then(|(_, full)| full.note(NoteKind::Waiters).cloned());
    let waiters = noted.and_then(|text| Waiters::decode(&text).ok()).unwrap_or_default();
    let held = waiters.0.iter().rev().filter_map(|waiter| match waiter {
        Waiter::Held { job } => JobId::parse(job, "").ok(),
        Waiter::Step { .. } | Waiter::Task { .. } => None,
    });
    Ok(held.collect())
}

/// For whose ends the job was held back.
pub(crate) fn ahead_of(full: &Full) -> Vec<JobId> {
    let Some(text) = full.note(NoteKind::Ahead) else { return Vec::new() };
    let ids = match serde_json::from_slice(text) {
        Ok(Ahead::One(id)) => vec![id],
        Ok(Ahead::Some(ids)) => ids,
        Err(_) => Vec::new(),
    };
    ids.iter().filter_map(|id| JobId::parse(id, "").ok()).collect()
}

/// As it is stored. One is written as it is.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Ahead {
    One(String),
    Some(Vec<String>),
}

fn encode(ahead: &[JobId]) -> Bytes {
    let stored = match ahead {
        [one] => Ahead::One(one.to_string()),
        some => Ahead::Some(some.iter().map(ToString::to_string).collect()),
    };
    // Strings only: nothing here can fail to serialise.
    serde_json::to_vec(&stored).unwrap_or_default().into()
}

/// For each job in `jobs`: if it is live, keeps it. If it has ended, follows it instead: to the job that replaced it (unless that
/// is `but`), otherwise to the jobs it was itself waiting for. The second case exists because a job can be cancelled while it is
/// still waiting, and so end before the jobs it waited for. Each live job is given once, `but` never, and none that is
/// [`HELD_LOOKS_MAX`] links or more away.
pub(crate) fn still_live(draft: &mut Draft, jobs: &[JobId], but: JobId) -> Result<Vec<JobId>, Missing> {
    let mut live = Vec::new();
    let (mut seen, mut next) = (HashSet::from([but]), jobs.to_vec());
    for look in 0..HELD_LOOKS_MAX {
        next.retain(|id| seen.insert(*id));
        if next.is_empty() {
            break;
        }
        let found = each(&next, |id| stands_for(draft, *id, but, look > 0))?;
        next.clear();
        for stands_for in found {
            match stands_for {
                StandsFor::Itself(id) => live.push(id),
                StandsFor::Others(others) => next.extend(others),
            }
        }
    }
    Ok(live)
}

enum StandsFor {
    /// It goes on.
    Itself(JobId),
    /// It has ended.
    Others(Vec<JobId>),
}

/// `is_link` says that it is one of a chain, of which most have ended: those are loaded as a whole at once, so that a chain costs one
/// load a link, and a decision has enough of them.
fn stands_for(draft: &mut Draft, id: JobId, but: JobId, is_link: bool) -> Result<StandsFor, Missing> {
    let found = draft.head(id);
    if found.is_err() && is_link {
        draft.full(id)?;
    }
    // What goes on is not loaded as a whole.
    match found? {
        Some(head) if head.state.is_live() => return Ok(StandsFor::Itself(id)),
        Some(_) => {}
        None => return Ok(StandsFor::Others(Vec::new())),
    }
    let Some((_, full)) = draft.full(id)? else { return Ok(StandsFor::Others(Vec::new())) };
    Ok(StandsFor::Others(after(&full, but)))
}

/// For whom one goes on to wait who waited for this job, when it has ended.
fn after(full: &Full, but: JobId) -> Vec<JobId> {
    let replaced = replaced_by(full).filter(|next| *next != but);
    replaced.map_or_else(|| ahead_of(full), |next| vec![next])
}

fn replaced_by(full: &Full) -> Option<JobId> {
    let marks = Marks::decode(full.note(NoteKind::Marks)?).ok()?;
    JobId::parse(&marks.replaced_by?, "").ok()
}

/// Those of these pending jobs that wait for the end of one, be it through others. They are loaded together, however long a line they
/// are.
pub(crate) fn who_wait_for(
    draft: &mut Draft,
    id: JobId,
    pending: &[JobId],
) -> Result<HashSet<JobId>, Missing> {
    let (mut seen, mut next) = (HashSet::from([id]), pending.to_vec());
    let mut links: Vec<(JobId, Vec<JobId>)> = Vec::new();
    for _ in 0..BEHIND_LOOKS_MAX {
        next.retain(|job| seen.insert(*job));
        if next.is_empty() {
            break;
        }
        let found =
            each(&next, |job| Ok(draft.full(*job)?.map_or_else(Vec::new, |(_, full)| after(&full, *job))))?;
        let further: Vec<JobId> = found.iter().flatten().copied().collect();
        links.extend(std::mem::replace(&mut next, further).into_iter().zip(found));
    }
    // Whom it will tell, however many have had its place since they came.
    let mut waits: HashSet<JobId> = held_behind(draft, id)?.into_iter().chain([id]).collect();
    // Once more for as long as somebody was found: who waits may come before whom it waits for.
    loop {
        let known = waits.len();
        for (job, ahead) in &links {
            if ahead.iter().any(|other| waits.contains(other)) {
                waits.insert(*job);
            }
        }
        if waits.len() == known {
            break;
        }
    }
    // What leads to it on the way may run.
    Ok(pending.iter().copied().filter(|job| waits.contains(job)).collect())
}

/// Tells those who waited that the job has ended.
pub(crate) fn tell(draft: &mut Draft, ended: &Head, waiters: &Waiters) -> Result<(), Missing> {
    let mut told_of = HashSet::new();
    let told = each(&waiters.0, |waiter| match waiter {
        Waiter::Step { .. } if is_planted(Bug::StepEndLost) => Ok(()),
        // All steps of a workflow at once, which is a large document.
        Waiter::Step { workflow, .. } if !told_of.insert(workflow.as_str()) => Ok(()),
        Waiter::Step { workflow, .. } => match WorkflowId::parse(workflow, "") {
            Ok(id) => workflow::steps_ended(draft, id, &waiters.steps_of(workflow), ended),
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

/// A job that was held back for one that has ended goes on: it becomes available, or waits for others for which it was held
/// back, or for whom the one that has ended was held back itself, and who have not ended.
fn let_go(draft: &mut Draft, id: JobId, ended: &Head) -> Result<(), Missing> {
    let Some((mut head, full)) = draft.full(id)?.filter(|(head, _)| head.state == State::Pending) else {
        return Ok(());
    };
    let mut ahead = vec![ended.id];
    ahead.extend(ahead_of(&full));
    let ahead = if is_planted(Bug::HeldBackOnce) { Vec::new() } else { still_live(draft, &ahead, id)? };
    if !ahead.is_empty() {
        // Written with the note, so that two writers of one job's notes meet by its version.
        draft.update(&mut head);
        if hold(draft, id, &ahead, &HashSet::new())? == Added::Waits {
            return Ok(());
        }
    }
    if let Settled::Done(_) = life::activate(draft, id)? {
        // All before it have ended: who comes after it need not look at them again.
        draft.note(id, NoteKind::Ahead, None);
    }
    Ok(())
}
