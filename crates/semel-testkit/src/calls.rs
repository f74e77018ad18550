//! Every call of an engine and its store that writes or waits, each made against jobs in every state. For
//! tests that drop such calls half-way.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use semel_core::cron::{Change, Overlap};
use semel_core::enqueue::once::Once;
use semel_core::enqueue::{Mode, Offer, Outcome};
use semel_core::ident::{CronName, QueueName, WorkflowId};
use semel_core::job::Head;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::limit::Limit;
use semel_core::settings::{Backpressure, Directive, QueueSettings};
use semel_core::settle::Report;
use semel_core::sight::Queues;
use semel_core::state::StateSet;
use semel_core::task::{TaskOutcome, TaskPlan};
use semel_core::workflow::{Created, Plan as Workflow};
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Purge, Reap, Tend};
use semel_engine::follow::Wanted;
use semel_store::backend::{Claim, Filter};

use crate::flows::{chain, cron_name, registration};
use crate::history::Mark;
use crate::history::requests::digest;
use crate::make::{Want, foreign_id, key, keyed};

/// The number of the request for a task, see [`marked`].
pub const TASK: u64 = 20;
/// The numbers of the requests for jobs under a limit.
pub const LIMITED: [u64; 2] = [21, 22];
/// The number of the request for a job under an `Idempotency-Key`.
pub const ONCE: u64 = 23;

/// A call in progress.
pub type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The jobs that exist before the call.
#[derive(Clone)]
pub struct Scene {
    /// The engine that they belong to.
    pub engine: Engine,
    /// A job that is waiting.
    pub waiting: Head,
    /// A job that is running, for worker `w`.
    pub running: Head,
    /// A job that waits to be activated.
    pub pending: Head,
    /// A job that has failed for good: a dead letter.
    pub dead: Head,
}

/// The same request, with its number in its meta.
pub fn marked(number: u64, want: Want) -> Want {
    let meta = Mark { n: number, inspect: true }.write();
    want.body(|body| body.meta = meta.into())
}

/// A claim by worker `w`.
pub fn wish(limit: u32) -> Claim {
    Claim {
        queues: vec![QueueName::default()],
        limit,
        grant: Grant::new("w".into(), Some(60_000)),
        closed: Vec::new(),
    }
}

/// The bearer of the lease that a claim granted.
pub fn bearer(head: &Head) -> Bearer {
    Bearer { lease: Some(LeaseToken(head.fence)), worker: Some("w".into()) }
}

/// Creates the jobs.
pub async fn scene(engine: Engine) -> Scene {
    let create = async |number, want: Want| match engine.enqueue(marked(number, want).offer(), "").await {
        Ok(Outcome::Created(head)) => *head,
        other => panic!("{other:?}"),
    };
    let run = async || engine.claim(wish(1)).await.unwrap().remove(0).head;
    create(1, keyed("dead").attempts(1).dead_letter().states(StateSet::ALL)).await;
    let dead = run().await;
    engine.fail(dead.id, bearer(&dead), Report::default()).await.unwrap();
    create(2, keyed("running").on_conflict("follow_up")).await;
    let running = run().await;
    let waiting = create(3, keyed("waiting")).await;
    let pending = create(4, keyed("pending").pending()).await;
    Scene { engine, waiting, running, pending, dead }
}

macro_rules! calls {
    ($($name:ident: |$scene:ident| $call:expr;)*) => {
        /// All calls with their names.
        pub const CALLS: &[(&str, fn(Scene) -> Call)] = &[$((stringify!($name), |$scene| Box::pin(async move {
            let _answer = $call.await;
        })),)*];
    };
}

