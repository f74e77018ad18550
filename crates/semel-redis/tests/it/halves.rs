//! Commits over several partitions, of every kind, broken off after each of their steps: the server dies
//! there, with all that it has in flight. Others find the commit done as a whole or not at all, and go on.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_core::ident::{JobId, QueueName, WorkflowId};
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::partition;
use semel_core::state::{State, StateSet};
use semel_core::workflow::Created;
use semel_engine::Engine;
use semel_redis::Address;
use semel_store::StoreError;
use semel_testkit::crash::claim;
use semel_testkit::flows::{chain, letters};
use semel_testkit::make::{Want, job, key, keyed};
use semel_testkit::patience::PATIENCE;
use semel_testkit::redis::{prefix, url};

use crate::own::patient;
use crate::partitions::{PARTITIONS, astray, cut_after, engine};

/// More steps than a commit over all partitions takes: its place, a lock and an answer of each, the decision,
/// and leaving its place.
const STEPS: usize = 4 + 2 * PARTITIONS as usize;

/// A kind of request that leads to a commit over several partitions.
pub trait Kind: Sync {
    /// What has to exist before.
    type Ready: Send;
    async fn prepare(&self, direct: &Engine) -> Self::Ready;
    /// The request that is broken off.
    async fn act(&self, victim: &Engine, ready: &Self::Ready) -> Result<(), StoreError>;
    /// Whether it was done; anything in between fails the test.
    async fn is_done(&self, direct: &Engine, ready: Self::Ready) -> bool;
}

/// Cuts one server off after `steps` steps, and lets another one look. `None` if the first was answered.
async fn broken_off<K: Kind>(kind: &K, steps: usize, loses_answer: bool) -> Option<bool> {
    let prefix = prefix();
    let at = |url: &str| {
        let address = Address::parse(url).unwrap().with_prefix(&prefix).unwrap();
        address.with_partitions(PARTITIONS).unwrap()
    };
    // A partition that the victim left locked answers once the victim is known to be gone.
    let direct = engine(&at(&url()).with_away_after(PATIENCE)).await;
    let ready = kind.prepare(&direct).await;
    let (port, _) = cut_after(steps, loses_answer).await;
    let through = at(&format!("redis://127.0.0.1:{port}")).with_patience(Duration::from_millis(300));
    let victim = engine(&through).await;
    let told = kind.act(&victim, &ready).await;
    drop(victim);
    let is_done = kind.is_done(&direct, ready).await;
    for queue in direct.queues().await.unwrap() {
        assert_eq!(queue.created, queue.counts.iter().sum::<u64>() + queue.purged, "{queue:?}");
    }
    match told {
        Ok(()) => {
            assert!(is_done, "step {steps}: it was answered");
            None
        }
        Err(_) => Some(is_done),
    }
}

/// Breaks the request off after each step in turn.
pub async fn everywhere(kind: impl Kind) {
    let rounds = (0..=STEPS).flat_map(|steps| [(steps, false), (steps, true)]);
    let told = join_all(rounds.map(|(steps, loses)| broken_off(&kind, steps, loses))).await;
    for became in [Some(false), Some(true), None] {
        assert!(told.contains(&became), "{became:?} is not among {told:?}");
    }
    assert_eq!(told.first(), Some(&Some(false)), "nothing of it was heard");
    assert_eq!(told.last(), Some(&None), "it has more steps than were tried");
}

/// Names whose keys are in `number` different partitions.
pub fn apart(number: u16) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let place = |name: &str| partition::of_key(&key(name), PARTITIONS);
    for at in 0.. {
        let name = format!("apart {at}");
        if names.iter().all(|known| place(known) != place(&name)) {
            names.push(name);
        }
        if names.len() == usize::from(number) {
            break;
        }
    }
    names
}

struct AllOrNothing;

impl AllOrNothing {
    async fn ask(engine: &Engine) -> Result<Vec<Outcome>, StoreError> {
        let of = |name: &String| keyed(name).states(StateSet::ALL).on_conflict("ignore").offer();
        let offers = apart(3).iter().map(of).collect();
        match engine.enqueue_batch(offers, Mode::AllOrNothing, "").await? {
            Batch::Done(outcomes) => Ok(outcomes),
            refused @ Batch::Refused { .. } => panic!("{refused:?}"),
        }
    }
}

impl Kind for AllOrNothing {
    type Ready = ();

    async fn prepare(&self, _direct: &Engine) {}

    async fn act(&self, victim: &Engine, _ready: &()) -> Result<(), StoreError> {
        Self::ask(victim).await.map(drop)
    }

    async fn is_done(&self, direct: &Engine, _ready: ()) -> bool {
        let outcomes = Self::ask(direct).await.unwrap();
        let there = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Existing(_))).count();
        assert!([0, 3].contains(&there), "by half: {outcomes:?}");
        assert_eq!(direct.queues().await.unwrap()[0].created, 3);
        there == 3
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_which_all_or_none_is_stored() {
    everywhere(AllOrNothing).await;
}

