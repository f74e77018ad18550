//! Requests of all policies, several on each key, whose runs end in every way: the input of a store's
//! [chronicle](crate::history::chronicle). Their jobs have a queue of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::Outcome;
use semel_core::event::EventKind;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Head;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::{Report, Settled};
use semel_core::state::{State, StateSet};
use semel_core::time::Timestamp;
use semel_core::unique::{RejectReason, UniquePolicy};
use semel_engine::duty::{Expire, Promote, Reap};
use semel_engine::{Engine, Job};
use semel_store::StoreError;
use semel_store::backend::Claim;
use tokio::task::JoinSet;

use crate::differential::{POLICIES, Random, policy};
use crate::history::Told;
use crate::history::told::{Answer, Asked};
use crate::make::{Want, keyed};

/// The queue of these jobs.
pub(super) const QUEUE: &str = "crash-medley";
/// The number of tasks that offer jobs, in one process.
const ASKERS: u64 = 3;
const WORKERS: u64 = 2;
/// The number of keys in use at a time: few, so that requests meet.
const KEYS: u64 = 2;
/// The requests of one task under one set of keys, bounded because every decision about a key looks at all
/// that ever held it.
const PER_KEY: u64 = 24;
/// The number of policies with random states and windows, including the numbered ones.
const CODES: u64 = 400;
/// The longest lease of these jobs, and the longest wait of those that start later.
const SHORT_MS: u64 = 24;
/// How long a task pauses between requests.
const REST: Duration = Duration::from_millis(1);

/// A caller or worker for these jobs.
#[derive(Clone)]
pub(crate) struct Medley {
    /// The server that it asks.
    pub engine: Engine,
    /// Its number among several.
    pub number: u64,
    /// Where it reports its answers.
    pub say: Arc<dyn Fn(&str) + Send + Sync>,
    /// The round of the run.
    pub round: u64,
    /// The number of requests per task.
    pub turns: u64,
    /// When set, it makes no more requests.
    pub over: Arc<AtomicBool>,
    /// Whether what the log has shown once never disappears: then a decision has seen all that the log showed
    /// before the call.
    ///
    /// A primary about to be replaced may show what will turn out never to have happened.
    pub reads_log: bool,
}

/// The job that this code stands for.
fn want(round: u64, key: u64, code: u64, number: u64) -> Want {
    let want = match usize::try_from(code).ok().filter(|code| *code < POLICIES) {
        Some(code) => policy(round * 1_000_000 + key, code),
        None => any_policy(round * 1_000_000 + key, code),
    };
    let mut random = Random(number ^ 0x6a09_e667);
    let attempts = 1 + u32::try_from(random.below(3)).unwrap();
    let ms = |random: &mut Random| Duration::from_millis(1 + random.below(SHORT_MS));
    let mut want = want.queue(QUEUE).args(&format!("[{number}]")).attempts(attempts);
    // A follow-up with a start time of its own is released without an event in the log.
    if random.below(5) == 0 && want.offer().unique.is_some_and(|unique| !follows(&unique.policy)) {
        want = want.later(ms(&mut random));
    }
    if random.below(7) == 0 {
        want = want.expires(ms(&mut random));
    }
    if random.below(3) == 0 { want.dead_letter() } else { want }
}

fn follows(policy: &UniquePolicy) -> bool {
    policy.on_conflict() == semel_core::unique::OnConflict::FollowUp
}

/// A policy with random states, window and strategy; the next code's where these contradict each other.
fn any_policy(key: u64, code: u64) -> Want {
    let mut random = Random(code);
    loop {
        let states = StateSet::from_bits(1 + u8::try_from(random.below(255)).unwrap());
        let strategy = ["reject", "ignore", "replace", "replace_except_schedule"][random.below(4) as usize];
        let mut want = keyed(&format!("key {key}")).on_conflict(strategy).states(states);
        if random.below(2) == 0 {
            let from = ["created", "finished", "last_duplicate"][random.below(3) as usize];
            want = want.period(Duration::from_millis(1 + random.below(2 * SHORT_MS)), from);
        }
        let (while_active, hidden) = (random.below(3) == 0, random.below(6) == 0);
        want = want.policy(|spec| {
            spec.while_active = Some(while_active);
            spec.disclose = hidden.then(|| "never".to_owned());
        });
        if want.is_consistent() {
            return want;
        }
    }
}