calls! {
    enqueue: |s| s.engine.enqueue(marked(10, keyed("new")).offer(), "");
    enqueue_with_an_id: |s| s.engine.enqueue(marked(10, keyed("new").id(foreign_id(10))).offer(), "");
    enqueue_a_duplicate: |s| s.engine.enqueue(marked(10, keyed("waiting")).offer(), "");
    enqueue_a_replacement: |s| s.engine.enqueue(marked(10, keyed("waiting").on_conflict("replace")).offer(), "");
    replace_a_run: |s| s.engine.enqueue(marked(10, keyed("running").on_conflict("replace")).offer(), "");
    enqueue_a_follow_up: |s| s.engine.enqueue(marked(10, keyed("running").on_conflict("follow_up")).offer(), "");
    amend: |s| s.engine.enqueue(marked(10, keyed("waiting").on_conflict("follow_up")).offer(), "");
    enqueue_under_a_limit: |s| s.engine.enqueue(limited(LIMITED[0], "new"), "");
    enqueue_under_a_key: |s| s.engine.enqueue(Offer { once: Some(once()), ..marked(ONCE, keyed("new")).offer() }, "");
    enqueue_each: |s| s.engine.enqueue_batch(batch(), Mode::Each, "");
    enqueue_all_or_nothing: |s| s.engine.enqueue_batch(batch(), Mode::AllOrNothing, "");
    claim: |s| s.engine.claim(wish(2));
    claim_what_is_there: |s| s.engine.claim_what_is_there(wish(2));
    claim_or_wait: |s| s.engine.claim_or_wait(wish(2), Duration::from_millis(50));
    claim_or_wait_until: |s| s.engine.claim_or_wait_until(nothing(), Duration::from_millis(50), soon());
    claim_under_a_limit: |s| async {
        for (number, name) in LIMITED.into_iter().zip(["new", "newer"]) {
            s.engine.enqueue(limited(number, name), "").await.ok()?;
        }
        Some(s.engine.claim(wish(3)).await)
    };
    wait_in_vain: |s| s.engine.claim_or_wait(nothing(), Duration::from_millis(50));
    complete: |s| s.engine.complete(s.running.id, bearer(&s.running), None);
    fail: |s| s.engine.fail(s.running.id, bearer(&s.running), Report::default());
    give_back: |s| s.engine.give_back(s.running.id, bearer(&s.running));
    snooze: |s| s.engine.snooze(s.running.id, bearer(&s.running), Duration::from_millis(50));
    progress: |s| s.engine.progress(s.running.id, bearer(&s.running), "1".into(), None);
    extend: |s| s.engine.extend(vec![(s.running.id, bearer(&s.running))], None, &Queues::All);
    cancel_a_run: |s| s.engine.cancel(s.running.id, Bearer::default());
    cancel_a_waiting: |s| s.engine.cancel(s.waiting.id, Bearer::default());
    cancel_waiting: |s| s.engine.cancel_waiting(s.waiting.id, &Bearer::default());
    activate: |s| s.engine.activate(s.pending.id);
    revive: |s| s.engine.revive(s.dead.id, "");
    delete_dead_letter: |s| s.engine.delete_dead_letter(s.dead.id);
    release_key: |s| s.engine.release_key(key("waiting"));
    set_paused: |s| s.engine.set_paused(QueueName::default(), true);
    set_queue: |s| s.engine.set_queue(QueueName::default(), bounded());
    direct: |s| s.engine.direct("w", Directive::Quiet);
    create_workflow: |s| s.engine.create_workflow(workflow());
    cancel_workflow: |s| async {
        let id = a_workflow(&s.engine).await?;
        Some(s.engine.cancel_workflow(id).await)
    };
    create_task: |s| s.engine.create_task(task(), "");
    cancel_task: |s| async {
        let id = a_task(&s.engine).await?;
        Some(s.engine.cancel_task(id).await)
    };
    register_cron: |s| s.engine.register_cron(hourly(), registration("@every 1h", Overlap::Allow, new()));
    change_cron: |s| async {
        let name = a_cron(&s.engine).await?;
        Some(s.engine.change_cron(name, Queues::All, Change { enabled: Some(false), ..Change::default() }).await)
    };
    remove_cron: |s| async {
        let name = a_cron(&s.engine).await?;
        Some(s.engine.remove_cron(name, Queues::All).await)
    };
    trigger_cron: |s| async {
        let name = a_cron(&s.engine).await?;
        Some(s.engine.trigger_cron(name, Queues::All).await)
    };
    job: |s| s.engine.job(s.running.id);
    jobs: |s| s.engine.jobs(vec![s.running.id, s.dead.id]);
    explain: |s| s.engine.explain(marked(10, keyed("waiting")).offer());
    holders: |s| s.engine.holders(key("waiting"));
    now: |s| s.engine.now();
    time_offset: |s| s.engine.time_offset();
    takes_writes: |s| s.engine.takes_writes();
    list: |s| s.engine.list(Filter { limit: 10, ..Filter::default() });
    listed: |s| s.engine.listed(vec![s.running.id, s.dead.id]);
    whole: |s| async { s.engine.whole(&[s.running.id, s.dead.id]).await };
    page: |s| s.engine.page(Filter::default(), 10);
    queues: |s| s.engine.queues();
    events: |s| s.engine.read_log(0, &Wanted::default(), 10);
    maintain: |s| s.engine.store().maintain();
    promote: |s| Promote.run_once(s.engine.store());
    reap: |s| Reap.run_once(s.engine.store());
    expire: |s| Expire.run_once(s.engine.store());
    tend: |s| Tend.run_once(s.engine.store());
    purge: |s| Purge.run_once(s.engine.store());
    stop: |s| s.engine.stop();
}

