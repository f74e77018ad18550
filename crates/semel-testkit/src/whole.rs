//! What must hold after any call was dropped: its request was carried out or it was not, and no later request
//! is kept waiting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::lease::Bearer;
use semel_core::state::{State, StateSet};
use semel_core::tenant::Tenant;
use semel_engine::Engine;
use semel_engine::duty::{Expire, Promote, Purge, Reap, Tend};
use semel_store::Backend;
use semel_store::backend::Filter;

use crate::calls::{CALLS, Call, Scene, marked, scene, wish};
use crate::let_go::{Moment, at_every_await, let_go};
use crate::make::keyed;
use crate::patience::{PATIENCE, until};

/// The keys of the jobs of [`crate::calls`]. Each must be free when all jobs have ended, except that of the
/// dead letter, which may be held.
const KEYS: [&str; 6] = ["waiting", "running", "pending", "new", "newer", "task"];
/// How many times in a row no new job may be found before the store counts as quiet: a decision of a dropped
/// call may still be under way.
const QUIET: u32 = 2;
/// How many times a call may be answered before it was first pending: on a busy machine the store's own thread
/// may be done before the caller looks.
const TRIES: u32 = 100;
/// A limit above the number of jobs that exist.
const JOBS_MAX: u32 = 1_000;

async fn heads(engine: &Engine, states: StateSet) -> Vec<Head> {
    engine.list(Filter { states, limit: JOBS_MAX, ..Filter::default() }).await.unwrap().heads
}

/// Asserts that each job has all that belongs to it: its body, and while it is live its place among the
/// holders of its key.
async fn has_all_of_each(engine: &Engine, what: &str) {
    for head in heads(engine, StateSet::ALL).await {
        let held = match head.key {
            Some(key) if head.state.is_live() => Some(engine.holders(key).await.unwrap().heads),
            _ => None,
        };
        let job = engine.job(head.id).await.unwrap();
        let job = job.unwrap_or_else(|| panic!("{what}: {head:?} has no body"));
        let is_read = job.body.args.starts_with('[') && job.body.args.ends_with(']');
        assert!(job.head.id == head.id && is_read, "{what}: {job:?}");
        // The dropped request may have been carried out in the meantime.
        if job.head.version == head.version {
            let is_held = held.is_none_or(|held| held.iter().any(|holder| holder.id == head.id));
            assert!(is_held, "{what}: {head:?} is not among the holders of its key");
        }
    }
}

/// Asserts that jobs granted to a dropped claim go to other workers at once, and not only when the lease has
/// expired. The jobs in `held` are granted to a worker that knows of them.
async fn nothing_is_held_by_nobody(engine: &Engine, what: &str, held: &[JobId]) {
    let mut held = BTreeSet::from_iter(held.iter().copied());
    until(&format!("{what}: what was granted to nobody goes to others"), async || {
        for head in heads(engine, StateSet::default().with(State::Pending)).await {
            engine.activate(head.id).await.unwrap();
        }
        held.extend(engine.claim(wish(100)).await.unwrap().iter().map(|job| job.head.id));
        let active = heads(engine, StateSet::default().with(State::Active)).await;
        // A task belongs to no worker: it has no lease.
        active.iter().all(|head| head.lease.is_none() || held.contains(&head.id))
    })
    .await;
}

/// Ends all jobs, until no more appear. Each pass also has an unrelated job admitted, which needs the writer
/// to work.
async fn end_all(engine: &Engine, what: &str) {
    let mut quiet = 0;
    while quiet < QUIET {
        let live = heads(engine, StateSet::LIVE).await;
        quiet = if live.is_empty() { quiet + 1 } else { 0 };
        let ends = live.iter().map(|head| engine.cancel(head.id, Bearer::default()));
        for settled in ends.collect::<FuturesUnordered<_>>().collect::<Vec<_>>().await {
            settled.unwrap();
        }
        let probe = engine.enqueue(marked(90, keyed("probe")).offer(), "").await.unwrap();
        let Outcome::Created(probe) = probe else { panic!("{what}: {probe:?}") };
        engine.cancel(probe.id, Bearer::default()).await.unwrap();
    }
}

