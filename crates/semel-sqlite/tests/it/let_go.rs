//! Callers of a store in a file that stop waiting for the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel_sqlite::Sqlite;
use semel_testkit::TempDir;
use semel_testkit::whole::every_call_is_let_go;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_let_go_at_every_await() {
    let (dir, number) = (TempDir::in_memory(), AtomicU32::new(0));
    let open = async || {
        let name = format!("{}.db", number.fetch_add(1, Ordering::Relaxed));
        Arc::new(Sqlite::open(dir.path().join(name)).unwrap())
    };
    every_call_is_let_go(open, &["enqueue_all_or_nothing"]).await;
}
