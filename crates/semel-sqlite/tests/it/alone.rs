//! A store's file without its journal beside it: another name of the file, or a file that was copied or moved
//! alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_sqlite::Sqlite;
#[cfg(unix)]
use semel_sqlite::SqliteError;
use semel_sqlite::backup::{self, Making};
use semel_store::Store;
use semel_testkit::TempDir;

use crate::disk::{offer, stored};

/// A folder for a file alone, and the path of that file.
fn elsewhere() -> (TempDir, PathBuf) {
    let dir = TempDir::new();
    let path = dir.path().join("alone.db");
    (dir, path)
}

fn open(path: &Path) -> Store {
    Store::open(Arc::new(Sqlite::open(path).unwrap())).unwrap()
}

/// A closed store with a job that is in the journal alone.
async fn closed(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("semel.db");
    let store = open(&path);
    offer(&store, 1, 10).await.unwrap();
    store.close().await;
    path
}

fn is_refused(path: &Path) {
    let (_to, to) = elsewhere();
    let made = [Sqlite::open(path).map(drop), backup::copy(path, &to), backup::restore(path, &to)];
    for refused in made {
        let said = refused.unwrap_err().to_string();
        let log = format!("{}-log.N", path.display());
        assert!(said.contains(&log) && said.contains("--without-journal"), "{said}");
        assert!(!to.exists());
    }
}

fn forget_that_there_is_a_journal(path: &Path) {
    let db = rusqlite::Connection::open(path).unwrap();
    assert_eq!(db.execute("DELETE FROM fact WHERE name = 'journaled'", []).unwrap(), 1);
}

/// Opened by that name, it would admit again what the store already has, and a backup of it would lack that.
#[cfg(unix)]
#[tokio::test]
async fn another_name_of_a_store_is_not_taken_for_one_without_commits() {
    let dir = TempDir::new();
    let path = closed(&dir).await;
    let (_other, other) = elsewhere();
    std::fs::hard_link(&path, &other).unwrap();
    is_refused(&other);
    let store = open(&path);
    let (_to, to) = elsewhere();
    let refused = backup::copy(&other, &to);
    assert!(matches!(refused, Err(SqliteError::Unsupported(_))), "{refused:?}");
    offer(&store, 2, 10).await.unwrap();
    store.close().await;
    is_refused(&other);
    std::fs::remove_file(&other).unwrap();
    assert_eq!(stored(&path, &[]).await, 2);
}

#[tokio::test]
async fn a_file_that_was_moved_alone_waits_for_its_journal_or_is_restored_without() {
    let dir = TempDir::new();
    let path = closed(&dir).await;
    let (moved_to, moved) = elsewhere();
    std::fs::rename(&path, &moved).unwrap();
    is_refused(&moved);
    let (_to, to) = elsewhere();
    Making::at(&to).unwrap().restore_without_journal(&moved).unwrap();
    assert_eq!(stored(&to, &[]).await, 0, "what was in the journal is given up");
    std::fs::rename(dir.path().join("semel.db-log.0"), moved_to.path().join("alone.db-log.0")).unwrap();
    assert_eq!(stored(&moved, &[]).await, 1);
    // A journal that is there is not given up.
    let (_to, to) = elsewhere();
    Making::at(&to).unwrap().restore_without_journal(&moved).unwrap();
    assert_eq!(stored(&to, &[]).await, 1);
}

/// The file as a store leaves it that is killed before SQLite's log is checkpointed.
#[tokio::test]
async fn the_file_alone_says_that_there_is_a_journal_before_anything_is_committed() {
    let dir = TempDir::new();
    let path = dir.path().join("semel.db");
    let store = open(&path);
    let (_alone, alone) = elsewhere();
    std::fs::copy(&path, &alone).unwrap();
    is_refused(&alone);
    store.close().await;
}

