//! The log's bound: the store knows what was dropped, also after it is reopened.

use std::sync::Arc;

use semel_core::event::Place;
use semel_sqlite::Sqlite;
use semel_store::{Backend, LogPage, Store};
use semel_testkit::TempDir;

use crate::disk::offer;

async fn page(store: &dyn Backend, cursor: u64) -> LogPage {
    store.events(cursor, 1_000).await.unwrap()
}

#[tokio::test]
async fn the_newest_events_are_kept_and_a_reader_of_older_ones_is_told() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let open = || Arc::new(Sqlite::open(&path).unwrap().filing_at_once().keeping_events(20));
    let sqlite = open();
    let store = Store::open(sqlite.clone()).unwrap();
    for number in 0..50 {
        offer(&store, number, 10).await.unwrap();
    }
    let all = page(&*sqlite, 0).await;
    let (early, late) = (all.events[4].cursor, all.events[45].cursor);
    assert_eq!((all.events.len(), all.place(early)), (50, Place::Kept));
    while sqlite.maintain().await.unwrap() {}
    let kept = page(&*sqlite, 0).await;
    assert_eq!((kept.events.len(), kept.place(0)), (20, Place::Kept));
    assert_eq!((kept.place(early), kept.place(late)), (Place::TooOld, Place::Kept));
    assert_eq!(page(&*sqlite, late).await.events, all.events[46..]);
    assert!(kept.kept_after < kept.events[0].cursor && kept.place(kept.kept_after) == Place::Kept);
    store.close().await;
    drop(sqlite);
    while semel_sqlite::lock::owner(&path).is_some() {
        std::thread::yield_now();
    }
    let again = page(&*open(), early).await;
    assert_eq!(
        (again.place(early), again.place(late), again.kept_after),
        (Place::TooOld, Place::Kept, kept.kept_after)
    );
    assert!(again.newest >= all.events[49].cursor);
}

#[tokio::test]
async fn a_stores_secret_is_its_own_and_stays() {
    let dir = TempDir::new();
    let (path, other) = (dir.path().join("a.db"), dir.path().join("b.db"));
    let secret = Sqlite::open(&path).unwrap().secret();
    assert_ne!(secret, [0; 16]);
    assert_ne!(Sqlite::open(&other).unwrap().secret(), secret);
    let copy = dir.path().join("copy.db");
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.secret(), secret);
    store.backup(copy.clone()).await.unwrap();
    drop(store);
    assert_eq!(Sqlite::open(&copy).unwrap().secret(), secret, "what tenants see goes along with a copy");
}

#[tokio::test]
async fn a_reader_of_what_only_a_lost_store_told_is_told_so_by_the_restored_one() {
    let dir = TempDir::new();
    let path = |name: &str| dir.path().join(name);
    let lost = Arc::new(Sqlite::open(path("lost.db")).unwrap());
    let store = Store::open(lost.clone()).unwrap();
    offer(&store, 0, 10).await.unwrap();
    let known = page(&*lost, 0).await.newest;
    lost.backup(path("copy.db")).await.unwrap();
    for number in 1..50 {
        offer(&store, number, 10).await.unwrap();
    }
    let unknown = page(&*lost, 0).await.events[30].cursor;
    store.close().await;
    semel_sqlite::backup::restore(&path("copy.db"), &path("restored.db")).unwrap();
    for round in 1..4 {
        let restored = Arc::new(Sqlite::open(path("restored.db")).unwrap());
        let store = Store::open(restored.clone()).unwrap();
        for number in 0..100 {
            offer(&store, 100 * round + number, 10).await.unwrap();
        }
        let count = 100 * usize::try_from(round).unwrap();
        assert_eq!(page(&*restored, unknown).await.place(unknown), Place::TooOld);
        let kept = page(&*restored, known).await;
        assert_eq!(
            (kept.place(known), kept.events.len()),
            (Place::Kept, count),
            "webhooks go on from the backup"
        );
        let begins = page(&*restored, unknown).await.kept_after;
        assert_eq!(
            page(&*restored, begins).await.events.len(),
            count,
            "and whoever is told reads all that is new"
        );
        store.close().await;
        drop((store, restored));
        while semel_sqlite::lock::owner(&path("restored.db")).is_some() {
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn a_backup_that_fails_leaves_nothing_that_could_be_taken_for_one() {
    let dir = TempDir::new();
    let path = |name: &str| dir.path().join(name);
    let store = Store::open(Arc::new(Sqlite::open(path("semel.db")).unwrap())).unwrap();
    offer(&store, 0, 10).await.unwrap();
    let next =
        (0..).map(|number| path(&format!("semel.db-log.{number}"))).find(|file| !file.exists()).unwrap();
    std::fs::create_dir(&next).unwrap();
    let copied = |name: &str| semel_sqlite::backup::copy(&path("semel.db"), &path(name));
    assert!(copied("copy.db").is_err(), "the journal cannot be read");
    let left = || -> Vec<String> {
        let files = std::fs::read_dir(dir.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("copy")).collect()
    };
    assert_eq!(left(), Vec::<String>::new());
    std::fs::remove_dir(&next).unwrap();
    // As a copy leaves it that was killed.
    std::fs::write(path("copy.db.part"), "half").unwrap();
    copied("copy.db").unwrap();
    assert_eq!(left(), ["copy.db"]);
    assert!(Sqlite::open(path("copy.db")).is_ok());
}

#[tokio::test]
async fn what_a_lost_store_left_beside_its_name_is_not_taken_for_the_restored_ones() {
    let dir = TempDir::new();
    let path = |name: &str| dir.path().join(name);
    let lost = Arc::new(Sqlite::open(path("jobs.db")).unwrap().filing_at_once());
    let store = Store::open(lost.clone()).unwrap();
    offer(&store, 0, 10).await.unwrap();
    lost.backup(path("copy.db")).await.unwrap();
    for number in 1..50 {
        offer(&store, number, 10).await.unwrap();
    }
    while lost.maintain().await.unwrap() {}
    // As a failing disk leaves it: SQLite's own log and the journal beside the name, the rows gone.
    let kept = std::fs::read(path("jobs.db-wal")).unwrap();
    assert!(!kept.is_empty());
    store.close().await;
    drop((store, lost));
    while semel_sqlite::lock::owner(&path("jobs.db")).is_some() {
        std::thread::yield_now();
    }
    std::fs::remove_file(path("jobs.db")).unwrap();
    std::fs::write(path("jobs.db-wal"), &kept).unwrap();
    let refused = Sqlite::open(path("jobs.db")).map(drop).unwrap_err().to_string();
    assert!(refused.contains("is gone") && refused.contains("jobs.db-log.0"), "{refused}");
    let restore = || semel_sqlite::backup::restore(&path("copy.db"), &path("jobs.db"));
    assert!(restore().unwrap_err().to_string().contains("jobs.db-log.0"));
    for number in 0.. {
        let journal = path(&format!("jobs.db-log.{number}"));
        if !journal.exists() {
            break;
        }
        std::fs::remove_file(journal).unwrap();
    }
    assert!(restore().unwrap_err().to_string().contains("jobs.db-wal"));
    assert!(std::fs::read(path("jobs.db-wal")).unwrap() == kept && !path("jobs.db").exists());
    std::fs::rename(path("jobs.db-wal"), path("kept")).unwrap();
    std::fs::write(path("jobs.db-shm"), &kept).unwrap();
    restore().unwrap();
    let restored = Sqlite::open(path("jobs.db")).unwrap();
    assert_eq!(page(&restored, 0).await.events.len(), 1);
}
