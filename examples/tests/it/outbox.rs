//! The outbox examples: each is run twice, so its second entry is a duplicate of the first.

use semel::Semel;

use crate::database::Database;
use crate::tools;

/// A database with a store that relays its outbox.
async fn shop() -> (Database, Semel) {
    let database = Database::create().await;
    let semel = Semel::open(&database.url).relay_outbox().await.unwrap();
    (database, semel)
}

async fn one_job_of_two_entries(database: Database, semel: Semel) {
    database.until("SELECT count(*) FROM semel.outbox WHERE outcome IS NOT NULL", 2).await;
    let outcomes = database.text("SELECT string_agg(outcome, ' ' ORDER BY outcome) FROM semel.outbox").await;
    assert_eq!(outcomes, "created existing");
    assert_eq!(database.number("SELECT count(DISTINCT job) FROM semel.outbox").await, 1);
    // What was rolled back is nowhere.
    assert_eq!(database.number("SELECT count(*) FROM semel.jobs").await, 1);
    assert_eq!(database.text("SELECT type FROM semel.jobs").await, "order.ship");
    assert_eq!(database.number("SELECT count(*) FROM orders WHERE id = 7").await, 1);
    semel.close().await.unwrap();
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbox_from_sql() {
    let (database, semel) = shop().await;
    for _ in 0..2 {
        database.execute(include_str!("../../outbox/outbox.sql")).await;
    }
    one_job_of_two_entries(database, semel).await;
}

/// Runs a script twice; it waits for its outcome and prints it.
async fn script(command: fn() -> std::process::Command, name: &'static str) {
    let (database, semel) = shop().await;
    let url = database.url.clone();
    let ran = tokio::task::spawn_blocking(move || {
        [tools::run(command(), name, &url), tools::run(command(), name, &url)]
    });
    let [first, second] = ran.await.unwrap();
    let job = first.strip_prefix("created ").unwrap_or_else(|| panic!("{first}"));
    assert_eq!(second, format!("existing {job}"));
    one_job_of_two_entries(database, semel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbox_from_python() {
    script(tools::python, "outbox.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outbox_from_node() {
    script(tools::node, "outbox.mjs").await;
}
