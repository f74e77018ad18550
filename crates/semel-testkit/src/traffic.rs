//! Callers and workers of several servers who go on through whatever becomes of their store, and the account of what they were
//! told. An error is no answer: who gets one asks again.

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

/// Callers; every key is offered by two of them, at different servers.
const CALLERS: u64 = 8;
const WORKERS: usize = 2;
/// How long who got an error rests: a store that is away would be asked all the time.
const REST: Duration = Duration::from_millis(2);

/// What was said, in the order in which it was.
#[derive(Clone, Debug, Default)]
pub struct Said {
    text: Arc<Mutex<String>>,
    answers: Arc<AtomicU64>,
    one_more: Arc<Notify>,
}

impl Said {
    /// Notes an answer.
    pub fn say(&self, line: &str) {
        self.note(line);
        self.answers.fetch_add(1, Ordering::AcqRel);
        self.one_more.notify_waiters();
    }

    /// Notes a line for which nobody waits.
    pub fn note(&self, line: &str) {
        let mut text = self.text.lock().unwrap();
        text.push('@');
        text.push_str(line);
        text.push('\n');
    }

    /// Waits for so many answers more.
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

    /// The account of it.
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
    /// Has callers and workers ask these servers, by jobs of this round.
    pub fn start(backends: &[Arc<dyn Backend>], round: u64) -> Self {
        crate::planted::plant_from_environment();
        let (said, over) = (Said::default(), Arc::new(AtomicBool::new(false)));
        let mut traffic = Self { said, over, callers: JoinSet::new(), workers: JoinSet::new(), round };
        traffic.join(backends, 0);
        traffic
    }

    /// Has as many more ask other servers, by keys from `first` on, a multiple of four. All are in one account: anybody's
    /// workers run anybody's jobs.
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

    /// Has more ask them for what is about several records at once: batches of which all or none is stored, follow-ups, workflows, and
    /// a queue that is paused and resumed.
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

    /// Has more ask them by all policies, several on each key, and end the runs of that in every way. `reads_log` says that what the
    /// log of these has shown once is never gone.
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

    /// Waits for so many answers more.
    ///
    /// # Panics
    /// When they do not come within two minutes.
    pub async fn more(&self, answers: u64) {
        let patience = Duration::from_secs(120);
        let came = tokio::time::timeout(patience, self.said.more(answers)).await;
        assert!(came.is_ok(), "nobody is answered any more");
    }

    /// Ends it. Who waits for an answer still gets it.
    pub async fn end(self) -> Account {
        self.over.store(true, Ordering::Relaxed);
        self.callers.join_all().await;
        self.workers.join_all().await;
        self.said.account()
    }
}

/// An answer; an error that is not for another try is one that must not be.
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

/// Which caller of which traffic.
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
        // The second of a pair is at another server than the first where there are several.
        let number = first + turn * (CALLERS / 2) + place / 2;
        let mut want = want(round, number).on_conflict("ignore");
        if turn % 3 == 0 {
            // The same id until there is an answer: it is the first time's, or that of a duplicate.
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
        // Runs whose answer was lost are somebody's until their leases run out.
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
