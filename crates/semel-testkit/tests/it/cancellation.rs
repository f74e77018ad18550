//! Every await of every call is dropped once: by polls of the call, by steps of everybody, and with its server, batcher
//! and all. What was asked is done or not, never half; nobody after it is kept waiting.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
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
use semel_core::state::{State, StateSet};
use semel_core::task::{TaskOutcome, TaskPlan};
use semel_core::time::Timestamp;
use semel_core::workflow::{Created, Plan as Workflow, Status};
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Purge, Reap, Tend};
use semel_engine::follow::Wanted;
use semel_store::Backend;
use semel_store::backend::{Claim, Filter};
use semel_testkit::flows::{chain, cron_name, registration};
use semel_testkit::history::Mark;
use semel_testkit::history::requests::digest;
use semel_testkit::make::{Want, foreign_id, key, keyed};
use semel_testkit::planted::plant_from_environment;
use semel_testkit::sim::Plan;
use semel_testkit::sim::dice::Dice;
use semel_testkit::sim::executor::{Executor, Owner};
use semel_testkit::sim::store::{SharedStore, SimClock};
use semel_testkit::sim::world::World;

/// The requests of which the witness is told before they are sent: for a task, for jobs under a limit, under an
/// `Idempotency-Key`.
const TASK: u64 = 20;
const LIMITED: [u64; 2] = [21, 22];
const ONCE: u64 = 23;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The jobs that are there before the call.
struct Scene {
    engine: Engine,
    waiting: Head,
    running: Head,
    pending: Head,
    dead: Head,
}

/// How a call is let go.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Polled so many times, then dropped where it stands.
    Polls,
    /// Dropped after so many steps of everybody.
    Steps,
    /// The whole server is dropped then.
    Crash,
}

/// What became of the call.
const WAITS: u8 = 0;
const DROPPED: u8 = 1;
const DONE: u8 = 2;

/// Polls a call so many times and lets it go where it stands.
struct LetGo {
    call: Option<Call>,
    polls: u32,
    became: Arc<AtomicU8>,
}

impl Future for LetGo {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(call) = &mut self.call else { return Poll::Ready(()) };
        let is_done = call.as_mut().poll(context).is_ready();
        self.polls -= 1;
        if !is_done && self.polls > 0 {
            return Poll::Pending;
        }
        self.call = None;
        self.became.store(if is_done { DONE } else { DROPPED }, Ordering::Relaxed);
        Poll::Ready(())
    }
}

fn marked(number: u64, want: Want) -> Want {
    let meta = Mark { n: number, inspect: true }.write();
    want.body(|body| body.meta = meta.into())
}

fn wish(limit: u32) -> Claim {
    Claim {
        queues: vec![QueueName::default()],
        limit,
        grant: Grant::new("w".into(), Some(60_000)),
        closed: Vec::new(),
    }
}

fn bearer(head: &Head) -> Bearer {
    Bearer { lease: Some(LeaseToken(head.fence)), worker: Some("w".into()) }
}

