//! A decision that writes nothing waits for no commit, unless it depends on what an earlier decision of its
//! batch writes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use semel_core::draft::{Draft, Reads, Snapshot};
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::ident::JobId;
use semel_core::job::Head;
use semel_core::lease::Bearer;
use semel_core::life;
use semel_core::retention::Retention;
use semel_core::state::StateSet;
use semel_engine::Engine;
use semel_store::backend::{Applied, Batch, BoxFuture};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, Store, StoreError};
use semel_testkit::make::{Want, keyed};
use semel_testkit::transact::transact;
use tokio::time::Instant;

/// An offer that a holder in any state blocks.
fn lasting(name: &str) -> Want {
    keyed(name).states(StateSet::ALL).on_conflict("ignore")
}

async fn stored(store: &Memory, name: &str) -> JobId {
    let (mut reads, offer) = (Reads::default(), lasting(name).offer());
    offer.reads(&mut reads);
    match transact(store, &reads, |draft| enqueue(draft, &offer)).await.unwrap() {
        Outcome::Created(head) => head.id,
        other => panic!("{other:?}"),
    }
}

/// A draft over these names' keys and their holders.
async fn batch(store: &Memory, names: &[&str]) -> Draft {
    let mut reads = Reads::default();
    names.iter().for_each(|name| lasting(name).offer().reads(&mut reads));
    Draft::new(store.load(&reads).await.unwrap(), 7, store.rows())
}

/// Decides on an offer. Returns whether a holder was found, and whether the decision depends on the store
/// alone.
fn offer(draft: &mut Draft, offer: &Offer) -> (bool, bool) {
    let outcome = enqueue(draft, offer).unwrap();
    let is_apart = draft.rests_on_store_alone();
    let group = draft.finish();
    assert_eq!(group.is_empty(), !outcome.is_inserted());
    (!outcome.is_inserted(), is_apart)
}

#[tokio::test]
async fn a_duplicate_rests_on_the_store_alone_until_somebody_in_its_batch_touches_its_key() {
    let store = Memory::new(ManualClock::default());
    let (held, _) = (stored(&store, "a").await, stored(&store, "b").await);
    let mut draft = batch(&store, &["a", "b", "new"]).await;
    assert_eq!(offer(&mut draft, &lasting("a").offer()), (true, true));
    assert_eq!(offer(&mut draft, &lasting("new").offer()), (false, false), "it writes");
    assert_eq!(offer(&mut draft, &lasting("new").offer()), (true, false), "its holder is of this batch");
    let reads = Reads { heads: vec![held], ..Reads::default() };
    draft.extend(store.load(&reads).await.unwrap());
    life::cancel(&mut draft, held, &Bearer::default()).unwrap();
    assert!(!draft.rests_on_store_alone());
    assert!(!draft.finish().is_empty());
    assert_eq!(offer(&mut draft, &lasting("a").offer()), (true, false), "its holder was just cancelled");
    assert_eq!(offer(&mut draft, &lasting("b").offer()), (true, true), "nobody has touched the other");
}

/// Whatever happened to the holder: it was cancelled, released its key, or was purged.
#[tokio::test]
async fn one_whose_holder_was_written_before_its_key_was_loaded_does_not() {
    let writes: [fn(&mut Draft, Head); 3] = [
        |draft, head| {
            life::cancel(draft, head.id, &Bearer::default()).unwrap();
        },
        |draft, head| draft.update(&mut Head { key: None, ..head }),
        |draft, head| draft.forget(&head, None),
    ];
    for write in writes {
        let store = Memory::new(ManualClock::default());
        let held = stored(&store, "a").await;
        let mut reads = Reads { heads: vec![held], ..Reads::default() };
        let mut draft = Draft::new(store.load(&reads).await.unwrap(), 7, store.rows());
        let head = draft.head(held).unwrap().unwrap();
        write(&mut draft, head);
        assert!(!draft.finish().is_empty());
        reads.clear();
        lasting("a").offer().reads(&mut reads);
        draft.extend(store.load(&reads).await.unwrap());
        draft.key(&reads.keys[0]).unwrap();
        assert!(!draft.rests_on_store_alone());
    }
}

#[tokio::test]
async fn who_looked_at_nothing_is_not_said_to_rest_on_the_store() {
    let store = Memory::new(ManualClock::default());
    let draft = batch(&store, &["a"]).await;
    assert!(!draft.rests_on_store_alone());
}

/// A store that starts to fail at some point, and may find at that moment that it has moved.
#[derive(Default)]
struct Failing {
    inner: Memory,
    fails: AtomicBool,
    moves: bool,
    moved: OnceLock<Instant>,
    loads: AtomicUsize,
}

impl Layer for Failing {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(reads)
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        if !self.fails.load(Ordering::SeqCst) {
            return self.inner.commit(batch);
        }
        if self.moves {
            let _ = self.moved.set(Instant::now());
        }
        Box::pin(std::future::ready(Err(StoreError::Unavailable("gone".to_owned()))))
    }

    fn moved(&self) -> Option<Instant> {
        self.moved.get().copied()
    }
}

/// Offers a new job and a duplicate of a stored one in one group whose commit fails. Returns both answers,
/// and how often the store was loaded.
async fn beside_a_failure(moves: bool) -> ([Result<Outcome, StoreError>; 2], usize) {
    let store = Arc::new(Failing { moves, ..Failing::default() });
    let (opened, batcher) =
        Store::with_batcher(Arc::clone(&store) as Arc<dyn Backend>, Retention::default(), 1);
    let (engine, mut batcher) = (Engine::on(opened), std::pin::pin!(batcher));
    tokio::select! {
        first = engine.enqueue(lasting("a").offer(), "first") => assert!(first.unwrap().is_inserted()),
        () = &mut batcher => panic!("the batcher has ended"),
    }
    store.fails.store(true, Ordering::SeqCst);
    store.loads.store(0, Ordering::SeqCst);
    let (new, known) = (lasting("new").offer(), lasting("a").offer());
    // Both requests are in the inbox before the batcher runs.
    let told = tokio::select! {
        biased;
        told = async { tokio::join!(engine.enqueue(new, "new"), engine.enqueue(known, "known")) } => told,
        () = &mut batcher => panic!("the batcher has ended"),
    };
    ([told.0, told.1], store.loads.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_duplicate_is_answered_beside_a_commit_that_fails() {
    let ([new, known], loads) = beside_a_failure(false).await;
    assert!(matches!(new, Err(StoreError::Unavailable(_))), "{new:?}");
    assert!(matches!(known, Ok(Outcome::Existing(_))), "{known:?}");
    assert_eq!(loads, 1, "they were one group");
}

#[tokio::test]
async fn one_that_saw_what_may_be_nowhere_any_more_is_decided_again() {
    let ([new, known], loads) = beside_a_failure(true).await;
    assert!(matches!(new, Err(StoreError::Unavailable(_))), "{new:?}");
    assert!(matches!(known, Ok(Outcome::Existing(_))), "{known:?}");
    assert!(loads > 1, "it was looked at once more");
}
