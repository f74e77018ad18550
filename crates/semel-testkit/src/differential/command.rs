//! Programs: lists of commands that are valid independently of each other, so that any of them can be left
//! out.

use std::time::Duration;

use semel_core::limit::{Limit, Rate};
use semel_core::state::{State, StateSet};

use super::flow::Flow;
use crate::make::{Want, foreign_id, job, keyed};

/// The number of policies in use.
pub(crate) const POLICIES: usize = 14;
/// The number of keys in use: few, so that requests meet.
pub(crate) const KEYS: u64 = 3;
/// The number of limits in use.
pub(super) const LIMITS: usize = 3;
/// The queues in use.
pub(super) const QUEUES: [&str; 2] = ["a", "b"];

/// One step of a program. Numbers select jobs, runs and keys modulo what exists.
#[derive(Clone, Debug)]
pub enum Command {
    /// Offers jobs in one batch, each on its own or all or nothing.
    Enqueue(Vec<Plan>, bool),
    /// Claims up to this many jobs from both queues, in this order.
    Claim(usize, u32),
    /// ACK of a run: the present one of its job, or an older one.
    Complete(usize),
    /// FAIL of a run.
    Fail(usize),
    /// Gives the job back.
    GiveBack(usize),
    /// A heartbeat.
    Extend(usize),
    /// CANCEL of a job.
    Cancel(usize),
    /// ACTIVATE.
    Activate(usize),
    /// Sends a dead letter back.
    Revive(usize),
    /// Deletes a dead letter.
    DeleteDead(usize),
    /// Releases a key.
    Release(u64),
    /// Pauses or resumes a queue.
    Pause(usize, bool),
    /// Writes a note on a job.
    Note(usize, u8),
    /// Moves the clock.
    Advance(Duration),
    /// Runs the timer, lease and expiry duties.
    Duties,
    /// Runs the retention duty.
    Purge,
    /// Runs the store's housekeeping.
    Maintain,
    /// Closes the store and opens it again.
    Reopen,
    /// A command about crons, workflows or bounds.
    Flow(Flow),
}

/// A job to offer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its key, if any.
    pub key: Option<u64>,
    /// Its policy.
    pub policy: usize,
    /// Its queue.
    pub queue: usize,
    /// How it starts.
    pub start: u8,
    /// Its priority.
    pub priority: i8,
    /// Attempts allowed.
    pub attempts: u32,
    /// Whether it is kept as a dead letter when it fails for good.
    pub dead_letter: bool,
    /// When it expires unstarted, in seconds.
    pub expires: Option<u64>,
    /// The caller's own id.
    pub id: Option<u32>,
    /// The limit it is under, if any.
    pub limit: Option<usize>,
    /// Whether the bound of its queue applies to it.
    pub bounded: bool,
}

impl Plan {
    /// The job as it is offered.
    pub fn want(&self) -> Want {
        let mut want = match self.key {
            Some(key) => policy(key, self.policy),
            None => job(),
        };
        want = want
            .queue(QUEUES[self.queue])
            .priority(self.priority)
            .attempts(self.attempts)
            .times(30_000, 100_000);
        if self.dead_letter {
            want = want.dead_letter();
        }
        want = match self.start {
            0 => want.later(Duration::from_secs(20)),
            1 => want.pending(),
            _ => want,
        };
        if let Some(seconds) = self.expires {
            want = want.expires(Duration::from_secs(seconds));
        }
        if let Some(number) = self.limit {
            want = want.limit(limit(number));
        }
        if self.bounded {
            want = want.bounded();
        }
        match self.id {
            Some(number) => want.id(foreign_id(number)).digest(1 + (self.policy % 2) as u8),
            None => want,
        }
    }
}

/// One of the limits in use: one at a time, two at a time, or two starts in half a minute.
pub(super) fn limit(number: usize) -> Limit {
    let rate = Some(Rate { count: 2, period_us: 30_000_000 });
    let (concurrency, rate) = [(Some(1), None), (Some(2), None), (None, rate)][number % LIMITS];
    Limit { key: format!("limit {}", number % LIMITS).into(), concurrency, rate }
}

