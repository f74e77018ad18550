//! One seed, from its beginning to its judgement, and a smaller plan that still fails.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::ident::QueueName;
use semel_core::job::Ending;
use semel_core::state::State;
use semel_store::Backend;

use super::client::{QUEUES, client};
use super::dice::Dice;
use super::executor::{Executor, Owner};
use super::nemesis::{crashes, jumps, pauses};
use super::plan::{Plan, keys};
use super::store::{SharedStore, SimClock};
use super::worker::worker;
use super::world::World;
use crate::history::Checked;
use crate::make::keyed;

/// The most steps of a run: one that takes more is in an endless loop.
const STEPS_MAX: u64 = 200_000;
/// How long the troubles last at most.
const TROUBLES: Duration = Duration::from_secs(120);
/// How long, after the troubles, everything that waits may take to end.
const HEALING: Duration = Duration::from_secs(120);

/// The size and digest of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// The number of times that tasks were polled.
    pub steps: u64,
    /// The number of events that the witness saw.
    pub events: u64,
    /// The number of stored jobs.
    pub jobs: u64,
    /// A digest of everything committed, to tell two runs apart.
    pub digest: u64,
}

impl Ran {
    /// Adds another run.
    pub fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.events += other.events;
        self.jobs += other.jobs;
        self.digest ^= other.digest;
    }
}

/// A seed whose run broke an invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The plan that it failed with.
    pub plan: Plan,
    /// What did not hold.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SEMEL_SEED={} SEMEL_PLAN=\"{}\"\n{}", self.seed, self.plan, self.what)
    }
}

/// Plays one seed with this plan.
///
/// # Errors
/// The first invariant that was broken.
pub fn play(seed: u64, plan: &Plan) -> Result<Ran, Failure> {
    crate::planted::plant_from_environment();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let failure = |what: String| Failure { seed, plan: plan.clone(), what };
    match runtime {
        Ok(runtime) => runtime.block_on(play_inside(seed, plan)).map_err(failure),
        Err(error) => Err(failure(error.to_string())),
    }
}

