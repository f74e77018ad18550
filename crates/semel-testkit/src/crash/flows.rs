//! The victim's crons, workflows and limit, and the check that the store stands by them: each tick was
//! decided once and made the job it names, each step of a workflow stands for one job and ends as that job
//! did, and a limit was never exceeded.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::cron::{Cron, Decision, Overlap};
use semel_core::ident::{CronName, JobId, JobType, WorkflowId};
use semel_core::job::Head;
use semel_core::limit::Limit;
use semel_core::limits::CRON_HISTORY_MAX;
use semel_core::sight::Queues;
use semel_core::state::State;
use semel_core::workflow::{Created, Status, StepStatus, Workflow};
use semel_engine::Engine;
use semel_engine::duty::Tend;
use semel_store::backend::Filter;

use super::say;
use crate::flows::{cron_name, of_form, registration};
use crate::make::{foreign_id, job};

/// The number of the victim's crons, two of each overlap policy. All are due when a victim starts, an hour
/// after the last.
const CRONS: usize = 8;
/// The type of a workflow's jobs, and of no others.
pub(super) const STEP: &str = "crash.step";
/// The number of jobs in a workflow.
const STEPS: u32 = 4;
/// The most workflows in one life: enough to have some in every stage.
const WORKFLOWS: u64 = 1_000;
/// The number of jobs that may run at once under the victim's limit; its workers ask for more.
const MOST: u32 = 5;

/// The limit of some of the victim's jobs.
pub(super) fn limit() -> Limit {
    Limit { key: "crash".into(), concurrency: Some(MOST), rate: None }
}

fn cron_of(at: usize) -> (CronName, Overlap) {
    (cron_name(&format!("cron-{at}")), Overlap::ALL[at % Overlap::ALL.len()])
}

/// The type of a cron's jobs, and of no others.
fn type_of(name: &CronName) -> String {
    format!("crash.{name}")
}

/// Registers the crons, as a program does at each start.
pub(super) async fn register(engine: &Engine) {
    for at in 0..CRONS {
        let (name, overlap) = cron_of(at);
        let wanted = registration("@every 1s", overlap, job().of_type(&type_of(&name)).offer());
        match engine.register_cron(name.clone(), wanted).await {
            Ok(_) => say(&format!("cron {name}")),
            Err(error) => say(&format!("error {error}")),
        }
    }
}

/// Creates workflows and triggers crons, one after the other.
pub(super) async fn ask(engine: Engine, round: u64, turns: u64) {
    for turn in 0..turns.min(WORKFLOWS) {
        let number = u32::try_from(round * WORKFLOWS + turn).unwrap();
        let offers = (0..STEPS).map(|_| job().of_type(STEP).offer()).collect();
        let mut plan = of_form(number as usize, offers);
        plan.id = Some(WorkflowId::new(foreign_id(number)));
        plan.digest = Some([7; 32]);
        match engine.create_workflow(plan).await {
            Ok(Created::Done(id, _)) => say(&format!("workflow {id}")),
            other => say(&format!("error {other:?}")),
        }
        let (name, _) = cron_of(number as usize % CRONS);
        match engine.trigger_cron(name.clone(), Queues::All).await {
            Ok(Some((_, tick))) if tick.decision == Decision::Fired => {
                say(&format!("fired {name} {}", tick.job.unwrap()));
            }
            Ok(Some((_, tick))) => assert_eq!(tick.decision, Decision::Skipped),
            other => say(&format!("error {other:?}")),
        }
    }
}

/// What was answered to the victim.
#[derive(Debug, Default)]
pub struct Told {
    /// Workflows that were created.
    pub workflows: BTreeSet<WorkflowId>,
    /// Crons that were registered.
    pub crons: BTreeSet<CronName>,
    /// Jobs of ticks.
    pub fired: BTreeMap<JobId, CronName>,
}

impl Told {
    /// Reads a line; returns whether it was about one of these.
    pub(super) fn read(&mut self, words: &[&str]) -> bool {
        match words {
            ["workflow", id] => drop(self.workflows.insert(WorkflowId::parse(id, "").unwrap())),
            ["cron", name] => drop(self.crons.insert(cron_name(name))),
            ["fired", name, id] => drop(self.fired.insert(JobId::parse(id, "").unwrap(), cron_name(name))),
            _ => return false,
        }
        true
    }

