//! Where a test has its store: a schema of its own in the server that the run was given.

use std::sync::{Arc, LazyLock};

use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_testkit::database::schema_name;
pub use semel_testkit::database::url;
use tokio::runtime::Runtime;

/// Connections live in here, whatever runtime a test has.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

/// A schema of a test's own.
pub struct Place {
    address: Address,
    schema: String,
}

impl Place {
    pub fn new() -> Self {
        let schema = schema_name();
        Self { address: Address::parse(&url()).unwrap().with_schema(&schema).unwrap(), schema }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The store, by a clock that is moved by hand.
    pub fn open_with(&self, clock: &ManualClock) -> Arc<dyn Backend> {
        let (address, clock) = (self.address.clone(), clock.clone());
        wait_for(async move { Arc::new(Postgres::open_with_clock(&address, clock).await.unwrap()) })
    }
}

/// A place that goes with its owner: PostgreSQL looks for a function among those of its name in all schemas, so hundreds of
/// them that nobody needs any more make every new connection slow.
pub struct Passing(pub Place);

impl Drop for Passing {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.0.schema);
        wait_for(async move {
            let Ok((client, connection)) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await
            else {
                return;
            };
            tokio::spawn(connection);
            // What is left behind costs time and nothing else.
            drop(client.batch_execute(&sql).await);
        });
    }
}

/// Waits for something outside of the test's own runtime, which may have one thread only.
pub fn wait_for<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    std::thread::spawn(move || RUNTIME.block_on(work)).join().unwrap()
}
