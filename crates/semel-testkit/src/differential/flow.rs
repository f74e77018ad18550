//! Commands about what is built on jobs: crons, workflows, bounds of queues. Each acts on one store and
//! returns its result as text, so that two stores can be compared.

use semel_core::cron::{self, Change, Overlap};
use semel_core::draft::{Document, DocumentKey, DocumentKind, QueueRow, Reads};
use semel_core::enqueue::once::{self, Once};
use semel_core::enqueue::{Offer, enqueue};
use semel_core::ident::{CronName, JobId, QueueName, WorkflowId};
use semel_core::lease::Grant;
use semel_core::life;
use semel_core::limit::{self, Turn};
use semel_core::settings::{Backpressure, QueueSettings};
use semel_core::sight::Queues;
use semel_core::state::StateSet;
use semel_core::task::{self, TaskOutcome, TaskPlan};
use semel_core::tenant::{Namespace, Tenant};
use semel_core::workflow::{self, Status, Workflow};
use semel_store::backend::Seek;

use super::command::{Plan, QUEUES};
use crate::fixture::Fixture;
use crate::flows::{of_form, registration};
use crate::make::{key, keyed};

/// The most documents of a kind that are compared.
const DOCUMENTS_MAX: u32 = 1_000;

/// One request. Numbers select crons, policies, queues and workflows modulo what exists.
#[derive(Clone, Debug)]
pub enum Flow {
    /// Registers a cron for every minute, with an overlap policy.
    Register(u8, usize, Plan),
    /// Triggers a cron manually.
    Trigger(u8),
    /// Enables or disables a cron.
    Enable(u8, bool),
    /// Deletes a cron.
    Remove(u8),
    /// Creates a workflow of these jobs: a chain, a group, a batch or a tree.
    Create(usize, Vec<Plan>),
    /// Cancels a workflow.
    Cancel(usize),
    /// Bounds the number of jobs that may wait in a queue, or lifts the bound.
    Bound(usize, Option<u64>),
    /// Creates a task of these steps, with one of a few identities in one of several ways.
    Task(u8, u8, Vec<Plan>),
    /// Sends a job under an `Idempotency-Key`: which key, and which of several contents.
    Under(u8, u8, Plan),
    /// Creates a task under such a key.
    TaskUnder(u8, u8, Vec<Plan>),
}

fn cron_name(number: u8) -> CronName {
    CronName::from_stored(&format!("cron-{}", number % 2))
}

/// The offer of a job whose id the store chooses.
fn offer(plan: &Plan) -> Offer {
    Plan { id: None, ..plan.clone() }.want().offer()
}

/// One of a few keys, and one of two contents under it.
fn once(number: u8, content: u8) -> Once {
    Once { key: key(&format!("request {}", number % 4)), digest: [content % 2; 32] }
}

/// Creates a task of these steps.
async fn task(f: &Fixture, identity: u8, form: u8, steps: &[Plan], once: Option<Once>) -> String {
    let want = keyed(&format!("task {}", identity % 3)).of_type("task.run").args("[{\"a\":1}]");
    let want = match form % 4 {
        0 => want.on_conflict("ignore"),
        1 => want.on_conflict("replace"),
        _ => want.states(StateSet::ALL),
    };
    let steps = of_form(usize::from(form / 4), steps.iter().map(offer).collect());
    let plan = TaskPlan { offer: Offer { once, ..want.offer() }, steps };
    let mut reads = Reads::default();
    plan.offer.reads(&mut reads);
    let space = Namespace::default();
    match f.decide_on(&reads, |draft| task::create(draft, &plan, &space)).await {
        TaskOutcome::Created { id, outcome, workflow } => {
            assert_eq!(outcome.inserted(), Some(id.as_job()), "a task is its own job");
            format!("{}, {workflow:?}", super::plain::outcome(&outcome))
        }
        TaskOutcome::Decided(outcome) => super::plain::outcome(&outcome),
        other => format!("{other:?}"),
    }
}

