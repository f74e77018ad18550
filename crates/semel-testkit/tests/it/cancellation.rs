//! Every await of every call is dropped once: by polls of the call, by steps of everybody, and with its server, batcher
//! and all. What was asked is done or not, never half; nobody after it is kept waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::ident::QueueName;
use semel_core::job::Head;
use semel_core::state::State;
use semel_core::time::Timestamp;
use semel_core::workflow::Status;
use semel_engine::duty::Promote;
use semel_store::Backend;
use semel_testkit::calls::{CALLS, Call, LIMITED, ONCE, Scene, TASK};
use semel_testkit::calls::{bearer, limit, marked, once, scene, wish, workflow};
use semel_testkit::let_go::{Moment, let_go};
use semel_testkit::make::keyed;
use semel_testkit::planted::plant_from_environment;
use semel_testkit::sim::Plan;
use semel_testkit::sim::dice::Dice;
use semel_testkit::sim::executor::{Executor, Owner};
use semel_testkit::sim::store::{SharedStore, SimClock};
use semel_testkit::sim::world::World;

/// How a call is let go.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Polled so many times, then dropped where it stands.
    Polls(Moment),
    /// Dropped after so many steps of everybody.
    Steps,
    /// The whole server is dropped then.
    Crash,
}

/// What became of the call.
const WAITS: u8 = 0;
const DROPPED: u8 = 1;
const DONE: u8 = 2;

/// Tells the witness what it cannot see of the requests that may come.
fn announce(store: &SharedStore) {
    let mut witness = store.witness.lock().unwrap();
    witness.tasks.ask(TASK, workflow().steps.len(), None);
    LIMITED.iter().for_each(|number| witness.lanes.ask(*number, &limit()));
    witness.requests.ask(ONCE, &once());
}

/// Whether the call was done before it was let go.
fn is_answered_first(name: &str, call: fn(Scene) -> Call, way: Way, after: u32) -> bool {
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
    if let Way::Polls(moment) = way {
        let is_done = let_go(call, after, moment).await.is_some();
        return became.store(if is_done { DONE } else { DROPPED }, Ordering::Relaxed);
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
        while !is_answered_first(name, *call, way, after) {
            after += 1;
            assert!(after < 500, "{name} does not end");
        }
        dropped += after as usize - 1;
    }
    assert!(dropped >= CALLS.len(), "a call that never waits cannot be dropped: {dropped}");
}

#[test]
fn every_await_of_every_call_is_dropped_once() {
    Moment::ALL.into_iter().for_each(|moment| each_is_dropped(Way::Polls(moment)));
}

#[test]
fn every_call_is_dropped_after_every_step() {
    each_is_dropped(Way::Steps);
}

#[test]
fn every_server_is_dropped_after_every_step_of_a_call() {
    each_is_dropped(Way::Crash);
}