/// Events of a job are logged in the job's partition, whatever else is written with it, and so stay in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_partition_tells_of_its_own_jobs() {
    let place = crate::place::Place::divided(PARTITIONS);
    let engine = engine(place.address()).await;
    AllOrNothing::ask(&engine).await.unwrap();
    let mut connection = patient(&url()).await;
    let mut told = 0;
    for name in apart(3) {
        let number = partition::of_key(&key(&name), PARTITIONS);
        let log = format!("{}e", place.address().base_of(number));
        told += redis::cmd("XLEN").arg(log).query_async::<u64>(&mut connection).await.unwrap();
    }
    assert_eq!(told, 3);
    assert_eq!(engine.store().events(0, 10).await.unwrap().events.len(), 3);
}

/// Otherwise several partitions would have to agree on the commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_keys_of_one_batch_are_in_one_partition() {
    let place = crate::place::Place::divided(PARTITIONS);
    let engine = engine(place.address()).await;
    let mut used = BTreeSet::new();
    // Partitions are chosen at random: 400 batches do not leave one out.
    for _ in 0..400 {
        if used.len() == usize::from(PARTITIONS) {
            break;
        }
        let offers = (0..8).map(|_| job().offer()).collect();
        let told = engine.enqueue_batch(offers, Mode::AllOrNothing, "").await.unwrap();
        let Batch::Done(outcomes) = told else { panic!("{told:?}") };
        let of = |outcome: &Outcome| partition::of_id(outcome.inserted().unwrap(), PARTITIONS);
        let places: BTreeSet<u16> = outcomes.iter().map(of).collect();
        assert_eq!(places.len(), 1, "{outcomes:?}");
        used.extend(places);
    }
    assert_eq!(used.len(), usize::from(PARTITIONS), "and batches are spread over all of them");
    let mut connection = patient(&url()).await;
    for partition in 0..PARTITIONS {
        let slot = format!("{}!", place.address().base_of(partition));
        let crossed: Option<u64> =
            redis::cmd("HGET").arg(slot).arg("crossed").query_async(&mut connection).await.unwrap();
        assert_eq!(crossed, None, "nothing was agreed about");
    }
}

struct FollowUp;

impl FollowUp {
    fn wish() -> Want {
        keyed("a").on_conflict("follow_up")
    }

    /// Uses an id that names another partition.
    async fn ask(engine: &Engine) -> Result<Outcome, StoreError> {
        engine.enqueue(Self::wish().id(astray("a", 1)).args("[2]").offer(), "").await
    }
}

impl Kind for FollowUp {
    type Ready = (JobId, Bearer);

