//! What a seed draws: how many actors of each kind, which faults, which policies.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::state::{State, StateSet};
use semel_core::unique::{OnConflict, PeriodFrom, PolicySpec, UniqueKey, UniquePolicy};

use super::dice::Dice;
use crate::make;

/// What the generator avoids: limits that the documentation tells users of (guide, "Limits worth knowing").
pub const LEFT_OUT: [&str; 6] = [
    "replace with partial states releases a pending follow-up",
    "when_active: wait is lost on a second replace",
    "absorbed request ids are recognised only while the follow-up waits",
    "a sliding window renews only the named holder",
    "a limit that begins to count something new knows only what was started since",
    "an operator's release, or a dead letter's way back, with thinned ended holders",
];

/// The shape of a run. Every field can be made smaller, by hand and by the shrinker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Servers, each with its own batcher and duties on the one store.
    pub servers: u64,
    /// The number of callers that offer jobs.
    pub clients: u64,
    /// The number of workers.
    pub workers: u64,
    /// The number of requests of each caller.
    pub requests: u64,
    /// The number of keys shared by all callers.
    pub keys: u64,
    /// Faults of the store per 1,024 calls.
    pub faults: u64,
    /// Requests and replies lost between callers and servers, per 1,024.
    pub losses: u64,
    /// Whether servers are killed.
    pub crashes: u64,
    /// Whether servers and workers pause for longer than leases last.
    pub pauses: u64,
    /// Whether the store's clock jumps.
    pub jumps: u64,
    /// Whether callers offer batches.
    pub batches: u64,
    /// Whether operators intervene.
    pub operators: u64,
    /// Whether callers ask for workflows and crons.
    pub flows: u64,
    /// Whether callers ask for limits on starting jobs.
    pub limits: u64,
    /// The number of callers that ask for tasks.
    pub tasks: u64,
    /// The number of callers that send requests again under an `Idempotency-Key`.
    pub repeats: u64,
}

