//! Closing: pending requests are answered, and the file is free when the call returns.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use semel_core::enqueue::Outcome;
use semel_engine::Engine;
use semel_sqlite::Sqlite;
use semel_store::{Store, StoreError};
use semel_testkit::TempDir;
use semel_testkit::fixture::claim;
use semel_testkit::make::{job, keyed};

use crate::disk::{offer, stored};

#[tokio::test]
async fn a_closed_store_has_answered_and_its_file_can_be_opened_at_once() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let mut ids = Vec::new();
    for round in 0..20 {
        let store = Store::open(Arc::new(Sqlite::open(&path).unwrap())).unwrap();
        let asked: Vec<_> = (0..50)
            .map(|number| {
                let store = store.clone();
                tokio::spawn(async move { offer(&store, round * 50 + number, 10).await })
            })
            .collect();
        // One thread: each task has asked when this one goes on.
        tokio::task::yield_now().await;
        store.close().await;
        for answer in asked {
            ids.push(answer.await.unwrap().unwrap());
        }
        assert_eq!(stored(&path, &ids).await, ids.len() as u64);
        assert_eq!(store.queues().await, Err(StoreError::Closed));
        assert_eq!(store.backup(dir.path().join("copy.db")).await, Err(StoreError::Closed));
        store.close().await;
    }
}

#[tokio::test]
async fn a_closed_engine_has_written_what_its_duties_held() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let open = || Engine::start(Arc::new(Sqlite::open(&path).unwrap())).unwrap();
    let engine = open();
    let Outcome::Created(head) = engine.enqueue(keyed("a").offer(), "").await.unwrap() else {
        panic!("not created")
    };
    for _ in 0..7 {
        engine.enqueue(keyed("a").offer(), "again").await.unwrap();
    }
    engine.close().await;
    assert_eq!(engine.enqueue(keyed("b").offer(), "").await, Err(StoreError::Closed));
    let engine = open();
    let job = engine.job(head.id).await.unwrap().unwrap();
    assert_eq!(job.duplicates.count, 7);
    engine.close().await;
}

/// A running copy of the file holds SQLite's lock on it all the time.
#[tokio::test]
async fn while_a_copy_is_made_timers_go_on_and_a_closed_engine_lets_go_of_the_file() {
    let long = Duration::from_secs(30);
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let engine = Engine::start(Arc::new(Sqlite::open(&path).unwrap().filing_at_once())).unwrap();
    let copying = Connection::open(&path).unwrap();
    copying.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Before the job's time the store begins housekeeping, and finds the lock taken.
    engine.enqueue(job().later(Duration::from_millis(1_500)).offer(), "").await.unwrap();
    let jobs = engine.claim_or_wait(claim(&["default"], 1), long).await.unwrap();
    assert_eq!(jobs.len(), 1);
    tokio::time::timeout(long, engine.close()).await.unwrap();
    drop(copying);
    drop(Sqlite::open(&path).unwrap());
}

#[test]
fn a_program_that_ends_without_closing_waits_for_no_copy_either() {
    let long = Duration::from_secs(30);
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (engine, copying) = runtime.block_on(async {
        let engine = Engine::start(Arc::new(Sqlite::open(&path).unwrap().filing_at_once())).unwrap();
        let copying = Connection::open(&path).unwrap();
        copying.execute_batch("BEGIN IMMEDIATE").unwrap();
        // Before the job's time the store begins housekeeping, and finds the lock taken.
        engine.enqueue(job().later(Duration::from_millis(1_500)).offer(), "").await.unwrap();
        assert_eq!(engine.claim_or_wait(claim(&["default"], 1), long).await.unwrap().len(), 1);
        (engine, copying)
    });
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(engine);
        drop(runtime);
        ended.send(()).unwrap();
    });
    end.recv_timeout(long).unwrap();
    drop(copying);
}
