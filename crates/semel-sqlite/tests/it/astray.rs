//! Files that are deleted, moved away or replaced while a store has them open: nothing is acknowledged that
//! nobody would find again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_sqlite::{Sqlite, backup};
use semel_store::{Store, StoreError};
use semel_testkit::TempDir;

use crate::disk::{offer, stored};

/// A store with one job.
async fn opened(path: &Path) -> Store {
    let store = Store::open(Arc::new(Sqlite::open(path).unwrap().filing_at_once())).unwrap();
    offer(&store, 1, 10).await.unwrap();
    store
}

/// The files of the store at this path.
fn files(store: &Path) -> Vec<PathBuf> {
    let name = store.file_name().unwrap().to_str().unwrap();
    let entries = std::fs::read_dir(store.parent().unwrap()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name)).collect()
}

async fn created(store: &Store) -> u64 {
    store.queues().await.unwrap().iter().map(|queue| queue.created).sum()
}

/// Checks that nothing is accepted from the next check on, and that reads are still answered.
async fn is_refused(store: &Store, gone: &str) {
    let before = created(store).await;
    let told = [
        store.takes_writes().await,
        offer(store, 9, 10).await.map(drop),
        store.maintain().await.map(drop),
        offer(store, 9, 10).await.map(drop),
    ];
    for refused in &told {
        let Err(StoreError::Unavailable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains(gone) && why.contains("/proc/"), "{why}");
    }
    assert_eq!(created(store).await, before);
}

#[tokio::test]
async fn a_store_whose_files_are_deleted_takes_nothing_any_more() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let store = opened(&path).await;
    for file in files(&path) {
        std::fs::remove_file(file).unwrap();
    }
    is_refused(&store, "semel.db").await;
    store.close().await;
    assert_eq!(files(&path), [""; 0].map(PathBuf::from), "none is made anew");
}

#[tokio::test]
async fn a_backup_that_is_moved_over_an_open_store_is_not_written_past() {
    let dir = TempDir::new();
    let [path, copy] = ["semel.db", "copy.db"].map(|name| dir.path().join(name));
    let store = opened(&path).await;
    backup::copy(&path, &copy).unwrap();
    offer(&store, 2, 10).await.unwrap();
    std::fs::rename(&copy, &path).unwrap();
    is_refused(&store, "semel.db").await;
    store.close().await;
}

#[tokio::test]
async fn a_store_that_is_put_back_goes_on() {
    let dir = TempDir::new();
    let (folder, moved) = (dir.path().join("folder"), dir.path().join("moved"));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("semel.db");
    let store = opened(&path).await;
    let file = |name: &str| [name, "moved"].map(|name| folder.join(name));
    let moves = [file("semel.db"), file("semel.db-wal"), file("semel.db-log.0"), [folder.clone(), moved]];
    for (number, [from, to]) in (2..).zip(&moves) {
        std::fs::rename(from, to).unwrap();
        let gone = if *from == folder { "semel.db" } else { from.file_name().unwrap().to_str().unwrap() };
        is_refused(&store, gone).await;
        std::fs::rename(to, from).unwrap();
        store.takes_writes().await.unwrap();
        offer(&store, number, 10).await.unwrap();
        while store.maintain().await.unwrap() {}
    }
    store.close().await;
    assert_eq!(stored(&path, &[]).await, 1 + moves.len() as u64);
}

/// The store has not checked its files since.
#[tokio::test]
async fn a_commit_that_begins_a_file_of_the_journal_looks_first() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let store = opened(&path).await;
    while store.maintain().await.unwrap() {}
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    let refused = offer(&store, 2, 10).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    std::fs::rename(dir.path().join("moved"), &path).unwrap();
    offer(&store, 2, 10).await.unwrap();
    store.close().await;
    assert_eq!(stored(&path, &[]).await, 2);
}

#[tokio::test]
async fn what_may_become_of_a_store_in_use_is_no_reason_to_refuse() {
    let dir = TempDir::new();
    let [path, link, other] = ["semel.db", "link.db", "other.db"].map(|name| dir.path().join(name));
    let store = opened(&path).await;
    std::fs::hard_link(&path, &link).unwrap();
    std::os::unix::fs::symlink("semel.db", &other).unwrap();
    std::fs::remove_file(dir.path().join("semel.db.lock")).unwrap();
    for number in 2..20 {
        backup::copy(&path, &dir.path().join(format!("copy {number}.db"))).unwrap();
        // SQLite's own tools close the database after reading.
        let db = rusqlite::Connection::open(&other).unwrap();
        db.query_row("SELECT count(*) FROM job", [], |row| row.get::<_, i64>(0)).unwrap();
        drop(db);
        store.takes_writes().await.unwrap();
        offer(&store, number, 10_000).await.unwrap();
        while store.maintain().await.unwrap() {}
    }
    store.close().await;
    std::fs::remove_file(&link).unwrap();
    assert_eq!(stored(&path, &[]).await, 19);
}

/// A store to which nothing was ever written removes its journal's file when it is closed.
#[tokio::test]
async fn a_store_that_was_moved_away_leaves_alone_what_has_its_names_now() {
    let dir = TempDir::new();
    let [path, other] = ["semel.db", "other.db"].map(|name| dir.path().join(name));
    opened(&other).await.close().await;
    let moved = Sqlite::open(&path).unwrap();
    for file in files(&path) {
        let name = file.file_name().unwrap().to_str().unwrap().replacen("semel", "moved", 1);
        std::fs::rename(&file, dir.path().join(name)).unwrap();
    }
    for file in files(&other) {
        let name = file.file_name().unwrap().to_str().unwrap().replacen("other", "semel", 1);
        std::fs::rename(&file, dir.path().join(name)).unwrap();
    }
    drop(moved);
    assert_eq!(stored(&path, &[]).await, 1);
}
