//! What the disk may do to a store: fill up, fail, lie; and other processes that want the file.

#[cfg(target_os = "linux")]
use std::io::ErrorKind;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
#[cfg(unix)]
use std::process::Command;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use semel_core::enqueue::Outcome;
use semel_core::ident::JobId;
use semel_core::state::StateSet;
#[cfg(target_os = "linux")]
use semel_engine::Engine;
#[cfg(target_os = "linux")]
use semel_sqlite::backup;
use semel_sqlite::{Sqlite, SqliteError};
use semel_store::backend::Backend;
use semel_store::{Store, StoreError};
use semel_testkit::make::keyed;
use semel_testkit::{Fixture, Step, TempDir};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn args(bytes: usize) -> String {
    format!("[\"{}\"]", "x".repeat(bytes))
}

pub(crate) async fn offer(store: &Store, number: u32, bytes: usize) -> Result<JobId, StoreError> {
    let want = keyed(&format!("key {number}")).states(StateSet::ALL).args(&args(bytes));
    let offer = want.offer();
    let mut reads = semel_core::draft::Reads::default();
    offer.reads(&mut reads);
    match store.decide(reads, move |draft| semel_core::enqueue::enqueue(draft, &offer)).await? {
        Outcome::Created(head) => Ok(head.id),
        other => panic!("{other:?}"),
    }
}

/// How many jobs a store says were created, all of them readable.
pub(crate) async fn stored(path: &Path, ids: &[JobId]) -> u64 {
    let store = Sqlite::open(path).unwrap().filing_at_once();
    let snapshot =
        store.load(&semel_core::draft::Reads { fulls: ids.to_vec(), ..Default::default() }).await.unwrap();
    for id in ids {
        let (_, full) = snapshot.peek(*id).unwrap_or_else(|| panic!("acknowledged {id} is lost"));
        assert!(!full.unwrap().body.is_empty());
    }
    let queues = store.queues().await.unwrap();
    assert!(queues.iter().all(|queue| queue.created == queue.counts.iter().sum::<u64>()));
    queues.iter().map(|queue| queue.created).sum()
}

