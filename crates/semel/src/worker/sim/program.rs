//! The program of a process: a queue, workers, and callers that enqueue jobs.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use semel_core::retention::Retention;
use semel_core::unique::{OnConflict, WhenActive};
use semel_engine::Engine;
use semel_store::{Backend, Store};
use semel_testkit::sim::dice::Dice;
use semel_testkit::sim::store::Connection;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::super::run::Run;
use super::super::verdict::{Failure, Outcome, Return};
use super::super::{IntoOutcome, Worker};
use super::book::{Book, Whose};
use super::world::World;
use crate::open::Opened;
use crate::{Envelope, Retry, Semel, Unique};

/// The queues of a run.
const QUEUES: [&str; 2] = ["default", "other"];
const TYPE: &str = "sim.job";
/// How many unique keys the callers share.
const KEYS: u64 = 3;
/// How often the end of the run is checked for.
const LOOK: Duration = Duration::from_millis(500);
/// The most that a stop may take beyond its drain and grace times, if the store answers.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How long remaining tasks may take to end after the workers have.
const END_MAX: Duration = Duration::from_secs(60);
/// The tasks of a process that belong to no worker: the batcher, the duties, and the program.
const TASKS: usize = 3;

fn ms(dice: &mut Dice, from: u64, to: u64) -> Duration {
    Duration::from_millis(dice.between(from, to))
}

/// The program of the process in this seat.
pub(super) async fn program(world: Arc<World>, seat: usize) {
    let (_, mut dice) = world.start();
    let connection = Connection::new(Arc::clone(&world.store)) as Arc<dyn Backend>;
    let (store, batcher) = Store::with_batcher(Arc::clone(&connection), Retention::default(), dice.draw());
    let engine = Engine::on(store);
    let duties = engine.duties();
    tokio::spawn(batcher);
    tokio::spawn(duties);
    let semel = Semel::of(engine, Opened::on(connection));
    let mut parts = Vec::new();
    for _ in 0..world.plan.workers {
        parts.push(tokio::spawn(employ(Arc::clone(&world), semel.clone(), seat)));
    }
    for _ in 0..2 {
        parts.push(tokio::spawn(call(Arc::clone(&world), semel.clone(), Dice::new(dice.draw()))));
    }
    for part in parts {
        if let Err(failed) = part.await {
            world.judge(Err(format!("a part of the program failed: {failed}")));
        }
    }
    let began = Instant::now();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    while tasks() > TASKS && began.elapsed() < END_MAX {
        sleep(LOOK).await;
    }
    if tasks() > TASKS {
        world.judge(Err(format!("{} tasks are left over in the end", tasks() - TASKS)));
    }
    world.has_ended();
    drop(semel);
}

/// Runs one worker after the other, until the run is over.
async fn employ(world: Arc<World>, semel: Semel, seat: usize) {
    while !world.is_over() {
        let (number, mut dice) = world.start();
        let name: Arc<str> = format!("w{number}").into();
        let places = dice.between(1, 3) as u32;
        let drain = ms(&mut dice, 0, 3_000);
        let grace_max = dice.pick(&[1_000, 1_000, 15_000]);
        let grace = ms(&mut dice, 0, grace_max);
        let whose = Whose { seat, worker: Arc::clone(&name), places: places as usize };
        let all = Arc::clone(&world);
        let mut worker = Worker::new(&semel)
            .name(Arc::clone(&name))
            .prefetch(dice.between(0, 3) as u32)
            .lease(world.plan.lease(&mut dice))
            .drain(drain)
            .grace(grace)
            .handle_type(TYPE, move |run| handle(Arc::clone(&all), whose.clone(), run));
        for queue in QUEUES {
            worker = worker.queue(queue, places);
        }
        let working = match worker.start() {
            Ok(working) => working,
            Err(error) => return world.judge(Err(format!("{name} does not start: {error}"))),
        };
        let stays = world.plan.stops == 0 || dice.chance(256);
        let mut life = ms(&mut dice, 50, 20_000);
        while !world.is_over() {
            let part = if stays || world.is_quiet() { LOOK } else { life.min(LOOK) };
            if part.is_zero() {
                break;
            }
            sleep(part).await;
            life = life.saturating_sub(part);
        }
        // In the end no worker may be left; before that, one may be dropped wherever it stands.
        if !world.is_over() && dice.chance(256) {
            drop(working);
            continue;
        }
        let began = Instant::now();
        working.stop().await;
        let took = began.elapsed();
        if took > drain + grace + STOP_MAX && world.plan.pauses == 0 {
            world.judge(Err(format!(
                "{name} took {took:?} to stop, with {drain:?} to drain and {grace:?} of grace"
            )));
        }
        let checked = world.book.lock().unwrap().check_stopped(&name);
        world.judge(checked);
    }
}

