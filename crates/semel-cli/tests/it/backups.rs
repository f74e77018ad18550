//! `semel backup` and `semel restore`.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use semel_testkit::signal::kill;
use serde_json::json;

use crate::log::Log;
use crate::run::{Folder, Ran, Server, without_settings};

const PAY: [&str; 5] = ["enqueue", "invoice.pay", "42", "--key", "invoice-42"];

/// Runs as a user other than root, whom no file mode would restrict. The folder is the test's own.
fn as_somebody_else(command: &mut Command, folder: &Folder) {
    if let Ok(account) = std::env::var("SEMEL_TEST_ACCOUNT") {
        let (user, group) = account.split_once(':').unwrap();
        command.uid(user.parse().unwrap()).gid(group.parse().unwrap());
    } else {
        // New files belong to the user who creates them.
        let user = std::fs::metadata(folder.path()).unwrap().uid();
        assert_ne!(
            user, 0,
            "root has to say by SEMEL_TEST_ACCOUNT who else there is: run `cargo xtask test`"
        );
    }
    without_settings(command);
}

/// Runs `semel` as a user other than root.
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
    // Not every user may enter the folder of the program itself.
    std::fs::copy(env!("CARGO_BIN_EXE_semel"), path("program")).unwrap();
    let mut restore = Command::new(path("program"));
    restore.current_dir(folder.path()).args(["restore", "kept/copy.db", "sqlite:new/semel.db"]);
    as_somebody_else(&mut restore, &folder);
    let ran = Ran::of(&mut restore);
    mode("kept", 0o755);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(folder.json(&["jobs", "--store", "sqlite:new/semel.db"])["jobs"].as_array().unwrap().len(), 1);
}

/// A user who may write a store's file may also write the files beside it, whoever created them.
#[test]
fn whoever_shares_a_store_shares_what_is_beside_it() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    let mode = |name: &str, mode| std::fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
    folder.json(&["enqueue", "a.b", "1"]);
    std::fs::create_dir(path("shared")).unwrap();
    assert_eq!(folder.run(&["backup", "shared/semel.db"]).code, 0);
    mode("", 0o755);
    mode("shared", 0o777);
    mode("shared/semel.db", 0o666);
    std::fs::copy(env!("CARGO_BIN_EXE_semel"), path("program")).unwrap();
    let mut other = Command::new(path("program"));
    other.current_dir(folder.path()).args(["enqueue", "a.b", "2", "--store", "sqlite:shared/semel.db"]);
    as_somebody_else(&mut other, &folder);
    assert_eq!(Ran::of(&mut other).code, 0);
    let beside = std::fs::read_dir(path("shared")).unwrap().map(|entry| entry.unwrap().path());
    let beside: Vec<_> =
        beside.map(|path| (path.metadata().unwrap().permissions().mode() & 0o777, path)).collect();
    assert!(beside.len() > 2 && beside.iter().all(|(mode, _)| *mode == 0o666), "{beside:?}");
}

/// A file of that name may be here, too, and would be taken for the server's.
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