#[test]
fn a_second_opener_is_told_who_owns_the_file() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let first = Sqlite::open(&path).unwrap().filing_at_once();
    let refused = Sqlite::open(&path).err().unwrap();
    assert!(matches!(&refused, SqliteError::Owned { .. }), "{refused}");
    let said = format!("already open in this process (process {}); clone the handle", std::process::id());
    assert!(refused.to_string().contains(&said), "{refused}");
    // A caller that gave up on opening it, and opens it again, has no other handle to use.
    assert!(refused.to_string().contains("just being opened or closed, try again"), "{refused}");
    first.announce("http://127.0.0.1:8080", "0a1b").unwrap();
    let refused = Sqlite::open(&path).err().unwrap().to_string();
    assert!(refused.contains("(http://127.0.0.1:8080)") && !refused.contains("0a1b"), "{refused}");
    let owner = semel_sqlite::lock::owner(&path).unwrap();
    assert_eq!((owner.server(), owner.instance.as_deref()), (Some("http://127.0.0.1:8080"), Some("0a1b")));
    // Text that is no address is kept all the same, for whoever looks after a crash.
    first.announce("127.0.0.1:8080", "").unwrap();
    let said = std::fs::read_to_string(dir.path().join("semel.db.lock")).unwrap();
    assert_eq!(said, format!("process {} 127.0.0.1:8080", std::process::id()));
    drop(first);
    Sqlite::open(&path).unwrap();
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    let dir = TempDir::new();
    let path = dir.path().join("other.db");
    std::fs::write(&path, b"SQLite is not what this is, although it is long enough to look like something")
        .unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(Sqlite::open(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_damaged_page_poisons_the_store_until_it_is_opened_again() {
    runtime().block_on(async {
        let fixture = Fixture::in_dir(Step::Nothing, crate::open);
        let mut ended = Vec::new();
        for number in 0..40 {
            ended.push(
                fixture
                    .finished(
                        &keyed(&format!("key {number}"))
                            .args(&format!("[\"{}\"]", "x".repeat(3_000)))
                            .offer(),
                    )
                    .await,
            );
        }
        fixture.maintain().await;
        fixture.reopen();
        // Its pages are in the file now and, except for those with the few live rows, not in memory.
        let path = fixture.dir().unwrap().join("semel.db");
        let good = std::fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[4096 * 2..].fill(0xa5);
        std::fs::write(&path, &bad).unwrap();
        let backend = fixture.backend();
        let mut failed = None;
        for head in &ended {
            let reads = semel_core::draft::Reads { fulls: vec![head.id], ..Default::default() };
            if let Err(error) = backend.load(&reads).await {
                failed = Some(error);
                break;
            }
        }
        assert!(matches!(failed, Some(StoreError::Corrupt(_) | StoreError::Poisoned(_))), "{failed:?}");
        std::fs::write(&path, &good).unwrap();
        // The damage is gone, but the store stays poisoned.
        assert!(matches!(backend.queues().await, Err(StoreError::Poisoned(_))));
        assert!(matches!(backend.load(&Default::default()).await, Err(StoreError::Poisoned(_))));
        assert!(matches!(backend.commit(Default::default()).await, Err(StoreError::Poisoned(_))));
        assert!(matches!(backend.maintain().await, Err(StoreError::Poisoned(_))));
        drop(backend);
        fixture.reopen();
        assert_eq!(fixture.head(ended[0].id).await.as_ref(), Some(&ended[0]));
    });
}

/// Runs the test `name` again, in a process of its own that `wrap` starts. Returns its output.
#[cfg(unix)]
pub(crate) fn again(wrap: &[&str], script: &str, name: &str, dir: &Path) -> std::process::Output {
    let exe = std::env::current_exe().unwrap();
    Command::new(wrap[0])
        .args(&wrap[1..])
        .args(["sh", "-c", script, "sh"])
        .arg(exe)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("SEMEL_DISK", dir)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap()
}

#[cfg(unix)]
pub(crate) fn succeeded(output: &std::process::Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("@played"), "{out}\n{err}");
}

/// A disk of two megabytes that only this process sees. `None` in the process that only starts another one to
/// run the test `name`, and has checked its result.
#[cfg(target_os = "linux")]
fn small_disk(name: &str) -> Option<PathBuf> {
    let inside = std::env::var_os("SEMEL_DISK");
    if inside.is_none() {
        let dir = TempDir::new();
        let script = r#"mount -t tmpfs -o size=2m tmpfs "$SEMEL_DISK" && exec "$@""#;
        succeeded(&again(&["unshare", "-rm"], script, name, dir.path()));
    }
    inside.map(PathBuf::from)
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost_when_there_is_room_again() {
    semel_testkit::planted::plant_from_environment();
    let name = "disk::a_full_disk_is_an_error_and_nothing_is_lost_when_there_is_room_again";
    let Some(dir) = small_disk(name) else { return };
    let (path, ballast) = (dir.join("semel.db"), dir.join("ballast"));
    runtime().block_on(async {
        let mut acknowledged = Vec::new();
        for fill in 0..3 {
            std::fs::write(&ballast, vec![0; 900_000]).unwrap();
            let store = Store::open(Arc::new(Sqlite::open(&path).unwrap().filing_at_once())).unwrap();
            let mut number = fill * 1_000;
            let error = loop {
                match offer(&store, number, 20_000).await {
                    Ok(id) => acknowledged.push(id),
                    Err(error) => break error,
                }
                number += 1;
            };
            assert!(
                matches!(&error, StoreError::Unavailable(message) if message.contains("disk is full")),
                "{error:?}"
            );
            assert!(error.is_retryable());
            // What is stored can be read, and what failed is not there.
            let created: u64 = store.queues().await.unwrap().iter().map(|queue| queue.created).sum();
            assert_eq!(created, acknowledged.len() as u64);
            assert!(offer(&store, number, 20_000).await.is_err());
            let told = store.takes_writes().await;
            assert!(
                matches!(&told, Err(StoreError::Unavailable(why)) if why.contains("disk is full")),
                "{told:?}"
            );
            // A round of housekeeping that finds no room either loses nothing.
            drop(store.maintain().await);
            // Room again: the same store goes on.
            std::fs::remove_file(&ballast).unwrap();
            store.takes_writes().await.unwrap();
            for _ in 0..3 {
                acknowledged.push(offer(&store, number, 20_000).await.unwrap());
                number += 1;
            }
            store.close().await;
            let created = stored(&path, &acknowledged).await;
            assert_eq!(created, acknowledged.len() as u64);
            if fill < 2 {
                // A fresh file for the next fill: its size differs, and so does the point at which the disk
                // is full.
                for name in ["semel.db", "semel.db-wal", "semel.db-shm", "semel.db-log.0", "semel.db-log.1"] {
                    drop(std::fs::remove_file(dir.join(name)));
                }
                acknowledged.clear();
            }
        }
    });
    println!("@played");
}

/// SQLite itself would report an I/O error, or a file that it cannot open.
#[cfg(target_os = "linux")]
#[test]
fn what_the_file_system_refuses_is_said_when_a_store_is_opened() {
    let Some(dir) = small_disk("disk::what_the_file_system_refuses_is_said_when_a_store_is_opened") else {
        return;
    };
    let (path, ballast) = (dir.join("semel.db"), dir.join("ballast"));
    let elsewhere = TempDir::new();
    let copy = elsewhere.path().join("copy.db");
    runtime().block_on(async {
        let store = Store::open(Arc::new(Sqlite::open(&path).unwrap())).unwrap();
        offer(&store, 1, 10).await.unwrap();
        store.close().await;
    });
    let refused = |refused: Option<SqliteError>, kind: ErrorKind| {
        let is_so = matches!(&refused, Some(SqliteError::Io { source, .. }) if source.kind() == kind);
        assert!(is_so, "{kind:?}: {refused:?}");
    };
    // Fills the disk to the last byte.
    let filled = std::fs::write(&ballast, vec![0; 4_000_000]);
    assert_eq!(filled.unwrap_err().kind(), ErrorKind::StorageFull);
    refused(Sqlite::open(&path).err(), ErrorKind::StorageFull);
    std::fs::remove_file(&ballast).unwrap();
    drop(Sqlite::open(&path).unwrap());
    let again = Command::new("mount").args(["-o", "remount,ro"]).arg(&dir).status().unwrap();
    assert!(again.success());
    refused(Sqlite::open(&path).err(), ErrorKind::ReadOnlyFilesystem);
    refused(backup::copy(&path, &copy).err(), ErrorKind::ReadOnlyFilesystem);
    // A copy of the files, made as the message advises, is complete.
    for file in std::fs::read_dir(&dir).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), elsewhere.path().join(file.file_name())).unwrap();
    }
    backup::copy(&elsewhere.path().join("semel.db"), &copy).unwrap();
    println!("@played");
}

