//! A process to be killed, and the account of what it acknowledged. The victim writes one line per answer it
//! got; the judge reads the lines and checks that the store still stands by each.

pub(crate) mod crossings;
mod flows;
pub(crate) mod medley;
mod process;
mod replayed;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::ident::{JobId, QueueName};
use semel_core::job::Role;
use semel_core::lease::{Bearer, Grant, LeaseToken};
use semel_core::settle::Settled;
use semel_core::slot::Due;
use semel_core::state::{State, StateSet};
use semel_engine::Engine;
use semel_engine::duty::{Reap, Tend};
use semel_store::Backend;
use semel_store::backend::Claim;
use tokio::task::JoinSet;

pub use self::flows::Told;
pub use self::process::{called, kill_after};
pub use self::replayed::Seen;
use crate::history::Holds;
use crate::make::{Want, keyed};

/// Tasks that offer jobs; every key is offered by two of them.
const OFFERERS: usize = 4;
const WORKERS: usize = 2;
/// The most requests about several records at once, of each kind: enough to have some in every stage.
const VARIETY: u64 = 1_000;

/// The job that the victim offers under this number: half of the keys are remembered for ever, and a quarter
/// of the jobs are under a limit.
pub fn want(round: u64, number: u64) -> Want {
    let want = keyed(&name(round, number)).args(&format!("[{number}]"));
    match number % 4 {
        0 | 2 => want.states(StateSet::ALL),
        1 => want.limit(flows::limit()),
        _ => want,
    }
}

fn name(round: u64, number: u64) -> String {
    format!("{round}-{number}")
}

