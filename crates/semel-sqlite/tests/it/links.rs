//! One store by several names: a link to its file, and a path relative to a folder that its process leaves.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use semel_core::ident::JobId;
use semel_sqlite::{Sqlite, SqliteError, backup, lock};
use semel_store::Store;
use semel_testkit::TempDir;

use crate::disk::{again, offer, stored, succeeded};

#[tokio::test]
async fn a_store_has_one_lock_and_one_journal_by_whatever_name() {
    let dir = TempDir::new();
    let [path, link, folder] = ["semel.db", "link.db", "folder"].map(|name| dir.path().join(name));
    symlink("semel.db", &link).unwrap();
    symlink(".", &folder).unwrap();
    let names = [&path, &link, &folder.join("link.db")];
    // The store is made through the link, too.
    let store = Store::open(Arc::new(Sqlite::open(&link).unwrap())).unwrap();
    let id = offer(&store, 1, 10).await.unwrap();
    for (number, name) in names.into_iter().enumerate() {
        assert!(matches!(Sqlite::open(name).err(), Some(SqliteError::Owned { .. })), "{}", name.display());
        assert!(lock::owner(name).is_some(), "{}", name.display());
        let copy = dir.path().join(format!("copy {number}.db"));
        backup::copy(name, &copy).unwrap();
        assert_eq!(stored(&copy, &[id]).await, 1, "{}", name.display());
    }
    store.close().await;
    for name in names {
        assert_eq!(stored(name, &[id]).await, 1, "{}", name.display());
    }
    assert!(backup::restore(&dir.path().join("copy 0.db"), &link).is_err(), "it is there");
}

/// A copy with another name than the given one would be found by nobody, and could be read by everybody.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_name_need_be_no_text() {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    let dir = TempDir::new();
    let [path, copy, again] = [&b"a\xff.db"[..], b"b\xff.db", b"c\xff.db"]
        .map(|name| dir.path().join(std::ffi::OsStr::from_bytes(name)));
    let store = Store::open(Arc::new(Sqlite::open(&path).unwrap())).unwrap();
    let id = offer(&store, 1, 10).await.unwrap();
    backup::copy(&path, &copy).unwrap();
    store.close().await;
    backup::restore(&copy, &again).unwrap();
    for made in [&copy, &again] {
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(stored(made, &[id]).await, 1);
    }
    let names = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
    let others: Vec<_> = names.filter(|name| name.as_bytes()[1..4] != b"\xff.d"[..]).collect();
    assert_eq!(others, [""; 0]);
}

/// Closing a file gives up the process's SQLite locks on it, under whatever name it was opened: so it must
/// not even be opened a second time.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_hard_link_is_the_same_store_and_a_deleted_lock_still_one() {
    let dir = TempDir::new();
    let [path, other] = ["semel.db", "other.db"].map(|name| dir.path().join(name));
    let store = Store::open(Arc::new(Sqlite::open(&path).unwrap())).unwrap();
    let id = offer(&store, 1, 10).await.unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    std::fs::remove_file(dir.path().join("semel.db.lock")).unwrap();
    for name in [&path, &other] {
        let refused = Sqlite::open(name).err();
        assert!(matches!(refused, Some(SqliteError::Owned { is_here: true, .. })), "{}", name.display());
    }
    // Nothing is left of the refused openings that would keep the store from being opened.
    store.close().await;
    std::fs::remove_file(&other).unwrap();
    assert_eq!(stored(&path, &[id]).await, 1);
}

#[test]
fn a_store_stays_where_it_was_opened_when_its_process_goes_to_another_folder() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let Some(dir) = std::env::var_os("SEMEL_DISK") else {
        let dir = TempDir::new();
        std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
        let name = "links::a_store_stays_where_it_was_opened_when_its_process_goes_to_another_folder";
        succeeded(&again(&["env"], r#"cd "$SEMEL_DISK" && exec "$@""#, name, dir.path()));
        let told = std::fs::read_to_string(dir.path().join("told")).unwrap();
        let id = JobId::parse(&told, "").unwrap();
        assert_eq!(runtime.block_on(stored(&dir.path().join("semel.db"), &[id])), 1);
        assert_eq!(std::fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 0);
        return;
    };
    let dir = Path::new(&dir);
    runtime.block_on(async {
        let store = Store::open(Arc::new(Sqlite::open("semel.db").unwrap())).unwrap();
        std::env::set_current_dir("elsewhere").unwrap();
        let id = offer(&store, 1, 10).await.unwrap();
        std::fs::write(dir.join("told"), id.to_string()).unwrap();
        store.close().await;
    });
    println!("@played");
}