/// The disk fails one sync of the journal, and every one after it.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_fsync_poisons_the_store_and_nothing_is_acknowledged_on_it() {
    semel_testkit::planted::plant_from_environment();
    let Some(dir) = std::env::var_os("SEMEL_DISK") else {
        let tap = crate::tap::Tap::new();
        for nth in [1, 2, 5] {
            let tap = tap.another();
            let place = tap.disk().join("semel.db");
            let name = "disk::a_failed_fsync_poisons_the_store_and_nothing_is_acknowledged_on_it";
            let variable = ("SEMEL_DISK", tap.disk().display().to_string());
            succeeded(&tap.run(name, variable, crate::tap::Trouble::FailJournal(nth)));
            // What was told before the failure was acknowledged; the row of the failed commit may be there or
            // not.
            let told = std::fs::read_to_string(tap.disk().join("told")).unwrap();
            let ids: Vec<JobId> = told.lines().map(|line| JobId::parse(line, "").unwrap()).collect();
            assert_eq!(ids.len() as u64, nth - 1, "every answer waits for one sync");
            let created = runtime().block_on(stored(&place, &ids));
            assert!((nth - 1..=nth).contains(&created), "{created} of {}", ids.len());
        }
        return;
    };
    let dir = Path::new(&dir);
    runtime().block_on(async {
        let store =
            Store::open(Arc::new(Sqlite::open(dir.join("semel.db")).unwrap().filing_at_once())).unwrap();
        let engine = Engine::on(store.clone());
        let duplicate =
            |number| keyed(&format!("key {number}")).args(&args(10)).on_conflict("ignore").offer();
        let mut told = String::new();
        for number in 0..100 {
            match offer(&store, number, 10).await {
                Ok(id) => {
                    told.push_str(&format!("{id}\n"));
                    let answer = engine.enqueue(duplicate(number), "").await;
                    assert!(matches!(answer, Ok(Outcome::Existing(_))), "{answer:?}");
                }
                Err(error) => {
                    assert!(matches!(error, StoreError::Poisoned(_)), "{error:?}");
                    assert!(matches!(offer(&store, 1_000, 10).await, Err(StoreError::Poisoned(_))));
                    assert!(matches!(store.queues().await, Err(StoreError::Poisoned(_))));
                    // Not even a duplicate of an acknowledged job is answered.
                    for number in 0..=number {
                        let answer = engine.enqueue(duplicate(number), "").await;
                        assert!(matches!(answer, Err(StoreError::Poisoned(_))), "{answer:?}");
                    }
                    std::fs::write(dir.join("told"), told).unwrap();
                    println!("@played");
                    return;
                }
            }
        }
        panic!("no fsync failed");
    });
}

