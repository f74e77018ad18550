//! Callers and workers of several servers that go on whatever happens to their store, and the account of what
//! they were told. An error is not an answer: a caller or worker that gets one asks again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::enqueue::Outcome;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::settle::Settled;
use semel_engine::Engine;
use semel_store::{Backend, StoreError};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::crash::crossings::Asker;
use crate::crash::medley::Medley;
use crate::crash::{Account, claim, want};
use crate::make::foreign_id;

/// The number of callers; every key is offered by two of them, at different servers.
const CALLERS: u64 = 8;
const WORKERS: usize = 2;
/// How long a caller or worker pauses after an error, so that an unavailable store is not asked in a busy
/// loop.
const REST: Duration = Duration::from_millis(2);

/// The answers that were noted, in order.
#[derive(Clone, Debug, Default)]
pub struct Said {
    text: Arc<Mutex<String>>,
    answers: Arc<AtomicU64>,
    one_more: Arc<Notify>,
}

impl Said {
    /// Notes an answer, and counts it.
    pub fn say(&self, line: &str) {
        self.note(line);
        self.answers.fetch_add(1, Ordering::AcqRel);
        self.one_more.notify_waiters();
    }

    /// Notes a line that does not count as an answer.
    pub fn note(&self, line: &str) {
        let mut text = self.text.lock().unwrap();
        text.push('@');
        text.push_str(line);
        text.push('\n');
    }

    /// Waits for this many more answers.
    pub async fn more(&self, answers: u64) {
        let enough = self.answers.load(Ordering::Acquire) + answers;
        loop {
            let mut one_more = std::pin::pin!(self.one_more.notified());
            one_more.as_mut().enable();
            if self.answers.load(Ordering::Acquire) >= enough {
                return;
            }
            one_more.await;
        }
    }

    /// Reads the lines as an account.
    pub fn account(&self) -> Account {
        Account::read(&self.text.lock().unwrap())
    }
}

/// Callers and workers under way.
pub struct Traffic {
    said: Said,
    over: Arc<AtomicBool>,
    callers: JoinSet<()>,
    workers: JoinSet<()>,
    round: u64,
}

impl Traffic {
    /// Starts callers and workers on these servers, with jobs of this round.
    pub fn start(backends: &[Arc<dyn Backend>], round: u64) -> Self {
        crate::planted::plant_from_environment();
        let (said, over) = (Said::default(), Arc::new(AtomicBool::new(false)));
        let mut traffic = Self { said, over, callers: JoinSet::new(), workers: JoinSet::new(), round };
        traffic.join(backends, 0);
        traffic
    }

    /// Starts as many more on other servers, with keys from `first` on, a multiple of four. All share one
    /// account: any worker may run any job.
    pub fn join(&mut self, backends: &[Arc<dyn Backend>], first: u64) {
        let engines: Vec<Engine> =
            backends.iter().map(|backend| Engine::without_duties(Arc::clone(backend)).unwrap()).collect();
        for place in 0..CALLERS {
            let engine = engines[place as usize % engines.len()].clone();
            let at = Place { round: self.round, first, place };
            self.callers.spawn(call(engine, self.said.clone(), Arc::clone(&self.over), at));
        }
        for place in 0..WORKERS {
            let engine = engines[place % engines.len()].clone();
            self.workers.spawn(work(engine, self.said.clone(), Arc::clone(&self.over)));
        }
    }

    /// Starts further tasks for requests about several records at once: all-or-nothing batches, follow-ups,
    /// workflows, and a queue that is paused and resumed.
    pub fn cross(&mut self, backends: &[Arc<dyn Backend>]) {
        let engines: Vec<Engine> =
            backends.iter().map(|backend| Engine::without_duties(Arc::clone(backend)).unwrap()).collect();
        for (number, engine) in engines.iter().enumerate() {
            let said = self.said.clone();
            let asker = Asker {
                engine: engine.clone(),
                elsewhere: engines[(number + 1) % engines.len()].clone(),
                number: number as u64,
                say: Arc::new(move |line: &str| said.say(line)),
                round: self.round,
                turns: u64::MAX,
                over: Arc::clone(&self.over),
                is_patient: true,
            };
            asker.spawn(&mut self.callers);
        }
    }

