//! A primary is cut off from all others, together with a server that goes on writing to it, while a replica
//! takes over on the other side. If commits wait for replicas, everything that either side acknowledged
//! survives; otherwise only what the guide names may be lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use semel_core::enqueue::Outcome;
use semel_core::ident::JobId;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::Settled;
use semel_core::state::{State, StateSet};
use semel_engine::Engine;
use semel_redis::{Address, Redis};
use semel_testkit::crash::claim;
use semel_testkit::make::keyed;
use semel_testkit::patience::{PATIENCE, until};
use tokio::task::JoinSet;

use crate::doors::House;

/// How long a primary may be silent before it is replaced, in milliseconds.
const TIMEOUT: u32 = 2_000;
/// Callers at each server. All want the same keys in the same order, slightly out of step.
const CALLERS: usize = 4;

/// What a server acknowledged, and when it had been asked for that.
#[derive(Default)]
struct Told {
    created: Vec<(String, JobId, Instant)>,
    /// The holders of keys, as duplicates were told.
    named: Vec<(String, JobId, Instant)>,
    /// The jobs and fencing tokens of granted runs.
    fences: Vec<(JobId, u64)>,
    ended: Vec<(JobId, Instant)>,
}

/// A server with callers and a worker.
struct Side {
    told: Arc<Mutex<Told>>,
    over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Side {
    async fn start(address: &Address, keys: &Arc<AtomicU64>) -> Self {
        let address = address.with_patience(PATIENCE);
        let engine = Engine::without_duties(Arc::new(Redis::open(&address).await.unwrap())).unwrap();
        let mut side = Self { told: Arc::default(), over: Arc::default(), tasks: JoinSet::new() };
        for _ in 0..CALLERS {
            let (engine, told, over) = (engine.clone(), Arc::clone(&side.told), Arc::clone(&side.over));
            let keys = Arc::clone(keys);
            side.tasks.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    // Each key is wanted twice, by any two callers.
                    let name = format!("key {}", keys.fetch_add(1, Ordering::Relaxed) / 2);
                    let offer = keyed(&name).states(StateSet::ALL).on_conflict("ignore").offer();
                    let asked = Instant::now();
                    let outcome = engine.enqueue(offer, "").await;
                    let mut told = told.lock().unwrap();
                    match outcome {
                        Ok(Outcome::Created(head)) => told.created.push((name, head.id, asked)),
                        Ok(Outcome::Existing(head)) => told.named.push((name, head.id, asked)),
                        Ok(other) => panic!("{other:?}"),
                        // It is not acknowledged, and may or may not be stored.
                        Err(_) => {}
                    }
                }
            });
        }
        let (told, over) = (Arc::clone(&side.told), Arc::clone(&side.over));
        side.tasks.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let Ok(runs) = engine.claim(claim(2)).await else { continue };
                told.lock().unwrap().fences.extend(runs.iter().map(|run| (run.head.id, run.head.fence)));
                for run in runs {
                    let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                    let asked = Instant::now();
                    if let Ok(Settled::Done(_)) = engine.complete(run.head.id, bearer, None).await {
                        told.lock().unwrap().ended.push((run.head.id, asked));
                    }
                }
            }
        });
        side
    }

    fn created(&self) -> usize {
        self.told.lock().unwrap().created.len()
    }

    async fn end(self) -> Told {
        self.over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
        Arc::into_inner(self.told).unwrap().into_inner().unwrap()
    }
}

/// The result: what each side was told, when the door was shut, and what was lost of that.
struct Found {
    shut: Instant,
    /// When the cut-off primary was seen to know that it is alone: from then on it accepts nothing.
    alone: Instant,
    inside: Told,
    outside: Told,
    /// Jobs that no longer exist; another job may have the key by now.
    lost: BTreeSet<JobId>,
    /// Jobs whose acknowledged ends are lost.
    undone: BTreeSet<JobId>,
}

