//! Where a test has its store: a schema of its own in the server that the run was given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::draft::Reads;
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_store::Backend;
use semel_store::clock::ManualClock;
use semel_store::outbox::Read;
use semel_testkit::crash::Account;
use semel_testkit::database::schema_name;
pub use semel_testkit::database::url;
use semel_testkit::runtime::wait_for;
use tokio_postgres::{Client, NoTls};

/// A schema of a test's own.
pub struct Place {
    address: Address,
    schema: String,
    url: String,
}

impl Place {
    pub fn new() -> Self {
        Self::at(&url())
    }

    /// One in a server of which the test knows more.
    pub fn at(url: &str) -> Self {
        let schema = schema_name();
        Self {
            address: Address::parse(url).unwrap().with_schema(&schema).unwrap(),
            schema,
            url: url.to_owned(),
        }
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
        let (sql, url) = (format!("DROP SCHEMA IF EXISTS {} CASCADE", self.0.schema), self.0.url.clone());
        wait_for(async move {
            let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await else {
                return;
            };
            tokio::spawn(connection);
            // What is left behind costs time and nothing else.
            drop(client.batch_execute(&sql).await);
        });
    }
}

/// A connection of a test's own.
pub async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until a statement says so. Who asks is let go on in between.
pub async fn until(client: &Client, sql: &str) {
    let begun = Instant::now();
    while !client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {sql}");
        tokio::task::yield_now().await;
    }
}

/// Has the outbox relayed until `number` entries are. Once is mostly enough; an entry is left for the next time where the database has
/// its own tables locked for longer than the relay waits, as it has when it makes them smaller.
pub async fn relayed(engine: &Engine, store: &Postgres, read: &Read, number: usize) {
    let (begun, mut relayed) = (Instant::now(), 0);
    while relayed < number {
        relayed += engine.relay_once(store, read).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60), "{relayed} of {number}");
    }
    assert_eq!(relayed, number);
}

/// Judges what callers were told by a store as it is when all leases have run out.
#[allow(clippy::print_stdout, reason = "whoever asks for many rounds wants to know what they were")]
pub async fn judge(account: &Account, address: &Address, round: u64) {
    let now = Postgres::open(address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    let clock = ManualClock::at(now.saturating_add(Duration::from_secs(3_600)));
    let seen = account.judge(Arc::new(Postgres::open_with_clock(address, clock).await.unwrap()), round).await;
    println!("{seen:?}");
}