fn new() -> Offer {
    marked(10, keyed("new")).offer()
}

fn limited(number: u64, name: &str) -> Offer {
    Offer { limit: Some(limit()), ..marked(number, keyed(name)).offer() }
}

/// The limit of the limited jobs.
pub fn limit() -> Limit {
    Limit { key: "limit".into(), concurrency: Some(1), rate: None }
}

/// The `Idempotency-Key` of the request, and its digest.
pub fn once() -> Once {
    Once { key: key("request"), digest: digest(ONCE) }
}

fn bounded() -> QueueSettings {
    QueueSettings { backpressure: Some(Backpressure { max_depth: 100, warning_threshold: 0.5 }) }
}

async fn soon() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// The workflow to create; also the steps of the task.
pub fn workflow() -> Workflow {
    chain([new(), marked(11, keyed("newer")).offer()])
}

fn task() -> TaskPlan {
    TaskPlan { offer: marked(TASK, keyed("task")).offer(), steps: workflow() }
}

fn hourly() -> CronName {
    cron_name("hourly")
}

/// Creates a workflow; `None` when the server is gone.
async fn a_workflow(engine: &Engine) -> Option<WorkflowId> {
    match engine.create_workflow(workflow()).await.ok()? {
        Created::Done(id, _) => Some(id),
        other => panic!("{other:?}"),
    }
}

/// Creates a task; `None` when the server is gone.
async fn a_task(engine: &Engine) -> Option<WorkflowId> {
    match engine.create_task(task(), "").await.ok()? {
        TaskOutcome::Created { id, .. } => Some(id),
        other => panic!("{other:?}"),
    }
}

/// Registers a cron; `None` when the server is gone.
async fn a_cron(engine: &Engine) -> Option<CronName> {
    let wanted = registration("@every 1h", Overlap::Allow, new());
    engine.register_cron(hourly(), wanted).await.ok().map(|_| hourly())
}

fn batch() -> Vec<Offer> {
    let wants = [keyed("new"), keyed("newer"), keyed("waiting").on_conflict("replace"), keyed("new")];
    wants.into_iter().zip(10..).map(|(want, number)| marked(number, want).offer()).collect()
}

fn nothing() -> Claim {
    Claim { queues: vec![QueueName::from_stored("empty")], ..wish(1) }
}