    /// Starts further tasks that use all policies, several on each key, and end their runs in every way.
    /// `reads_log` says that what the log of these servers has shown once never disappears.
    pub fn mix(&mut self, backends: &[Arc<dyn Backend>], reads_log: bool) {
        for (number, backend) in (0..).zip(backends) {
            let said = self.said.clone();
            let medley = Medley {
                engine: Engine::without_duties(Arc::clone(backend)).unwrap(),
                number,
                say: Arc::new(move |line: &str| said.note(line)),
                round: self.round,
                turns: u64::MAX,
                over: Arc::clone(&self.over),
                reads_log,
            };
            medley.spawn(&mut self.callers, &mut self.workers);
        }
    }

    /// The account so far.
    pub fn account(&self) -> Account {
        self.said.account()
    }

    /// Waits for this many more answers.
    ///
    /// # Panics
    /// When they do not arrive within two minutes.
    pub async fn more(&self, answers: u64) {
        let patience = Duration::from_secs(120);
        let came = tokio::time::timeout(patience, self.said.more(answers)).await;
        assert!(came.is_ok(), "nobody is answered any more");
    }

    /// Ends the traffic. Callers and workers that wait for an answer still get it.
    pub async fn end(self) -> Account {
        self.over.store(true, Ordering::Relaxed);
        self.callers.join_all().await;
        self.workers.join_all().await;
        self.said.account()
    }
}

/// The answer, or none to ask again. An error that is not retryable must not happen and is noted.
fn answer<T>(said: &Said, asked: Result<T, StoreError>) -> Option<T> {
    match asked {
        Ok(answer) => Some(answer),
        Err(error) => {
            if !error.is_retryable() {
                said.say(&format!("error {error}"));
            }
            None
        }
    }
}

/// The position of a caller in its traffic.
#[derive(Clone, Copy)]
struct Place {
    round: u64,
    first: u64,
    place: u64,
}

async fn call(engine: Engine, said: Said, over: Arc<AtomicBool>, at: Place) {
    let Place { round, first, place } = at;
    let mut turn = 0;
    while !over.load(Ordering::Relaxed) {
        // Where there are several servers, the two callers of a pair are at different ones.
        let number = first + turn * (CALLERS / 2) + place / 2;
        let mut want = want(round, number).on_conflict("ignore");
        if turn % 3 == 0 {
            // The same id until there is an answer, which is that of the first time or of a duplicate.
            let id = round * 100_000_000 + 2 * first + turn * CALLERS + place;
            want = want.id(foreign_id(u32::try_from(id).unwrap()));
        }
        turn += 1;
        loop {
            match answer(&said, engine.enqueue(want.offer(), "").await) {
                Some(Outcome::Created(head) | Outcome::Repeated(head)) => {
                    said.say(&format!("created {number} {}", head.id));
                }
                Some(Outcome::Existing(head)) => said.say(&format!("duplicate {number} {}", head.id)),
                Some(other) => said.say(&format!("error {other:?}")),
                None => {
                    tokio::time::sleep(REST).await;
                    continue;
                }
            }
            break;
        }
    }
}

async fn work(engine: Engine, said: Said, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        // Runs whose grant was lost stay leased, so nobody gets them until their leases expire.
        let Some(runs) = answer(&said, engine.claim(claim(7)).await) else {
            tokio::time::sleep(REST).await;
            continue;
        };
        if runs.is_empty() {
            tokio::time::sleep(REST).await;
        }
        for run in runs {
            said.say(&format!("claimed {}", run.head.id));
            loop {
                let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                match answer(&said, engine.complete(run.head.id, bearer, None).await) {
                    Some(Settled::Done(head) | Settled::Repeated(head)) => {
                        said.say(&format!("acked {}", head.id));
                    }
                    Some(other) => said.say(&format!("error {other:?}")),
                    None => {
                        tokio::time::sleep(REST).await;
                        continue;
                    }
                }
                break;
            }
        }
    }
}
