//! What a seed draws: how many processes, workers and requests, and which troubles.
//!
//! Not simulated: workers of a server, over HTTP; programs with more than one thread, and handlers that block
//! theirs; a store that is gone for good; workflows, crons, limits, templates and layers; operators, who
//! cancel jobs and tell workers to be quiet or to end. Running jobs are cancelled only by others that replace
//! them.

use std::fmt;
use std::time::Duration;

use semel_testkit::sim::dice::Dice;

/// The shape of a run. Every member can be made smaller, by hand and by the shrinker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The number of processes, each with a queue of its own on the one store.
    pub(super) processes: u64,
    /// The number of workers in each process.
    pub(super) workers: u64,
    /// The number of jobs that all callers together enqueue.
    pub(super) requests: u64,
    /// The number of store faults per 1,024 calls.
    pub(super) faults: u64,
    /// Whether processes crash.
    pub(super) crashes: u64,
    /// Whether processes pause for longer than leases last.
    pub(super) pauses: u64,
    /// Whether the store's clock jumps.
    pub(super) jumps: u64,
    /// Whether workers stop and others start while the troubles last.
    pub(super) stops: u64,
}

impl Plan {
    /// The plan of a seed. One seed in four is calm: no trouble except workers that stop, so that no lease
    /// may be lost.
    pub(super) fn of(seed: u64) -> Self {
        let mut dice = Dice::of(seed, 1);
        let is_calm = dice.chance(256);
        let troubles = u64::from(!is_calm);
        let faults = if dice.chance(512) { 0 } else { dice.between(10, 100) };
        Self {
            processes: dice.between(1, 3),
            workers: dice.between(1, 2),
            requests: dice.between(8, 30),
            faults: troubles * faults,
            crashes: troubles * dice.below(2),
            pauses: troubles * dice.below(2),
            jumps: troubles * dice.below(2),
            stops: dice.below(2),
        }
    }

    /// Whether every lease can be kept.
    pub(super) fn is_calm(&self) -> bool {
        self.faults == 0 && self.is_steady()
    }

    /// Whether every long lease can be kept: the only trouble is that calls are lost, and never all of them.
    pub(super) fn is_steady(&self) -> bool {
        self.crashes == 0 && self.pauses == 0 && self.jumps == 0
    }

    /// The length of a lease. In a calm plan, far longer than a slow store takes to answer two heartbeats.
    pub(super) fn lease(&self, dice: &mut Dice) -> Duration {
        let ms = if self.is_calm() { 20_000 } else { dice.pick(&[400, 400, 2_000, 20_000]) };
        Duration::from_millis(ms)
    }

    fn members(&mut self) -> [(&'static str, &mut u64, u64); 8] {
        [
            ("faults", &mut self.faults, 0),
            ("crashes", &mut self.crashes, 0),
            ("pauses", &mut self.pauses, 0),
            ("jumps", &mut self.jumps, 0),
            ("stops", &mut self.stops, 0),
            ("processes", &mut self.processes, 1),
            ("workers", &mut self.workers, 1),
            ("requests", &mut self.requests, 1),
        ]
    }

    /// The smaller plans to try, the boldest first.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        for at in 0..self.clone().members().len() {
            let mut least = self.clone();
            let (_, member, floor) = &mut least.members()[at];
            let (now, floor) = (**member, *floor);
            for value in [floor, now.div_ceil(2), now.saturating_sub(1)] {
                if value >= floor && value < now {
                    let mut plan = self.clone();
                    *plan.members()[at].1 = value;
                    smaller.push(plan);
                }
            }
        }
        smaller
    }

    /// This plan with the members set that `text` names: `processes=1 crashes=0`.
    pub(super) fn with(mut self, text: &str) -> Self {
        for word in text.split_whitespace() {
            let read = word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let Some((name, value)) = read else { panic!("`{word}` is not NAME=NUMBER") };
            match self.members().into_iter().find(|(known, ..)| *known == name) {
                Some((_, member, floor)) => *member = floor.max(value),
                None => panic!("a plan has no `{name}`"),
            }
        }
        self
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = self.clone();
        let words: Vec<String> =
            copy.members().into_iter().map(|(name, value, _)| format!("{name}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}
