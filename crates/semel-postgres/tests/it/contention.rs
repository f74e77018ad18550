//! Many callers that want the same keys: through several servers, in batches in opposite orders, and inside
//! transactions of their own. `SEMEL_HERD_ROUNDS`, `SEMEL_OPPOSITE_ROUNDS` and `SEMEL_MIX_TURNS` set the
//! number of rounds and turns.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use semel_core::draft::{KeyRead, Reads};
use semel_core::enqueue::{Batch, Mode, Offer, Outcome};
use semel_core::ident::JobId;
use semel_core::lease::{Bearer, LeaseToken};
use semel_core::state::StateSet;
use semel_core::unique::UniqueKey;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::error::Undone;
use semel_store::hints::Hints;
use semel_store::inside::decide;
use semel_store::{Backend, StoreError};
use semel_testkit::TempDir;
use semel_testkit::cluster::Cluster;
use semel_testkit::crash::{claim, want};
use semel_testkit::make::{foreign_id, key, keyed};
use semel_testkit::patience::rounds;
use semel_testkit::races::at_once;
use semel_testkit::sim::dice::Dice;
use semel_testkit::traffic::Said;
use tokio::task::JoinSet;
use tokio_postgres::{IsolationLevel, Transaction};

use crate::place::{Place, client, judge, until, url};

/// Faster commits: no test here involves a crash.
const QUICK: &[&str] = &["synchronous_commit=off"];
/// How PostgreSQL's log reports a deadlock.
const DEADLOCK: &str = "deadlock detected";

struct Servers {
    cluster: Cluster,
    address: Address,
    backends: Vec<Arc<Postgres>>,
    engines: Vec<Engine>,
    // Dropped last.
    _folder: TempDir,
}

impl Servers {
    async fn start(number: usize) -> Self {
        let folder = TempDir::new();
        let mut cluster = Cluster::new(&folder.path().join("a"));
        cluster.start(QUICK);
        let address = Address::parse(&cluster.url()).unwrap();
        let (mut backends, mut engines) = (Vec::new(), Vec::new());
        for _ in 0..number {
            let backend = Arc::new(Postgres::open(&address).await.unwrap());
            engines.push(Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap());
            backends.push(backend);
        }
        Self { cluster, address, backends, engines, _folder: folder }
    }

    /// Runs one action as `tasks` concurrent tasks, spread over all servers.
    async fn at_once<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        tasks: usize,
        act: impl Fn(usize, Engine) -> F,
    ) -> Vec<T> {
        at_once(tasks, |task| act(task, self.engines[task % self.engines.len()].clone())).await
    }
}

