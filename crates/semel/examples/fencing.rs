//! A worker that lost its job without noticing, and a table that can tell. `cargo run -p semel --example fencing`
//!
//! The first run is replaced by a newer request while it is deaf: it ignores its token, as a process in a long pause
//! would. Both runs then write the same row, the old one last, and only the newer write counts.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};
use semel::{Job, Lease, Return, Semel, State, Worker};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Serialize, Deserialize, Job)]
#[job(type = "profile.sync", unique(args("user"), on_conflict = "replace"))]
struct Sync {
    user: i64,
    name: String,
}

#[derive(Clone)]
struct App {
    table: Arc<Mutex<Connection>>,
    /// The old run is about to pause; the new run has written.
    paused: Arc<Notify>,
    written: Arc<Notify>,
}

async fn sync(job: Sync, State(app): State<App>, lease: Lease) -> Result<Return<bool>, rusqlite::Error> {
    if job.name == "old" {
        app.paused.notify_one();
        app.written.notified().await; // Deaf: the token has fired meanwhile.
    }
    let changed = app.table.lock().unwrap_or_else(PoisonError::into_inner).execute(
        // The guard: whoever was granted later has the greater fence, and nobody older may write after him.
        "UPDATE profile SET name = ?2, fence = ?1 WHERE user = ?3 AND fence <= ?1",
        params![lease.fence(), job.name, job.user],
    )?;
    println!(
        "{} with fence {}: {}",
        job.name,
        lease.fence(),
        if changed == 1 { "written" } else { "too late" }
    );
    app.written.notify_one();
    Ok(Return(changed == 1))
}

/// Whose name the row has in the end.
pub(crate) async fn run() -> Result<String, Box<dyn std::error::Error>> {
    let table = Connection::open_in_memory()?;
    table.execute_batch(
        "CREATE TABLE profile (user INTEGER PRIMARY KEY, name TEXT NOT NULL, fence INTEGER NOT NULL) STRICT;
         INSERT INTO profile VALUES (1, '', 0);",
    )?;
    let app = App { table: Arc::new(Mutex::new(table)), paused: Arc::default(), written: Arc::default() };
    let semel = Semel::open("memory:").await?;
    let worker =
        Worker::new(&semel).state(app.clone()).grace(Duration::from_secs(60)).handle(sync).start()?;

    semel.enqueue(Sync { user: 1, name: "old".to_owned() }).await?;
    app.paused.notified().await;
    let newer = semel.enqueue(Sync { user: 1, name: "new".to_owned() }).await?;
    assert!(newer.result::<bool>().await?);

    worker.stop().await; // Waits for the deaf run's grace time at most; it has written by then, or tried to.
    let name: String = app.table.lock().unwrap_or_else(PoisonError::into_inner).query_row(
        "SELECT name FROM profile WHERE user = 1",
        [],
        |row| row.get(0),
    )?;
    semel.close().await?;
    Ok(name)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("the row says: {}", run().await?);
    Ok(())
}
