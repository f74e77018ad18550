//! How long ended work is kept, by the rules of the engine that ended it.

use std::sync::Arc;
use std::time::Duration;

use semel_core::ident::{JobType, QueueName, WorkflowId};
use semel_core::lease::Bearer;
use semel_core::retention::{Keep, Retention, keep_for};
use semel_core::settle::Report;
use semel_core::state::{State, StateSet};
use semel_core::task::{TaskOutcome, TaskPlan};
use semel_core::tenant::Tenant;
use semel_core::workflow::Created;
use semel_engine::Engine;
use semel_engine::duty::{Expire, Purge, Reap, Tend};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use semel_store::{Backend, Store};
use semel_testkit::fixture::claim;
use semel_testkit::flows::chain;
use semel_testkit::make::{Want, job, keyed};

const HOUR: Duration = Duration::from_secs(3_600);

fn hours(completed: u32, cancelled: u32, discarded: u32) -> Keep {
    let period = |hours: u32| Some(keep_for(HOUR * hours, "").unwrap());
    Keep { completed: period(completed), cancelled: period(cancelled), discarded: period(discarded) }
}

/// One, two and three hours by outcome; 48 for jobs that end in `billing`, 72 for jobs of type `report.make`.
fn rules() -> Retention {
    let mut rules = Retention::new(hours(1, 2, 3));
    rules.keep_queue(&QueueName::from_stored("billing"), hours(48, 48, 48));
    rules.keep_type(&JobType::from_stored("report.make"), hours(72, 72, 72));
    rules
}

struct Bench {
    store: Arc<dyn Backend>,
    engine: Engine,
    clock: ManualClock,
}

impl Bench {
    fn new(rules: Retention) -> Self {
        let clock = ManualClock::default();
        let store: Arc<dyn Backend> = Arc::new(Memory::new(clock.clone()));
        Self { engine: on(&store, rules), store, clock }
    }

    async fn run(&self, queue: &str) -> semel_core::job::Head {
        self.engine.claim(claim(&[queue], 1)).await.unwrap().remove(0).head
    }

    async fn completed(&self, want: &Want) -> semel_core::job::Head {
        let offer = want.offer();
        let queue = offer.queue.clone();
        self.engine.enqueue(offer, "test").await.unwrap();
        let run = self.run(queue.as_str()).await;
        self.engine.complete(run.id, Bearer::default(), None).await.unwrap();
        run
    }

    /// Advances the clock by `hours`; returns the number of purged jobs and of removed documents.
    async fn after(&self, hours: u32) -> (usize, usize) {
        self.clock.advance(HOUR * hours);
        let purged = Purge.run_once(self.engine.store()).await.unwrap().moved;
        (purged, Tend.run_once(self.engine.store()).await.unwrap().moved)
    }
}

fn on(store: &Arc<dyn Backend>, rules: Retention) -> Engine {
    Engine::on(Store::keeping(Arc::clone(store), rules).unwrap())
}

#[tokio::test]
async fn whatever_ends_a_job_keeps_it_by_the_rules() {
    let bench = Bench::new(rules());
    let kept = async |engine: &Engine, id| {
        let head = engine.job(id).await.unwrap().unwrap().head;
        head.kept_until().map(|until| until.since(head.finished_at.unwrap()))
    };
    let done = bench.completed(&job()).await;
    assert_eq!(kept(&bench.engine, done.id).await, Some(HOUR));
    let enqueue = async |engine: &Engine, want: &Want| {
        engine.enqueue(want.offer(), "test").await.unwrap().inserted().unwrap()
    };
    let cancelled = enqueue(&bench.engine, &keyed("a").queue("billing")).await;
    bench.engine.cancel(cancelled, Bearer::default()).await.unwrap();
    assert_eq!(kept(&bench.engine, cancelled).await, Some(HOUR * 48));
    let failed = enqueue(&bench.engine, &job().of_type("report.make").attempts(1)).await;
    bench.run("default").await;
    bench.engine.fail(failed, Bearer::default(), Report::default()).await.unwrap();
    assert_eq!(kept(&bench.engine, failed).await, Some(HOUR * 72));
    // Ended by the clock; and below, in another tenant's queue of the same name.
    let expired = enqueue(&bench.engine, &job().expires(Duration::from_secs(1))).await;
    let lost = enqueue(&bench.engine, &job().attempts(1).times(500, 0).queue("other")).await;
    bench.run("other").await;
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(Expire.run_once(bench.engine.store()).await.unwrap().moved, 1);
    assert_eq!(Reap.run_once(bench.engine.store()).await.unwrap().moved, 1);
    for id in [expired, lost] {
        assert_eq!(kept(&bench.engine, id).await, Some(HOUR * 3));
    }
    let tenant = bench.engine.within(&Tenant::parse("acme", "").unwrap());
    let theirs = enqueue(&tenant, &job().queue("billing")).await;
    tenant.cancel(theirs, Bearer::default()).await.unwrap();
    assert_eq!(kept(&tenant, theirs).await, Some(HOUR * 48));
}