/// Enqueues jobs inside a caller's transaction.
pub async fn inside(
    engine: &Engine,
    backend: &Postgres,
    transaction: &Transaction<'_>,
    offers: Vec<Offer>,
) -> Result<Vec<Outcome>, StoreError> {
    let mut inside = backend.inside(transaction);
    let batch = engine.enqueue_batch_inside(&mut inside, offers, Mode::Each, "").await?;
    let Batch::Done(outcomes) = batch else { panic!("{batch:?}") };
    Ok(outcomes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_who_want_one_key_at_three_servers_one_gets_it() {
    let servers = Servers::start(3).await;
    let rounds = rounds("SEMEL_HERD_ROUNDS", 40_u64);
    for round in 0..rounds {
        let name = format!("round {round}");
        let how = if round % 2 == 0 { "ignore" } else { "reject" };
        let outcomes = servers.at_once(50, |_, engine| {
            let offer = keyed(&name).on_conflict(how).offer();
            async move { engine.enqueue(offer, "").await.unwrap() }
        });
        let outcomes = outcomes.await;
        let created: Vec<JobId> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                Outcome::Created(head) => Some(head.id),
                Outcome::Existing(_) | Outcome::Rejected { .. } => None,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(created.len(), 1, "{outcomes:?}");
        let named = outcomes.iter().filter_map(Outcome::absorbed_by);
        assert!(named.into_iter().all(|id| id == created[0]), "{outcomes:?}");
    }
    assert_eq!(servers.engines[0].queues().await.unwrap()[0].created, rounds);
    assert!(!servers.cluster.log().contains(DEADLOCK), "{}", servers.cluster.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_a_thousand_keys_in_opposite_orders_lock_nobody_out() {
    const KEYS: usize = 1_000;
    let servers = Servers::start(2).await;
    for round in 0..rounds("SEMEL_OPPOSITE_ROUNDS", 2_u64) {
        let counts = servers.at_once(2, |task, engine| {
            let mut offers: Vec<Offer> =
                (0..KEYS).map(|key| keyed(&format!("{round}/{key}")).on_conflict("ignore").offer()).collect();
            if task == 1 {
                offers.reverse();
            }
            async move {
                let batch = engine.enqueue_batch(offers, Mode::Each, "").await.unwrap();
                let Batch::Done(outcomes) = batch else { panic!("{batch:?}") };
                outcomes.iter().filter(|outcome| outcome.is_inserted()).count()
            }
        });
        let counts = counts.await;
        assert_eq!(counts.iter().sum::<usize>(), KEYS, "{counts:?}");
    }
    assert!(!servers.cluster.log().contains(DEADLOCK), "{}", servers.cluster.log());
}

/// What a mix of callers has observed.
#[derive(Clone, Default)]
struct Mix {
    said: Said,
    /// Jobs whose transactions were rolled back.
    undone: Arc<Mutex<BTreeSet<JobId>>>,
    over: Arc<AtomicBool>,
}

/// A key that all callers want at about the same time; the range moves on with the turns.
fn number(dice: &mut Dice, turn: u64) -> u64 {
    turn / 4 * 4 + dice.below(8)
}

impl Mix {
    fn tell(&self, number: u64, outcome: &Outcome) {
        match outcome {
            Outcome::Created(head) => self.said.say(&format!("created {number} {}", head.id)),
            Outcome::Existing(head) => self.said.say(&format!("duplicate {number} {}", head.id)),
            other => self.said.say(&format!("error {other:?}")),
        }
    }

    /// Runs transactions that enqueue once or several times and then commit or roll back; returns how many of
    /// each.
    async fn transact(
        self,
        engine: Engine,
        backend: Arc<Postgres>,
        url: String,
        turns: u64,
        seed: u64,
    ) -> [u64; 2] {
        let levels =
            [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];
        let mut dice = Dice::new(seed);
        let mut client = client(&url).await;
        let [mut committed, mut undone] = [0, 0];
        for turn in 0..turns {
            let level = dice.pick(&levels);
            let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
            let mut answers = Vec::new();
            let mut failed = None;
            for _ in 0..=dice.below(2) {
                let numbers: Vec<u64> = (0..=dice.below(3)).map(|_| number(&mut dice, turn)).collect();
                let offers = numbers.iter().map(|number| want(1, *number).on_conflict("ignore").offer());
                match inside(&engine, &backend, &transaction, offers.collect()).await {
                    Ok(outcomes) => answers.extend(numbers.into_iter().zip(outcomes)),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            let is_strict = !matches!(level, IsolationLevel::ReadCommitted);
            let is_over = match failed {
                // Errors that undo a transaction have names of their own; a caller that gets one starts over.
                Some(StoreError::Undone(why)) => {
                    assert!(is_strict || why == Undone::Deadlock, "{why:?}");
                    transaction.rollback().await.unwrap();
                    false
                }
                Some(error) => panic!("{error}"),
                None if dice.below(3) == 0 => {
                    transaction.rollback().await.unwrap();
                    false
                }
                None => match transaction.commit().await {
                    Ok(()) => true,
                    Err(error) => {
                        assert!(is_strict && error.as_db_error().is_some(), "{error:?}");
                        false
                    }
                },
            };
            for (number, outcome) in answers {
                if is_over {
                    self.tell(number, &outcome);
                } else if let Outcome::Created(head) = outcome {
                    self.undone.lock().unwrap().insert(head.id);
                }
            }
            if is_over { committed += 1 } else { undone += 1 }
        }
        [committed, undone]
    }

    /// Callers without a transaction; each waits for a lock as long as a server waits.
    async fn call(self, engine: Engine, turns: u64, seed: u64) {
        let mut dice = Dice::new(seed);
        for turn in 0..turns {
            let number = number(&mut dice, turn);
            loop {
                match engine.enqueue(want(1, number).on_conflict("ignore").offer(), "").await {
                    Ok(outcome) => break self.tell(number, &outcome),
                    Err(error) => assert!(matches!(error, StoreError::Contended), "{error}"),
                }
            }
        }
    }

    async fn work(self, engine: Engine) {
        while !self.over.load(Ordering::Relaxed) {
            let claimed = match engine.claim(claim(5)).await {
                Err(StoreError::Contended) => continue,
                claimed => claimed.unwrap(),
            };
            for run in claimed {
                self.said.say(&format!("claimed {}", run.head.id));
                let bearer = Bearer { lease: Some(LeaseToken(run.head.fence)), worker: None };
                while let Err(error) = engine.complete(run.head.id, bearer.clone(), None).await {
                    assert!(matches!(error, StoreError::Contended), "{error}");
                }
                self.said.say(&format!("acked {}", run.head.id));
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Until the commit nobody else sees the holder, while pending duplicate records are written once a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_of_a_transactions_own_job_is_recorded_once_that_is_committed() {
    let place = Place::new();
    let backend = Arc::new(Postgres::open(place.address()).await.unwrap());
    let engine = Engine::without_duties(Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    let mut caller = client(&url()).await;
    let transaction = caller.transaction().await.unwrap();
    let offers = || vec![keyed("a").on_conflict("ignore").offer()];
    let first = inside(&engine, &backend, &transaction, offers()).await.unwrap();
    let [Outcome::Created(head)] = &first[..] else { panic!("{first:?}") };
    let second = inside(&engine, &backend, &transaction, offers()).await.unwrap();
    assert!(matches!(&second[..], [Outcome::Existing(_)]), "{second:?}");
    // Stopping writes what is pending.
    engine.stop().await;
    transaction.commit().await.unwrap();
    engine.stop().await;
    let other = Arc::new(Postgres::open(place.address()).await.unwrap());
    let other = Engine::without_duties(other).unwrap();
    for engine in [&engine, &other] {
        assert_eq!(engine.job(head.id).await.unwrap().unwrap().duplicates.count, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_every_level_and_strangers_agree_on_one_history() {
    let servers = Servers::start(2).await;
    let turns = rounds("SEMEL_MIX_TURNS", 60);
    let mix = Mix::default();
    let (mut transacting, mut calling) = (JoinSet::new(), JoinSet::new());
    for place in 0..4 {
        let (engine, backend) =
            (servers.engines[place % 2].clone(), Arc::clone(&servers.backends[place % 2]));
        let url = servers.cluster.url();
        transacting.spawn(mix.clone().transact(engine, backend, url, turns, place as u64));
        if place < 2 {
            calling.spawn(mix.clone().call(servers.engines[place].clone(), turns, 10 + place as u64));
        }
    }
    let working = tokio::spawn(mix.clone().work(servers.engines[0].clone()));
    let counts = transacting.join_all().await;
    calling.join_all().await;
    mix.over.store(true, Ordering::Relaxed);
    working.await.unwrap();
    let [committed, undone] = [0, 1].map(|place| counts.iter().map(|count| count[place]).sum::<u64>());
    println!("{committed} committed, {undone} undone");
    assert!(committed > turns / 2 && undone > turns / 2, "{committed} {undone}");
    let undone = std::mem::take(&mut *mix.undone.lock().unwrap());
    for id in undone {
        assert!(servers.engines[1].job(id).await.unwrap().is_none(), "{id} was rolled back");
    }
    let mut account = mix.said.account();
    account.is_log_unordered = true;
    judge(&account, &servers.address, 1).await;
}

/// Otherwise two calls that find out midway which other keys they need could wait for one another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_an_earlier_key_inside_a_transaction_holds_no_later_one() {
    let servers = Servers::start(1).await;
    let mut names = ["a", "b"];
    names.sort_by_key(|name| key(name));
    let [earlier, later] = names.map(key);
    for name in names {
        servers.engines[0].enqueue(keyed(name).offer(), "").await.unwrap();
    }
    let url = servers.cluster.url();
    let (mut holder, mut caller, watcher) = (client(&url).await, client(&url).await, client(&url).await);
    let lock = "SELECT 1 FROM semel.key WHERE key = $1 FOR UPDATE";
    let held = holder.transaction().await.unwrap();
    held.query_one(lock, &[&&earlier.as_bytes()[..]]).await.unwrap();
    let backend = Arc::clone(&servers.backends[0]);
    let waiting = tokio::spawn(async move {
        let transaction = caller.transaction().await.unwrap();
        let read = |key: UniqueKey| KeyRead { key, states: StateSet::ALL, all: false };
        let reads = Reads { keys: vec![read(later)], ..Reads::default() };
        let mut inside = backend.inside(&transaction);
        let (by_default, hints) = (Arc::default(), Hints::default());
        let decided = decide(&mut inside, &by_default, &hints, reads, |draft| {
            draft.key(&read(later))?;
            draft.key(&read(earlier))?;
            Ok(())
        });
        decided.await.unwrap();
        drop(inside);
        transaction.commit().await.unwrap();
    });
    until(&watcher, "SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").await;
    let at_once = format!("{lock} NOWAIT");
    watcher.query_one(&at_once, &[&&later.as_bytes()[..]]).await.unwrap();
    held.commit().await.unwrap();
    waiting.await.unwrap();
}

/// Inside a transaction nothing says beforehand which ids it uses, so a decision beside it has nothing to
/// lock that would make the two meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_two_requests_use_at_once_fails_nobody_elses() {
    let servers = Servers::start(1).await;
    let url = servers.cluster.url();
    let (mut caller, watcher) = (client(&url).await, client(&url).await);
    let (engine, backend) = (servers.engines[0].clone(), Arc::clone(&servers.backends[0]));
    let want = |name: &str| keyed(name).on_conflict("follow_up");
    for name in ["a", "b"] {
        engine.enqueue(want(name).offer(), "").await.unwrap();
    }
    let transaction = caller.transaction().await.unwrap();
    let offer = want("a").id(foreign_id(2)).digest(2).offer();
    let outcomes = inside(&engine, &backend, &transaction, vec![offer]).await.unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Amended(_)]), "{outcomes:?}");
    let beside = {
        let offers = vec![want("b").id(foreign_id(2)).digest(3).offer(), want("c").offer()];
        let engine = engine.clone();
        tokio::spawn(async move { engine.enqueue_batch(offers, Mode::Each, "").await })
    };
    until(&watcher, "SELECT count(*) >= 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").await;
    transaction.commit().await.unwrap();
    let Batch::Done(outcomes) = beside.await.unwrap().unwrap() else { panic!("refused") };
    assert!(matches!(&outcomes[..], [Outcome::IdTaken(_), Outcome::Created(_)]), "{outcomes:?}");
}

/// Otherwise each caller that asks while that transaction is open would occupy a further PostgreSQL process
/// for as long, and the outbox relay would occupy one more in each round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_row_that_is_not_committed_has_nobody_wait_beside_him() {
    let servers = Servers::start(1).await;
    let url = servers.cluster.url();
    let (mut maker, mut caller, watcher) = (client(&url).await, client(&url).await, client(&url).await);
    let wanted = key("a");
    let making = maker.transaction().await.unwrap();
    let insert = "INSERT INTO semel.key (key, version, live, done) VALUES ($1, 0, '{}', '{}')";
    making.execute(insert, &[&&wanted.as_bytes()[..]]).await.unwrap();
    let pid: i32 = caller.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let (engine, backend) = (servers.engines[0].clone(), Arc::clone(&servers.backends[0]));
    let waiting = tokio::spawn(async move {
        let transaction = caller.transaction().await.unwrap();
        let outcomes = inside(&engine, &backend, &transaction, vec![keyed("a").offer()]).await.unwrap();
        transaction.commit().await.unwrap();
        outcomes
    });
    let alone = format!(
        "SELECT count(*) = 1 AND bool_and(pid = {pid}) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    );
    until(&watcher, &alone).await;
    making.rollback().await.unwrap();
    let outcomes = waiting.await.unwrap();
    assert!(matches!(&outcomes[..], [Outcome::Created(_)]), "{outcomes:?}");
}
