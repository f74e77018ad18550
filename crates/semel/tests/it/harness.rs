//! Queues and jobs that several tests use.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel::{Job, Semel};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde::{Deserialize, Serialize};

/// Longer than anything takes that works; hints make the tests fast, not this.
pub(crate) const LONG: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(type = "email.welcome", unique(args("user_id"), on_conflict = "ignore"))]
pub(crate) struct Welcome {
    pub(crate) user_id: u64,
    #[serde(default)]
    pub(crate) text: String,
}

impl Welcome {
    pub(crate) fn of(user_id: u64) -> Self {
        Self { user_id, text: String::new() }
    }
}

/// Nobody's duplicate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(type = "sum.add")]
pub(crate) struct Add {
    pub(crate) a: i64,
    pub(crate) b: i64,
}

pub(crate) async fn memory() -> Semel {
    Semel::open("memory:").await.unwrap()
}

/// A queue whose time stands still until it is moved.
pub(crate) fn still() -> (Semel, ManualClock) {
    let clock = ManualClock::default();
    (Semel::on(Arc::new(Memory::new(clock.clone()))).unwrap(), clock)
}

/// Whatever hangs is shown.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it hangs")
}