    async fn prepare(&self, direct: &Engine) -> Self::Ready {
        direct.enqueue(Self::wish().offer(), "").await.unwrap();
        let run = direct.claim(claim(1)).await.unwrap().remove(0);
        (run.head.id, Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None })
    }

    async fn act(&self, victim: &Engine, _ready: &Self::Ready) -> Result<(), StoreError> {
        Self::ask(victim).await.map(drop)
    }

    async fn is_done(&self, direct: &Engine, (first, bearer): Self::Ready) -> bool {
        let told = Self::ask(direct).await.unwrap();
        let is_done = matches!(told, Outcome::Repeated(_));
        assert!(is_done || matches!(told, Outcome::FollowUp(_)), "{told:?}");
        // The follow-up starts when the run is over, and not sooner.
        assert!(direct.claim(claim(2)).await.unwrap().is_empty());
        direct.complete(first, bearer, None).await.unwrap();
        let runs = direct.claim(claim(2)).await.unwrap();
        assert_eq!(runs.iter().map(|run| run.head.id).collect::<Vec<_>>(), [astray("a", 1)]);
        assert_eq!(&*runs[0].body.args, "[2]");
        is_done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follow_up_whose_id_is_the_callers() {
    everywhere(FollowUp).await;
}

struct Pause;

impl Kind for Pause {
    type Ready = ();

    async fn prepare(&self, direct: &Engine) {
        for name in apart(PARTITIONS) {
            direct.enqueue(keyed(&name).offer(), "").await.unwrap();
        }
    }

    async fn act(&self, victim: &Engine, _ready: &()) -> Result<(), StoreError> {
        victim.set_paused(QueueName::default(), true).await.map(drop)
    }

    async fn is_done(&self, direct: &Engine, _ready: ()) -> bool {
        let taken = direct.claim(claim(9)).await.unwrap().len();
        assert!(
            [0, usize::from(PARTITIONS)].contains(&taken),
            "{taken} came from a queue that is paused by half"
        );
        let is_done = taken == 0;
        assert_eq!(direct.queues().await.unwrap()[0].row.paused, is_done);
        assert!(!direct.set_paused(QueueName::default(), false).await.unwrap().paused);
        let rest = direct.claim(claim(9)).await.unwrap().len();
        assert_eq!(taken + rest, usize::from(PARTITIONS));
        is_done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_paused() {
    everywhere(Pause).await;
}

struct Step;

impl Kind for Step {
    type Ready = (WorkflowId, JobId, Bearer);

    async fn prepare(&self, direct: &Engine) -> Self::Ready {
        let names = apart(2);
        let offers = names.iter().map(|name| keyed(name).offer());
        let Created::Done(id, _) = direct.create_workflow(chain(offers)).await.unwrap() else { panic!() };
        let run = direct.claim(claim(9)).await.unwrap().remove(0);
        (id, run.head.id, Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None })
    }

    async fn act(&self, victim: &Engine, (_, job, bearer): &Self::Ready) -> Result<(), StoreError> {
        victim.complete(*job, bearer.clone(), None).await.map(drop)
    }

    async fn is_done(&self, direct: &Engine, (id, job, bearer): Self::Ready) -> bool {
        let statuses = async || letters(&direct.workflow(id).await.unwrap().unwrap());
        let is_done = direct.job(job).await.unwrap().unwrap().head.state == State::Completed;
        assert_eq!(statuses().await, if is_done { "cr" } else { "rw" });
        let next = direct.claim(claim(9)).await.unwrap();
        assert_eq!(next.len(), usize::from(is_done));
        direct.complete(job, bearer, None).await.unwrap();
        assert_eq!(statuses().await, "cr");
        let late = direct.claim(claim(9)).await.unwrap();
        assert_eq!(next.len() + late.len(), 1, "the next step comes once");
        is_done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_a_workflow_that_ends() {
    everywhere(Step).await;
}

/// The server that decided the commit would have announced the work; the one that finishes it must do so
/// instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_ends_what_another_has_decided_tells_all() {
    let prefix = prefix();
    let at = |url: &str| {
        let address = Address::parse(url).unwrap().with_prefix(&prefix).unwrap();
        address.with_partitions(PARTITIONS).unwrap()
    };
    let direct = engine(&at(&url()).with_away_after(PATIENCE)).await;
    let mut ear = redis::Client::open(url()).unwrap().get_async_pubsub().await.unwrap();
    for partition in 0..PARTITIONS {
        ear.subscribe(format!("{}news", at(&url()).base_of(partition))).await.unwrap();
    }
    // Its place and two locks; of the decision, the answer is lost.
    let (port, _) = cut_after(3, true).await;
    let through = at(&format!("redis://127.0.0.1:{port}")).with_patience(Duration::from_millis(300));
    let victim = engine(&through).await;
    let id = astray("a", 1);
    assert!(victim.enqueue(keyed("a").id(id).offer(), "").await.is_err());
    // The victim does not know the outcome, and tells the others to look.
    let told = tokio::time::timeout(PATIENCE, ear.on_message().next()).await.unwrap().unwrap();
    let (name, kinds) = told.get_payload_bytes().split_at(8);
    assert!(name != [0; 8] && kinds == [0b1111], "{told:?}");
    drop(victim);
    // This server only reads, and has nothing of its own to announce.
    assert!(direct.job(id).await.unwrap().is_some());
    // In nobody's name, so that the workers of the server that decided it hear it as well: jobs are ready,
    // and all else.
    let is_for_all = |message: &redis::Msg| message.get_payload_bytes() == [0, 0, 0, 0, 0, 0, 0, 0, 0b1111];
    let told = async { while !is_for_all(&ear.on_message().next().await.unwrap()) {} };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    let mut connection = patient(&url()).await;
    let place: u64 = redis::cmd("EXISTS")
        .arg(format!("{}+", at(&url()).base()))
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(place, 0, "it has left");
    assert_eq!(direct.claim(claim(2)).await.unwrap().len(), 1);
}

/// A decision reaches every partition that takes part, even if everything is being deleted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_decided_is_told_although_all_is_deleted() {
    let place = crate::place::Place::divided(PARTITIONS);
    let engine = engine(place.address()).await;
    let mut connection = patient(&url()).await;
    let slot = format!("{}+", place.address().base());
    for (phase, stays) in [("open", false), ("decided", true)] {
        let mut enter = redis::cmd("HSET");
        enter.arg(&slot).arg(&["turn", "1", "token", "somebody's", "phase", phase, "with", ""]);
        enter.arg("at").arg("9999999999999999").exec_async(&mut connection).await.unwrap();
        engine.store().clear().await.unwrap();
        let is_there: bool = redis::cmd("EXISTS").arg(&slot).query_async(&mut connection).await.unwrap();
        assert_eq!(is_there, stays, "{phase}");
    }
}