async fn scene(engine: Engine) -> Scene {
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
        /// Every call of an engine and its store, but for the readers that [`calls`](crate::calls) names.
        const CALLS: &[(&str, fn(Scene) -> Call)] = &[$((stringify!($name), |$scene| Box::pin(async move {
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
    progress: |s| s.engine.progress(s.running.id, bearer(&s.running), "1".into());
    extend: |s| s.engine.extend(vec![(s.running.id, bearer(&s.running))], None);
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
    list: |s| s.engine.list(Filter { limit: 10, ..Filter::default() });
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

fn limit() -> Limit {
    Limit { key: "limit".into(), concurrency: Some(1), rate: None }
}

fn once() -> Once {
    Once { key: key("request"), digest: digest(ONCE) }
}

fn bounded() -> QueueSettings {
    QueueSettings { backpressure: Some(Backpressure { max_depth: 100, warning_threshold: 0.5 }) }
}

async fn soon() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

fn workflow() -> Workflow {
    chain([new(), marked(11, keyed("newer")).offer()])
}

fn task() -> TaskPlan {
    TaskPlan { offer: marked(TASK, keyed("task")).offer(), steps: workflow() }
}

fn hourly() -> CronName {
    cron_name("hourly")
}

/// A workflow that is there; none when the server is gone.
async fn a_workflow(engine: &Engine) -> Option<WorkflowId> {
    match engine.create_workflow(workflow()).await.ok()? {
        Created::Done(id, _) => Some(id),
        other => panic!("{other:?}"),
    }
}

/// A task that is there; none when the server is gone.
async fn a_task(engine: &Engine) -> Option<WorkflowId> {
    match engine.create_task(task(), "").await.ok()? {
        TaskOutcome::Created { id, .. } => Some(id),
        other => panic!("{other:?}"),
    }
}

/// A cron that is there; none when the server is gone.
async fn a_cron(engine: &Engine) -> Option<CronName> {
    let wanted = registration("@every 1h", Overlap::Allow, new());
    engine.register_cron(hourly(), wanted).await.ok().map(|_| hourly())
}

/// Tells the witness what it cannot see of the requests that may come.
fn announce(store: &SharedStore) {
    let mut witness = store.witness.lock().unwrap();
    witness.tasks.ask(TASK, workflow().steps.len(), None);
    LIMITED.iter().for_each(|number| witness.lanes.ask(*number, &limit()));
    witness.requests.ask(ONCE, &once());
}

fn batch() -> Vec<Offer> {
    let wants = [keyed("new"), keyed("newer"), keyed("waiting").on_conflict("replace"), keyed("new")];
    wants.into_iter().zip(10..).map(|(want, number)| marked(number, want).offer()).collect()
}

fn nothing() -> Claim {
    Claim { queues: vec![QueueName::from_stored("empty")], ..wish(1) }
}

/// Whether the call was done before it was let go.
fn let_go(name: &str, call: fn(Scene) -> Call, way: Way, after: u32) -> bool {
    plant_from_environment();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut executor = Executor::new(Dice::new(u64::from(after)));
        let clock = SimClock::new();
        let store = SharedStore::new(clock.clone(), 0, executor.handle(), Dice::new(7), 2);
        let plan = Plan::of(0).with("servers=1 faults=0 losses=0 crashes=0 pauses=0 jumps=0").unwrap();
        announce(&store);
        let world = World::new(plan, 0, Vec::new(), false, Arc::clone(&store), clock, executor.handle());
        world.start(0);
        let (became, over) = (Arc::new(AtomicU8::new(WAITS)), Arc::new(AtomicU8::new(0)));
        let (told, ended, whole) = (Arc::clone(&became), Arc::clone(&over), Arc::clone(&world));
        executor.handle().spawn(Owner::World, async move {
            let call = call(scene(whole.engine(0).unwrap()).await);
            drop_it(&whole, call, way, after, told).await;
            afterwards(&whole).await;
            ended.store(1, Ordering::Relaxed);
        });
        let is_over = || over.load(Ordering::Relaxed) == 1 || store.is_wrong();
        let steps = executor.run(100_000, is_over).await;
        assert_eq!(store.wrong(), None, "{name}, let go after {after}, {way:?}");
        assert!(steps < 100_000, "{name}, let go after {after}, {way:?}, keeps the others waiting");
        became.load(Ordering::Relaxed) == DONE
    })
}

async fn drop_it(world: &World, call: Call, way: Way, after: u32, became: Arc<AtomicU8>) {
    if let Way::Polls = way {
        return LetGo { call: Some(call), polls: after, became }.await;
    }
    let told = Arc::clone(&became);
    let task = world.handle.spawn(Owner::World, async move {
        call.await;
        told.store(DONE, Ordering::Relaxed);
    });
    world.handle.steps(u64::from(after)).await;
    let _waits = became.compare_exchange(WAITS, DROPPED, Ordering::Relaxed, Ordering::Relaxed);
    if let Way::Crash = way {
        world.crash(0);
        world.start(0);
    }
    world.handle.abort(task);
}

/// Nobody is poisoned, nothing is half there, no key is stuck.
async fn afterwards(world: &World) {
    let engine = world.engine(0).unwrap();
    let live = || -> Vec<Head> {
        let witness = world.store.witness.lock().unwrap();
        let live = witness.jobs.values().filter(|job| job.head.state.is_live());
        live.map(|job| job.head.clone()).collect()
    };
    let is_under_way = || {
        let witness = world.store.witness.lock().unwrap();
        let goes_on = witness.workflows.values().any(|workflow| workflow.status == Status::Running);
        goes_on || witness.jobs.values().any(|job| job.head.state.is_live())
    };
    // Looked at twice: a commit that was let go is under way for a second at most.
    while is_under_way() || later(&is_under_way).await {
        // What was let go may yet be done, and after this: it is undone the next time round.
        engine.set_paused(QueueName::default(), false).await.unwrap();
        for head in live() {
            match head.state {
                State::Active => drop(engine.complete(head.id, bearer(&head), None).await.unwrap()),
                State::Pending => drop(engine.activate(head.id).await.unwrap()),
                _ => drop(Promote.run_once(engine.store()).await.unwrap()),
            }
        }
        engine.claim(wish(10)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let queues = world.store.memory().queues().await.unwrap();
    let checked = world.store.witness.lock().unwrap().check_counts(&queues);
    world.store.judge(checked);
    let ended = {
        let witness = world.store.witness.lock().unwrap();
        witness.check_workflows().and_then(|()| witness.check_tasks())
    };
    world.store.judge(ended);
    assert!(engine.now().await.unwrap() > Timestamp::EPOCH);
    for (name, number) in ["waiting", "running", "pending", "new", "newer", "task"].into_iter().zip(100..) {
        let outcome = engine.enqueue(marked(number, keyed(name)).offer(), "").await.unwrap();
        assert!(matches!(outcome, Outcome::Created(_)), "{name}: {outcome:?}");
    }
}

async fn later(is_so: impl Fn() -> bool) -> bool {
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_so()
}

fn each_is_dropped(way: Way) {
    let mut dropped = 0;
    for (name, call) in CALLS {
        let mut after = 1;
        while !let_go(name, *call, way, after) {
            after += 1;
            assert!(after < 500, "{name} does not end");
        }
        dropped += after as usize - 1;
    }
    assert!(dropped >= CALLS.len(), "a call that never waits cannot be dropped: {dropped}");
}

#[test]
fn every_await_of_every_call_is_dropped_once() {
    each_is_dropped(Way::Polls);
}

#[test]
fn every_call_is_dropped_after_every_step() {
    each_is_dropped(Way::Steps);
}

#[test]
fn every_server_is_dropped_after_every_step_of_a_call() {
    each_is_dropped(Way::Crash);
}