/// Carries the request out, and returns the result as text.
pub(super) async fn act(f: &Fixture, flow: &Flow) -> String {
    match flow {
        Flow::Register(number, overlap, plan) => {
            let overlap = Overlap::ALL[overlap % Overlap::ALL.len()];
            let wanted = registration("* * * * *", overlap, offer(plan));
            let name = cron_name(*number);
            format!("{:?}", f.decide(|draft| cron::register(draft, &name, &wanted)).await)
        }
        Flow::Trigger(number) => {
            let name = cron_name(*number);
            format!("{:?}", f.decide(|draft| cron::trigger(draft, &name, &Queues::All)).await)
        }
        Flow::Enable(number, enabled) => {
            let (name, change) =
                (cron_name(*number), Change { enabled: Some(*enabled), ..Change::default() });
            format!("{:?}", f.decide(|draft| cron::change(draft, &name, &Queues::All, &change)).await)
        }
        Flow::Remove(number) => {
            let name = cron_name(*number);
            format!("{:?}", f.decide(|draft| cron::remove(draft, &name, &Queues::All)).await)
        }
        Flow::Create(form, plans) => {
            let plan = of_form(*form, plans.iter().map(offer).collect());
            plan.check().unwrap();
            format!("{:?}", f.decide(|draft| workflow::create(draft, &plan)).await)
        }
        Flow::Cancel(number) => {
            let there = documents(f, DocumentKind::Workflow).await;
            let Some((key, _)) = there.iter().rev().nth(number % there.len().max(1)) else {
                return String::new();
            };
            let id = WorkflowId::parse(&key.name, "").unwrap();
            format!("{:?}", f.decide(|draft| workflow::cancel(draft, &Tenant::default(), id)).await)
        }
        Flow::Task(identity, form, steps) => task(f, *identity, *form, steps, None).await,
        Flow::TaskUnder(number, content, steps) => {
            task(f, number % 3, *content, steps, Some(once(*number, *content))).await
        }
        Flow::Under(number, content, plan) => {
            let offer = Offer { once: Some(once(*number, *content)), ..offer(plan) };
            let mut reads = Reads::default();
            offer.reads(&mut reads);
            super::plain::outcome(&f.decide_on(&reads, |draft| enqueue(draft, &offer)).await)
        }
        Flow::Bound(queue, most) => {
            let backpressure = most.map(|max_depth| Backpressure { max_depth, warning_threshold: 0.5 });
            let (name, set) =
                (QueueName::from_stored(QUEUES[queue % QUEUES.len()]), QueueSettings { backpressure });
            format!("{:?}", f.decide(|draft| life::set_queue(draft, &name, &set)).await)
        }
    }
}

/// Claims a job under a limit, or finds it held back.
pub(super) async fn claim_limited(f: &Fixture, id: JobId) -> Turn {
    f.decide(|draft| Ok(limit::claim(draft, &[id], &Grant::new("w".into(), None), 1)?.remove(0).1)).await
}

/// The documents that are due.
pub(super) async fn due(f: &Fixture) -> Vec<DocumentKey> {
    let found = f.backend().documents(Seek::Due { limit: DOCUMENTS_MAX }).await.unwrap();
    found.documents.into_iter().map(|(key, _)| key).collect()
}

/// Does what is due with a document, and returns the result as text.
pub(super) async fn tend(f: &Fixture, key: &DocumentKey) -> String {
    match key.kind {
        DocumentKind::Cron => {
            let name = CronName::from_stored(&key.name);
            format!("{:?}", f.decide(|draft| cron::tick(draft, &name)).await)
        }
        DocumentKind::Workflow => format!("{:?}", f.decide(|draft| workflow::look(draft, key)).await),
        DocumentKind::Request => format!("{}", f.decide(|draft| once::forget(draft, key)).await),
        DocumentKind::Step | DocumentKind::StepResult | DocumentKind::Copy => panic!("{key:?} is due"),
    }
}

/// All documents of a kind.
pub(super) async fn documents(f: &Fixture, kind: DocumentKind) -> Vec<(DocumentKey, Document)> {
    let seek = Seek::Kind { kind, from: None, descending: false, limit: DOCUMENTS_MAX };
    f.backend().documents(seek).await.unwrap().documents
}

/// The rows of queues that have settings, by name.
pub(super) async fn settings(f: &Fixture) -> Vec<QueueRow> {
    let mut rows = f.backend().settings().await.unwrap();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

/// Deletes all crons, so that only explicit requests create jobs.
pub(super) async fn stop_crons(f: &Fixture) {
    for (key, _) in documents(f, DocumentKind::Cron).await {
        let name = CronName::from_stored(&key.name);
        f.decide(|draft| cron::remove(draft, &name, &Queues::All)).await;
    }
}

/// Workflows that have not ended.
pub(super) async fn unfinished(f: &Fixture) -> Vec<Workflow> {
    let stored = documents(f, DocumentKind::Workflow).await;
    let decoded = stored.iter().map(|(_, document)| Workflow::decode(&document.text).unwrap());
    decoded.filter(|workflow| workflow.status == Status::Running).collect()
}
