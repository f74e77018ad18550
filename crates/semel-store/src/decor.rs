//! Stores that misbehave on purpose, for tests of everything above a store: they fail before or after the act,
//! or are slow. Without a fault they behave as the store they wrap.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::draft::{Reads, Snapshot};

use crate::backend::{Applied, Backend, Batch, BoxFuture};
use crate::error::StoreError;
use crate::layer::Layer;

/// The fault of one load or commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails before anything is done.
    Before,
    /// It is done, and the reply is lost: the caller gets an error instead.
    After,
}

/// The source of a store's faults.
#[derive(Debug)]
enum Source {
    Script(VecDeque<Fault>),
    /// The generator's state, and how many of 1,024 calls fail.
    Rate(u64, u64),
}

/// A store whose loads and commits fail, either by a script or at a seeded rate.
pub struct Faulty<B: ?Sized> {
    loads: Mutex<Source>,
    commits: Mutex<Source>,
    inner: Arc<B>,
}

impl Source {
    fn next(&mut self) -> Fault {
        match self {
            Self::Script(script) => script.pop_front().unwrap_or(Fault::None),
            Self::Rate(state, per_1024) => {
                *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let dice = *state >> 33;
                match (dice % 1024 < *per_1024, dice & (1 << 20) == 0) {
                    (false, _) => Fault::None,
                    (true, true) => Fault::Before,
                    (true, false) => Fault::After,
                }
            }
        }
    }
}

fn take(source: &Mutex<Source>) -> Fault {
    source.lock().unwrap_or_else(PoisonError::into_inner).next()
}

fn lost() -> StoreError {
    StoreError::Unavailable("a fault was injected".to_owned())
}

impl<B: Backend + ?Sized> Faulty<B> {
    /// A store without faults until a script is set.
    pub fn new(inner: Arc<B>) -> Self {
        let none = || Mutex::new(Source::Script(VecDeque::new()));
        Self { loads: none(), commits: none(), inner }
    }

    /// A store where `per_1024` of 1,024 loads and commits fail, chosen by `seed`.
    pub fn at_rate(inner: Arc<B>, seed: u64, per_1024: u64) -> Self {
        let rate = |seed| Mutex::new(Source::Rate(seed, per_1024));
        Self { loads: rate(seed), commits: rate(seed ^ 0x9e37_79b9_7f4a_7c15), inner }
    }

    /// Sets the faults of the next loads, one each; later loads have none.
    pub fn script_loads(&self, faults: impl IntoIterator<Item = Fault>) {
        *self.loads.lock().unwrap_or_else(PoisonError::into_inner) =
            Source::Script(faults.into_iter().collect());
    }

    /// Sets the faults of the next commits, one each; later commits have none.
    pub fn script_commits(&self, faults: impl IntoIterator<Item = Fault>) {
        *self.commits.lock().unwrap_or_else(PoisonError::into_inner) =
            Source::Script(faults.into_iter().collect());
    }
}

/// A store that delays every load and commit.
pub struct Slow<B: ?Sized> {
    delay: Duration,
    inner: Arc<B>,
}

impl<B: Backend + ?Sized> Slow<B> {
    /// Delays `inner` by `delay`. Needs tokio's clock.
    pub fn new(inner: Arc<B>, delay: Duration) -> Self {
        Self { delay, inner }
    }
}

impl<B: Backend + ?Sized> Layer for Faulty<B> {
    type Inner = B;

    fn inner(&self) -> &B {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        let fault = take(&self.loads);
        Box::pin(async move {
            match fault {
                Fault::None => self.inner.load(reads).await,
                Fault::Before => Err(lost()),
                Fault::After => self.inner.load(reads).await.and(Err(lost())),
            }
        })
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let fault = take(&self.commits);
        let told = if fault == Fault::None { Ok(()) } else { Err(lost()) };
        Box::pin(std::future::ready(told))
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        let fault = take(&self.commits);
        Box::pin(async move {
            match fault {
                Fault::None => self.inner.commit(batch).await,
                Fault::Before => Err(lost()),
                Fault::After => self.inner.commit(batch).await.and(Err(lost())),
            }
        })
    }
}

impl<B: Backend + ?Sized> Layer for Slow<B> {
    type Inner = B;

    fn inner(&self) -> &B {
        &self.inner
    }

    fn load<'a>(&'a self, reads: &'a Reads) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            tokio::time::sleep(self.delay).await;
            self.inner.load(reads).await
        })
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            tokio::time::sleep(self.delay).await;
            self.inner.commit(batch).await
        })
    }
}
