//! A store whose commits wait for a permit: simulates a slow disk.

use semel_store::backend::{Applied, Batch, BoxFuture};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, StoreError};
use tokio::sync::Semaphore;

/// The in-memory store behind a gate.
pub struct Gated {
    /// The store behind the gate.
    pub inner: Memory,
    /// Gets a permit for each commit that has arrived at the gate.
    pub begun: Semaphore,
    /// The permits that commits wait for, one each.
    pub gate: Semaphore,
}

impl Gated {
    /// A gate that lets the first `permits` commits through.
    pub fn new(inner: Memory, permits: usize) -> Self {
        Self { inner, begun: Semaphore::new(0), gate: Semaphore::new(permits) }
    }
}

impl Layer for Gated {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn commit(&self, batch: Batch) -> BoxFuture<'_, Result<Applied, StoreError>> {
        Box::pin(async move {
            self.begun.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
            self.inner.commit(batch).await
        })
    }
}