/// Asserts that no dropped request is half done and that nobody is kept waiting, and ends all jobs.
///
/// `held` are the granted jobs that a worker knows of; `None` where that is unknown, because a claim was
/// answered.
///
/// # Panics
/// When that does not hold.
pub async fn is_whole(engine: &Engine, what: &str, held: Option<&[JobId]>) {
    engine.set_paused(QueueName::default(), false).await.unwrap();
    has_all_of_each(engine, what).await;
    if let Some(held) = held {
        nothing_is_held_by_nobody(engine, what, held).await;
    }
    end_all(engine, what).await;
    has_all_of_each(engine, what).await;
    for queue in engine.queues().await.unwrap() {
        let live: u64 = StateSet::LIVE.iter().map(|state| queue.count(state)).sum();
        let counted = queue.counts.iter().sum::<u64>() + queue.purged;
        assert_eq!((live, queue.created), (0, counted), "{what}: {queue:?}");
    }
}

/// Drops one call once; returns whether it had answered before.
async fn is_answered_first(
    engine: &Engine,
    name: &str,
    call: fn(Scene) -> Call,
    polls: u32,
    at: Moment,
) -> bool {
    let what = format!("{name}, let go after {polls} polls, {at:?}");
    let scene = scene(engine.clone()).await;
    let held = [scene.running.id];
    let answer = tokio::time::timeout(PATIENCE, let_go(call(scene), polls, at)).await;
    let is_answered = answer.unwrap_or_else(|_| panic!("{what}: it hangs")).is_some();
    is_whole(engine, &what, (!is_answered).then_some(&held)).await;
    let offers = KEYS.into_iter().zip(100..).map(|(key, number)| marked(number, keyed(key)).offer());
    let Batch::Done(outcomes) = engine.enqueue_batch(offers.collect(), Mode::Each, "").await.unwrap() else {
        panic!("{what}: refused as a whole")
    };
    for (key, outcome) in KEYS.into_iter().zip(outcomes) {
        assert!(matches!(outcome, Outcome::Created(_)), "{what}: {key} is stuck: {outcome:?}");
    }
    is_answered
}

/// Drops every call of the engine at every await, on a store that `open` makes.
///
/// The calls go on side by side, each time among jobs of a tenant of its own. The calls in `at_once` are
/// answered from such a store's memory and need not wait.
///
/// # Panics
/// When a request is half done, or a later one is kept waiting.
pub async fn every_call_is_let_go<B: Backend>(open: impl AsyncFn() -> Arc<B>, at_once: &[&str]) {
    let engine = Engine::without_duties(open().await).unwrap();
    let tenants = AtomicU32::new(0);
    let within = |engine: &Engine| {
        let tenant = format!("tenant-{}", tenants.fetch_add(1, Ordering::Relaxed));
        engine.within(&Tenant::parse(&tenant, "").unwrap())
    };
    // A stopped engine takes no more jobs, so `stop` comes last.
    let (of_all, last): (Vec<_>, Vec<_>) = CALLS.iter().copied().partition(|(name, _)| *name != "stop");
    let rows = of_all.into_iter().map(async |(name, call)| {
        let mut dropped = 0;
        for _ in 0..if at_once.contains(&name) { 1 } else { TRIES } {
            let once = async |polls, at| is_answered_first(&within(&engine), name, call, polls, at).await;
            dropped += at_every_await(name, once).await;
            if dropped > 0 {
                break;
            }
        }
        (name, dropped)
    });
    let dropped: Vec<(&str, u32)> = rows.collect::<FuturesUnordered<_>>().collect().await;
    let mut never: Vec<&str> =
        dropped.iter().filter(|(_, times)| *times == 0).map(|(name, _)| *name).collect();
    never.retain(|name| !at_once.contains(name));
    assert!(never.is_empty(), "they never wait: {never:?}");
    // No dropped call has left anything behind that the duties fail on.
    let store = engine.store();
    Promote.run_once(store).await.unwrap();
    Reap.run_once(store).await.unwrap();
    Expire.run_once(store).await.unwrap();
    Tend.run_once(store).await.unwrap();
    Purge.run_once(store).await.unwrap();
    tokio::time::timeout(PATIENCE, engine.close()).await.expect("the store does not close");
    for (name, call) in last {
        let once = async |polls, at| {
            let engine = Engine::without_duties(open().await).unwrap();
            is_answered_first(&within(&engine), name, call, polls, at).await
        };
        // Without duties there is nothing that a stop waits for.
        at_every_await(name, once).await;
    }
}
