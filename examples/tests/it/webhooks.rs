//! The receiver and the workers: each event delivered several times at once, and a worker killed in the
//! middle of its work.

use serde_json::{Value, json};

use crate::database::Database;
use crate::program::{Program, post};

const EVENTS: i64 = 60;
const DELIVERIES: i64 = 3;

fn deliver(address: &str, number: i64) -> Value {
    let event = json!({ "event": format!("evt_{number}"), "invoice": number, "cents": 4200 });
    let (status, answer) = post(address, "/webhooks", &event);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn worker(url: &str) -> Program {
    Program::start(env!("CARGO_BIN_EXE_example-receipts"), url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_payment_and_one_receipt_however_often_it_is_delivered() {
    let database = Database::create().await;
    let mut receiver = Program::start(env!("CARGO_BIN_EXE_example-webhooks"), &database.url);
    let address = receiver.address();
    let deliveries: Vec<_> = (0..EVENTS * DELIVERIES)
        .map(|number| {
            let address = address.clone();
            tokio::task::spawn_blocking(move || deliver(&address, number / DELIVERIES))
        })
        .collect();
    let first_worker = worker(&database.url);
    let mut new = 0;
    for delivery in deliveries {
        new += i64::from(delivery.await.unwrap()["is_new"] == json!(true));
    }
    assert_eq!(new, EVENTS);
    database.until("SELECT count(*) FROM receipt", 1).await;
    drop(first_worker); // SIGKILL: what it was about to do is another's when its lease has ended.
    let workers = [worker(&database.url), worker(&database.url)];
    database.until("SELECT count(*) FROM receipt", EVENTS).await;
    database.until("SELECT count(*) FROM semel.jobs WHERE state = 'completed'", EVENTS).await;
    // Much later, the upstream delivers one event again.
    let late = tokio::task::spawn_blocking(move || deliver(&address, 7)).await.unwrap();
    assert_eq!(late["is_new"], json!(false));
    assert_eq!(database.number("SELECT count(*) FROM semel.jobs").await, EVENTS);
    assert_eq!(database.number("SELECT count(*) FROM payment").await, EVENTS);
    assert_eq!(database.number("SELECT count(*) FROM receipt").await, EVENTS);
    assert_eq!(database.number("SELECT count(DISTINCT event) FROM receipt").await, EVENTS);
    drop((workers, receiver));
    database.drop().await;
}

/// The worker is stopped after it has written its effect and before it completes its job, and is killed
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_killed_before_its_commit_has_done_nothing() {
    let database = Database::create().await;
    let mut receiver = Program::start(env!("CARGO_BIN_EXE_example-webhooks"), &database.url);
    let address = receiver.address();
    tokio::task::spawn_blocking(move || deliver(&address, 1)).await.unwrap();
    let (before, after) = (database.another().await, database.another().await);
    before.execute("BEGIN; LOCK TABLE receipt IN SHARE MODE").await;
    let first = worker(&database.url);
    before.until_it_blocks_somebody(&database).await;
    after.execute("BEGIN; SELECT id FROM semel.head FOR UPDATE").await;
    before.execute("ROLLBACK").await;
    after.until_it_blocks_somebody(&database).await;
    drop(first);
    after.execute("ROLLBACK").await;
    let second = worker(&database.url);
    database.until("SELECT count(*) FROM semel.jobs WHERE state = 'completed'", 1).await;
    assert_eq!(database.number("SELECT count(*) FROM receipt").await, 1);
    drop((second, receiver, before, after));
    database.drop().await;
}
