//! Copies that are refused, that cannot be opened, and that are told to stop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::TransactionBehavior;
use semel_sqlite::backup::{self, Making};
use semel_sqlite::{Sqlite, SqliteError};
use semel_store::Store;
use semel_testkit::TempDir;

use crate::disk::offer;
#[cfg(unix)]
use crate::disk::stored;

/// A backup of a store with one job, in a folder.
async fn backed_up(dir: &Path) -> PathBuf {
    let store = Store::open(Arc::new(Sqlite::open(dir.join("first.db")).unwrap())).unwrap();
    offer(&store, 1, 10).await.unwrap();
    let copy = dir.join("copy.db");
    backup::copy(&dir.join("first.db"), &copy).unwrap();
    store.close().await;
    copy
}

/// The names of a folder's files.
fn files(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name());
    files.map(|name| name.into_string().unwrap()).collect()
}

/// Whatever link leads to the store's name: the journal is beside the file itself.
#[cfg(unix)]
#[tokio::test]
async fn nothing_is_made_beside_what_another_store_committed_last() {
    let (dir, data) = (TempDir::new(), TempDir::new());
    let copy = backed_up(dir.path()).await;
    let (store, link) = (data.path().join("semel.db"), dir.path().join("link.db"));
    std::os::unix::fs::symlink(&store, &link).unwrap();
    for left in ["semel.db-log.0", "semel.db-log.17", "semel.db-wal"] {
        let left = data.path().join(left);
        std::fs::write(&left, "the last commits").unwrap();
        for to in [&store, &link] {
            for made in [backup::restore(&copy, to), backup::copy(&copy, to)] {
                let error = made.unwrap_err().to_string();
                let advice = format!("every {}-* away", store.display());
                assert!(error.contains(&left.display().to_string()) && error.contains(&advice), "{error}");
            }
            // Nor is a store opened there: perhaps only its file is gone.
            let error = Sqlite::open(to).map(drop).unwrap_err().to_string();
            let advice = format!("put {} back", store.display());
            assert!(error.contains(&left.display().to_string()) && error.contains(&advice), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&left).unwrap(), "the last commits");
        assert!(!store.exists());
        std::fs::remove_file(&left).unwrap();
    }
    // These are empty, or belong to others.
    for name in ["semel.db-wal", "semel.db-log.0", "semel.db-log.old", "semel.db-log.", "other.db-log.0"] {
        let is_empty = name == "semel.db-wal" || name == "semel.db-log.0";
        std::fs::write(data.path().join(name), if is_empty { "" } else { "x" }).unwrap();
    }
    backup::restore(&copy, &link).unwrap();
    assert_eq!(stored(&store, &[]).await, 1);
}

#[tokio::test]
async fn a_backup_that_cannot_be_opened_makes_no_store() {
    let dir = TempDir::new();
    let copy = backed_up(dir.path()).await;
    let db = rusqlite::Connection::open(&copy).unwrap();
    // SQLite itself finds nothing wrong with it.
    let sql = "INSERT INTO journal SELECT max(cursor) + 1, 0, x'ff' FROM journal";
    assert_eq!(db.execute(sql, []).unwrap(), 1);
    drop(db);
    let to = TempDir::new();
    let error = backup::restore(&copy, &to.path().join("semel.db")).unwrap_err();
    assert!(!matches!(error, SqliteError::Unsupported(_)), "{error}");
    assert_eq!(files(to.path()), ["semel.db.lock"]);
}

/// Begins a copy of a database that is being written, whose writer it waits for. By then it has its lock, and
/// has removed what was left there.
fn begin(from: &Path, to: &Path) -> (Making, JoinHandle<Result<(), SqliteError>>) {
    let part = to.with_extension("db.part");
    std::fs::write(&part, "left").unwrap();
    let (making, from) = (Making::at(to).unwrap(), from.to_owned());
    let made = std::thread::spawn({
        let making = making.clone();
        move || making.copy(&from)
    });
    while part.exists() {
        std::thread::yield_now();
    }
    (making, made)
}

#[tokio::test]
async fn what_is_told_to_end_leaves_nothing_unless_it_has_its_name() {
    let dir = TempDir::new();
    let copy = backed_up(dir.path()).await;
    let to = TempDir::new();
    let (store, part) = (to.path().join("semel.db"), to.path().join("semel.db.part"));
    // The copy waits for the writer of its source.
    let mut writer = rusqlite::Connection::open(&copy).unwrap();
    let written = writer.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (making, made) = begin(&copy, &store);
    std::fs::write(&part, "half").unwrap();
    assert_eq!(making.bytes(), 4);
    // A copy that has not begun owns nothing there, whatever has the name.
    let other = Making::at(&store).unwrap();
    assert!(other.stop() && other.copy(&copy).is_err());
    assert_eq!(std::fs::read_to_string(&part).unwrap(), "half");
    assert!(making.stop());
    assert_eq!(files(to.path()), Vec::<String>::new());
    drop(written);
    assert!(made.join().unwrap().is_err(), "it has ended");
    assert!(making.copy(&copy).is_err());
    assert_eq!(files(to.path()), Vec::<String>::new());
    assert!(making.restore(&copy).is_err());
    assert_eq!(files(to.path()), ["semel.db.lock"]);
    let making = Making::at(&store).unwrap();
    making.restore(&copy).unwrap();
    assert!(making.bytes() > 4 && !making.stop() && store.exists());
}

/// By then the name belongs to the other copy.
#[tokio::test]
async fn what_is_told_to_end_leaves_alone_what_another_makes_after_it() {
    let (dir, to) = (TempDir::new(), TempDir::new());
    let copy = backed_up(dir.path()).await;
    let (later, store) = (dir.path().join("later.db"), to.path().join("semel.db"));
    std::fs::copy(&copy, &later).unwrap();
    let mut writers = [&copy, &later].map(|path| rusqlite::Connection::open(path).unwrap());
    let [first_is_held, second_is_held] = writers
        .each_mut()
        .map(|writer| writer.transaction_with_behavior(TransactionBehavior::Immediate).unwrap());
    let (first, first_made) = begin(&copy, &store);
    assert!(first.stop());
    let (second, second_made) = begin(&later, &store);
    // The part as it is while rows are written: SQLite writes into an empty file.
    std::fs::write(to.path().join("semel.db.part"), "").unwrap();
    drop(first_is_held);
    assert!(first_made.join().unwrap().is_err());
    let mut left = files(to.path());
    left.sort();
    assert_eq!(left, ["semel.db.part", "semel.db.part.lock"]);
    drop(second_is_held);
    second_made.join().unwrap().unwrap();
    assert_eq!(files(to.path()), ["semel.db"]);
    assert!(!second.stop());
}