    /// Judges the store before anything else is done to it. `heads` are all that it holds.
    pub(super) fn judge_as_found(&self, heads: &[Head]) {
        let runs = |head: &&Head| head.lane == Some(limit().lane()) && head.state == State::Active;
        let running = heads.iter().filter(runs).count();
        assert!(running <= MOST as usize, "{running} run where {MOST} may");
        for at in (0..CRONS).filter(|at| cron_of(*at).1 == Overlap::Skip) {
            let (name, _) = cron_of(at);
            let live = heads.iter().filter(|head| is_of(head, &type_of(&name)) && head.state.is_live());
            assert!(live.count() <= 1, "two jobs of {name}, which skips ticks, go on");
        }
        for (id, name) in &self.fired {
            let job = heads.iter().find(|head| head.id == *id);
            assert!(
                job.is_some_and(|head| is_of(head, &type_of(name))),
                "acknowledged {id} of {name} is lost"
            );
        }
    }

    /// Asserts that the ticks that are due get decided now, and that each was decided once.
    pub(super) async fn judge_ticks(&self, engine: &Engine) {
        while Tend.run_once(engine.store()).await.unwrap().moved > 0 {}
        let crons = engine.crons(None, 100).await.unwrap();
        for name in &self.crons {
            assert!(crons.iter().any(|(known, _)| known == name), "acknowledged {name} is lost");
        }
        let now = engine.now().await.unwrap().as_micros();
        let heads = all(engine).await;
        for (name, cron) in &crons {
            assert!(cron.next_tick.is_some_and(|at| at > now), "a tick of {name} was left out: {cron:?}");
            once(name, cron);
            let jobs = heads.iter().filter(|head| is_of(head, &type_of(name))).count();
            assert_eq!(jobs as u64, cron.run_count, "jobs of {name}, and ticks that made one");
        }
    }

    /// Judges when nothing is live any more: every workflow is over, and no step was left out or offered
    /// twice.
    pub(super) async fn judge_workflows(&self, engine: &Engine) {
        let workflows = workflows(engine).await;
        for id in &self.workflows {
            assert!(workflows.contains_key(id), "acknowledged workflow {id} is lost");
        }
        let heads = all(engine).await;
        let jobs: BTreeMap<JobId, &Head> =
            heads.iter().filter(|head| is_of(head, STEP)).map(|head| (head.id, head)).collect();
        let mut stands = BTreeSet::new();
        for (id, workflow) in &workflows {
            assert_eq!(workflow.status, Status::Completed, "workflow {id}: {workflow:?}");
            for step in workflow.steps.iter().filter(|step| step.status != StepStatus::Skipped) {
                let job = step.job().and_then(|job| jobs.get(&job)).map(|head| (head.id, head.state));
                let (job, state) = job.unwrap_or_else(|| panic!("workflow {id} has lost {step:?}"));
                assert!(stands.insert(job), "{job} stands for two steps");
                assert_eq!((step.status, state), (StepStatus::Completed, State::Completed), "{id}: {step:?}");
            }
        }
        let stray = jobs.keys().find(|id| !stands.contains(id));
        assert_eq!(stray, None, "a job that stands for no step");
    }
}

fn is_of(head: &Head, job_type: &str) -> bool {
    head.job_type == JobType::from_stored(job_type)
}

/// Asserts that a cron's counts match its history, and that it has no tick twice. Manual ticks may share one
/// time.
fn once(name: &CronName, cron: &Cron) {
    let decided = cron.run_count + cron.skip_count;
    assert_eq!(cron.history.len() as u64, decided.min(CRON_HISTORY_MAX as u64), "{name}: {cron:?}");
    let due: Vec<i64> = cron.history.iter().filter(|tick| !tick.by_hand).map(|tick| tick.tick).collect();
    assert!(
        due.is_sorted_by(|earlier, later| earlier < later),
        "a tick of {name} was decided twice: {due:?}"
    );
    assert!(due.last().is_none_or(|last| Some(*last) == cron.last_tick), "{name}: {cron:?}");
    let made: Vec<&String> = cron
        .history
        .iter()
        .filter(|tick| tick.decision == Decision::Fired)
        .filter_map(|tick| tick.job.as_ref())
        .collect();
    let distinct: BTreeSet<&&String> = made.iter().collect();
    assert_eq!(distinct.len(), made.len(), "two ticks of {name} made one job: {cron:?}");
}

async fn workflows(engine: &Engine) -> BTreeMap<WorkflowId, Workflow> {
    let mut found = BTreeMap::new();
    let mut from = None;
    loop {
        let page = engine.workflows(from, 200).await.unwrap();
        let Some((last, _)) = page.last() else { return found };
        from = Some(*last);
        found.extend(page);
    }
}

/// The heads of all jobs in the store.
pub(super) async fn all(engine: &Engine) -> Vec<Head> {
    let mut filter = Filter { limit: 500, ..Filter::default() };
    let mut heads = Vec::new();
    loop {
        let page = engine.list(filter.clone()).await.unwrap();
        heads.extend(page.heads);
        let Some(next) = page.next else { return heads };
        filter.before = Some(next);
    }
}
