//! The database drivers whose transactions jobs can join, behind one trait, so that the same tests run on all
//! of them.

use std::future::Future;

use diesel::sql_types::Text;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use semel::session::Session;
use semel::{InTransaction, Semel};
use semel_testkit::database::url;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use tokio_postgres::NoTls;

/// A connection used by one test only.
pub(crate) trait Driver: Send + Sized + 'static {
    /// Connects to the database server of this test run.
    fn connect() -> impl Future<Output = Self> + Send;

    /// Begins a transaction with the given statement.
    fn begin_by(&mut self, sql: &'static str) -> impl Future<Output = ()> + Send;

    /// Commits the transaction, or rolls it back.
    fn end(&mut self, commits: bool) -> impl Future<Output = ()> + Send;

    /// Executes a statement.
    fn execute(&mut self, sql: String) -> impl Future<Output = ()> + Send;

    /// Returns a query's single text value.
    fn ask(&mut self, sql: String) -> impl Future<Output = String> + Send;

    /// The transaction as a [`Session`].
    fn session(&mut self) -> impl Session + '_;

    /// Begins a transaction at the database's default isolation level.
    fn begin(&mut self) -> impl Future<Output = ()> + Send {
        self.begin_by("BEGIN")
    }

    /// The queue inside the transaction.
    fn inside(&mut self, semel: &Semel) -> InTransaction<'_> {
        semel.in_transaction(self.session())
    }
}

/// tokio-postgres, as [`crate::transaction`] uses it.
pub(crate) struct OfTokioPostgres(tokio_postgres::Client);

impl Driver for OfTokioPostgres {
    async fn connect() -> Self {
        let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn begin_by(&mut self, sql: &'static str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    async fn end(&mut self, commits: bool) {
        self.0.batch_execute(if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
    }

    async fn execute(&mut self, sql: String) {
        self.0.batch_execute(&sql).await.unwrap();
    }

    async fn ask(&mut self, sql: String) -> String {
        self.0.query_one(&format!("SELECT ({sql})::text"), &[]).await.unwrap().get(0)
    }

    fn session(&mut self) -> impl Session + '_ {
        &self.0
    }
}

/// sqlx, where a transaction is a value from a pool of its own.
pub(crate) struct OfSqlx {
    pool: sqlx::PgPool,
    transaction: Option<sqlx::Transaction<'static, sqlx::Postgres>>,
}

impl OfSqlx {
    fn transaction(&mut self) -> &mut PgConnection {
        self.transaction.as_deref_mut().unwrap()
    }
}

impl Driver for OfSqlx {
    async fn connect() -> Self {
        Self { pool: sqlx::PgPool::connect(&url()).await.unwrap(), transaction: None }
    }

    async fn begin_by(&mut self, sql: &'static str) {
        self.transaction = Some(self.pool.begin_with(sql).await.unwrap());
    }

    async fn end(&mut self, commits: bool) {
        let transaction = self.transaction.take().unwrap();
        if commits { transaction.commit().await.unwrap() } else { transaction.rollback().await.unwrap() }
    }

    async fn execute(&mut self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.transaction()).await.unwrap();
    }

    async fn ask(&mut self, sql: String) -> String {
        let sql = AssertSqlSafe(format!("SELECT ({sql})::text"));
        sqlx::query(sql).fetch_one(self.transaction()).await.unwrap().get(0)
    }

    fn session(&mut self) -> impl Session + '_ {
        semel_sqlx::Sqlx(self.transaction())
    }
}

/// diesel-async, whose connection knows whether a transaction is open.
pub(crate) struct OfDiesel(AsyncPgConnection);

#[derive(diesel::QueryableByName)]
struct Told {
    #[diesel(sql_type = Text)]
    told: String,
}

impl Driver for OfDiesel {
    async fn connect() -> Self {
        Self(AsyncPgConnection::establish(&url()).await.unwrap())
    }

    async fn begin_by(&mut self, sql: &'static str) {
        AnsiTransactionManager::begin_transaction_sql(&mut self.0, sql).await.unwrap();
    }

    async fn end(&mut self, commits: bool) {
        if commits {
            AnsiTransactionManager::commit_transaction(&mut self.0).await.unwrap();
        } else {
            AnsiTransactionManager::rollback_transaction(&mut self.0).await.unwrap();
        }
    }

    async fn execute(&mut self, sql: String) {
        self.0.batch_execute(&sql).await.unwrap();
    }

    async fn ask(&mut self, sql: String) -> String {
        let sql = format!("SELECT ({sql})::text AS told");
        diesel::sql_query(sql).get_result::<Told>(&mut self.0).await.unwrap().told
    }

    fn session(&mut self) -> impl Session + '_ {
        semel_diesel::Diesel(&mut self.0)
    }
}

/// Runs tests on every driver.
macro_rules! on_every_driver {
    ($($name:ident),+ $(,)?) => {
        mod on_tokio_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::drivers::OfTokioPostgres>().await;
            })+
        }
        mod on_sqlx {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::drivers::OfSqlx>().await;
            })+
        }
        mod on_diesel {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<crate::drivers::OfDiesel>().await;
            })+
        }
    };
}
pub(crate) use on_every_driver;