impl Medley {
    /// Starts the tasks: callers in `offering`, workers in `working`.
    pub fn spawn(&self, offering: &mut JoinSet<()>, working: &mut JoinSet<()>) {
        for place in 0..ASKERS {
            offering.spawn(self.clone().ask(place));
        }
        for place in 0..WORKERS {
            working.spawn(self.clone().work(place));
        }
        working.spawn(self.clone().keep());
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The answer, as soon as there is one; `None` after an error, which is reported.
    async fn answer<T, F: Future<Output = Result<T, StoreError>>>(&self, ask: impl Fn() -> F) -> Option<T> {
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(error) if error.is_retryable() => tokio::time::sleep(REST).await,
                Err(error) => {
                    (self.say)(&format!("error {error}"));
                    return None;
                }
            }
        }
    }

    /// The time of the partition that holds the key.
    async fn time(&self, want: &Want) -> Option<Timestamp> {
        let key = want.offer().unique?.key;
        let read = || KeyRead { key, states: StateSet::ALL, all: true };
        let load = || self.engine.store().load(Reads { keys: vec![read()], ..Reads::default() });
        Some(self.answer(load).await?.now)
    }

    async fn ask(self, place: u64) {
        let who = self.number * ASKERS + place;
        let mut random = Random(self.round << 8 | who);
        for turn in 0..self.turns {
            if self.is_over() {
                return;
            }
            let (key, number) = (turn / PER_KEY * KEYS + random.below(KEYS), who * 1_000_000 + turn);
            // Half of them use the numbered policies, which meet the cases they were written for.
            let bound = if random.below(2) == 0 { POLICIES as u64 } else { CODES };
            let code = random.below(bound);
            let want = want(self.round, key, code, number);
            loop {
                let after = match self.reads_log {
                    true => self.answer(|| self.engine.log_end()).await,
                    false => Some(0),
                };
                let (Some(after), Some(from)) = (after, self.time(&want).await) else { break };
                (self.say)(&format!("offers {key}"));
                let asked = self.engine.enqueue(want.offer(), "").await;
                let outcome = match asked {
                    Ok(outcome) => outcome,
                    Err(error) if error.is_retryable() => {
                        tokio::time::sleep(REST).await;
                        continue;
                    }
                    Err(error) => break (self.say)(&format!("error {error}")),
                };
                let Some(until) = self.time(&want).await else { break };
                let (after, from, until) = (after, from.as_micros(), until.as_micros());
                let said = text_of(&outcome);
                (self.say)(&format!("told {key} {code} {number} {after} {from} {until} {said}"));
                break;
            }
            tokio::time::sleep(REST).await;
        }
    }

    async fn work(self, place: u64) {
        let mut random = Random(self.round << 16 | (self.number * WORKERS + place) << 4 | 1);
        while !self.is_over() {
            let lasts = 2 + u32::try_from(random.below(SHORT_MS)).unwrap();
            let claim = || Claim {
                queues: vec![QueueName::from_stored(QUEUE)],
                limit: 2,
                grant: Grant::new("w".into(), Some(lasts)),
                closed: Vec::new(),
            };
            for run in self.answer(|| self.engine.claim(claim())).await.unwrap_or_default() {
                self.end(&run, &mut random).await;
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// Ends a run in one of all ways, or leaves it until its lease expires.
    async fn end(&self, run: &Job, random: &mut Random) {
        let (engine, id) = (&self.engine, run.head.id);
        let bearer = || Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
        let report = |retryable| Report {
            code: "failed".to_owned(),
            error_type: "failed".to_owned(),
            retryable: Some(retryable),
            retry_in: Some(Duration::from_millis(2)),
            ..Report::default()
        };
        tokio::time::sleep(Duration::from_millis(random.below(3))).await;
        let ended = match random.below(12) {
            0..=4 => self.answer(|| engine.complete(id, bearer(), None)).await,
            5..=6 => self.answer(|| engine.fail(id, bearer(), report(true))).await,
            7 => self.answer(|| engine.fail(id, bearer(), report(false))).await,
            8 => self.answer(|| engine.give_back(id, bearer())).await,
            9 => self.answer(|| engine.snooze(id, bearer(), Duration::from_millis(2))).await,
            10 => self.answer(|| engine.cancel(id, Bearer::default())).await,
            _ => None,
        };
        if let Some(Settled::Done(head)) = ended {
            (self.say)(&format!("ended {id} {} {}", what_of(&head).code(), head.attempt));
        }
    }

    /// Runs the duties that these jobs need, and writes the pending records of duplicates.
    async fn keep(self) {
        let store = self.engine.store();
        while !self.is_over() {
            self.answer(|| Promote.run_once(store)).await;
            self.answer(|| Reap.run_once(store)).await;
            self.answer(|| Expire.run_once(store)).await;
            self.engine.stop().await;
            tokio::time::sleep(2 * REST).await;
        }
    }
}

/// What the log calls the end of a run that left its job in this state.
fn what_of(head: &Head) -> EventKind {
    match head.state {
        State::Completed => EventKind::Completed,
        State::Retryable => EventKind::Retrying,
        State::Discarded => EventKind::Discarded,
        State::Cancelled => EventKind::Cancelled,
        State::Scheduled | State::Available | State::Pending | State::Active => EventKind::Requeued,
    }
}

const REASONS: [RejectReason; 3] =
    [RejectReason::Duplicate, RejectReason::FinishedHolder, RejectReason::Undisclosed];

fn text_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Created(head) => format!("created {}", head.id),
        Outcome::FollowUp(head) => format!("follow {}", head.id),
        Outcome::Amended(head) => format!("amended {}", head.id),
        Outcome::Existing(head) => format!("existing {}", head.id),
        Outcome::Replaced { head, cancelled, .. } => {
            let ids: Vec<String> = cancelled.iter().map(JobId::to_string).collect();
            format!("replaced {} {}", head.id, ids.join(" "))
        }
        Outcome::Rejected { holder, why } => {
            let why = REASONS.iter().position(|reason| reason == why);
            format!("rejected {} {}", holder.absorbed_by(), why.unwrap())
        }
        other => format!("error {other:?}"),
    }
}

