//! Several groups in flight at once, and records locked by another client.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::draft::{Reads, Record, Snapshot};
use semel_core::enqueue::{Batch as Admitted, Mode, Outcome};
use semel_core::lease::Bearer;
use semel_engine::Engine;
use semel_store::StoreError;
use semel_store::backend::{Applied, Backend, Batch, BoxFuture, Facts, Verdict};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_testkit::make::keyed;
use tokio::sync::Notify;

/// A store with two commits in flight, each of which takes a while.
pub struct Abreast {
    inner: Arc<dyn Backend>,
    flights: AtomicUsize,
    most: AtomicUsize,
    /// Records that groups in flight have loaded and not committed yet, one set per group.
    written: Mutex<Vec<HashSet<Record>>>,
    /// Commits wait for this if a test sets it.
    gate: Option<Arc<Notify>>,
}

impl Abreast {
    fn new(inner: Arc<dyn Backend>, gate: Option<Arc<Notify>>) -> Self {
        Self {
            inner,
            flights: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            written: Mutex::default(),
            gate,
        }
    }
}

pub fn abreast(clock: &ManualClock) -> Arc<dyn Backend> {
    Arc::new(Abreast::new(Arc::new(Memory::new(clock.clone())), None))
}

impl Layer for Abreast {
    type Inner = dyn Backend;

    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.inner.load(reads).await
        })
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            let under_way = self.flights.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(under_way, Ordering::SeqCst);
            let expects = batch.groups.iter().flat_map(|group| &group.expect);
            let keys: HashSet<Record> = expects
                .map(|expect| expect.record.clone())
                .filter(|record| matches!(record, Record::Key(_)))
                .collect();
            if self.gate.is_some() {
                let mut written = self.written.lock().unwrap();
                // Checks keys known before the decision; for those it adds later the record versions decide.
                assert!(written.iter().all(|other| other.is_disjoint(&keys)), "two groups have one key");
                written.push(keys.clone());
            }
            match &self.gate {
                Some(gate) => gate.notified().await,
                None => tokio::task::yield_now().await,
            }
            let applied = self.inner.commit(batch).await;
            self.written.lock().unwrap().retain(|other| *other != keys);
            self.flights.fetch_sub(1, Ordering::SeqCst);
            applied
        })
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: 2, ..self.inner.facts() }
    }
}

#[tokio::test]
async fn two_groups_are_under_way_at_once_and_a_third_waits_for_one_of_its_records() {
    let gate = Arc::new(Notify::new());
    let store = Arc::new(Abreast::new(Arc::new(Memory::default()), Some(Arc::clone(&gate))));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let offer = |name: &str| {
        let (engine, offer) = (engine.clone(), keyed(name).on_conflict("ignore").offer());
        tokio::spawn(async move { engine.enqueue(offer, "").await.unwrap() })
    };
    let first = offer("a");
    while store.flights.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    // The duplicate waits for the commit in flight; an offer with another key does not.
    let (second, third) = (offer("a"), offer("b"));
    while store.flights.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!first.is_finished() && !second.is_finished() && !third.is_finished());
    gate.notify_one();
    gate.notify_one();
    assert!(matches!(first.await.unwrap(), Outcome::Created(_)));
    assert!(matches!(third.await.unwrap(), Outcome::Created(_)));
    // The holder that it found was committed, so it has nothing to write.
    assert!(matches!(second.await.unwrap(), Outcome::Existing(_)));
    assert_eq!(store.most.load(Ordering::SeqCst), 2);
}

/// The watcher may have looked while the commit was not applied yet.
#[tokio::test]
async fn who_begins_to_watch_a_job_while_it_is_being_written_hears_of_it() {
    let gate = Arc::new(Notify::new());
    let store = Arc::new(Abreast::new(Arc::new(Memory::default()), Some(Arc::clone(&gate))));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let offer = keyed("a").offer();
    let made = engine.enqueue(offer, "");
    gate.notify_one();
    let Outcome::Created(job) = made.await.unwrap() else { panic!("not made") };
    let cancelled = {
        let engine = engine.clone();
        let id = job.id;
        tokio::spawn(async move { engine.cancel(id, Bearer::default()).await })
    };
    while store.flights.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    let watch = engine.store().hints().watch(job.id);
    let mut news = std::pin::pin!(watch.news());
    news.as_mut().enable();
    gate.notify_one();
    tokio::time::timeout(Duration::from_secs(60), news).await.expect("it was written");
    cancelled.await.unwrap().unwrap();
}

/// Two callers keep at least one of the two keys in flight at all times.
#[tokio::test(start_paused = true)]
async fn who_needs_several_records_has_his_turn_however_busy_each_is() {
    let gate = Arc::new(Notify::new());
    let store = Arc::new(Abreast::new(Arc::new(Memory::default()), Some(Arc::clone(&gate))));
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    for (under_way, name) in [(1, "a"), (2, "b")] {
        let engine = engine.clone();
        tokio::spawn(async move {
            loop {
                engine.enqueue(keyed(name).on_conflict("replace").offer(), "").await.unwrap();
            }
        });
        while store.flights.load(Ordering::SeqCst) < under_way {
            tokio::task::yield_now().await;
        }
    }
    let both = ["a", "b"].map(|name| keyed(name).on_conflict("replace").offer()).to_vec();
    let both = tokio::spawn(async move { engine.enqueue_batch(both, Mode::Each, "").await });
    for _ in 0..10 {
        gate.notify_one();
        // Until every task waits for the gate.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(both.is_finished(), "others take one of them after the other");
    assert!(matches!(both.await.unwrap(), Ok(Admitted::Done(_))));
}

/// A store in which another client has locked one job's key.
struct Locked {
    inner: Memory,
    is_locked: Mutex<bool>,
}

impl Layer for Locked {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            let is_busy = |text: &bytes::Bytes| text.windows(6).any(|part| part == b"locked");
            let wants = batch.groups.iter().any(|group| {
                group.writes.iter().any(|write| match write {
                    semel_core::draft::Write::Insert { body, .. } => is_busy(body),
                    _ => false,
                })
            });
            if wants && *self.is_locked.lock().unwrap() {
                assert_eq!(batch.groups.len(), 1, "nobody else is in its group");
                return Ok(Applied { groups: vec![Verdict::Busy], ..Applied::default() });
            }
            self.inner.commit(batch).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_lock_delays_nobody_and_is_told_in_the_end() {
    let store = Arc::new(Locked { inner: Memory::default(), is_locked: Mutex::new(true) });
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let wait = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.enqueue(keyed("locked").args("[\"locked\"]").offer(), "").await })
    };
    tokio::task::yield_now().await;
    let begun = tokio::time::Instant::now();
    for number in 0..50 {
        engine.enqueue(keyed(&format!("{number}")).offer(), "").await.unwrap();
    }
    assert!(begun.elapsed() < Duration::from_millis(1), "nobody waited");
    let answer = wait.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Contended)), "{answer:?}");
    assert!(begun.elapsed() >= semel_store::WAIT_MAX);
    let wait = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.enqueue(keyed("locked").args("[\"locked\"]").offer(), "").await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!wait.is_finished());
    *store.is_locked.lock().unwrap() = false;
    assert!(matches!(wait.await.unwrap(), Ok(Outcome::Created(_))));
}
