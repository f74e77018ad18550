//! Where a test has its store: under a prefix of its own in the server that the run was given.

use std::sync::Arc;

use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::patience::PATIENCE;
use semel_testkit::redis::{prefix, url};
use semel_testkit::runtime::wait_for;

/// A prefix of a test's own.
pub struct Place {
    address: Address,
}

impl Place {
    pub fn new() -> Self {
        Self::at(&url())
    }

    /// One in a server of which the test knows more. Its partitions are all there, however late one of them answers.
    pub fn at(url: &str) -> Self {
        let address = Address::parse(url).unwrap().with_prefix(&prefix()).unwrap();
        Self { address: address.with_away_after(PATIENCE) }
    }

    /// One that is divided.
    pub fn divided(partitions: u16) -> Self {
        let address = Self::new().address.with_partitions(partitions).unwrap();
        Self { address }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The store, by a clock that is moved by hand.
    pub fn open_with(&self, clock: &ManualClock) -> Arc<dyn Backend> {
        let (address, clock) = (self.address.clone(), clock.clone());
        wait_for(async move { Arc::new(Redis::open_with_clock(&address, clock).await.unwrap()) })
    }
}

/// A place that goes with its owner.
pub struct Passing(pub Place);

impl Drop for Passing {
    fn drop(&mut self) {
        let address = self.0.address.clone();
        wait_for(async move {
            // What is left behind costs room and nothing else.
            if let Ok(store) = Redis::open(&address).await {
                drop(store.clear().await);
            }
        });
    }
}
