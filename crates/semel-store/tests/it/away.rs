//! Unavailable records in a store of several parts, and the requests that need them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::draft::{KeyRead, Reads, Snapshot};
use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_core::ident::{JobId, QueueName};
use semel_core::lease::{Bearer, Grant};
use semel_core::settle::Settled;
use semel_core::sight::Queues;
use semel_core::state::StateSet;
use semel_core::unique::UniqueKey;
use semel_engine::Engine;
use semel_engine::engine::Undecided;
use semel_store::StoreError;
use semel_store::backend::{Backend, BoxFuture, Claim, Facts};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_testkit::make::{job, key, keyed};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// How long it takes to notice that a part is unavailable.
const FOUND_AFTER: Duration = Duration::from_secs(1);

/// A store that keeps some keys and jobs in separate parts, which are unavailable.
struct Parted {
    inner: Memory,
    away: Mutex<HashSet<UniqueKey>>,
    jobs_away: Mutex<HashSet<JobId>>,
    /// One permit per load that has begun to wait for them.
    begun: Semaphore,
    /// Lets one waiting load continue per permit. When closed, the loads fail.
    gate: Semaphore,
}

impl Parted {
    fn without(names: impl IntoIterator<Item = String>) -> Arc<Self> {
        let away = Mutex::new(names.into_iter().map(|name| key(&name)).collect());
        let (begun, gate) = (Semaphore::new(0), Semaphore::new(0));
        Arc::new(Self { inner: Memory::default(), away, jobs_away: Mutex::default(), begun, gate })
    }

    fn is_away(&self, read: &KeyRead) -> bool {
        self.away.lock().unwrap().contains(&read.key)
    }
}

impl Layer for Parted {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let is_away = |id: &JobId| self.jobs_away.lock().unwrap().contains(id);
            if reads.keys.iter().any(|read| self.is_away(read)) || reads.heads.iter().any(is_away) {
                self.begun.add_permits(1);
                let never = |_| StoreError::Unavailable("a part of it is away".to_owned());
                self.gate.acquire().await.map_err(never)?.forget();
            }
            self.inner.load(reads).await
        })
    }

    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        Box::pin(async move {
            let keys = reads.keys.iter().copied();
            let (away, there): (Vec<KeyRead>, Vec<KeyRead>) = keys.partition(|read| self.is_away(read));
            let is_away = |id: &JobId| self.jobs_away.lock().unwrap().contains(id);
            let (heads_away, heads): (Vec<JobId>, Vec<JobId>) =
                reads.heads.iter().partition(|id| is_away(id));
            if !away.is_empty() || !heads_away.is_empty() {
                tokio::time::sleep(FOUND_AFTER).await;
            }
            let there = Reads { keys: there, heads, ..reads.clone() };
            let away = Reads { keys: away, heads: heads_away, ..Reads::default() };
            Ok((self.inner.load(&there).await?, away))
        })
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: 2, ..self.inner.facts() }
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_is_away_keeps_nobody_from_the_rest_of_what_he_needs() {
    let store = Parted::without(["away".to_owned()]);
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let both = {
        let engine = engine.clone();
        let offers = ["away", "there"].map(|name| keyed(name).on_conflict("ignore").offer()).to_vec();
        tokio::spawn(async move { engine.enqueue_batch(offers, Mode::Each, "").await })
    };
    store.begun.acquire().await.unwrap().forget();
    for name in ["elsewhere", "there"] {
        let beside = engine.enqueue(keyed(name).on_conflict("ignore").offer(), "");
        let beside = timeout(Duration::from_secs(60), beside).await.expect(name).unwrap();
        assert!(matches!(beside, Outcome::Created(_)), "{name}: {beside:?}");
    }
    store.gate.add_permits(1);
    let Batch::Done(outcomes) = both.await.unwrap().unwrap() else { panic!("refused") };
    assert!(matches!(outcomes[..], [Outcome::Created(_), Outcome::Existing(_)]), "{outcomes:?}");
}

/// Although others have waited for the same part before, and for longer than the limit of waiting for a
/// transaction.
#[tokio::test(start_paused = true)]
async fn whoever_comes_while_others_wait_for_what_is_away_waits_as_they_do() {
    let store = Parted::without(["away".to_owned(), "away too".to_owned()]);
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let asked = |name: &'static str| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.enqueue(keyed(name).offer(), "").await })
    };
    let first = asked("away");
    store.begun.acquire().await.unwrap().forget();
    let second = asked("away too");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!second.is_finished(), "{:?}", second.await);
    store.gate.add_permits(2);
    for asked in [first, second] {
        let outcome = asked.await.unwrap().unwrap();
        assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    }
}