/// Cuts the store's primary off until its replica has taken over, then opens the door again.
async fn cut_off(query: &str) -> Found {
    let house = House::start(TIMEOUT).await;
    let [inside, outside] =
        [house.inside(), house.outside()].map(|url| Address::parse(&format!("{url}{query}")).unwrap());
    let keys = Arc::default();
    let (one, other) = (Side::start(&inside, &keys).await, Side::start(&outside, &keys).await);
    until("both are at work", async || one.created() > 50 && other.created() > 50).await;
    let shut = Instant::now();
    house.shut(0);
    let takes_over = until("a replica takes over", async || house.cluster.nodes[3].is_primary().await);
    let knows = async {
        until("it knows that it is alone", async || house.cluster.nodes[0].is_alone().await).await;
        Instant::now()
    };
    let ((), alone) = tokio::join!(takes_over, knows);
    let before = other.created();
    if inside.replicas() == 0 {
        until("the others go on there", async || other.created() > before + 50).await;
    } else {
        // The new primary's only replica is the one that was cut off: nothing is acknowledged on either side.
        let before = one.created() + other.created();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(one.created() + other.created(), before, "nobody has confirmed it");
    }
    assert!(house.cluster.nodes[0].is_primary().await, "nobody has told it");
    house.open();
    until("it is the replica now", async || house.cluster.nodes[0].is_replica().await).await;
    let before = one.created();
    until("who was inside goes on as well", async || one.created() > before + 20).await;
    let (inside, outside) = (one.end().await, other.end().await);
    let address = house.outside();
    let engine =
        Engine::without_duties(Arc::new(Redis::open(&Address::parse(&address).unwrap()).await.unwrap()))
            .unwrap();
    let (mut lost, mut undone) = (BTreeSet::new(), BTreeSet::new());
    let told = || [&inside, &outside].into_iter();
    for (_, id, _) in told().flat_map(|told| told.created.iter().chain(&told.named)) {
        if engine.job(*id).await.unwrap().is_none() {
            lost.insert(*id);
        }
    }
    for (id, _) in told().flat_map(|told| &told.ended) {
        if engine.job(*id).await.unwrap().is_none_or(|job| job.head.state != State::Completed) {
            undone.insert(*id);
        }
    }
    Found { shut, alone, inside, outside, lost, undone }
}

/// Keys that two jobs were acknowledged to hold, with these jobs.
fn doubled(found: &Found) -> BTreeMap<&str, BTreeSet<JobId>> {
    let mut holders: BTreeMap<&str, BTreeSet<JobId>> = BTreeMap::new();
    for told in [&found.inside, &found.outside] {
        for (name, id, _) in told.created.iter().chain(&told.named) {
            holders.entry(name).or_default().insert(*id);
        }
    }
    holders.retain(|_, ids| ids.len() > 1);
    holders
}

/// How many runs were granted, and how many of them differ by job or fence.
fn fences(found: &Found) -> (usize, usize) {
    let all = || [&found.inside, &found.outside].into_iter().flat_map(|told| &told.fences);
    (all().count(), all().collect::<BTreeSet<_>>().len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_that_are_waited_for_nothing_is_lost_on_either_side() {
    let found = cut_off("?replicas=1").await;
    assert_eq!((found.lost.len(), found.undone.len()), (0, 0));
    assert_eq!(doubled(&found), BTreeMap::new());
    let (given, different) = fences(&found);
    assert!(given > 20 && given == different, "{given} fences, of which {different} differ");
}

/// What is lost is what the cut-off primary told the server inside before it knew that it was alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_them_what_is_lost_was_written_to_the_one_that_was_cut_off() {
    // It knows once most primaries have been silent for the timeout, and it pings them at least twice in that
    // time. The rest is for a busy machine, which may be slow once.
    let bound = Duration::from_millis(u64::from(TIMEOUT) * 3 / 2) + Duration::from_secs(2);
    let mut took: Vec<Duration> = Vec::new();
    while took.len() < 3 && took.iter().all(|took| *took >= bound) {
        let found = cut_off("").await;
        println!("{}", what_is_lost_was_written_to_it(&found));
        took.push(found.alone.saturating_duration_since(found.shut));
    }
    assert!(took.iter().any(|took| *took < bound), "it knew that it was alone after {took:?}");
}

/// Returns an account of the losses.
fn what_is_lost_was_written_to_it(found: &Found) -> String {
    let Told { created, named, ended, .. } = &found.inside;
    let jobs = created.iter().chain(named).filter(|(_, id, _)| found.lost.contains(id));
    let ends = ended.iter().filter(|(id, _)| found.undone.contains(id));
    let times: Vec<Instant> = jobs.map(|(.., at)| *at).chain(ends.map(|(_, at)| *at)).collect();
    let since = |at: &Instant| at.saturating_duration_since(found.shut);
    let (first, last) = (times.iter().min().map(since), times.iter().max().map(since));
    let account = format!(
        "{} jobs and {} ends were lost, from {first:?} to {last:?} after the door was shut; {} keys were doubled",
        found.lost.len(),
        found.undone.len(),
        doubled(found).len()
    );
    assert!(!found.lost.is_empty(), "it takes what it is given until it knows");
    // An answer may be on its way by then, so the time of its request counts.
    let alone = since(&found.alone);
    assert!(last.unwrap() <= alone, "{last:?}, and it was alone after {alone:?}");
    // Nothing that the others were told is gone, except for what had not reached the replica when the door
    // was shut.
    for (name, id, at) in found.outside.created.iter().chain(&found.outside.named) {
        let is_late = *at > found.alone;
        assert!(!is_late || !found.lost.contains(id), "{name} was acknowledged by the one that took over");
    }
    // At most one of the acknowledged holders of a key exists. It does not matter which side was told of it:
    // what either was told right before the door was shut may be lost as well.
    for (name, ids) in doubled(found) {
        let there: Vec<&JobId> = ids.difference(&found.lost).collect();
        assert!(there.len() <= 1, "{name}: both are there: {there:?}");
    }
    account
}