/// Enqueues jobs, one after the other.
async fn call(world: Arc<World>, semel: Semel, mut dice: Dice) {
    while let Some(number) = world.request() {
        let calling = world.calls();
        let envelope = envelope(&world, &mut dice, number);
        // A caller without an answer tries once more, and may get a second job.
        let mut told = semel.enqueue(envelope).await;
        if told.is_err() && dice.chance(512) {
            told = semel.enqueue(self::envelope(&world, &mut dice, number)).await;
        }
        if let Some(id) = told.ok().and_then(|enqueued| enqueued.id()) {
            let is_there = world.store.witness.lock().unwrap().jobs.contains_key(&id);
            world.judge(if is_there { Ok(()) } else { Err(format!("{id} was answered and is not stored")) });
        }
        drop(calling);
        sleep(ms(&mut dice, 0, 600)).await;
    }
}

fn envelope(world: &World, dice: &mut Dice, number: u64) -> Envelope {
    let retry = Retry::new().initial(ms(dice, 1, 300)).max(Duration::from_millis(500)).no_jitter();
    let mut job = Envelope::new(TYPE)
        .meta("n", number)
        .meta("inspect", true)
        .queue(QUEUES[usize::from(dice.chance(300))])
        .priority(dice.between(0, 2) as i8)
        .max_attempts(dice.between(1, 4) as u32)
        .retry(retry);
    if dice.chance(200) {
        job = job.after(ms(dice, 1, 2_000));
    }
    if dice.chance(200) {
        job = job.timeout(ms(dice, 300, 6_000));
    }
    if dice.chance(200) {
        job = job.lease(world.plan.lease(dice));
    }
    let key = dice.below(KEYS * 2);
    let on_conflict = match key {
        0 => OnConflict::Ignore,
        1 => OnConflict::Replace,
        2 => OnConflict::FollowUp,
        _ => return job,
    };
    let unique = Unique::by_key(format!("key {key}")).on_conflict(on_conflict);
    let waits = on_conflict == OnConflict::Replace && dice.chance(300);
    job.unique(if waits { unique.when_active(WhenActive::Wait) } else { unique })
}

/// One run of a handler: quick or slow, heeding its token or not, with any outcome.
async fn handle(world: Arc<World>, whose: Whose, run: Run) -> Outcome {
    let (working, checked) = {
        let witness = world.store.witness.lock().unwrap();
        Book::begin(&world.book, whose, &run, &witness, world.now())
    };
    world.judge(checked);
    let mut dice = Dice::of(world.seed, 1_000_000 + working.number() as u64);
    if world.is_quiet() {
        return working.says(Outcome::Done);
    }
    let lease = run.delivery().lease.min(Duration::from_secs(20)).as_millis() as u64;
    let mut left = match dice.below(16) {
        0..10 => ms(&mut dice, 0, 200),
        10..13 => ms(&mut dice, 0, lease),
        13..15 => ms(&mut dice, lease, 2 * lease),
        // Long enough for every run whose lease is lost to be told, however late.
        _ => ms(&mut dice, lease, 2 * lease + 15_000),
    };
    let (listens, tells) = (dice.chance(512), dice.chance(200));
    let mut was_told = false;
    while !left.is_zero() && !was_told {
        let part = left.min(ms(&mut dice, 1, lease / 2 + 1));
        tokio::select! {
            biased;
            () = run.token().cancelled(), if listens => was_told = true,
            () = sleep(part) => left -= part,
        }
        if tells {
            // The report may be refused, because the lease may be lost.
            drop(run.progress(left.as_millis() as u64).await);
        }
    }
    let failure = Failure::new("boom", "as it was drawn");
    let outcome = match dice.below(16) {
        // Bypasses the panic hook.
        0 => resume_unwind(Box::new("as it was drawn")),
        1 => Outcome::Snooze(ms(&mut dice, 1, 1_500)),
        2 => Outcome::Cancel,
        3 => Outcome::Discard(failure),
        4 => Outcome::GiveBack,
        5 => Return(7).into_outcome(),
        6 => Outcome::Retry(failure.after(ms(&mut dice, 1, 500))),
        7..9 => Outcome::Retry(failure),
        9..11 if was_told => Outcome::Retry(failure),
        _ => Outcome::Done,
    };
    working.says(outcome)
}