/// A heartbeat of a worker that holds jobs in several parts.
#[tokio::test(start_paused = true)]
async fn a_lease_in_a_part_that_is_away_keeps_no_other_from_being_extended() {
    let store = Parted::without([]);
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for _ in 0..3 {
        engine.enqueue(job().offer(), "").await.unwrap();
    }
    let grant = Grant::new("w".into(), None);
    let claim = Claim { queues: vec![QueueName::default()], limit: 3, grant, closed: Vec::new() };
    let held: Vec<JobId> = engine.claim(claim).await.unwrap().iter().map(|run| run.head.id).collect();
    store.jobs_away.lock().unwrap().insert(held[1]);
    let named = held.iter().map(|id| (*id, Bearer::default())).collect();
    let asked = Instant::now();
    let answers = engine.extend(named, None, &Queues::All).await.unwrap();
    assert!(asked.elapsed() <= 3 * FOUND_AFTER, "{:?}", asked.elapsed());
    let extended: Vec<bool> = answers.iter().map(|answer| matches!(answer, Ok(Settled::Done(_)))).collect();
    assert_eq!((extended, &answers[1]), (vec![true, false, true], &Err(Undecided::Unheard)), "{answers:?}");
}

const READERS: usize = 240;

type Reader = JoinHandle<Result<Snapshot, StoreError>>;

fn name(number: usize) -> String {
    format!("away {number}")
}

fn read(engine: &Engine, name: &str) -> Reader {
    let read = KeyRead { key: key(name), states: StateSet::ALL, all: false };
    let (engine, reads) = (engine.clone(), Reads { keys: vec![read], ..Reads::default() });
    tokio::spawn(async move { engine.store().load(reads).await })
}

/// However many readers there are, each with another record, and however long each waits.
#[tokio::test(start_paused = true)]
async fn who_only_reads_what_is_away_keeps_nobody_from_reading_the_rest() {
    let store = Parted::without((0..READERS).map(name));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    assert!(engine.enqueue(keyed("there").offer(), "").await.unwrap().is_inserted());
    let readers: Vec<Reader> = (0..READERS).map(|number| read(&engine, &name(number))).collect();
    tokio::task::yield_now().await;
    let asked = Instant::now();
    for _ in 0..READERS {
        let there = read(&engine, "there").await.unwrap().unwrap();
        assert_eq!(there.peek_key(&key("there")).unwrap().holders.len(), 1);
        engine.now().await.unwrap();
    }
    // Each slot for loads may be taken by one of them at first.
    assert!(asked.elapsed() <= 2 * FOUND_AFTER, "{:?}", asked.elapsed());
    // Nor does it keep readers from learning that a record is unavailable.
    let begun = timeout(2 * FOUND_AFTER, store.begun.acquire()).await.unwrap().unwrap();
    begun.forget();
    tokio::time::sleep(2 * FOUND_AFTER).await;
    let begun = 1 + store.begun.available_permits();
    assert!(begun < READERS, "{begun}");
    store.away.lock().unwrap().remove(&key(&name(7)));
    let asked = Instant::now();
    store.gate.close();
    for (number, reader) in readers.into_iter().enumerate() {
        let told = reader.await.unwrap();
        // A record that has come back in the meantime is returned.
        assert_eq!(told.is_ok(), number == 7, "{number}: {told:?}");
        assert!(told.is_ok_and(|told| told.has_key(&key(&name(7)))) || number != 7);
    }
    assert!(asked.elapsed() <= 2 * FOUND_AFTER, "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_has_given_up_is_not_served_when_it_is_back() {
    let store = Parted::without((0..READERS).map(name));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let readers: Vec<Reader> = (0..READERS).map(|number| read(&engine, &name(number))).collect();
    store.begun.acquire().await.unwrap().forget();
    tokio::time::sleep(2 * FOUND_AFTER).await;
    let begun = 1 + store.begun.available_permits();
    readers.iter().for_each(JoinHandle::abort);
    for reader in readers {
        assert!(reader.await.unwrap_err().is_cancelled());
    }
    let last = read(&engine, &name(0));
    store.gate.add_permits(begun + 1);
    let last = timeout(Duration::from_secs(60), last).await.expect("it is back").unwrap().unwrap();
    assert!(last.has_key(&key(&name(0))));
    assert_eq!(1 + store.begun.available_permits(), begun + 1);
}
