//! Who may read what a store leaves on the disk.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use semel_sqlite::backup;
use semel_testkit::make::job;
use semel_testkit::{Fixture, Step};

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

/// Whoever lets a group read a store, to copy it, need not do it again for each file of its journal.
#[tokio::test]
async fn a_journal_has_the_mode_of_its_store() {
    let f = Fixture::in_dir(Step::Nothing, crate::open);
    let folder = f.dir().unwrap();
    let store = folder.join("semel.db");
    std::fs::set_permissions(&store, std::fs::Permissions::from_mode(0o640)).unwrap();
    f.create(&job().offer()).await;
    let journal = modes(folder).into_iter().find(|(path, _)| path.to_string_lossy().contains("-log."));
    assert_eq!(journal.unwrap().1, 0o640);
}