impl Plan {
    /// The plan that a seed draws.
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::of(seed, 1);
        // From a random stream of their own: without them, a seed's run stays the same.
        let mut more = Dice::of(seed, 12);
        let rate = |dice: &mut Dice| if dice.chance(512) { 0 } else { dice.between(10, 100) };
        Self {
            servers: dice.between(1, 3),
            clients: dice.between(1, 4),
            workers: dice.between(1, 3),
            requests: dice.between(6, 24),
            keys: dice.between(1, 4),
            faults: rate(&mut dice),
            losses: rate(&mut dice),
            crashes: dice.below(2),
            pauses: dice.below(2),
            jumps: dice.below(2),
            batches: dice.below(2),
            operators: dice.below(2),
            flows: dice.below(2),
            limits: dice.below(2),
            tasks: more.below(3),
            repeats: more.below(3),
        }
    }

    fn members(&mut self) -> [(&'static str, &mut u64, u64); 16] {
        [
            ("faults", &mut self.faults, 0),
            ("losses", &mut self.losses, 0),
            ("crashes", &mut self.crashes, 0),
            ("pauses", &mut self.pauses, 0),
            ("jumps", &mut self.jumps, 0),
            ("batches", &mut self.batches, 0),
            ("operators", &mut self.operators, 0),
            ("flows", &mut self.flows, 0),
            ("limits", &mut self.limits, 0),
            ("tasks", &mut self.tasks, 0),
            ("repeats", &mut self.repeats, 0),
            ("servers", &mut self.servers, 1),
            ("clients", &mut self.clients, 1),
            ("workers", &mut self.workers, 1),
            ("keys", &mut self.keys, 1),
            ("requests", &mut self.requests, 1),
        ]
    }

    /// Smaller plans, those with the largest cuts first.
    pub fn smaller(&self) -> Vec<Self> {
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

    /// This plan, with the fields that `text` sets: `servers=1 crashes=0`.
    ///
    /// # Errors
    /// The word that cannot be parsed.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        for word in text.split_whitespace() {
            let read = word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let Some((name, value)) = read else { return Err(format!("`{word}` is not NAME=NUMBER")) };
            match self.members().into_iter().find(|(known, ..)| *known == name) {
                Some((_, member, floor)) => *member = floor.max(value),
                None => return Err(format!("a plan has no `{name}`")),
            }
        }
        Ok(self)
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

/// A key, and the policies that callers use with it.
#[derive(Clone, Debug)]
pub struct KeyClass {
    /// The key.
    pub key: UniqueKey,
    /// The policies of the offers with this key.
    pub policies: Vec<Arc<UniquePolicy>>,
}

impl KeyClass {
    /// Whether at most one live job may ever hold the key: all its policies block on every live state, for as
    /// long as it lasts, and cancel none.
    pub fn is_exclusive(&self) -> bool {
        self.policies.iter().all(|policy| {
            policy.states().contains_all(StateSet::LIVE)
                && policy.period().is_none()
                && matches!(policy.on_conflict(), OnConflict::Reject | OnConflict::Ignore)
        })
    }

    /// Whether all its policies use it for follow-ups.
    pub fn is_followed(&self) -> bool {
        self.policies.iter().all(|policy| policy.on_conflict() == OnConflict::FollowUp)
    }
}

/// The keys of a run. `keeps_ended` says whether policies may look at ended jobs.
pub fn keys(plan: &Plan, seed: u64, keeps_ended: bool) -> Vec<KeyClass> {
    (0..plan.keys)
        .map(|number| {
            let mut dice = Dice::of(seed, 100 + number);
            let count = dice.between(1, 3);
            let one_kind = dice.chance(512).then(|| dice.pick(OnConflict::ALL));
            let mut policies: Vec<UniquePolicy> = Vec::new();
            while policies.len() < count as usize {
                if let Ok(policy) = UniquePolicy::build(&spec(&mut dice, one_kind, keeps_ended), "") {
                    policies.push(policy);
                }
            }
            let follows = policies.iter().any(|policy| policy.on_conflict() == OnConflict::FollowUp);
            policies.retain(|policy| !follows || !replaces(policy) || sees_follow_ups(policy));
            let policies = policies.into_iter().map(Arc::new).collect();
            KeyClass { key: make::key(&format!("key {number}")), policies }
        })
        .collect()
}

fn replaces(policy: &UniquePolicy) -> bool {
    matches!(policy.on_conflict(), OnConflict::Replace | OnConflict::ReplaceExceptSchedule)
}

/// Whether a policy avoids the first of [`LEFT_OUT`]: it sees every job that it would have to replace.
fn sees_follow_ups(policy: &UniquePolicy) -> bool {
    policy.states().contains_all(StateSet::LIVE) && policy.period().is_none()
}

fn spec(dice: &mut Dice, kind: Option<OnConflict>, keeps_ended: bool) -> PolicySpec {
    let on_conflict = kind.unwrap_or_else(|| dice.pick(OnConflict::ALL));
    let states = match dice.below(4) {
        0 | 1 => StateSet::LIVE,
        2 if keeps_ended => StateSet::ALL,
        _ => {
            let some: StateSet = State::ALL.into_iter().filter(|_| dice.chance(600)).collect();
            let seen = if keeps_ended { StateSet::ALL } else { StateSet::LIVE };
            StateSet::from_bits(some.bits() & seen.bits()).with(State::Available)
        }
    };
    let has_period = on_conflict != OnConflict::FollowUp && dice.chance(400);
    let name = |name: &str| Some(name.to_owned());
    PolicySpec {
        states: Some(states.iter().map(|state| state.name().to_owned()).collect()),
        period_ms: has_period.then(|| dice.pick(&[5, 40, 300, 2_000, 90_000])),
        period_from: has_period.then(|| dice.pick(PeriodFrom::ALL).name().to_owned()),
        while_active: has_period.then(|| dice.chance(512)),
        when_active: if dice.chance(300) { name("wait") } else { None },
        on_conflict: name(on_conflict.name()),
        on_mismatch: if dice.chance(200) { name("reject") } else { None },
        disclose: if dice.chance(100) { name("never") } else { None },
        ..PolicySpec::default()
    }
}

/// How long a lease lasts in a run.
pub const LEASE: Duration = Duration::from_millis(400);
