//! Plays one seed from beginning to judgement, and shrinks a failing plan.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_testkit::history::Checked;
use semel_testkit::sim::dice::Dice;
use semel_testkit::sim::executor::{Executor, Handle};
use semel_testkit::sim::store::{SharedStore, SimClock};

use super::CHANCE;
use super::plan::Plan;
use super::process::Process;
use super::program::program;
use super::world::World;

/// The most turns of one run: one that takes more is going round in circles.
const TURNS_MAX: u64 = 200_000;
/// The furthest that time moves at once.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// The longest that the troubles last, in seconds.
const TROUBLES_MAX: u64 = 30;
/// How long everything that waits may take to end once the troubles are over, in microseconds.
const HEALING: u64 = 240_000_000;
/// How long all jobs must have ended before the run does, in microseconds, so that late writes have arrived.
const CALM: u64 = 2_000_000;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    /// Turns that processes took.
    pub(super) turns: u64,
    /// Events that the witness saw.
    pub(super) events: u64,
    /// Jobs stored.
    pub(super) jobs: u64,
    /// Calls of handlers.
    pub(super) handled: u64,
    /// Handlers that were called and whose leases ran out.
    pub(super) outlived: u64,
    /// A digest of everything committed, to tell two runs apart.
    pub(super) digest: u64,
}

impl Ran {
    /// Adds another run.
    pub(super) fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.events += other.events;
        self.jobs += other.jobs;
        self.handled += other.handled;
        self.outlived += other.outlived;
        self.digest ^= other.digest;
    }
}

/// A seed whose run broke a promise.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    seed: u64,
    plan: Plan,
    what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SEMEL_SEED={} SEMEL_PLAN=\"{}\"\n{}", self.seed, self.plan, self.what)
    }
}

/// The seat of a process, which successive processes may take.
#[derive(Default)]
struct Seat {
    process: Option<Process>,
    /// Whether a task in it may go on, once the world's time has reached the process's own.
    is_busy: bool,
    /// Until when it is paused; 0 if it is not.
    still_until: u64,
    /// Until when the seat stays empty.
    away_until: u64,
}

struct Play {
    world: Arc<World>,
    dice: Dice,
    seats: Vec<Seat>,
    /// Runs what the store does late.
    network: Process,
    orders: Handle,
    is_network_busy: bool,
    turns: u64,
    crash_at: u64,
    pause_at: u64,
    jump_at: u64,
    heal_at: u64,
    healed: Option<u64>,
    calm_since: Option<u64>,
}

