//! No request delays or spoils another: reads for display do not queue behind decisions, and an unreadable
//! record fails only the requests that need it.

use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::{Reads, Snapshot};
use semel_core::enqueue::{Offer, Outcome, enqueue};
use semel_core::ident::JobId;
use semel_core::lease::Bearer;
use semel_core::life;
use semel_core::settle::Settled;
use semel_store::backend::{BoxFuture, Facts, Filter};
use semel_store::clock::ManualClock;
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, Store, StoreError};
use semel_testkit::make::{foreign_id, job, keyed};
use tokio::sync::Semaphore;

/// A store whose housekeeping runs until a test lets it go on.
struct Busy {
    inner: Memory,
    begun: Semaphore,
    over: Semaphore,
}

impl Layer for Busy {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn maintain(&self) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            self.begun.add_permits(1);
            drop(self.over.acquire().await);
            self.inner.maintain().await
        })
    }
}

async fn offer(store: &Store, offer: Offer) -> Result<Outcome, StoreError> {
    let mut reads = Reads::default();
    offer.reads(&mut reads);
    store.decide(reads, move |draft| enqueue(draft, &offer)).await
}

#[tokio::test(start_paused = true)]
async fn what_takes_long_holds_up_nobody_who_decides() {
    let (begun, over) = (Semaphore::new(0), Semaphore::new(0));
    let busy = Arc::new(Busy { inner: Memory::new(ManualClock::default()), begun, over });
    let store = Store::open(Arc::clone(&busy) as Arc<dyn Backend>).unwrap();
    let house = tokio::spawn({
        let store = store.clone();
        async move { store.maintain().await }
    });
    busy.begun.acquire().await.unwrap().forget();
    let admitted = tokio::time::timeout(Duration::from_secs(60), offer(&store, job().offer())).await;
    assert!(matches!(admitted, Ok(Ok(Outcome::Created(_)))), "{admitted:?}");
    assert!(!house.is_finished());
    // Closing waits for the housekeeping.
    let mut closing = Box::pin(store.close());
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut closing).await.is_err());
    busy.over.close();
    assert!(!house.await.unwrap().unwrap());
    closing.await;
    assert!(matches!(store.list(Filter::default()).await, Err(StoreError::Closed)));
    assert!(matches!(store.maintain().await, Err(StoreError::Closed)));
}

/// A store with one unreadable job.
struct Spoiled {
    inner: Memory,
    job: JobId,
    /// Commits that may be in flight at once.
    commits: usize,
}

impl Layer for Spoiled {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        if reads.heads.contains(&self.job) || reads.fulls.contains(&self.job) {
            let error = StoreError::Corrupt(format!("job {}: it is no job", self.job));
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.load(reads)
    }

    fn facts(&self) -> Facts {
        Facts { commits_in_flight: self.commits, ..self.inner.facts() }
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_fails_only_who_asks_for_it() {
    let job = foreign_id(1);
    let inner = Memory::new(ManualClock::default());
    let store = Store::open(Arc::new(Spoiled { inner, job, commits: 1 })).unwrap();
    let Outcome::Created(other) = offer(&store, keyed("a").offer()).await.unwrap() else { panic!() };
    let cancel = |id: JobId| {
        let reads = Reads { heads: vec![id], ..Reads::default() };
        store.decide(reads, move |draft| life::cancel(draft, id, &Bearer::default()))
    };
    // All of them are in one group: the batcher runs when this task waits.
    let (spoiled, cancelled, made) =
        tokio::join!(cancel(job), cancel(other.id), offer(&store, keyed("b").offer()));
    let error = spoiled.unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt(what) if what.contains(&job.to_string())), "{error}");
    assert!(matches!(cancelled.unwrap(), Settled::Done(_)));
    assert!(matches!(made.unwrap(), Outcome::Created(_)));
}

#[tokio::test]
async fn whoever_loads_what_cannot_be_read_is_told_alone() {
    let job = foreign_id(1);
    let inner = Memory::new(ManualClock::default());
    let store = Store::open(Arc::new(Spoiled { inner, job, commits: 2 })).unwrap();
    let load = |id: JobId| {
        let (store, reads) = (store.clone(), Reads { heads: vec![id], ..Reads::default() });
        tokio::spawn(async move { store.load(reads).await })
    };
    // All of them share one load, except those that come when none is under way: the batcher runs when this
    // task waits.
    for (id, told) in [2, 3, 4, 1, 5, 6].map(foreign_id).map(|id| (id, load(id))) {
        match told.await.unwrap() {
            Ok(snapshot) => assert!(id != job && snapshot.has_head(id) && !snapshot.has_head(job)),
            Err(error) => assert!(id == job && matches!(error, StoreError::Corrupt(_)), "{id}: {error}"),
        }
    }
}
