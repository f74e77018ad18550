//! Many tasks on one key, through the batcher and the engine: what must hold in the end, whichever task wins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::Mutex;

use semel_core::enqueue::{Batch, Mode, Offer, Outcome};
use semel_core::ident::QueueName;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::{Refusal, Settled};
use semel_core::sight::Queues;
use semel_core::state::{State, StateSet};
use semel_engine::{Engine, Job};
use semel_store::Backend;
use semel_store::backend::{Claim, Filter};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::make::{Want, job, keyed};

const TASKS: usize = 16;

fn engine(backend: Arc<dyn Backend>) -> Engine {
    Engine::without_duties(backend).unwrap()
}

/// Runs the same action in all tasks at once; returns what each got.
pub async fn at_once<T, F>(tasks: usize, act: impl Fn(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(tasks));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (barrier, act) = (Arc::clone(&barrier), act(task));
        running.spawn(async move {
            barrier.wait().await;
            act.await
        });
    }
    running.join_all().await
}

fn wish(limit: u32) -> Claim {
    Claim {
        queues: vec![QueueName::default()],
        limit,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    }
}

async fn ack(engine: &Engine, run: &Job) -> Settled {
    let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
    engine.complete(run.head.id, bearer, None).await.unwrap()
}

async fn live(engine: &Engine) -> usize {
    let filter = Filter { states: StateSet::LIVE, limit: 10_000, ..Filter::default() };
    engine.list(filter).await.unwrap().heads.len()
}

/// Exactly one job is created, and every loser is told which.
pub async fn of_many_equal_jobs_one_is_created(backend: Arc<dyn Backend>) {
    let engine = engine(backend);
    for round in 0..20 {
        let offer = keyed(&format!("round {round}")).states(StateSet::ALL).offer();
        let outcomes = at_once(TASKS, |_| {
            let (engine, offer) = (engine.clone(), offer.clone());
            async move { engine.enqueue(offer, "").await.unwrap() }
        })
        .await;
        let created: Vec<_> = outcomes
            .iter()
            .filter_map(|outcome| if let Outcome::Created(head) = outcome { Some(head.id) } else { None })
            .collect();
        assert_eq!(created.len(), 1, "{outcomes:?}");
        assert!(outcomes.iter().filter_map(Outcome::absorbed_by).all(|id| id == created[0]));
        assert_eq!(outcomes.iter().filter_map(Outcome::absorbed_by).count(), TASKS - 1);
    }
}

/// Batches with the same keys in opposite orders do not deadlock, and nothing is created twice.
pub async fn batches_in_opposite_orders_both_end(backend: Arc<dyn Backend>) {
    let engine = engine(backend);
    for mode in [Mode::Each, Mode::AllOrNothing] {
        let batches = at_once(TASKS, |task| {
            let engine = engine.clone();
            let mut offers: Vec<Offer> =
                (0..30).map(|key| keyed(&format!("{mode:?} {key}")).offer()).collect();
            if task % 2 == 0 {
                offers.reverse();
            }
            async move { engine.enqueue_batch(offers, mode, "").await.unwrap() }
        })
        .await;
        let created = |batch: &Batch| match batch {
            Batch::Done(outcomes) => outcomes.iter().filter(|outcome| outcome.is_inserted()).count(),
            Batch::Refused { .. } => 0,
        };
        let counts: Vec<usize> = batches.iter().map(created).collect();
        assert_eq!(counts.iter().sum::<usize>(), 30, "{counts:?}");
        if mode == Mode::AllOrNothing {
            assert!(counts.iter().all(|count| [0, 30].contains(count)), "{counts:?}");
        }
    }
}

/// One job survives; every other was cancelled exactly once, and no cancelled one completes.
pub async fn a_storm_of_replacements_leaves_one(backend: Arc<dyn Backend>) {
    let engine = engine(backend);
    let cancelled = Arc::new(Mutex::new(Vec::new()));
    at_once(TASKS, |task| {
        let (engine, cancelled) = (engine.clone(), Arc::clone(&cancelled));
        async move {
            for _ in 0..20 {
                if task % 4 == 0 {
                    for run in engine.claim(wish(1)).await.unwrap() {
                        // The run either ends here or was replaced before; never both.
                        if let Settled::Done(head) = ack(&engine, &run).await {
                            cancelled.lock().unwrap().push(head.id);
                        }
                    }
                } else if let Outcome::Replaced { cancelled: ids, .. } =
                    engine.enqueue(keyed("k").on_conflict("replace").offer(), "").await.unwrap()
                {
                    cancelled.lock().unwrap().extend(ids);
                }
            }
        }
    })
    .await;
    let mut ended = cancelled.lock().unwrap().clone();
    let all = ended.len();
    ended.sort();
    ended.dedup();
    assert_eq!(ended.len(), all, "a job ended twice");
    assert!(live(&engine).await <= 1);
    let created = engine.queues().await.unwrap()[0].created;
    assert_eq!(created as usize, all + live(&engine).await);
}

