//! Queues and jobs shared by several tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel::{CancellationToken, Job, JobId, Return, Semel, State};
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// Longer than anything takes that works; the tests are fast because of hints, not because of this.
pub(crate) const LONG: Duration = Duration::from_secs(60);

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

/// A job without uniqueness.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(type = "sum.add")]
pub(crate) struct Add {
    pub(crate) a: i64,
    pub(crate) b: i64,
}

pub(crate) async fn memory() -> Semel {
    Semel::open("memory:").await.unwrap()
}

/// A queue whose time stands still until a test moves it.
pub(crate) fn still() -> (Semel, ManualClock) {
    let clock = ManualClock::default();
    (Semel::on(Arc::new(Memory::new(clock.clone()))).unwrap(), clock)
}

/// Panics if the future hangs.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it hangs")
}

#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) begun: mpsc::UnboundedSender<JobId>,
    pub(crate) told: mpsc::UnboundedSender<JobId>,
}

/// A handler that waits for its cancellation token.
pub(crate) async fn until_told(
    job: Add,
    id: JobId,
    token: CancellationToken,
    State(gate): State<Gate>,
) -> Result<(), String> {
    gate.begun.send(id).unwrap();
    token.cancelled().await;
    gate.told.send(id).unwrap();
    if job.b == 1 { Err("told to stop".to_owned()) } else { Ok(()) }
}

pub(crate) type Ids = mpsc::UnboundedReceiver<JobId>;

pub(crate) fn gate() -> (Gate, Ids, Ids) {
    let (begun, has_begun) = mpsc::unbounded_channel();
    let (told, was_told) = mpsc::unbounded_channel();
    (Gate { begun, told }, has_begun, was_told)
}

/// Runs a test on `memory:`, on a file, and on a database.
macro_rules! on_every_store {
    ($($name:ident),+ $(,)?) => {
        mod on_memory {
            $(#[tokio::test]
            async fn $name() {
                let semel = crate::harness::memory().await;
                crate::harness::soon(super::$name(semel.clone())).await;
                semel.close().await.unwrap();
            })+
        }
        mod on_a_file {
            $(#[tokio::test]
            async fn $name() {
                let dir = semel_testkit::fixture::TempDir::new();
                let url = format!("sqlite:{}", dir.path().join("jobs.db").display());
                let semel = semel::Semel::open(&url).await.unwrap();
                crate::harness::soon(super::$name(semel.clone())).await;
                semel.close().await.unwrap();
            })+
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let semel = semel::Semel::open(&semel_testkit::database::store_url()).await.unwrap();
                crate::harness::soon(super::$name(semel.clone())).await;
                semel.close().await.unwrap();
            })+
        }
    };
}
pub(crate) use on_every_store;

pub(crate) async fn add(job: Add) -> Return<i64> {
    Return(job.a + job.b)
}
