//! The victim's tasks and its requests under an `Idempotency-Key`, and the check that the store stands by
//! them: one task per identity, with all of its steps; one job per key, which is the answer before and after.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::enqueue::once::Once;
use semel_core::enqueue::{Offer, Outcome};
use semel_core::ident::{JobId, JobType, WorkflowId};
use semel_core::job::Head;
use semel_core::state::{State, StateSet};
use semel_core::task::{TaskOutcome, TaskPlan};
use semel_engine::Engine;

use super::flows::STEP;
use super::say;
use crate::flows::of_form;
use crate::make::{job, key, keyed};

/// The type of a task's own job, and of no others.
pub(super) const TASK: &str = "crash.task";
/// The number of jobs in a task.
const STEPS: usize = 3;
/// The most tasks and keys in one life.
const MOST: u64 = 1_000;

fn plan(round: u64, number: u64) -> TaskPlan {
    let want = keyed(&format!("task {round}-{number}")).states(StateSet::ALL).of_type(TASK);
    let steps = (0..STEPS).map(|_| job().of_type(STEP).offer()).collect();
    TaskPlan { offer: want.args(&format!("[{number}]")).offer(), steps: of_form(number as usize, steps) }
}

/// The request with this number, or another request under the same key.
fn request(round: u64, number: u64, other: bool) -> Offer {
    let once = Once { key: key(&format!("request {round}-{number}")), digest: [7 + u8::from(other); 32] };
    Offer { once: Some(once), ..job().of_type("crash.kept").offer() }
}

/// Asks for tasks, and sends requests under keys. Two of the victim's tokio tasks do so side by side, each
/// for all numbers.
pub(super) async fn ask(engine: Engine, round: u64, turns: u64) {
    for number in 0..turns.min(MOST) {
        match engine.create_task(plan(round, number), "").await {
            Ok(TaskOutcome::Created { id, .. }) => say(&format!("task {number} {id}")),
            Ok(TaskOutcome::Decided(outcome)) if outcome.absorbed_by().is_some() => {
                say(&format!("sametask {number} {}", outcome.absorbed_by().unwrap()));
            }
            other => say(&format!("error {other:?}")),
        }
        match engine.enqueue(request(round, number, false), "").await {
            Ok(Outcome::Created(head)) => say(&format!("kept {number} {}", head.id)),
            Ok(Outcome::Repeated(head)) => say(&format!("again {number} {}", head.id)),
            other => say(&format!("error {other:?}")),
        }
    }
}

/// What was answered to the victim.
#[derive(Debug, Default)]
pub struct Told {
    /// Tasks that an answer named, by their numbers.
    tasks: BTreeMap<u64, BTreeSet<JobId>>,
    /// Jobs that an answer named, by the number of their key.
    kept: BTreeMap<u64, BTreeSet<JobId>>,
    created: BTreeSet<(bool, u64)>,
}

impl Told {
    /// Reads a line; returns whether it was about one of these.
    pub(super) fn read(&mut self, words: &[&str]) -> bool {
        let [what @ ("task" | "sametask" | "kept" | "again"), number, id] = words else { return false };
        let (number, id) = (number.parse().unwrap(), JobId::parse(id, "").unwrap());
        let is_task = what.ends_with("task");
        if matches!(*what, "task" | "kept") {
            assert!(self.created.insert((is_task, number)), "{what} {number} was created twice");
        }
        let told = if is_task { &mut self.tasks } else { &mut self.kept };
        told.entry(number).or_default().insert(id);
        true
    }

    /// The number of tasks and of kept requests that answers named.
    pub fn len(&self) -> (usize, usize) {
        (self.tasks.len(), self.kept.len())
    }

    /// Judges the store before anything else is done to it. `heads` are all that it holds: a task is there
    /// with its steps, and in the state that follows from theirs.
    pub(super) async fn judge_as_found(&self, engine: &Engine, heads: &[Head]) {
        for (number, ids) in self.tasks.iter().chain(&self.kept) {
            assert_eq!(ids.len(), 1, "{number} stands for several: {ids:?}");
            let id = ids.first().unwrap();
            assert!(heads.iter().any(|head| head.id == *id), "acknowledged {id} is lost");
        }
        let tasks = heads.iter().filter(|head| head.job_type == JobType::from_stored(TASK));
        for task in tasks {
            let found = engine.task(WorkflowId::new(task.id)).await.unwrap();
            let found = found.unwrap_or_else(|| panic!("the task {} has no steps", task.id));
            let shape = plan(0, args(&found.job.unwrap().body.args)).steps.steps.len();
            assert_eq!(found.workflow.steps.len(), shape, "{:?}", found.workflow);
            let is_over = found.workflow.status != semel_core::workflow::Status::Running;
            assert_eq!(is_over, task.state.is_finished(), "{task:?}: {:?}", found.workflow);
        }
    }

    /// Judges when nothing is live any more: tasks have completed, and a repeated request is answered with
    /// what was there.
    pub(super) async fn judge_again(&self, engine: &Engine, round: u64) {
        for (number, ids) in self.tasks.iter().take(40) {
            let id = *ids.first().unwrap();
            assert_eq!(engine.job(id).await.unwrap().unwrap().head.state, State::Completed, "task {number}");
            match engine.create_task(plan(round, *number), "").await.unwrap() {
                TaskOutcome::Decided(outcome) => assert_eq!(outcome.absorbed_by(), Some(id)),
                other => panic!("task {number} came twice: {other:?}"),
            }
        }
        for (number, ids) in self.kept.iter().take(40) {
            let id = *ids.first().unwrap();
            let again = engine.enqueue(request(round, *number, false), "").await.unwrap();
            assert!(matches!(&again, Outcome::Repeated(head) if head.id == id), "{number}: {again:?}");
            let other = engine.enqueue(request(round, *number, true), "").await.unwrap();
            assert!(
                matches!(&other, Outcome::KeyReused(holder) if holder.absorbed_by() == id),
                "{number}: {other:?}"
            );
        }
    }
}

fn args(text: &str) -> u64 {
    text.trim_matches(['[', ']']).parse().unwrap()
}
