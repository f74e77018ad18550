//! Waiters: who is told of a job's end, in the commit that ends it.
//!
//! These are workflow steps that stand for the job, jobs that are held back until it is over, and the steps of the
//! task that it is.

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

/// How many links are followed from an ended job to the jobs that go on in its stead. Each link may be a load of its own.
const HELD_LOOKS_MAX: usize = 32;
/// How many links are followed from waiting jobs to find whether they wait for a new one, in addition to
/// [`HELD_LOOKS_MAX`]: the loads of a decision are bounded.
const BEHIND_LOOKS_MAX: usize = 16;
/// If a job can have no more waiters, how many jobs that wait for it are tried as the one to wait behind.
const BEHIND_TRIES: usize = 8;

/// One waiter for a job's end.
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
    /// A pending job that becomes available when this one ends.
    Held {
        /// The pending job's id.
        job: String,
    },
    /// The workflow of the task that this job is.
    Task {
        /// The workflow's id.
        task: String,
    },
}

/// The waiters for a job's end. The note stays after the end, so that people see what the job was for.
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

    /// Whether the job is a task, whose steps may no longer be stored.
    pub fn are_of_task(&self) -> bool {
        self.0.iter().any(|waiter| matches!(waiter, Waiter::Task { .. }))
    }

    /// The workflow and the step's number, if the job was created or taken for a step.
    pub fn workflow(&self) -> Option<(WorkflowId, u32)> {
        self.0.iter().find_map(|waiter| match waiter {
            Waiter::Step { workflow, step } => Some((WorkflowId::parse(workflow, "").ok()?, *step)),
            Waiter::Held { .. } | Waiter::Task { .. } => None,
        })
    }

    /// The numbers of a workflow's steps among the waiters.
    fn steps_of(&self, id: &str) -> Vec<u32> {
        let steps = self.0.iter().filter_map(|waiter| match waiter {
            Waiter::Step { workflow, step } if workflow == id => Some(*step),
            Waiter::Step { .. } | Waiter::Held { .. } | Waiter::Task { .. } => None,
        });
        steps.collect()
    }

    /// What stays with a job whose waiters now wait for another: that it was a task, and whose step it was.
    pub(crate) fn kept_after_end(&self) -> Self {
        let is_step = |waiter: &&Waiter| matches!(waiter, Waiter::Step { .. });
        let tasks = self.0.iter().filter(|waiter| matches!(waiter, Waiter::Task { .. }));
        Self(tasks.chain(self.0.iter().find(is_step)).cloned().collect())
    }

    /// Removes and returns the waiters that do not pass to a job that takes this one's place: its own steps.
    pub(crate) fn split_off_own(&mut self) -> Self {
        let is_own = |waiter: &mut Waiter| matches!(waiter, Waiter::Task { .. });
        Self(self.0.extract_if(.., is_own).collect())
    }
}

/// Whether a waiter was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It waits, and will be told.
    Waits,
    /// The job has so many waiters that telling one more at its end would be too much for one commit.
    TooMany,
    /// The job has ended, or is gone.
    Over,
}

/// Adds a waiter for the end of a live job.
pub(crate) fn add(draft: &mut Draft, id: JobId, waiter: Waiter) -> Result<Added, Missing> {
    let Some((mut head, full)) = draft.full(id)? else { return Ok(Added::Over) };
    if head.state.is_finished() {
        return Ok(Added::Over);
    }
    let noted = full.note(NoteKind::Waiters).map(|text| Waiters::decode(text));
    // The waiters in a note that cannot be read could not be told anyway.
    let mut waiters = noted.and_then(Result::ok).unwrap_or_default();
    if !fit(draft, &head.queue, &mut waiters, 1)? {
        return Ok(Added::TooMany);
    }
    waiters.0.push(waiter);
    head.awaited = true;
    // Written with the head, so that two writers of one job's notes conflict on its version.
    draft.update(&mut head);
    draft.note(id, NoteKind::Waiters, Some(waiters.encode()));
    Ok(Added::Waits)
}

/// Whether these waiters, and `more` further ones, may wait for one job of that queue. If they are too many, those
/// that no longer wait are dropped first.
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

/// How many workflows are looked up at once for whether they go on: each is read as a whole. Others may have ended
/// too, and are found once these are dropped.
const WORKFLOWS_LOOKED_AT: usize = 256;

/// Drops held-back jobs that no longer wait, and steps of ended workflows: nothing removed them when they ended.
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
                    // Noted even if it is missing: a workflow is asked for once, however many of its steps wait.
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

/// Adds the waiter for which a job was created in this very decision, as its offer announced.
pub(crate) fn begin(draft: &mut Draft, id: JobId, waiter: Waiter) -> Result<(), Missing> {
    let noted = draft.full(id)?.and_then(|(_, full)| full.note(NoteKind::Waiters).cloned());
    let mut waiters = noted.and_then(|text| Waiters::decode(&text).ok()).unwrap_or_default();
    // Put before waiters inherited from replaced jobs: the first step tells whose the job is.
    waiters.0.insert(0, waiter);
    draft.note(id, NoteKind::Waiters, Some(waiters.encode()));
    Ok(())
}

/// The waiters of a job. Clears the flag in its head, which the caller must write.
pub(crate) fn take(draft: &mut Draft, head: &mut Head) -> Result<Waiters, Missing> {
    let Some((_, full)) = draft.full(head.id)? else { return Ok(Waiters::default()) };
    head.awaited = false;
    let noted = full.note(NoteKind::Waiters).map(|text| Waiters::decode(text));
    Ok(noted.and_then(Result::ok).unwrap_or_default())
}

