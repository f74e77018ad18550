//! Who may read what a store leaves on the disk.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_sqlite::{Sqlite, backup};
use semel_store::Store;
use semel_testkit::make::job;
use semel_testkit::{Fixture, Step, TempDir};

use crate::disk::offer;

/// The files of a folder with their modes.
fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mode = |path: PathBuf| {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        (path, mode)
    };
    files.filter(|path| path.is_file()).map(mode).collect()
}

#[tokio::test]
async fn a_store_is_its_owners_alone() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    f.create(&job().offer()).await;
    let folder = f.dir().unwrap();
    let (copy, again) = (folder.join("copy.db"), folder.join("again.db"));
    backup::copy(&folder.join("semel.db"), &copy).unwrap();
    backup::restore(&copy, &again).unwrap();
    let modes = modes(folder);
    for name in ["semel.db", "semel.db-wal", "copy.db", "again.db"] {
        assert!(modes.iter().any(|(path, _)| path.ends_with(name)), "{name} among {modes:?}");
    }
    assert!(modes.iter().any(|(path, _)| path.to_string_lossy().contains("-log.")), "{modes:?}");
    assert!(modes.iter().all(|(_, mode)| *mode == 0o600), "{modes:?}");
}

/// A group that is allowed to read or write a store gets the same rights on each file beside it.
#[tokio::test]
async fn what_is_beside_a_store_has_its_mode() {
    let folder = TempDir::new();
    let path = folder.path().join("semel.db");
    let give = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    let open = || Store::open(Arc::new(Sqlite::open(&path).unwrap())).unwrap();
    std::fs::write(&path, "").unwrap();
    // More than most umasks leave.
    give(0o666);
    let store = open();
    offer(&store, 1, 10).await.unwrap();
    let journal = |(path, _): &(PathBuf, u32)| path.to_string_lossy().contains("-log.");
    assert_eq!(modes(folder.path()).into_iter().find(journal).unwrap().1, 0o666);
    store.close().await;
    // A mode that is set later applies from the next opening on, to the lock as well.
    give(0o640);
    let store = open();
    let modes = modes(folder.path());
    assert!(modes.len() > 3 && modes.iter().all(|(_, mode)| *mode == 0o640), "{modes:?}");
    store.close().await;
    // But not to a file that has another name too: anybody's file may have been put there.
    let log = folder.path().join("semel.db-log.0");
    std::fs::hard_link(&log, folder.path().join("another")).unwrap();
    give(0o666);
    let store = open();
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o640);
    store.close().await;
}

/// A server that runs as the folder's owner must be able to read what root has restored, or only looked into.
#[tokio::test]
async fn what_root_makes_belongs_to_the_owner_of_the_folder() {
    const SERVICE: u32 = 65_534;
    let (backups, folder) = (TempDir::new(), TempDir::new());
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    f.create(&job().offer()).await;
    let copy = backups.path().join("copy.db");
    backup::copy(&f.dir().unwrap().join("semel.db"), &copy).unwrap();
    // Only root may do this, and only root makes files that others cannot read: `cargo xtask test` leaves
    // this test out for everybody else.
    chown(folder.path(), Some(SERVICE), Some(SERVICE)).unwrap();
    let store = folder.path().join("semel.db");
    backup::restore(&copy, &store).unwrap();
    let owners = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (std::fs::metadata(&path).unwrap().uid(), path)).collect::<Vec<_>>()
    };
    let of_restored = owners();
    assert!(of_restored.iter().any(|(_, path)| *path == store), "{of_restored:?}");
    assert!(of_restored.iter().all(|(owner, _)| *owner == SERVICE), "{of_restored:?}");
    // A backup belongs to whoever makes it, wherever it is put.
    let kept = folder.path().join("kept.db");
    backup::copy(&copy, &kept).unwrap();
    assert_ne!(std::fs::metadata(&kept).unwrap().uid(), SERVICE);
    std::fs::remove_file(&kept).unwrap();
    // With a lock, a journal and SQLite's own files beside it.
    let path = folder.path().to_owned();
    let again = Fixture::new(Step::Nothing, move |clock| crate::open(&path, clock));
    again.create(&job().offer()).await;
    let of_opened = owners();
    assert!(of_opened.len() > of_restored.len(), "{of_opened:?}");
    assert!(of_opened.iter().all(|(owner, _)| *owner == SERVICE), "{of_opened:?}");
    // In root's own folder, nothing changes.
    assert_eq!(std::fs::metadata(&copy).unwrap().uid(), 0);
}