/// Offers, claims, acknowledges and does housekeeping as fast as it can, until it is killed or `turns` are
/// over. Each answer becomes a line on stdout before the next request.
pub async fn victim(backend: Arc<dyn Backend>, round: u64, turns: u64) {
    crate::planted::plant_from_environment();
    let engine = Engine::without_duties(backend).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let mut offering = JoinSet::new();
    let mut working = JoinSet::new();
    flows::register(&engine).await;
    offering.spawn(flows::ask(engine.clone(), round, turns));
    for _ in 0..2 {
        offering.spawn(tasks::ask(engine.clone(), round, turns));
    }
    let asker = crossings::Asker {
        engine: engine.clone(),
        elsewhere: engine.clone(),
        number: 0,
        say: Arc::new(say),
        round,
        turns: turns.min(VARIETY),
        over: Arc::clone(&over),
        is_patient: false,
    };
    asker.spawn(&mut offering);
    let medley = medley::Medley {
        engine: engine.clone(),
        number: 0,
        say: Arc::new(say),
        round,
        turns,
        over: Arc::clone(&over),
        reads_log: true,
    };
    medley.spawn(&mut offering, &mut working);
    for task in 0..OFFERERS {
        let engine = engine.clone();
        offering.spawn(async move {
            for turn in 0..turns {
                let number = turn * (OFFERERS as u64 / 2) + task as u64 / 2;
                match engine.enqueue(want(round, number).offer(), "").await {
                    Ok(Outcome::Created(head)) => say(&format!("created {number} {}", head.id)),
                    Ok(other) => say(&format!("duplicate {number} {}", other.absorbed_by().unwrap())),
                    Err(error) => say(&format!("error {error}")),
                }
            }
        });
    }
    for _ in 0..WORKERS {
        let (engine, over) = (engine.clone(), Arc::clone(&over));
        working.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                for run in engine.claim(claim(7)).await.unwrap() {
                    say(&format!("claimed {}", run.head.id));
                    let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                    if let Ok(Settled::Done(head)) = engine.complete(run.head.id, bearer, None).await {
                        say(&format!("acked {}", head.id));
                    }
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let keeper = {
        let (engine, over) = (engine.clone(), Arc::clone(&over));
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                engine.store().maintain().await.unwrap();
                Tend.run_once(engine.store()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        })
    };
    offering.join_all().await;
    over.store(true, Ordering::Relaxed);
    working.join_all().await;
    keeper.await.unwrap();
}

/// A claim of up to `limit` jobs from their queue.
pub fn claim(limit: u32) -> Claim {
    Claim {
        queues: vec![QueueName::default()],
        limit,
        grant: Grant::new("w".into(), None),
        closed: Vec::new(),
    }
}

/// Writes one line in one write, so that lines of several tasks never mix.
fn say(line: &str) {
    let mut text = String::with_capacity(line.len() + 2);
    let _infallible = writeln!(text, "@{line}");
    let mut out = std::io::stdout().lock();
    drop(out.write_all(text.as_bytes()));
    drop(out.flush());
}

/// The answers that a victim got.
#[derive(Debug, Default)]
pub struct Account {
    /// Jobs reported to the victim as created, by the key's number.
    pub created: BTreeMap<u64, BTreeSet<JobId>>,
    /// Jobs reported to the victim as existing, by the key's number.
    pub named: BTreeMap<u64, BTreeSet<JobId>>,
    /// Runs granted to the victim.
    pub claimed: BTreeSet<JobId>,
    /// Runs whose end was acknowledged.
    pub acked: BTreeSet<JobId>,
    /// When jobs certainly held their keys, as positions among the lines.
    pub holds: Holds,
    /// Crons, workflows and their jobs.
    pub flows: Told,
    /// Tasks, and requests under keys.
    pub tasks: tasks::Told,
    /// Requests about several records at once.
    pub crossings: crossings::Told,
    /// Requests under all policies, as text lines.
    medley: Vec<String>,
    /// Requests that failed.
    pub errors: Vec<String>,
    /// Whether the log is not in the order of the decisions: in PostgreSQL's log a caller's transaction has
    /// the place at which it began to write. Such a log is not replayed.
    pub is_log_unordered: bool,
}

impl Account {
    /// Reads a victim's lines; a last line that was cut off is not an answer.
    pub fn read(said: &str) -> Self {
        let mut account = Self::default();
        let whole = said.rfind('\n').map_or("", |end| &said[..end]);
        let lines = whole.lines().filter_map(|line| line.split_once('@').map(|(_, said)| said));
        for (at, line) in (0..).zip(lines) {
            let words: Vec<&str> = line.split(' ').collect();
            let id = |text: &str| JobId::parse(text, "").unwrap();
            match words[..] {
                ["created", number, job] => {
                    let number: u64 = number.parse().unwrap();
                    let created = account.created.entry(number).or_default();
                    // Other keys are free again once their job has ended.
                    let is_strict = number.is_multiple_of(2);
                    assert!(!is_strict || created.is_empty(), "the strict key {number} was created twice");
                    created.insert(id(job));
                    account.holds.created(number, id(job), at);
                }
                ["duplicate", number, job] => {
                    account.named.entry(number.parse().unwrap()).or_default().insert(id(job));
                }
                ["claimed", job] => {
                    account.claimed.insert(id(job));
                    // It is acknowledged after this line, and not before.
                    account.holds.may_end(id(job), at);
                }
                ["acked", job] => drop(account.acked.insert(id(job))),
                _ if account.flows.read(&words) || account.tasks.read(&words) => {}
                _ if account.crossings.read(&words) => {}
                _ if medley::is_one(&words) => account.medley.push(line.to_owned()),
                _ => account.errors.push(line.to_owned()),
            }
        }
        account
    }

    /// Asserts that the store, opened again, stands by every answer. Its clock must be past the leases of the
    /// dead workers. Returns the records that it checked, as found.
    pub async fn judge(&self, backend: Arc<dyn Backend>, round: u64) -> Seen {
        assert_eq!(self.errors, Vec::<String>::new());
        assert_eq!(self.holds.doubled(), None, "two jobs surely held one key at one time");
        let engine = Engine::without_duties(backend).unwrap();
        let seen = self.judge_log(&engine, round, &self.medley).await;
        let heads = flows::all(&engine).await;
        self.flows.judge_as_found(&heads);
        self.tasks.judge_as_found(&engine, &heads).await;
        self.crossings.judge_as_found(&engine, &heads).await;
        // A holder that was named exists, whether or not its creator got the answer.
        for (number, ids) in self.created.iter().chain(&self.named) {
            for id in ids {
                let job =
                    engine.job(*id).await.unwrap().unwrap_or_else(|| panic!("acknowledged {id} is lost"));
                assert_eq!(&*job.body.args, format!("[{number}]"));
            }
        }
        for id in &self.acked {
            let job = engine.job(*id).await.unwrap().unwrap();
            assert_eq!(job.head.state, State::Completed, "the end of {id} was acknowledged");
        }
        self.nothing_is_doubled(&engine).await;
        self.flows.judge_ticks(&engine).await;
        self.no_key_is_stuck(&engine, round).await;
        self.flows.judge_workflows(&engine).await;
        self.tasks.judge_again(&engine, round).await;
        self.crossings.judge_again(&engine, round).await;
        self.judge_log(&engine, round, &[]).await;
        for queue in engine.queues().await.unwrap() {
            assert_eq!(queue.created, queue.counts.iter().sum::<u64>() + queue.purged, "{queue:?}");
        }
        seen
    }

    async fn judge_log(&self, engine: &Engine, round: u64, lines: &[String]) -> Seen {
        if self.is_log_unordered { Seen::default() } else { replayed::judge(engine, round, lines).await }
    }

    async fn nothing_is_doubled(&self, engine: &Engine) {
        let (mut strict, mut live) = (BTreeSet::new(), BTreeSet::new());
        let mut waiting = BTreeSet::new();
        let heads = flows::all(engine).await;
        for head in &heads {
            // Under different policies several jobs may rightly hold one key.
            let Some(key) = head.key.filter(|_| head.queue.as_str() != medley::QUEUE) else { continue };
            let all = head.hold.states == StateSet::ALL;
            assert!(!all || strict.insert(key), "two jobs with the strict key of {}", head.id);
            // One follow-up may wait for the end of a live holder of its key; no third job may hold it.
            if head.role == Role::FollowUp && head.state == State::Pending {
                assert!(waiting.insert(key), "two follow-ups with the key of {}", head.id);
                continue;
            }
            assert!(
                head.state.is_finished() || live.insert(key),
                "two live jobs with the key of {}",
                head.id
            );
        }
        let stored: u64 =
            engine.queues().await.unwrap().iter().map(|queue| queue.counts.iter().sum::<u64>()).sum();
        assert_eq!(heads.len() as u64, stored, "listed and counted");
    }

    /// A dead worker delays its job no longer than its lease; then the key's job runs and ends, and the key
    /// is as free as its policy says.
    async fn no_key_is_stuck(&self, engine: &Engine, round: u64) {
        while !engine.store().due(Due::Lease, 1).await.unwrap().ids.is_empty() {
            Reap.run_once(engine.store()).await.unwrap();
        }
        loop {
            let runs = engine.claim(claim(500)).await.unwrap();
            if runs.is_empty() {
                break;
            }
            for run in runs {
                let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                assert!(matches!(
                    engine.complete(run.head.id, bearer, None).await.unwrap(),
                    Settled::Done(_)
                ));
            }
        }
        for number in self.created.keys().copied().take(40) {
            let outcome = engine.enqueue(want(round, number).offer(), "").await.unwrap();
            assert_eq!(outcome.is_inserted(), !number.is_multiple_of(2), "key {number}: {outcome:?}");
            if let Outcome::Created(head) = outcome {
                engine.cancel(head.id, Bearer::default()).await.unwrap();
            }
        }
    }
}
