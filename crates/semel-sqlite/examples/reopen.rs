//! How long opening a file takes: makes one with so many live, uniquely keyed jobs (default 1,000,000), closes it, and
//! opens it again: first as it was left, with the newest of it in the journal, then settled, with all of it in the rows.
//!
//! `cargo run --release -p semel-sqlite --example reopen -- 1000000`

#![allow(clippy::print_stdout, reason = "a figure for people")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use semel_core::draft::{Draft, Reads};
use semel_core::enqueue::{Mode, Offer, enqueue_batch};
use semel_sqlite::Sqlite;
use semel_store::backend::{Backend, Batch};
use semel_testkit::TempDir;
use semel_testkit::make::job;

const BATCH: u64 = 1_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    if let (Some("open"), Some(path)) = (args.next().as_deref(), args.next()) {
        return open(Path::new(&path)).await;
    }
    let jobs: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let began = Instant::now();
    let store = Sqlite::open(&path)?;
    for batch in 0..jobs.div_ceil(BATCH) {
        let first = batch * BATCH;
        let offers: Vec<Offer> =
            (first..(first + BATCH).min(jobs)).map(|number| job().keyed_by_number(number).offer()).collect();
        let mut reads = Reads::default();
        offers.iter().for_each(|offer| offer.reads(&mut reads));
        let mut draft = Draft::new(store.load(&reads).await?, batch, store.rows());
        enqueue_batch(&mut draft, &offers, Mode::Each).map_err(|_| "a read was missing")?;
        store.commit(Batch { groups: vec![draft.finish()], claims: Vec::new() }).await?;
    }
    println!("{jobs} jobs stored in {:.2?}", began.elapsed());
    drop(store);
    open_beside(&path)?;
    let store = Sqlite::open(&path)?.filing_at_once();
    while store.maintain().await? {}
    drop(store);
    println!("settled:");
    open_beside(&path)
}

/// In a process of its own, so that its memory is what the jobs take and nothing else.
fn open_beside(path: &Path) -> Result<(), Box<dyn Error>> {
    let status = std::process::Command::new(std::env::current_exe()?).arg("open").arg(path).status()?;
    if status.success() { Ok(()) } else { Err("it could not be opened again".into()) }
}

async fn open(path: &Path) -> Result<(), Box<dyn Error>> {
    let before = resident_kib();
    let began = Instant::now();
    let store = Sqlite::open(path)?;
    println!("opened again in {:.2?}", began.elapsed());
    let grown = resident_kib().saturating_sub(before) * 1024;
    let stored: u64 = store.queues().await?.iter().map(|queue| queue.created).sum();
    println!("{stored} jobs are there; the file has {} MB", std::fs::metadata(path)?.len() >> 20);
    println!("{} bytes of memory per job, SQLite's cache of rows (64 MiB) included", grown / stored.max(1));
    println!("{} bytes without it", grown.saturating_sub(64 << 20) / stored.max(1));
    Ok(())
}

/// Memory of this process; 0 where the system does not say.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(0)
}