/// Plays one seed with this plan.
pub(super) fn play(seed: u64, plan: &Plan) -> Result<Ran, Broken> {
    semel_testkit::planted::plant_from_environment();
    let broken = |what: String| Broken { seed, plan: plan.clone(), what };
    CHANCE.set(Some(Dice::of(seed, 6)));
    let mut play = Play::new(seed, plan);
    let checked = play.play();
    let Play { world, turns, .. } = play;
    CHANCE.set(None);
    if let Some(wrong) = world.store.wrong() {
        return Err(broken(wrong));
    }
    checked.map_err(broken)?;
    let witness = world.store.witness.lock().unwrap();
    let mut digest = 0_u64;
    for (id, job) in &witness.jobs {
        for part in [id.row(), job.head.version, job.head.fence, job.mark.n, job.head.state as u64] {
            digest = (digest ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }
    let book = world.book.lock().unwrap();
    let (handled, outlived) = (book.handled(), book.outlived(&witness));
    Ok(Ran { turns, events: witness.seq(), jobs: witness.jobs.len() as u64, handled, outlived, digest })
}

/// The smallest plan found with which the seed still fails, in whatever way.
pub(super) fn shrink(broken: Broken) -> Broken {
    let mut least = broken;
    while let Some(smaller) = least.plan.smaller().iter().find_map(|plan| play(least.seed, plan).err()) {
        least = smaller;
    }
    least
}

impl Play {
    fn new(seed: u64, plan: &Plan) -> Self {
        let mut executor = Executor::new(Dice::of(seed, 2));
        let orders = executor.handle();
        let clock = SimClock::still();
        let abreast = 1 + usize::from(Dice::of(seed, 4).chance(512));
        let store = SharedStore::new(clock.clone(), plan.faults, orders.clone(), Dice::of(seed, 3), abreast);
        let world = World::new(seed, plan.clone(), store, clock);
        let network = Process::new(0);
        network.handle().spawn(async move { executor.run(u64::MAX, || false).await });
        Self {
            dice: Dice::of(seed, 5),
            seats: (0..plan.processes).map(|_| Seat::default()).collect(),
            network,
            orders,
            is_network_busy: true,
            turns: 0,
            crash_at: 0,
            pause_at: 0,
            jump_at: 0,
            heal_at: 0,
            healed: None,
            calm_since: None,
            world,
        }
    }

    fn play(&mut self) -> Checked {
        (0..self.seats.len()).for_each(|at| self.start(at));
        self.crash_at = self.dice.between(1, 600);
        self.pause_at = self.dice.between(20, 3_000) * 1_000;
        self.jump_at = self.dice.between(50, 6_000) * 1_000;
        self.heal_at = self.dice.between(8, TROUBLES_MAX) * 1_000_000;
        while self.world.ended() < self.world.plan.processes {
            if self.world.store.is_wrong() {
                return Ok(());
            }
            if self.turns > TURNS_MAX {
                return Err(format!("the run did not end within {} turns", self.turns));
            }
            self.trouble();
            self.take_turn();
            self.check()?;
            self.watch()?;
        }
        let witness = self.world.store.witness.lock().unwrap();
        self.world.book.lock().unwrap().judge(&witness)
    }

    /// Starts a process, with a program that knows nothing of those before it.
    fn start(&mut self, at: usize) {
        let process = Process::new(self.world.now());
        process.handle().spawn(program(Arc::clone(&self.world), at));
        self.seats[at] = Seat { process: Some(process), is_busy: true, still_until: 0, away_until: 0 };
    }

    fn is_still(&self, at: usize) -> bool {
        self.seats[at].still_until > 0
    }

    /// One process goes on, for some polls or as far as it can. If none can, time passes.
    fn take_turn(&mut self) {
        let now = self.world.now();
        let may = |at: &usize| {
            let seat = &self.seats[*at];
            let is_time = |process: &Process| process.at() <= now;
            seat.is_busy && seat.still_until == 0 && seat.process.as_ref().is_some_and(is_time)
        };
        let mut ready: Vec<usize> = (0..self.seats.len()).filter(may).collect();
        if self.is_network_busy {
            ready.push(self.seats.len());
        }
        if ready.is_empty() {
            return self.pass_time();
        }
        self.turns += 1;
        let at = self.dice.pick(&ready);
        let polls = self.dice.chance(400).then(|| self.dice.between(1, 8));
        let process = match self.seats.get(at) {
            Some(seat) => seat.process.as_ref(),
            None => {
                self.network.skip_to(now);
                Some(&self.network)
            }
        };
        let Some(process) = process else { return };
        match polls {
            Some(polls) => process.step(polls),
            None => process.run(),
        }
        let is_busy = polls.is_some();
        match self.seats.get_mut(at) {
            Some(seat) => seat.is_busy = is_busy,
            None => self.is_network_busy = is_busy,
        }
        // Orders from outside wake the network.
        self.is_network_busy |= self.orders.has_orders();
    }

    /// No process can go on now: moves time to the first that can later.
    fn pass_time(&mut self) {
        let now = self.world.now();
        let mut next = now + SLEEP_MAX.as_micros() as u64;
        for seat in &mut self.seats {
            let Some(process) = &seat.process else {
                next = next.min(seat.away_until);
                continue;
            };
            if seat.still_until > 0 {
                next = next.min(seat.still_until);
                continue;
            }
            if !seat.is_busy {
                process.rest(SLEEP_MAX);
                seat.is_busy = true;
            }
            next = next.min(process.at());
        }
        let plan = &self.world.plan;
        for (is_due, at) in [(plan.pauses > 0, self.pause_at), (plan.jumps > 0, self.jump_at)] {
            if is_due && self.healed.is_none() {
                next = next.min(at);
            }
        }
        let next = next.max(now + 1);
        // Orders arrive from outside, so the network must never get ahead of the others.
        self.network.skip_to(now);
        self.network.rest(Duration::from_micros(next - now));
        let at = self.network.at().max(now + 1);
        self.is_network_busy = at < next;
        self.world.pass_to(next.min(at));
    }

    /// What is to happen now: seats that were empty get a process, paused processes go on, and the plan's
    /// troubles strike.
    fn trouble(&mut self) {
        let now = self.world.now();
        for at in 0..self.seats.len() {
            let seat = &mut self.seats[at];
            match &seat.process {
                None if seat.away_until <= now => self.start(at),
                Some(process) if seat.still_until > 0 && seat.still_until <= now => {
                    process.skip_to(now);
                    (seat.still_until, seat.is_busy) = (0, true);
                    self.world.book.lock().unwrap().goes_on(at, now);
                }
                _ => {}
            }
        }
        if self.healed.is_some() {
            return;
        }
        let (plan, any) = (&self.world.plan, self.dice.below(self.seats.len() as u64) as usize);
        if plan.crashes > 0 && self.turns >= self.crash_at {
            let away = if self.dice.chance(512) { self.dice.between(1, 2_000) * 1_000 } else { 0 };
            self.seats[any] = Seat { away_until: now + away, ..Seat::default() };
            self.crash_at = self.turns + self.dice.between(1, 900);
        }
        if plan.pauses > 0 && now >= self.pause_at {
            self.seats[any].still_until = now + self.dice.between(1, 1_500) * 1_000;
            self.pause_at = now + self.dice.between(20, 4_000) * 1_000;
        }
        if plan.jumps > 0 && now >= self.jump_at {
            let (second, day) = (1_000, 86_400_000);
            let by = match self.dice.below(6) {
                0..3 => self.dice.between(1, 500) as i64,
                3 => 30 * second,
                4 => day + second,
                _ => -(self.dice.between(1, 2_000) as i64),
            };
            self.world.clock.jump(by);
            self.jump_at = now + self.dice.between(50, 8_000) * 1_000;
        }
    }

    fn check(&self) -> Checked {
        let witness = self.world.store.witness.lock().unwrap();
        let mut book = self.world.book.lock().unwrap();
        book.check(&witness, self.world.now(), |at| self.is_still(at))
    }

    /// Ends the troubles when their time is over, and the run when all jobs have ended.
    fn watch(&mut self) -> Checked {
        let now = self.world.now();
        let Some(healed) = self.healed else {
            if now >= self.heal_at {
                self.world.heal();
                self.healed = Some(now);
            }
            return Ok(());
        };
        let live = {
            let witness = self.world.store.witness.lock().unwrap();
            witness.jobs.values().find(|job| job.head.state.is_live()).map(|job| job.head.clone())
        };
        if now > healed + HEALING {
            return Err(match live {
                Some(head) => format!("nobody ends {head:?}"),
                None => "a program does not end".to_owned(),
            });
        }
        if live.is_some() || !self.world.has_asked() {
            self.calm_since = None;
        } else if now >= *self.calm_since.get_or_insert(now) + CALM {
            self.world.end();
        }
        Ok(())
    }
}
