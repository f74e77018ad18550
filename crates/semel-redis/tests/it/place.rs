//! Where a test keeps its store: under a prefix of its own in the server that the test run was given.

use std::sync::Arc;

use semel_redis::{Address, Redis};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::patience::PATIENCE;
use semel_testkit::redis::{prefix, url};
use semel_testkit::runtime::wait_for;

/// A test's own prefix.
pub struct Place {
    address: Address,
}

impl Place {
    pub fn new() -> Self {
        Self::at(&url())
    }

    /// A prefix in a server of the test's choice. No partition counts as away, however late it answers.
    pub fn at(url: &str) -> Self {
        let address = Address::parse(url).unwrap().with_prefix(&prefix()).unwrap();
        Self { address: address.with_away_after(PATIENCE) }
    }

    /// A place whose store is divided.
    pub fn divided(partitions: u16) -> Self {
        let address = Self::new().address.with_partitions(partitions).unwrap();
        Self { address }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Opens the store with a clock that is moved by hand.
    pub fn open_with(&self, clock: &ManualClock) -> Arc<dyn Backend> {
        let (address, clock) = (self.address.clone(), clock.clone());
        wait_for(async move { Arc::new(Redis::open_with_clock(&address, clock).await.unwrap()) })
    }
}

/// A place whose store is deleted with it.
pub struct Passing(pub Place);

impl Drop for Passing {
    fn drop(&mut self) {
        let address = self.0.address.clone();
        wait_for(async move {
            // A store left behind costs room and nothing else.
            if let Ok(store) = Redis::open(&address).await {
                drop(store.clear().await);
            }
        });
    }
}
