//! Workflows and crons to request, and helpers for tests of them.

use semel_core::cron::{self, Enabled, Looked, Overlap, Registered, Registration, Schedule};
use semel_core::draft::Reads;
use semel_core::enqueue::Offer;
use semel_core::ident::{CronName, JobId, WorkflowId};
use semel_core::tenant::Tenant;
use semel_core::workflow::{self, Created, Form, Plan, PlannedStep, StepStatus, When, Workflow};

use crate::fixture::Fixture;

/// A workflow of these steps: each a job and the numbers of the steps it waits for, whose results it is
/// given.
pub fn graph(steps: Vec<(Offer, Vec<u32>)>) -> Plan {
    let steps = steps.into_iter().enumerate().map(|(at, (offer, after))| PlannedStep {
        id: format!("step-{at}"),
        results: after.clone(),
        after,
        when: When::Success,
        is_callback: false,
        pointer: format!("/steps/{at}"),
        offer,
    });
    Plan {
        owner: Tenant::default(),
        id: None,
        form: Form::Graph,
        name: None,
        steps: steps.collect(),
        digest: None,
    }
}

/// A workflow whose steps run one after the other.
pub fn chain(offers: impl IntoIterator<Item = Offer>) -> Plan {
    let steps = offers.into_iter().enumerate().map(|(at, offer)| {
        let before = u32::try_from(at).unwrap().checked_sub(1);
        (offer, before.into_iter().collect())
    });
    Plan { form: Form::Chain, ..graph(steps.collect()) }
}

/// A workflow whose steps run all at once.
pub fn group(offers: impl IntoIterator<Item = Offer>) -> Plan {
    Plan { form: Form::Group, ..graph(offers.into_iter().map(|offer| (offer, Vec::new())).collect()) }
}

/// A group with callbacks.
pub fn batch(offers: impl IntoIterator<Item = Offer>, callbacks: Vec<(When, Offer)>) -> Plan {
    let mut plan = Plan { form: Form::Batch, ..group(offers) };
    let jobs: Vec<u32> = (0..u32::try_from(plan.steps.len()).unwrap()).collect();
    for (when, offer) in callbacks {
        plan.steps.push(PlannedStep {
            id: format!("on_{when:?}"),
            after: jobs.clone(),
            when,
            results: jobs.clone(),
            is_callback: true,
            pointer: format!("/callbacks/on_{when:?}"),
            offer,
        });
    }
    plan
}

/// A chain, a group, a batch whose callbacks are all its last job, or a tree, by `form` modulo 4.
pub fn of_form(form: usize, mut offers: Vec<Offer>) -> Plan {
    match form % 4 {
        0 => chain(offers),
        1 => group(offers),
        2 => {
            let last = offers.pop().unwrap();
            let jobs = if offers.is_empty() { vec![last.clone()] } else { offers };
            let callbacks = [When::Success, When::Failure, When::Always].map(|when| (when, last.clone()));
            batch(jobs, callbacks.to_vec())
        }
        _ => {
            let parent = |at: usize| (at > 0).then(|| u32::try_from((at - 1) / 2).unwrap());
            let steps = offers.into_iter().enumerate();
            graph(steps.map(|(at, offer)| (offer, parent(at).into_iter().collect())).collect())
        }
    }
}

/// Creates a workflow, and asserts that it is created.
pub async fn create(f: &Fixture, plan: &Plan) -> (WorkflowId, Workflow) {
    plan.check().unwrap();
    match f.decide(|draft| workflow::create(draft, plan)).await {
        Created::Done(id, workflow) => (id, *workflow),
        other => panic!("not created: {other:?}"),
    }
}

/// The reads that load a workflow.
pub fn reads(id: WorkflowId) -> Reads {
    Reads { documents: vec![workflow::key(&Tenant::default(), id)], ..Reads::default() }
}

/// The workflow as it is stored.
pub async fn stored(f: &Fixture, id: WorkflowId) -> Option<Workflow> {
    let snapshot = f.load(&reads(id)).await;
    snapshot
        .peek_document(&workflow::key(&Tenant::default(), id))
        .map(|document| Workflow::decode(&document.text).unwrap())
}

/// The statuses of a workflow's steps, a letter each: `wrcfxs`.
pub async fn statuses(f: &Fixture, id: WorkflowId) -> String {
    letters(&stored(f, id).await.unwrap())
}

/// The statuses of a workflow's steps, a letter each: `wrcfxs`.
pub fn letters(workflow: &Workflow) -> String {
    let letter = |step: &workflow::Step| match step.status {
        StepStatus::Waiting => 'w',
        StepStatus::Running => 'r',
        StepStatus::Completed => 'c',
        StepStatus::Failed => 'f',
        StepStatus::Cancelled => 'x',
        StepStatus::Skipped => 's',
    };
    workflow.steps.iter().map(letter).collect()
}

/// The job of a step.
pub async fn job_of(f: &Fixture, id: WorkflowId, step: usize) -> JobId {
    stored(f, id).await.unwrap().steps[step].job().unwrap()
}

/// A cron's name.
pub fn cron_name(text: &str) -> CronName {
    CronName::parse(text, "/name").unwrap()
}

/// A request to register a cron.
pub fn registration(expression: &str, overlap: Overlap, offer: Offer) -> Registration {
    Registration {
        expression: expression.to_owned(),
        timezone: "UTC".to_owned(),
        schedule: Schedule::parse(expression, "UTC").unwrap(),
        overlap,
        enabled: Enabled::default(),
        description: None,
        offer,
    }
}

/// Registers a cron.
pub async fn register(f: &Fixture, name: &str, wanted: &Registration) -> Registered {
    f.decide(|draft| cron::register(draft, &cron_name(name), wanted)).await.unwrap()
}

/// Lets a cron tick if it is due, as the duty does.
pub async fn look(f: &Fixture, name: &str) -> Looked {
    f.decide(|draft| cron::tick(draft, &cron_name(name))).await
}
