//! Where a test keeps its store: a schema of its own in the server that the test run was given.

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

/// A test's own schema.
pub struct Place {
    address: Address,
    schema: String,
    url: String,
}

impl Place {
    pub fn new() -> Self {
        Self::at(&url())
    }

    /// A schema in a server of the test's choice.
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

    /// Opens the store with a clock that is moved by hand.
    pub fn open_with(&self, clock: &ManualClock) -> Arc<dyn Backend> {
        let (address, clock) = (self.address.clone(), clock.clone());
        wait_for(async move { Arc::new(Postgres::open_with_clock(&address, clock).await.unwrap()) })
    }
}

/// A place whose schema is dropped with it: PostgreSQL looks for a function among those of its name in all
/// schemas, so hundreds of unused ones make every new connection slow.
pub struct Passing(pub Place);

impl Drop for Passing {
    fn drop(&mut self) {
        let (sql, url) = (format!("DROP SCHEMA IF EXISTS {} CASCADE", self.0.schema), self.0.url.clone());
        wait_for(async move {
            let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await else {
                return;
            };
            tokio::spawn(connection);
            // A schema left behind costs time and nothing else.
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

/// Waits until a query returns true, yielding to other tasks in between.
pub async fn until(client: &Client, sql: &str) {
    let begun = Instant::now();
    while !client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {sql}");
        tokio::task::yield_now().await;
    }
}

/// Relays the outbox until `number` entries are relayed. Once is mostly enough, but an entry is left for the
/// next time while the database has its own tables locked for longer than the relay waits, as it does when it
/// truncates them.
pub async fn relayed(engine: &Engine, store: &Postgres, read: &Read, number: usize) {
    let (begun, mut relayed) = (Instant::now(), 0);
    while relayed < number {
        relayed += engine.relay_once(store, read).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(60), "{relayed} of {number}");
    }
    assert_eq!(relayed, number);
}

/// Judges what callers were told, by the store as it is after all leases have run out.
#[allow(clippy::print_stdout, reason = "whoever asks for many rounds wants to know what they were")]
pub async fn judge(account: &Account, address: &Address, round: u64) {
    let now = Postgres::open(address).await.unwrap().load(&Reads::default()).await.unwrap().now;
    let clock = ManualClock::at(now.saturating_add(Duration::from_secs(3_600)));
    let seen = account.judge(Arc::new(Postgres::open_with_clock(address, clock).await.unwrap()), round).await;
    println!("{seen:?}");
}
