//! Connection pools whose callers go away.

use semel_testkit::database::{schema_name, url};
use semel_testkit::let_go::{at_every_await, let_go};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;

use crate::drivers::{Driver, OfTokioPostgres};

/// Work that was acknowledged stays done, whatever the connection was used for before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_was_let_go_takes_nobodys_rows_with_it() {
    let table = schema_name();
    let mut watcher = OfTokioPostgres::connect().await;
    watcher.execute(format!("CREATE TABLE {table} (n int)")).await;
    let dropped = at_every_await("begin", async |polls, moment| {
        let options = PgPoolOptions::new().max_connections(1);
        let pool = semel_sqlx::roll_back_on_release(options).connect(&url()).await.unwrap();
        let is_begun = let_go(pool.begin(), polls, moment).await.is_some();
        sqlx::query(AssertSqlSafe(format!("INSERT INTO {table} VALUES (1)"))).execute(&pool).await.unwrap();
        pool.close().await;
        let rows = watcher.ask(format!("SELECT count(*) FROM {table}")).await;
        assert_eq!(rows, "1", "after {polls} polls, {moment:?}");
        watcher.execute(format!("TRUNCATE {table}")).await;
        is_begun
    })
    .await;
    assert!(dropped > 0, "it never waited");
    watcher.execute(format!("DROP TABLE {table}")).await;
}
