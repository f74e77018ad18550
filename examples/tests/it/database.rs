//! A separate database for each test: the examples use the schemas that a shop would use.

use std::time::Duration;

use semel_testkit::database::{schema_name, url};
use tokio_postgres::{Client, NoTls};

/// Longer than anything takes unless it hangs.
const LONG: Duration = Duration::from_secs(120);

pub(crate) struct Database {
    pub(crate) url: String,
    name: String,
    client: Client,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Database {
    pub(crate) async fn create() -> Self {
        let (server, name) = (url(), schema_name());
        connect(&server).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self { client: connect(&url).await, url, name }
    }

    /// Opens another connection to the database.
    pub(crate) async fn another(&self) -> Connection {
        Connection(connect(&self.url).await)
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    /// The single number that a statement answers.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// The single text that a statement answers.
    pub(crate) async fn text(&self, sql: &str) -> String {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Waits until a statement answers at least that number.
    pub(crate) async fn until(&self, sql: &str, number: i64) {
        let reached = async {
            while self.number(sql).await < number {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, reached).await.unwrap_or_else(|_| panic!("never {number}: {sql}"));
    }

    /// Drops the database, and cuts off everything still connected.
    pub(crate) async fn drop(self) {
        drop(self.client);
        let drops = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        connect(&url()).await.batch_execute(&drops).await.unwrap();
    }
}

/// A connection that may have a transaction open.
pub(crate) struct Connection(Client);

impl Connection {
    pub(crate) async fn execute(&self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    /// Waits until another connection waits for a lock that this one holds.
    pub(crate) async fn until_it_blocks_somebody(&self, database: &Database) {
        let pid: i32 = self.0.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let blocked =
            format!("SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY (pg_blocking_pids(pid))");
        database.until(&blocked, 1).await;
    }
}