/// A copy is whole without a journal, even if it says of itself that it has one, as the copied file does and
/// as a copy by an earlier version does. It stays whole if it is only looked at.
#[tokio::test]
async fn a_copy_has_no_journal_until_something_is_committed_to_it() {
    let dir = TempDir::new();
    let path = closed(&dir).await;
    let (_copy, copy) = elsewhere();
    backup::copy(&path, &copy).unwrap();
    let journaled = rusqlite::Connection::open(&copy).unwrap();
    let said = journaled
        .query_row("SELECT value FROM fact WHERE name = 'journaled'", [], |row| row.get::<_, i64>(0));
    assert_ne!(said.unwrap(), 0);
    drop(journaled);
    let (_again, again) = elsewhere();
    backup::restore(&copy, &again).unwrap();
    for whole in [&copy, &again] {
        assert_eq!(stored(whole, &[]).await, 1);
        let (_moved, moved) = elsewhere();
        std::fs::rename(whole, &moved).unwrap();
        assert_eq!(stored(&moved, &[]).await, 1);
        let store = open(&moved);
        offer(&store, 2, 10).await.unwrap();
        store.close().await;
        let (_again, again) = elsewhere();
        std::fs::rename(&moved, &again).unwrap();
        is_refused(&again);
    }
}

#[tokio::test]
async fn a_store_of_an_earlier_version_says_so_from_its_next_opening_on() {
    let dir = TempDir::new();
    let path = closed(&dir).await;
    forget_that_there_is_a_journal(&path);
    // Another holder of SQLite's lock, such as a running copy, does not keep the store from being opened.
    let copying = rusqlite::Connection::open(&path).unwrap();
    copying.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(stored(&path, &[]).await, 1);
    drop(copying);
    assert_eq!(stored(&path, &[]).await, 1);
    let (_moved, moved) = elsewhere();
    std::fs::rename(&path, &moved).unwrap();
    is_refused(&moved);
}

/// As when somebody goes back to a copy by hand: what was committed after it is in the journal left there.
#[tokio::test]
async fn a_copy_that_has_the_name_of_its_store_is_refused_beside_what_that_one_committed_later() {
    let dir = TempDir::new();
    let [path, copy, earlier, restored] =
        ["semel.db", "copy.db", "earlier.db", "restored.db"].map(|name| dir.path().join(name));
    let store = open(&path);
    offer(&store, 1, 10).await.unwrap();
    backup::copy(&path, &copy).unwrap();
    offer(&store, 2, 10).await.unwrap();
    store.close().await;
    // The copy as an earlier version made it.
    std::fs::copy(&copy, &earlier).unwrap();
    let db = rusqlite::Connection::open(&earlier).unwrap();
    assert_eq!(db.execute("DELETE FROM fact WHERE name = 'copied'", []).unwrap(), 1);
    drop(db);
    // That somebody has looked at the copy makes no difference.
    assert_eq!(stored(&copy, &[]).await, 1);
    backup::restore(&copy, &restored).unwrap();
    let own = std::fs::read(&path).unwrap();
    for older in [&copy, &earlier, &restored] {
        std::fs::copy(older, &path).unwrap();
        let (_to, to) = elsewhere();
        let made = [Sqlite::open(&path).map(drop), backup::copy(&path, &to), backup::restore(&path, &to)];
        for refused in made {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("semel.db-log.N") && said.contains("is a copy of a store"), "{said}");
        }
    }
    std::fs::write(&path, own).unwrap();
    assert_eq!(stored(&path, &[]).await, 2, "nothing of the journal was touched");
    std::fs::remove_file(dir.path().join("semel.db-log.0")).unwrap();
    std::fs::copy(&restored, &path).unwrap();
    assert_eq!(stored(&path, &[]).await, 1);
}

/// No commit is missing then.
#[tokio::test]
async fn a_copy_that_has_all_of_the_journal_beside_it_goes_on() {
    let dir = TempDir::new();
    let path = closed(&dir).await;
    let (_copy, copy) = elsewhere();
    backup::copy(&path, &copy).unwrap();
    std::fs::copy(&copy, &path).unwrap();
    for number in 2..4 {
        let store = open(&path);
        offer(&store, number, 10).await.unwrap();
        store.close().await;
        assert_eq!(stored(&path, &[]).await, u64::from(number));
    }
}