/// Makes the waiters of replaced jobs wait for the new job, and after it for the jobs for whose end the replaced
/// ones were held back.
pub(crate) fn hand_over(draft: &mut Draft, head: &Head, waiters: &Waiters, ahead: &[JobId]) {
    if waiters.0.is_empty() {
        return;
    }
    draft.note(head.id, NoteKind::Waiters, Some(waiters.encode()));
    if !ahead.is_empty() {
        draft.note(head.id, NoteKind::Ahead, Some(encode(ahead)));
    }
}

/// Holds a pending job back until all jobs `ahead` have ended: it is told of the end of one of them, and then looks
/// at the others. The pending job's head must have been written in this decision. `behind` are jobs known to wait for it.
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
    // Those that have not ended are full: wait behind a job that waits for one of them.
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

/// The jobs that are held back for the end of another, the last one added first.
fn held_behind(draft: &mut Draft, id: JobId) -> Result<Vec<JobId>, Missing> {
    let noted = draft.full(id)?.and_then(|(_, full)| full.note(NoteKind::Waiters).cloned());
    let waiters = noted.and_then(|text| Waiters::decode(&text).ok()).unwrap_or_default();
    let held = waiters.0.iter().rev().filter_map(|waiter| match waiter {
        Waiter::Held { job } => JobId::parse(job, "").ok(),
        Waiter::Step { .. } | Waiter::Task { .. } => None,
    });
    Ok(held.collect())
}

/// The jobs for whose end this one was held back.
pub(crate) fn ahead_of(full: &Full) -> Vec<JobId> {
    let Some(text) = full.note(NoteKind::Ahead) else { return Vec::new() };
    let ids = match serde_json::from_slice(text) {
        Ok(Ahead::One(id)) => vec![id],
        Ok(Ahead::Some(ids)) => ids,
        Err(_) => Vec::new(),
    };
    ids.iter().filter_map(|id| JobId::parse(id, "").ok()).collect()
}

/// The stored form. A single id is written as plain text.
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
    /// The job goes on.
    Itself(JobId),
    /// The job has ended, and these stand for it.
    Others(Vec<JobId>),
}

/// `is_link` says that the job is a link of a chain, most of whose links have ended. Those are loaded whole at
/// once, so that a chain costs one load for each link and stays within the loads that a decision has.
fn stands_for(draft: &mut Draft, id: JobId, but: JobId, is_link: bool) -> Result<StandsFor, Missing> {
    let found = draft.head(id);
    if found.is_err() && is_link {
        draft.full(id)?;
    }
    // A job that goes on is not loaded whole.
    match found? {
        Some(head) if head.state.is_live() => return Ok(StandsFor::Itself(id)),
        Some(_) => {}
        None => return Ok(StandsFor::Others(Vec::new())),
    }
    let Some((_, full)) = draft.full(id)? else { return Ok(StandsFor::Others(Vec::new())) };
    Ok(StandsFor::Others(after(&full, but)))
}

/// The jobs for which a waiter of this ended job goes on to wait.
fn after(full: &Full, but: JobId) -> Vec<JobId> {
    let replaced = replaced_by(full).filter(|next| *next != but);
    replaced.map_or_else(|| ahead_of(full), |next| vec![next])
}

fn replaced_by(full: &Full) -> Option<JobId> {
    let marks = Marks::decode(full.note(NoteKind::Marks)?).ok()?;
    JobId::parse(&marks.replaced_by?, "").ok()
}

/// Which of these pending jobs wait for the end of `id`, directly or through others. However long the line they
/// form, they are loaded together.
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
    // The jobs that `id` will tell, including those inherited from jobs whose place it took.
    let mut waits: HashSet<JobId> = held_behind(draft, id)?.into_iter().chain([id]).collect();
    // Repeated for as long as another is found: a waiter may come before the job it waits for.
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
    // Only the pending ones: a link between them and `id` may be running.
    Ok(pending.iter().copied().filter(|job| waits.contains(job)).collect())
}

/// Tells the waiters that the job has ended.
pub(crate) fn tell(draft: &mut Draft, ended: &Head, waiters: &Waiters) -> Result<(), Missing> {
    let mut told_of = HashSet::new();
    let told = each(&waiters.0, |waiter| match waiter {
        Waiter::Step { .. } if is_planted(Bug::StepEndLost) => Ok(()),
        // All steps of a workflow are told at once, because it is a large document.
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

/// Lets a held-back job go on when a job it waited for has ended.
///
/// It becomes available, unless other jobs for which it was held back, or for which the ended one was held back
/// itself, have not ended: then it waits for those.
fn let_go(draft: &mut Draft, id: JobId, ended: &Head) -> Result<(), Missing> {
    let Some((mut head, full)) = draft.full(id)?.filter(|(head, _)| head.state == State::Pending) else {
        return Ok(());
    };
    let mut ahead = vec![ended.id];
    ahead.extend(ahead_of(&full));
    let ahead = if is_planted(Bug::HeldBackOnce) { Vec::new() } else { still_live(draft, &ahead, id)? };
    if !ahead.is_empty() {
        // Written with the note, so that two writers of one job's notes conflict on its version.
        draft.update(&mut head);
        if hold(draft, id, &ahead, &HashSet::new())? == Added::Waits {
            return Ok(());
        }
    }
    if let Settled::Done(_) = life::activate(draft, id)? {
        // All jobs ahead have ended: whatever waits for this one need not look at them again.
        draft.note(id, NoteKind::Ahead, None);
    }
    Ok(())
}
