//! The servers of a run, and the network between them and the actors.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::enqueue::Offer;
use semel_core::ident::{JobId, WorkflowId};
use semel_core::retention::{Keep, Retention, keep_for};
use semel_engine::Engine;
use semel_store::{Backend, Store, StoreError};
use tokio::sync::oneshot;

use super::dice::Dice;
use super::executor::{Handle, Owner, pass};
use super::plan::{KeyClass, Plan};
use super::store::{Connection, SharedStore, SimClock};
use crate::history::Mark;
use crate::history::{Checked, Holds};

/// How long a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a server keeps ended jobs: for each way to end, from far shorter to far longer than a run; half
/// of the times are the defaults.
fn retention(dice: &mut Dice) -> Retention {
    let mut time = || {
        let seconds = dice.pick(&[0, 0, 0, 1, 20, 3 * 24 * 3_600]);
        (seconds > 0).then(|| keep_for(Duration::from_secs(seconds), "").unwrap())
    };
    Retention::new(Keep { completed: time(), cancelled: time(), discarded: time() })
}

/// The state of a run.
pub struct World {
    /// What the seed drew.
    pub plan: Plan,
    /// The seed.
    pub seed: u64,
    /// The keys that all callers share.
    pub keys: Vec<KeyClass>,
    /// Whether operators may release keys and send dead letters back.
    pub may_release: bool,
    /// The store's clock.
    pub clock: SimClock,
    /// The store.
    pub store: Arc<SharedStore>,
    /// Starts tasks.
    pub handle: Handle,
    /// What callers were told, for the check that relies on no store.
    pub holds: Mutex<Holds>,
    /// Jobs that callers and workers know of.
    pub known: Mutex<Vec<JobId>>,
    /// Workflows that callers know of.
    pub workflows: Mutex<Vec<WorkflowId>>,
    /// The number of duplicates that were answered, by the job that absorbed them.
    pub duplicates: Mutex<BTreeMap<JobId, u64>>,
    servers: Mutex<Vec<Server>>,
    starts: AtomicU64,
    requests: AtomicU64,
    losses: AtomicU64,
    is_quiet: AtomicBool,
}

#[derive(Default)]
struct Server {
    engine: Option<Engine>,
}

/// What a caller got back.
#[derive(Debug)]
pub enum Heard<T> {
    /// An answer.
    Answer(T),
    /// An error or no answer: the request may have been carried out or not.
    Nothing,
}

impl<T> Heard<T> {
    /// The answer, if there was one.
    pub fn answer(self) -> Option<T> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Nothing => None,
        }
    }
}

impl World {
    /// A world without actors.
    pub fn new(
        plan: Plan,
        seed: u64,
        keys: Vec<KeyClass>,
        may_release: bool,
        store: Arc<SharedStore>,
        clock: SimClock,
        handle: Handle,
    ) -> Arc<Self> {
        let servers = (0..plan.servers).map(|_| Server::default()).collect();
        let losses = AtomicU64::new(plan.losses);
        Arc::new(Self {
            plan,
            seed,
            keys,
            may_release,
            clock,
            store,
            handle,
            holds: Mutex::default(),
            known: Mutex::default(),
            workflows: Mutex::default(),
            duplicates: Mutex::default(),
            servers: Mutex::new(servers),
            starts: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            losses,
            is_quiet: AtomicBool::new(false),
        })
    }

    /// Starts a server afresh, with a batcher and duties of its own.
    pub fn start(&self, at: usize) {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let entropy = Dice::of(self.seed, 1_000 + number).draw();
        let connection = Connection::new(Arc::clone(&self.store));
        let rules = retention(&mut Dice::of(self.seed, 1_000_000 + number));
        let (store, batcher) = Store::with_batcher(connection as Arc<dyn Backend>, rules, entropy);
        let engine = Engine::on(store);
        self.handle.spawn(Owner::Server(at), batcher);
        self.handle.spawn(Owner::Server(at), engine.duties());
        self.servers.lock().unwrap()[at].engine = Some(engine);
    }

    /// Drops all tasks of a server at their current awaits.
    pub fn crash(&self, at: usize) {
        self.servers.lock().unwrap()[at].engine = None;
        self.handle.kill(Owner::Server(at));
    }

    /// Ends all faults: every server is started, and nothing is lost.
    pub fn heal(&self) {
        self.losses.store(0, Ordering::Relaxed);
        self.is_quiet.store(true, Ordering::Relaxed);
        self.store.heal();
        for at in 0..self.plan.servers as usize {
            self.handle.thaw(Owner::Server(at));
            if self.engine(at).is_none() {
                self.start(at);
            }
        }
    }

    /// Whether the troubles are over.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }

    /// The engine of a server that is up.
    pub fn engine(&self, at: usize) -> Option<Engine> {
        self.servers.lock().unwrap()[at].engine.clone()
    }

    /// A new number for a request.
    pub fn number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Keeps the first invariant that is broken, with what it is about.
    pub fn judge(&self, what: impl FnOnce() -> String, checked: Checked) {
        if let Err(why) = checked {
            self.store.judge(Err(format!("{}: {why}", what())));
        }
    }

    /// Makes a job known to all actors.
    pub fn heard_of(&self, job: JobId) {
        let mut known = self.known.lock().unwrap();
        if !known.contains(&job) {
            known.push(job);
        }
    }

    /// Notes that an offer was answered as a duplicate.
    pub fn absorbed(&self, holder: Option<JobId>) {
        if let Some(holder) = holder {
            *self.duplicates.lock().unwrap().entry(holder).or_default() += 1;
        }
    }

    /// Asks a server. The server acts on its own: the caller may stop waiting, the server may be killed, and
    /// request or reply may be lost.
    pub async fn ask<T, F>(&self, dice: &mut Dice, act: impl FnOnce(Engine) -> F + Send + 'static) -> Heard<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let at = dice.below(self.plan.servers) as usize;
        let Some(engine) = self.engine(at) else {
            tokio::time::sleep(Duration::from_millis(dice.between(5, 50))).await;
            return Heard::Nothing;
        };
        if dice.chance(512) {
            pass().await;
        }
        if self.loses(dice) {
            return Heard::Nothing;
        }
        let (reply, answer) = oneshot::channel();
        let task = self.handle.spawn(Owner::Server(at), async move {
            drop(reply.send(act(engine).await));
        });
        let patience = if self.loses(dice) { Duration::from_millis(dice.between(0, 30)) } else { PATIENCE };
        let heard = tokio::time::timeout(patience, answer).await;
        if heard.is_err() && dice.chance(512) {
            // The caller is gone, and the server notices.
            self.handle.abort(task);
        }
        match heard {
            Ok(Ok(Ok(answer))) if !self.loses(dice) => Heard::Answer(answer),
            _ => Heard::Nothing,
        }
    }

    fn loses(&self, dice: &mut Dice) -> bool {
        let losses = self.losses.load(Ordering::Relaxed);
        losses > 0 && dice.chance(losses)
    }

    /// The mark of an offer.
    pub fn mark(number: u64, offer: &Offer) -> Mark {
        Mark { n: number, inspect: offer.inspect }
    }
}
