//! SIGKILL at random points: whatever was acknowledged is stored, nothing is stored twice, no key is stuck.
//! And a torn tail of the write-ahead log leaves a prefix of history.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_core::event::EventKind;
use semel_sqlite::Sqlite;
use semel_store::Backend;
use semel_store::Recorded;
use semel_store::clock::{Clock, ManualClock, SystemClock};
use semel_testkit::TempDir;
use semel_testkit::crash::{Account, Seen, called, kill_after, victim};
use semel_testkit::patience::rounds;

/// The most answers a victim gives before it is killed.
const LINES_MAX: usize = 500;
/// Rounds in one file before a new one is begun, so that a long run is not a run of large files. Each takes
/// an hour of store time: after a day the first workflows would be forgotten, and their jobs, which nobody
/// purges here, would stand for nothing.
const ROUNDS_PER_FILE: u64 = 20;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The process that is killed; run as a test of its own, it does a little work and exits normally.
#[test]
fn the_victim() {
    let dir = TempDir::new();
    let (path, round, turns) = match called() {
        Some((round, path)) => (PathBuf::from(path), round, u64::MAX / 8),
        None => (dir.path().join("semel.db"), 0, 20),
    };
    let store: Arc<dyn Backend> = Arc::new(Sqlite::open(path).unwrap().filing_at_once());
    runtime().block_on(victim(store, round, turns));
}

/// A clock `hours` ahead, by which the victims' leases have run out.
fn later(hours: u64) -> ManualClock {
    ManualClock::at(SystemClock.now().saturating_add(Duration::from_secs(3600 * hours)))
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_doubled_when_the_process_is_killed() {
    let mut random = 0x5eed_u64;
    let (mut told, mut seen) = ((0, 0, 0, 0), Seen::default());
    let mut dir = TempDir::new();
    for round in 0..rounds("SEMEL_CRASH_ROUNDS", 25_u64) {
        if round % ROUNDS_PER_FILE == 0 {
            dir = TempDir::new();
        }
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let path = dir.path().join("semel.db");
        let said = kill_after(path.to_str().unwrap(), round, 1 + (random >> 33) as usize % LINES_MAX);
        let account = Account::read(&said);
        let (tasks, kept) = account.tasks.len();
        told = (told.0 + account.created.len(), told.1 + account.acked.len(), told.2 + tasks, told.3 + kept);
        // The next victim's time goes on from the judge's, an hour ahead; the next judge's is another hour ahead.
        let store: Arc<dyn Backend> = Arc::new(
            Sqlite::open_with_clock(&path, later(1 + round % ROUNDS_PER_FILE)).unwrap().filing_at_once(),
        );
        seen += runtime().block_on(account.judge(store, round));
        // The judge's thread releases the file a moment after its last handle.
        while semel_sqlite::lock::owner(&path).is_some() {
            std::thread::yield_now();
        }
    }
    assert!(
        told.0 > 20 && told.1 > 0 && told.2 > 0 && told.3 > 0,
        "{told:?} is too little to prove anything"
    );
    assert!(seen.decisions > 100 && seen.answers > 20 && seen.ends > 5, "so is {seen:?}");
}

async fn history(path: &Path) -> Vec<Recorded> {
    let store = Sqlite::open_with_clock(path, later(1)).unwrap().filing_at_once();
    let log = store.events(0, u32::MAX).await.unwrap().events;
    let queues = store.queues().await.unwrap();
    let created = queues.iter().map(|queue| queue.created).sum::<u64>();
    let told = log
        .iter()
        .filter(|recorded| matches!(recorded.event.kind, EventKind::Enqueued | EventKind::Scheduled))
        .count();
    assert_eq!(created, told as u64, "the log and the rows are of one commit");
    for queue in queues {
        assert_eq!(queue.created, queue.counts.iter().sum::<u64>() + queue.purged, "{queue:?}");
    }
    log
}

#[test]
fn a_torn_log_leaves_a_prefix_of_history() {
    let (dir, runtime) = (TempDir::new(), runtime());
    let path = dir.path().join("semel.db");
    kill_after(path.to_str().unwrap(), 0, 2 * LINES_MAX);
    let wal = std::fs::read(dir.path().join("semel.db-wal")).unwrap();
    let main = std::fs::read(&path).unwrap();
    let torn = |wal: &[u8]| {
        let dir = TempDir::new();
        let path = dir.path().join("semel.db");
        std::fs::write(&path, &main).unwrap();
        std::fs::write(dir.path().join("semel.db-wal"), wal).unwrap();
        // Without the commits that came later.
        std::fs::write(dir.path().join("semel.db-log.0"), "").unwrap();
        runtime.block_on(history(&path))
    };
    let whole = torn(&wal);
    let (mut shortest, mut random) = (whole.len(), 7_u64);
    for turn in 0..24 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mut damaged = wal.clone();
        let place = wal.len() / 4 + (random >> 33) as usize % (wal.len() * 3 / 4);
        if turn % 2 == 0 {
            damaged.truncate(place);
        } else {
            damaged[place] ^= 0x40;
        }
        let found = torn(&damaged);
        assert_eq!(found, whole[..found.len()], "a prefix");
        shortest = shortest.min(found.len());
    }
    assert!(shortest < whole.len(), "nothing was torn");
}