async fn play_inside(seed: u64, plan: &Plan) -> Result<Ran, String> {
    let mut executor = Executor::new(Dice::of(seed, 2));
    let clock = SimClock::new();
    let abreast = 1 + usize::from(Dice::of(seed, 11).chance(512));
    let store = SharedStore::new(clock.clone(), plan.faults, executor.handle(), Dice::of(seed, 3), abreast);
    // The last of the limits left out: operators release keys only where no policy looks at ended jobs.
    let keeps_ended = Dice::of(seed, 4).chance(512);
    let classes = keys(plan, seed, keeps_ended);
    let world =
        World::new(plan.clone(), seed, classes, !keeps_ended, Arc::clone(&store), clock, executor.handle());
    let is_over = Arc::new(AtomicU64::new(0));
    let (whole, over) = (Arc::clone(&world), Arc::clone(&is_over));
    executor.handle().spawn(Owner::World, async move {
        let checked = drive(&whole).await;
        whole.store.judge(checked);
        over.store(1, Ordering::Relaxed);
    });
    let steps = executor.run(STEPS_MAX, || is_over.load(Ordering::Relaxed) == 1 || store.is_wrong()).await;
    if let Some(wrong) = store.wrong() {
        return Err(wrong);
    }
    if is_over.load(Ordering::Relaxed) == 0 {
        return Err(format!("the run did not end within {steps} steps"));
    }
    let witness = store.witness.lock().unwrap();
    let mut digest = 0_u64;
    for (id, job) in &witness.jobs {
        for part in [id.row(), job.head.version, job.head.fence, job.mark.n, job.head.state as u64] {
            digest = (digest ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }
    Ok(Ran { steps, events: witness.seq(), jobs: witness.jobs.len() as u64, digest })
}

/// Runs the troubles, the healing and the judgement.
async fn drive(world: &Arc<World>) -> Checked {
    let (plan, seed, handle) = (&world.plan, world.seed, &world.handle);
    (0..plan.servers as usize).for_each(|at| world.start(at));
    let clients_left = Arc::new(AtomicU64::new(plan.clients + plan.tasks + plan.repeats));
    for number in 0..plan.clients {
        let (whole, left) = (Arc::clone(world), Arc::clone(&clients_left));
        let dice = Dice::of(seed, 10_000 + number);
        handle.spawn(Owner::World, async move {
            client(whole, dice).await;
            left.fetch_sub(1, Ordering::Relaxed);
        });
    }
    // Actors of their own: without them, all others act as they would otherwise.
    for number in 0..plan.tasks {
        let (whole, left) = (Arc::clone(world), Arc::clone(&clients_left));
        handle.spawn(Owner::World, async move {
            super::task::asker(Arc::clone(&whole), Dice::of(whole.seed, 30_000 + number)).await;
            left.fetch_sub(1, Ordering::Relaxed);
        });
    }
    for number in 0..plan.repeats {
        let (whole, left) = (Arc::clone(world), Arc::clone(&clients_left));
        handle.spawn(Owner::World, async move {
            super::repeat::asker(Arc::clone(&whole), Dice::of(whole.seed, 40_000 + number)).await;
            left.fetch_sub(1, Ordering::Relaxed);
        });
    }
    for number in 0..plan.workers {
        let name: Arc<str> = if number % 2 == 0 { "w".into() } else { "v".into() };
        let dice = Dice::of(seed, 20_000 + number);
        handle.spawn(Owner::Worker(number as usize), worker(Arc::clone(world), name, dice));
    }
    if plan.crashes > 0 {
        handle.spawn(Owner::World, crashes(Arc::clone(world), Dice::of(seed, 5)));
    }
    if plan.pauses > 0 {
        handle.spawn(Owner::World, pauses(Arc::clone(world), Dice::of(seed, 6)));
    }
    if plan.jumps > 0 {
        handle.spawn(Owner::World, jumps(Arc::clone(world), Dice::of(seed, 7)));
    }
    let began = tokio::time::Instant::now();
    while clients_left.load(Ordering::Relaxed) > 0 && began.elapsed() < TROUBLES {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.heal();
    drain(world).await?;
    judge(world).await
}

/// Waits until everything has ended that waits only for time and workers.
async fn drain(world: &Arc<World>) -> Checked {
    let mut dice = Dice::of(world.seed, 8);
    let began = tokio::time::Instant::now();
    let mut waiting = super::limit::Waiting::default();
    loop {
        for name in QUEUES {
            let name = QueueName::from_stored(name);
            world.ask(&mut dice, move |engine| async move { engine.set_paused(name, false).await }).await;
        }
        super::flow::stop(world, &mut dice).await;
        let live: Vec<_> = {
            let witness = world.store.witness.lock().unwrap();
            let live = witness.jobs.values().filter(|job| job.head.state.is_live());
            live.map(|job| job.head.clone()).collect()
        };
        if live.is_empty() {
            // Records of duplicates are written within a second, and a workflow's next piece is due at once.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let witness = world.store.witness.lock().unwrap();
            if witness.jobs.values().all(|job| !job.head.state.is_live()) {
                return Ok(());
            }
        }
        waiting.look(world).await?;
        if began.elapsed() > HEALING {
            return Err(format!("nobody ends {:?}", live.first()));
        }
        for head in live.iter().filter(|head| head.state == State::Pending) {
            let id = head.id;
            world.ask(&mut dice, move |engine| async move { engine.activate(id).await }).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        // A heartbeat without a length may have made a lease long.
        world.clock.jump(20_000);
    }
}

/// Judges what can be judged only at the end.
async fn judge(world: &Arc<World>) -> Checked {
    let error = |error: semel_store::StoreError| error.to_string();
    let queues = world.store.memory().queues().await.map_err(error)?;
    {
        let witness = world.store.witness.lock().unwrap();
        witness.check_counts(&queues)?;
        witness.check_workflows()?;
        witness.check_tasks()?;
        last_requests_ran(world, &witness)?;
        duplicates_counted(world, &witness)?;
        let mut holds = world.holds.lock().unwrap().clone();
        for (id, job) in &witness.jobs {
            if let Some(at) = job.first_run_at {
                holds.may_end(*id, at);
            }
        }
        if let (Some((a, b)), true) = (holds.doubled(), witness.released.is_empty()) {
            return Err(format!("{a} and {b} held one key at one time"));
        }
    }
    // No key is stuck: nothing is live, so a job whose policy looks at live jobs only is created.
    let mut dice = Dice::of(world.seed, 9);
    for class in &world.keys {
        let mut offer = keyed("stuck").body(|body| body.meta = "{\"n\":0,\"inspect\":true}".into()).offer();
        if let Some(identity) = &mut offer.unique {
            identity.key = class.key;
        }
        let heard = world.ask(&mut dice, move |engine| async move { engine.enqueue(offer, "").await }).await;
        if !matches!(heard.answer(), Some(Outcome::Created(_))) {
            return Err(format!("a key is stuck: {:?}", class.key));
        }
    }
    Ok(())
}

/// For a key that is used for follow-ups only: the last absorbed request ran after it came, unless its job
/// was cancelled or expired; no job expires while one of its requests would not.
fn last_requests_ran(world: &World, witness: &crate::history::Witness) -> Checked {
    for class in world.keys.iter().filter(|class| class.is_followed()) {
        let jobs = witness.jobs.values().filter(|job| job.head.key == Some(class.key));
        if let Some(last) = jobs.max_by_key(|job| job.asked.1)
            && last.ran_at < last.asked.1
            && last.head.state != State::Cancelled
            && last.head.ending != Some(Ending::Expired)
        {
            return Err(format!("request {} was taken in and never run", last.asked.0));
        }
    }
    Ok(())
}

/// A duplicate is counted at most once, and exactly once when no server was killed and no answer of the store
/// was lost.
fn duplicates_counted(world: &World, witness: &crate::history::Witness) -> Checked {
    let answered = world.duplicates.lock().unwrap();
    let is_calm =
        world.plan.crashes == 0 && world.plan.losses == 0 && world.store.unknown.load(Ordering::Relaxed) == 0;
    // A tick's or a step's duplicate is recorded with the decision, and no caller is answered.
    let is_calm = is_calm && world.plan.flows == 0 && world.plan.tasks == 0;
    for (id, job) in witness.jobs.iter().filter(|_| is_calm) {
        let told = answered.get(id).copied().unwrap_or(0);
        // The id may be another's by now; the answers name the id alone.
        let earlier: Vec<u64> =
            witness.bygone.iter().filter(|job| job.head.id == *id).map(|job| job.duplicates).collect();
        let recorded = job.duplicates + earlier.iter().sum::<u64>();
        let is_purged = job.is_purged || !earlier.is_empty();
        if recorded > told || (recorded < told && !is_purged) {
            return Err(format!("{id} absorbed {told} duplicates and recorded {recorded}"));
        }
    }
    Ok(())
}

/// The smallest plan found with which the seed still fails, for whatever reason.
pub fn shrink(failure: Failure) -> Failure {
    let mut least = failure;
    // Each round makes one field smaller, and all of them have a minimum, so this ends.
    while let Some(smaller) = least.plan.smaller().iter().find_map(|plan| play(least.seed, plan).err()) {
        least = smaller;
    }
    least
}
