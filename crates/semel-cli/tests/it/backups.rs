//! `semel backup` and `semel restore`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::run::{Folder, Ran, Server, without_settings};

const PAY: [&str; 5] = ["enqueue", "invoice.pay", "42", "--key", "invoice-42"];

/// By somebody who is not root, whom no mode keeps from anything.
#[test]
fn a_backup_is_restored_from_where_nobody_can_write() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    let mode = |name: &str, mode| std::fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
    folder.json(&["enqueue", "email.send", "--store", "sqlite:semel.db"]);
    std::fs::create_dir(path("kept")).unwrap();
    std::fs::create_dir(path("new")).unwrap();
    assert_eq!(folder.run(&["backup", "kept/copy.db", "--store", "sqlite:semel.db"]).code, 0);
    mode("kept/copy.db", 0o444);
    mode("kept", 0o555);
    mode("new", 0o777);
    // Where the program itself lies not everybody may come.
    std::fs::copy(env!("CARGO_BIN_EXE_semel"), path("program")).unwrap();
    let mut restore = Command::new(path("program"));
    restore.current_dir(folder.path()).args(["restore", "kept/copy.db", "sqlite:new/semel.db"]);
    if let Ok(account) = std::env::var("SEMEL_TEST_ACCOUNT") {
        let (user, group) = account.split_once(':').unwrap();
        restore.uid(user.parse().unwrap()).gid(group.parse().unwrap());
    }
    without_settings(&mut restore);
    let ran = Ran::of(&mut restore);
    mode("kept", 0o755);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(folder.json(&["jobs", "--store", "sqlite:new/semel.db"])["jobs"].as_array().unwrap().len(), 1);
}

/// A file of that name may lie here, too, and would be taken for the server's.
#[test]
fn a_backup_is_not_made_of_another_store_than_the_one_that_is_set() {
    let folder = Folder::new();
    folder.json(&["enqueue", "a.b"]);
    let by_variable = Ran::of(folder.semel(&["backup", "copy.db"]).env("SEMEL_SERVER", "http://127.0.0.1:9"));
    assert!(by_variable.code == 2 && by_variable.err.contains("--store sqlite:PATH"), "{by_variable:?}");
    std::fs::write(folder.path().join("semel.toml"), "server = \"http://127.0.0.1:9\"\n").unwrap();
    assert_eq!(folder.run(&["backup", "copy.db"]).code, 2);
    assert!(!folder.path().join("copy.db").exists());
    assert_eq!(folder.run(&["backup", "copy.db", "--store", "sqlite:semel.db"]).code, 0);
}

#[test]
fn a_backup_is_made_beside_a_server_and_restored() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let id = folder.json(&PAY)["job"]["id"].clone();
    assert!(folder.json(&["backup", "copy.db"])["bytes"].as_u64().unwrap() > 0);
    folder.json(&["enqueue", "later.job"]);
    let again = folder.run(&["backup", "copy.db"]);
    assert_eq!(again.code, 1);
    assert!(again.err.contains("exists already"), "{}", again.err);
    assert_eq!(server.stop().0.code(), Some(0));

    assert!(folder.run(&["restore", "copy.db", "sqlite:restored.db"]).out.contains("semel serve --store"));
    let jobs = folder.json(&["jobs", "--store", "sqlite:restored.db"]);
    assert_eq!((jobs["jobs"].as_array().unwrap().len(), &jobs["jobs"][0]["id"]), (1, &id));
    let explain = [&["explain"], &PAY[1..], &["--store", "sqlite:restored.db"]].concat();
    let explained = folder.json(&explain);
    assert_eq!(explained["decision"], "reject", "the key came along");
    assert_eq!(folder.run(&["restore", "copy.db", "semel.db"]).code, 1, "a store is not overwritten");
    std::fs::write(folder.path().join("damaged.db"), "not a database at all, whatever its name says")
        .unwrap();
    let damaged = folder.run(&["restore", "damaged.db", "new.db"]);
    assert_eq!(damaged.code, 1, "{}", damaged.err);
    assert!(!folder.path().join("new.db").exists());
}

/// What a store that is lost committed last is in the journal beside it, and may be all that is left of it.
#[test]
fn a_backup_is_not_restored_over_the_journal_of_another_store() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    folder.json(&PAY);
    assert_eq!(folder.run(&["backup", "copy.db"]).code, 0);
    folder.json(&["enqueue", "later.job"]);
    // Of the old store's files one was moved, and the others were forgotten.
    std::fs::rename(path("semel.db"), path("old.db")).unwrap();
    let journal = std::fs::read(path("semel.db-log.0")).unwrap();
    assert!(!journal.is_empty());
    let refused = folder.run(&["restore", "copy.db", "sqlite:semel.db"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for needle in ["semel.db-log.0", "stop its server", "every semel.db-*", "together"] {
        assert!(refused.err.contains(needle), "{needle:?} is not in {}", refused.err);
    }
    assert!(!path("semel.db").exists());
    assert_eq!(std::fs::read(path("semel.db-log.0")).unwrap(), journal);
    for entry in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("semel.db") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    std::fs::write(path("semel.db-wal"), "what SQLite had not carried over").unwrap();
    let refused = folder.run(&["restore", "copy.db", "sqlite:semel.db"]);
    assert!(refused.code == 1 && refused.err.contains("semel.db-wal"), "{refused:?}");
    assert!(path("semel.db-wal").exists());
    // An empty one has nothing.
    std::fs::write(path("semel.db-wal"), "").unwrap();
    assert_eq!(folder.run(&["restore", "copy.db", "sqlite:semel.db"]).code, 0);
    assert_eq!(folder.json(&["jobs"])["jobs"].as_array().unwrap().len(), 1);
}