/// As on a machine that serves and calls: `serve` reads the store, all other verbs the server.
#[test]
fn a_backup_is_made_of_the_store_that_is_named_with_the_server() {
    let folder = Folder::new();
    folder.json(&["enqueue", "a.b", "--store", "sqlite:jobs.db"]);
    let settings = "store = \"sqlite:jobs.db\"\nserver = \"http://127.0.0.1:9\"\n";
    std::fs::write(folder.path().join("semel.toml"), settings).unwrap();
    assert_eq!(folder.json(&["backup", "copy.db"])["store"], "jobs.db");
    // A variable is above the file: the file's store is not this server's.
    let other = Ran::of(folder.semel(&["backup", "other.db"]).env("SEMEL_SERVER", "http://127.0.0.1:9"));
    assert_eq!((other.code, folder.path().join("other.db").exists()), (2, false), "{}", other.err);
    let mut both = folder.semel(&["backup", "other.db"]);
    both.env("SEMEL_SERVER", "http://127.0.0.1:9").env("SEMEL_STORE", "sqlite:jobs.db");
    let both = Ran::of(&mut both);
    assert_eq!(both.code, 0, "{}", both.err);
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
    assert!(again.err.contains("already exists"), "{}", again.err);
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

/// The latest commits of a lost store are in the journal beside it, which may be all that is left.
#[test]
fn a_backup_is_not_restored_over_the_journal_of_another_store() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    folder.json(&PAY);
    assert_eq!(folder.run(&["backup", "copy.db"]).code, 0);
    folder.json(&["enqueue", "later.job"]);
    // One of the old store's files was moved, and the others were forgotten.
    std::fs::rename(path("semel.db"), path("old.db")).unwrap();
    let journal = std::fs::read(path("semel.db-log.0")).unwrap();
    assert!(!journal.is_empty());
    let refused = folder.run(&["restore", "copy.db", "sqlite:semel.db"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for needle in ["semel.db-log.0", "stop its server", "semel.db-* away", "together"] {
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
    // An empty journal has nothing.
    std::fs::write(path("semel.db-wal"), "").unwrap();
    assert_eq!(folder.run(&["restore", "copy.db", "sqlite:semel.db"]).code, 0);
    assert_eq!(folder.json(&["jobs"])["jobs"].as_array().unwrap().len(), 1);
}

/// The journal has what was acknowledged: without it no server starts and no backup is made, unless the user
/// gives that up.
#[test]
fn a_stores_file_alone_is_no_store_and_no_backup_unless_its_journal_is_given_up() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    folder.json(&PAY);
    std::fs::create_dir(path("other")).unwrap();
    std::fs::hard_link(path("semel.db"), path("other/alone.db")).unwrap();
    let store = ["--store", "sqlite:other/alone.db"];
    for ran in [
        folder.run(&[&PAY[..], &store].concat()),
        folder.run(&[&["backup", "copy.db"][..], &store].concat()),
        folder.run(&["restore", "other/alone.db", "copy.db"]),
    ] {
        assert!(ran.code == 1 && ran.err.contains("other/alone.db-log.N"), "{ran:?}");
        assert!(ran.err.contains("semel restore --without-journal"), "{ran:?}");
        assert!(!path("copy.db").exists());
    }
    assert_eq!(folder.run(&["restore", "--without-journal", "other/alone.db", "copy.db"]).code, 0);
    assert_eq!(folder.json(&["jobs", "--store", "sqlite:copy.db"])["jobs"].as_array().unwrap().len(), 0);
    assert_eq!(folder.json(&["jobs"])["jobs"].as_array().unwrap().len(), 1);
}

fn signal(name: &str, child: &Child) {
    assert!(kill(name, child.id()).status().unwrap().success());
}

/// The files of a backup that exist.
fn files(folder: &Path, name: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|found| found.into_string().unwrap()).filter(|found| found.starts_with(name)).collect()
}

/// Starts a backup and suspends it (SIGSTOP) before it is complete. The file itself is to be at `file`.
fn standing(folder: &Folder, name: &str, file: &Path) -> Child {
    let until = Instant::now() + Duration::from_secs(60);
    let part = file.with_extension("db.part");
    loop {
        let mut child = folder.semel(&["backup", name]).stderr(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if part.exists() {
                signal("-STOP", &child);
                if part.exists() {
                    return child;
                }
                signal("-CONT", &child);
            }
        }
        // The backup was done before this test looked.
        assert!(Instant::now() < until, "it never stands still");
        std::fs::remove_file(file).unwrap();
    }
}

/// One backup makes the other wait, which is how the other takes long here.
#[test]
fn a_backup_says_how_far_it_is_and_leaves_nothing_when_it_is_told_to_stop() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let text = "x".repeat(100_000);
    for _ in 0..10 {
        let jobs = vec![json!({ "type": "a.b", "args": [text] }); 50];
        server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs }));
    }
    assert_eq!(server.stop().0.code(), Some(0));
    // A backup named by a link is made where the link leads.
    let kept = folder.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    symlink("kept/a.db", folder.path().join("a.db")).unwrap();
    let mut first = standing(&folder, "a.db", &kept.join("a.db"));
    let mut second = folder.semel(&["backup", "b.db", "--json"]);
    let mut second = second.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let log = Log::of(second.stderr.take().unwrap());
    log.until("writing b.db: 0 MiB ... 2 s");
    let log_of_first = Log::of(first.stderr.take().unwrap());
    for (name, child, log) in [("b.db", &mut second, log), ("a.db", &mut first, log_of_first)] {
        signal("-INT", child);
        signal("-CONT", child);
        let (status, told) = (child.wait().unwrap(), log.rest());
        assert_eq!(status.code(), Some(1), "{name}: {told}");
        assert!(told.contains("stopped before"), "{name}: {told}");
    }
    assert_eq!(
        (files(folder.path(), "a.db"), files(folder.path(), "b.db")),
        (vec!["a.db".to_owned()], vec![])
    );
    assert_eq!(files(&kept, ""), Vec::<String>::new());
    assert_eq!(folder.run(&["backup", "a.db"]).code, 0);
    assert_eq!(files(&kept, ""), ["a.db"]);
}
