//! Records that are away, in a store of several parts, and those who need them.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{KeyRead, Reads, Snapshot};
use semel_core::enqueue::{Batch, Mode, Outcome};
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_store::StoreError;
use semel_store::backend::{Backend, BoxFuture, Facts};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_testkit::make::{key, keyed};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A store that has one key in a part of its own, which is away.
struct Parted {
    inner: Memory,
    /// A permit for each load that has begun to wait for it.
    begun: Semaphore,
    /// What they wait for, one each.
    gate: Semaphore,
}

fn is_away(read: &KeyRead) -> bool {
    read.key == key("away")
}

impl Layer for Parted {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            if reads.keys.iter().any(is_away) {
                self.begun.add_permits(1);
                self.gate.acquire().await.unwrap().forget();
            }
            self.inner.load(reads).await
        })
    }

    fn load_soon<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<(Snapshot, Reads), StoreError>> {
        Box::pin(async move {
            let (away, there): (Vec<KeyRead>, Vec<KeyRead>) = reads.keys.iter().copied().partition(is_away);
            let there = Reads { keys: there, ..reads.clone() };
            Ok((self.inner.load(&there).await?, Reads { keys: away, ..Reads::default() }))
        })
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: 2, ..self.inner.facts() }
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_is_away_keeps_nobody_from_the_rest_of_what_he_needs() {
    let (begun, gate) = (Semaphore::new(0), Semaphore::new(0));
    let store = Arc::new(Parted { inner: Memory::default(), begun, gate });
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

/// However many ask for it, and for how long each of them waits.
#[tokio::test(start_paused = true)]
async fn who_only_reads_what_is_away_keeps_nobody_from_reading_the_rest() {
    const READERS: usize = 50;
    let (begun, gate) = (Semaphore::new(0), Semaphore::new(0));
    let store = Arc::new(Parted { inner: Memory::default(), begun, gate });
    let engine = Engine::without_duties(Arc::clone(&store) as Arc<dyn Backend>).unwrap();
    let away = KeyRead { key: key("away"), states: StateSet::ALL, all: false };
    let read = || {
        let (engine, reads) = (engine.clone(), Reads { keys: vec![away], ..Reads::default() });
        tokio::spawn(async move { engine.store().load(reads).await })
    };
    let readers: Vec<_> = (0..READERS).map(|_| read()).collect();
    store.begun.acquire().await.unwrap().forget();
    for _ in 0..READERS {
        timeout(Duration::from_secs(60), engine.now()).await.expect("nothing of it is away").unwrap();
    }
    // Those who have given up are not served when it is back.
    let begun = 1 + store.begun.available_permits();
    assert!(begun < READERS, "{begun}");
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    for reader in readers {
        assert!(reader.await.unwrap_err().is_cancelled());
    }
    let last = read();
    store.gate.add_permits(begun + 1);
    timeout(Duration::from_secs(60), last).await.expect("it is back").unwrap().unwrap();
    assert_eq!(1 + store.begun.available_permits(), begun + 1);
}