/// A job with one of the policies.
pub(crate) fn policy(key: u64, policy: usize) -> Want {
    let want = keyed(&format!("key {key}"));
    let (minute, day) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
    match policy % POLICIES {
        0 => want,
        1 => want.on_conflict("ignore"),
        2 => want.on_conflict("replace"),
        3 => want.on_conflict("replace_except_schedule"),
        4 | 5 => want.on_conflict("follow_up"),
        6 => want.states(StateSet::ALL),
        7 => want.states(StateSet::ALL).period(day * 3, "created"),
        8 => want.states(StateSet::FINISHED).period(minute, "finished").on_conflict("ignore"),
        9 => want.states(StateSet::ALL).period(day * 2, "last_duplicate"),
        10 => want.states(StateSet::EMPTY.with(State::Discarded).with(State::Scheduled)),
        11 => want
            .on_conflict("replace")
            .states(StateSet::EMPTY.with(State::Available).with(State::Active).with(State::Scheduled)),
        12 => want.on_conflict("replace").policy(|spec| spec.when_active = Some("wait".to_owned())),
        _ => want.period(minute, "created").policy(|spec| {
            spec.while_active = Some(true);
            spec.disclose = Some("never".to_owned());
        }),
    }
}

/// splitmix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

fn plan(random: &mut Random) -> Plan {
    Plan {
        key: (!random.one_in(6)).then(|| random.below(KEYS)),
        policy: random.below(POLICIES as u64) as usize,
        queue: random.below(2) as usize,
        start: random.below(8) as u8,
        priority: random.below(3) as i8,
        attempts: 1 + random.below(3) as u32,
        dead_letter: random.one_in(2),
        expires: random.one_in(6).then(|| 1 + random.below(90)),
        id: random.one_in(4).then(|| random.below(6) as u32),
        limit: random.one_in(4).then(|| random.below(LIMITS as u64) as usize),
        bounded: random.one_in(2),
    }
}

/// The program that a seed stands for.
pub fn program(seed: u64) -> Vec<Command> {
    let mut random = Random(seed);
    let length = 20 + random.below(60);
    let mut program: Vec<Command> = (0..length).map(|_| command(&mut random)).collect();
    // From a random stream of their own: without them, the other commands of a seed stay the same.
    let mut more = Random(seed ^ 0x7a5c_0de5_0f0a_5c5e);
    for _ in 0..more.below(12) {
        let place = more.below(program.len() as u64 + 1) as usize;
        program.insert(place, Command::Flow(request(&mut more)));
    }
    program
}

/// A task, or a request under an `Idempotency-Key`.
fn request(random: &mut Random) -> Flow {
    let (any, form) = (random.next() as u8, random.next() as u8);
    let steps = |random: &mut Random| (0..1 + random.below(3)).map(|_| plan(random)).collect();
    match random.below(4) {
        0 => Flow::Task(any, form, steps(random)),
        1 => Flow::TaskUnder(any, form, steps(random)),
        _ => Flow::Under(any, form, plan(random)),
    }
}

fn command(random: &mut Random) -> Command {
    let any = random.below(1 << 20) as usize;
    match random.below(52) {
        0..=9 => Command::Enqueue(vec![plan(random)], false),
        10..=11 => {
            let size = 2 + random.below(4);
            Command::Enqueue((0..size).map(|_| plan(random)).collect(), random.one_in(2))
        }
        12..=15 => Command::Claim(any, 1 + random.below(3) as u32),
        16..=18 => Command::Complete(any),
        19..=20 => Command::Fail(any),
        21 => Command::GiveBack(any),
        22 => Command::Extend(any),
        23..=24 => Command::Cancel(any),
        25 => Command::Activate(any),
        26 => Command::Revive(any),
        27 => Command::DeleteDead(any),
        28 => Command::Release(random.below(KEYS)),
        29 => Command::Pause(any, !random.one_in(3)),
        30 => Command::Note(any, random.below(6) as u8),
        31..=33 => {
            let spans = [1, 7_000, 31_000, 61_000, 3_600_000, 90_000_000, 200 * 86_400_000];
            Command::Advance(Duration::from_millis(spans[random.below(7) as usize]))
        }
        34..=35 => Command::Duties,
        36 => Command::Purge,
        37..=38 => Command::Maintain,
        39 => Command::Reopen,
        _ => Command::Flow(flow(random)),
    }
}

fn flow(random: &mut Random) -> Flow {
    let any = random.below(1 << 20) as usize;
    match random.below(12) {
        0..=2 => Flow::Register(any as u8, any >> 8, plan(random)),
        3 => Flow::Trigger(any as u8),
        4 => Flow::Enable(any as u8, random.one_in(2)),
        5 => Flow::Remove(any as u8),
        6..=9 => {
            let size = 1 + random.below(5);
            Flow::Create(any, (0..size).map(|_| plan(random)).collect())
        }
        10 => Flow::Cancel(any),
        _ => Flow::Bound(any, (!random.one_in(3)).then(|| 1 + random.below(4))),
    }
}