/// Every job is granted to exactly one worker.
pub async fn no_job_is_claimed_twice(backend: Arc<dyn Backend>) {
    let engine = engine(backend);
    let offers = vec![job().offer(); 400];
    engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
    let taken = at_once(TASKS, |task| {
        let engine = engine.clone();
        async move {
            let mut taken = Vec::new();
            loop {
                let runs = engine.claim(wish(1 + task as u32 % 5)).await.unwrap();
                if runs.is_empty() {
                    return taken;
                }
                taken.extend(runs.iter().map(|run| run.head.id));
            }
        }
    })
    .await;
    let all: Vec<_> = taken.into_iter().flatten().collect();
    assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (400, 400));
}

/// Two runs of the key are never under way at once, and the last request runs after it was made.
pub async fn follow_ups_never_overlap_and_never_lose_the_last_request(backend: Arc<dyn Backend>) {
    let engine = engine(backend);
    let under_way = Arc::new(Mutex::new(HashSet::new()));
    // The requests so far, and the requests that later runs have seen.
    let ran = Arc::new(Mutex::new(HashMap::new()));
    let want = |task: usize, turn: usize| -> Want {
        keyed("k").on_conflict("follow_up").args(&format!("[{task},{turn}]"))
    };
    at_once(TASKS, |task| {
        let (engine, under_way, ran) = (engine.clone(), Arc::clone(&under_way), Arc::clone(&ran));
        async move {
            for turn in 0..30 {
                if task % 2 == 0 {
                    engine.enqueue(want(task, turn).offer(), "").await.unwrap();
                    continue;
                }
                for run in engine.claim(wish(1)).await.unwrap() {
                    {
                        let mut under_way = under_way.lock().unwrap();
                        assert!(under_way.is_empty(), "two runs of one key");
                        under_way.insert(run.head.id);
                    }
                    *ran.lock().unwrap().entry(run.body.args.to_string()).or_insert(0) += 1;
                    tokio::task::yield_now().await;
                    under_way.lock().unwrap().remove(&run.head.id);
                    assert!(matches!(ack(&engine, &run).await, Settled::Done(_)));
                }
            }
        }
    })
    .await;
    // The last request is still to be run, as an unstarted job, or else was the last to run.
    let last =
        engine.enqueue(keyed("k").on_conflict("follow_up").args("[\"last\"]").offer(), "").await.unwrap();
    assert!(!last.is_refused(), "{last:?}");
    let mut seen = Vec::new();
    loop {
        let runs = engine.claim(wish(10)).await.unwrap();
        assert!(runs.len() <= 1);
        let Some(run) = runs.first() else { break };
        seen.push(run.body.args.to_string());
        ack(&engine, run).await;
    }
    assert_eq!(seen.last().map(String::as_str), Some("[\"last\"]"));
    assert_eq!(live(&engine).await, 0, "nothing waits for ever");
}

/// ACK, CANCEL, the reaper and heartbeats meet on the same runs: each run ends once.
pub async fn a_run_ends_once_whoever_ends_it(backend: Arc<dyn Backend>) {
    let engine = engine(backend);
    for _ in 0..20 {
        engine.enqueue(job().attempts(1).offer(), "").await.unwrap();
        let run = engine.claim(wish(1)).await.unwrap().remove(0);
        let ended = at_once(TASKS, |task| {
            let (engine, run) = (engine.clone(), run.clone());
            let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
            async move {
                match task % 4 {
                    0 => engine.cancel(run.head.id, Bearer::default()).await.unwrap(),
                    1 => engine.fail(run.head.id, bearer, Default::default()).await.unwrap(),
                    2 => {
                        let mut extended =
                            engine.extend(vec![(run.head.id, bearer)], None, &Queues::All).await.unwrap();
                        extended.remove(0).unwrap_or(Settled::Refused(Refusal::NotFound))
                    }
                    _ => ack(&engine, &run).await,
                }
            }
        })
        .await;
        let done =
            ended.iter().filter(|settled| matches!(settled, Settled::Done(head) if head.state.is_finished()));
        assert_eq!(done.count(), 1, "{ended:?}");
    }
    let stats = &engine.queues().await.unwrap()[0];
    assert_eq!(
        stats.count(State::Completed) + stats.count(State::Cancelled) + stats.count(State::Discarded),
        20
    );
}

/// Plays every race, each on a fresh store, in a multi-threaded runtime.
#[macro_export]
macro_rules! races {
    (@each $backend:expr; $($race:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $race() {
                let backend = $backend;
                $crate::races::$race(backend.backend()).await;
            }
        )*
    };
    ($name:ident, $fixture:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the fixture's expression may need the outer names")]
            use super::*;
            $crate::races!(@each $fixture;
                of_many_equal_jobs_one_is_created,
                batches_in_opposite_orders_both_end,
                a_storm_of_replacements_leaves_one,
                no_job_is_claimed_twice,
                follow_ups_never_overlap_and_never_lose_the_last_request,
                a_run_ends_once_whoever_ends_it,
            );
        }
    };
}