/// Each sync of SQLite's log fails once. Enough rows are written for pages to be moved to the database
/// afterwards.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_sync_of_the_rows_ends_everything_and_leaves_the_database_alone() {
    use crate::tap::{Event, Tap, Trouble};

    let Some(dir) = std::env::var_os("SEMEL_DISK") else {
        let tap = Tap::new();
        let name = "disk::a_failed_sync_of_the_rows_ends_everything_and_leaves_the_database_alone";
        let (mut poisoned, mut moved) = (0, false);
        for nth in 1.. {
            let tap = tap.another();
            let place = tap.disk().join("semel.db");
            let variable = ("SEMEL_DISK", tap.disk().display().to_string());
            succeeded(&tap.run(name, variable, Trouble::Fail(nth, "-wal")));
            let record = tap.record();
            let said = |word: &str| {
                record.iter().position(|event| matches!(event, Event::Said(text) if text.contains(word)))
            };
            let failed = record.iter().position(|event| matches!(event, Event::Failed { .. }));
            let is_database = |event: &Event| {
                let database = record.iter().find_map(|event| match event {
                    Event::Create { file, path } if path == "semel.db" => Some(*file),
                    _ => None,
                });
                matches!(event, Event::Write { file, .. } if Some(*file) == database)
            };
            let Some(failed) = failed.filter(|failed| said("@carried").is_none_or(|done| *failed < done))
            else {
                let opened = said("@opened").unwrap();
                moved = record[opened..said("@carried").unwrap()].iter().any(is_database);
                break;
            };
            assert!(said("@carried").is_none(), "sync {nth} failed, and it went on");
            if said("@opened").is_some_and(|opened| opened < failed) {
                poisoned += 1;
                assert!(said("@poisoned").is_some(), "sync {nth}");
                assert!(!record[failed..].iter().any(is_database), "sync {nth} failed, and pages were moved");
                assert_eq!(runtime().block_on(stored(&place, &[])), 300);
            }
        }
        assert!(poisoned > 1 && moved, "{poisoned} syncs of the log, and pages moved: {moved}");
        return;
    };
    let path = Path::new(&dir).join("semel.db");
    runtime().block_on(async {
        let say = |word: &str| println!("@{word}");
        if let Ok(backend) = Sqlite::open(path) {
            let store = Store::open(Arc::new(backend.filing_at_once())).unwrap();
            for number in 0..300 {
                offer(&store, number, 20_000).await.unwrap();
            }
            say("opened");
            loop {
                match store.maintain().await {
                    Ok(true) => {}
                    Ok(false) => break say("carried"),
                    Err(StoreError::Poisoned(_)) => {
                        assert!(matches!(offer(&store, 1_000, 10).await, Err(StoreError::Poisoned(_))));
                        break say("poisoned");
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            store.close().await;
        }
        say("played");
    });
}

/// The sync of the folder fails when the journal's first file is made.
#[cfg(target_os = "linux")]
#[test]
fn a_file_of_the_journal_whose_name_could_not_be_synced_is_made_anew() {
    use crate::tap::{Event, Tap, Trouble};

    let Some(dir) = std::env::var_os("SEMEL_DISK") else {
        let tap = Tap::new();
        let run = |tap: &Tap, trouble| {
            let name = "disk::a_file_of_the_journal_whose_name_could_not_be_synced_is_made_anew";
            succeeded(&tap.run(name, ("SEMEL_DISK", tap.disk().display().to_string()), trouble));
            tap.record()
        };
        let is_made = |event: &Event| matches!(event, Event::Create { path, .. } if path == "semel.db-log.0");
        let is_sync = |event: &&Event| matches!(event, Event::Sync { .. } | Event::SyncFolder);
        let whole = run(&tap, Trouble::None);
        let made = whole.iter().position(is_made).unwrap();
        let next = whole[..made].iter().filter(is_sync).count() as u64 + 1;
        let record = run(&tap.another(), Trouble::Fail(next, ""));
        assert_eq!(record.iter().filter(|event| is_made(event)).count(), 2, "it was made anew");
        return;
    };
    let path = Path::new(&dir).join("semel.db");
    runtime().block_on(async {
        let opened = Sqlite::open(&path).or_else(|error| {
            assert!(matches!(error, SqliteError::Io { .. }), "{error:?}");
            Sqlite::open(&path)
        });
        let store = Store::open(Arc::new(opened.unwrap())).unwrap();
        offer(&store, 1, 10).await.unwrap();
        store.close().await;
    });
    println!("@played");
}

/// A store whose lock would have the name of another program's file.
#[test]
fn what_is_no_lock_is_not_written_over() {
    let dir = TempDir::new();
    let path = dir.path().join("Cargo");
    let other = dir.path().join("Cargo.lock");
    for text in ["version = 4\n", "proc"] {
        std::fs::write(&other, text).unwrap();
        let refused = Sqlite::open(&path).err().unwrap();
        assert!(refused.to_string().contains("not a lock file of Semel's"), "{refused}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), text);
        assert!(!path.exists());
    }
    // What a killed store may have left behind.
    for text in ["", "\u{0}\u{0}", "process 1", "http://127.0.0.1:8080"] {
        std::fs::write(&other, text).unwrap();
        drop(Sqlite::open(&path).unwrap());
    }
}