/// A server started with other rules, or running beside others, does not change earlier decisions.
#[tokio::test]
async fn what_was_decided_stays_whatever_rules_hold_later() {
    let bench = Bench::new(rules());
    let short = bench.completed(&job()).await;
    let long = bench.completed(&job().queue("billing")).await;
    let other = Engine::on(Store::open(Arc::clone(&bench.store)).unwrap());
    let bench = Bench { engine: other, ..bench };
    let by_default = bench.completed(&job()).await;
    let left = async |ids: &[semel_core::job::Head]| {
        let ids = ids.iter().map(|head| head.id).collect();
        bench.engine.heads(ids).await.unwrap().into_iter().map(|head| head.id).collect::<Vec<_>>()
    };
    let all = [short, long.clone(), by_default.clone()];
    assert_eq!(bench.after(1).await.0, 1);
    assert_eq!(left(&all).await, [long.id, by_default.id]);
    assert_eq!(bench.after(23).await.0, 1);
    assert_eq!(left(&all).await, [long.id]);
    assert_eq!(bench.after(23).await.0, 0);
    assert_eq!(bench.after(1).await.0, 1);
}

/// A key is held for as long as its policy says, even after its job is purged.
#[tokio::test]
async fn a_duplicate_of_a_job_that_is_gone_is_one() {
    let bench = Bench::new(rules());
    let strict = keyed("a").states(StateSet::ALL);
    bench.completed(&strict).await;
    assert_eq!(bench.after(1).await.0, 1);
    let answer = bench.engine.enqueue(strict.offer(), "test").await.unwrap();
    assert!(!answer.is_inserted(), "{answer:?}");
}

#[tokio::test]
async fn a_workflow_is_kept_like_a_job_of_its_queue_and_a_task_like_its_job() {
    let bench = Bench::new(rules());
    let end = async |queue: &str| {
        let run = bench.run(queue).await;
        bench.engine.complete(run.id, Bearer::default(), None).await.unwrap();
    };
    let mut flows: Vec<WorkflowId> = Vec::new();
    for queue in ["default", "billing"] {
        match bench.engine.create_workflow(chain([job().queue(queue).offer()])).await.unwrap() {
            Created::Done(id, _) => flows.push(id),
            other => panic!("not created: {other:?}"),
        }
        end(queue).await;
    }
    let offer = keyed("task").of_type("report.make").args("[1]").offer();
    let plan = TaskPlan { offer, steps: chain([job().offer()]) };
    match bench.engine.create_task(plan, "test").await.unwrap() {
        TaskOutcome::Created { id, .. } => flows.push(id),
        other => panic!("not created: {other:?}"),
    }
    end("default").await;
    let there = async || {
        let mut there = Vec::new();
        for id in &flows {
            there.push(bench.engine.workflow(*id).await.unwrap().is_some());
        }
        there
    };
    // Two steps' jobs, and one workflow.
    assert_eq!((bench.after(1).await, there().await), ((2, 1), vec![false, true, true]));
    assert_eq!((bench.after(46).await, there().await), ((0, 0), vec![false, true, true]));
    assert_eq!((bench.after(1).await, there().await), ((1, 1), vec![false, false, true]));
    let task = bench.engine.task(flows[2]).await.unwrap().unwrap();
    assert_eq!(task.job.unwrap().head.state, State::Completed);
    assert_eq!((bench.after(24).await, there().await), ((1, 1), vec![false; 3]));
}