/// Whether a line is about these requests.
pub(super) fn is_one(words: &[&str]) -> bool {
    matches!(words, ["offers" | "told" | "ended", ..])
}

/// Reads a line of the round; returns whether it was about these requests.
pub(super) fn read(told: &mut Told, round: u64, words: &[&str]) -> bool {
    let id = |text: &str| JobId::parse(text, "").unwrap();
    let number = |text: &str| text.parse::<u64>().unwrap();
    let time = |text: &str| Timestamp::from_micros(text.parse().unwrap());
    match words {
        ["offers", key] => {
            let unique = want(round, number(key), 0, 0).offer().unique.unwrap();
            *told.offers.entry(unique.key).or_default() += 1;
        }
        ["told", key, code, n, after, from, until, what @ ..] => {
            let unique = want(round, number(key), number(code), number(n)).offer().unique.unwrap();
            let answer = match what {
                ["created", job] => Answer::Created(id(job)),
                ["follow", job] => Answer::FollowUp(id(job)),
                ["amended", job] => Answer::Amended(id(job)),
                ["existing", job] => Answer::Existing(id(job)),
                ["replaced", job, ids @ ..] => {
                    Answer::Replaced(id(job), ids.iter().map(|text| id(text)).collect::<BTreeSet<_>>())
                }
                ["rejected", job, why] => {
                    Answer::Rejected(id(job), REASONS[usize::try_from(number(why)).unwrap()])
                }
                _ => return false,
            };
            told.answers.push(Asked {
                key: unique.key,
                policy: UniquePolicy::clone(&unique.policy),
                after: number(after),
                from: time(from),
                until: time(until),
                answer,
            });
        }
        ["ended", job, what, attempt] => {
            let what = EventKind::from_code(u8::try_from(number(what)).unwrap()).unwrap();
            told.runs.push((id(job), what, u32::try_from(number(attempt)).unwrap()));
        }
        _ => return false,
    }
    true
}
