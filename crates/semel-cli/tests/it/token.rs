//! `semel token`, and a server that picks up its changes.

use std::time::{Duration, Instant};

use semel_core::time::Timestamp;
use semel_store::clock::{Clock as _, SystemClock};
use serde_json::Value;

use crate::run::{Folder, Ran, Server};

fn create(folder: &Folder, words: &[&str]) -> (String, String) {
    let words = [&["token", "create", "--tokens", "tokens.toml"], words].concat();
    let made = folder.json(&words);
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

fn ask(folder: &Folder, token: &str, words: &[&str]) -> Ran {
    Ran::of(folder.semel(words).env("SEMEL_TOKEN", token))
}

/// Asks until the answer is this, which must happen soon.
fn becomes(folder: &Folder, token: &str, words: &[&str], code: i32, needle: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let ran = ask(folder, token, words);
        if ran.code == code && ran.err.contains(needle) {
            return;
        }
        assert!(Instant::now() < deadline, "{ran:?}");
    }
}

/// As in the examples, `> admin-token`: the shell creates a file that everybody may read.
#[cfg(unix)]
#[test]
fn a_token_in_a_file_that_others_may_read_is_remarked_upon() {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    let folder = Folder::new();
    for (mode, is_open) in [(0o644, true), (0o600, false)] {
        let file = File::create(folder.path().join("admin-token")).unwrap();
        file.set_permissions(Permissions::from_mode(mode)).unwrap();
        let mut made = folder.semel(&["token", "create", "--tokens", "tokens.toml", "--role", "admin"]);
        let ran = Ran::of(made.stdout(file));
        assert_eq!((ran.code, ran.err.contains("chmod 600")), (0, is_open), "{}", ran.err);
    }
}

#[test]
fn tokens_are_made_rotated_and_revoked_while_the_server_runs() {
    let folder = Folder::new();
    let (_, admin) = create(&folder, &["--role", "admin", "--name", "me"]);
    let server = Server::start(&folder, &["--tokens", "tokens.toml"]);
    assert_eq!(ask(&folder, &admin, &["keys"]).code, 0);
    let unknown = ask(&folder, "semel_nothing", &["jobs"]).err;
    assert!(unknown.contains("unauthorized (401)"), "{unknown}");
    assert!(unknown.contains("--token-file FILE or SEMEL_TOKEN"), "{unknown}");
    // A new token is accepted from the next SIGHUP on.
    let (id, mail) = create(&folder, &["--role", "producer", "--queue", "mail"]);
    assert!(ask(&folder, &mail, &["enqueue", "a.b", "--queue", "mail"]).err.contains("(401)"));
    server.signal("-HUP");
    becomes(&folder, &mail, &["enqueue", "a.b", "--queue", "mail"], 0, "");
    assert!(ask(&folder, &mail, &["enqueue", "a.b", "--queue", "other"]).err.contains("forbidden (403)"));
    let keys = ask(&folder, &mail, &["keys"]).err;
    assert!(keys.contains("admin"), "says which role is needed: {keys}");
    assert!(keys.contains("--token-file FILE or SEMEL_TOKEN"), "{keys}");
    // Both are valid during a rotation; the old one has an end.
    let rotated = folder.json(&["token", "rotate", &id, "--tokens", "tokens.toml", "--overlap", "PT1H"]);
    let newer = rotated["token"].as_str().unwrap();
    server.signal("-HUP");
    becomes(&folder, newer, &["enqueue", "a.b", "--queue", "mail"], 0, "");
    assert_eq!(ask(&folder, &mail, &["enqueue", "a.b", "--queue", "mail"]).code, 0);
    let listed = folder.json(&["token", "list", "--tokens", "tokens.toml"]);
    let listed = listed["tokens"].as_array().unwrap();
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|token| token["inspect"] == true), "{listed:?}");
    assert!(listed[1]["expires_at"].is_string() && listed[2]["expires_at"].is_null());
    assert_eq!(listed[2]["queues"], listed[1]["queues"]);
    // A revoked token is refused.
    assert_eq!(folder.run(&["token", "revoke", &id, "--tokens", "tokens.toml"]).code, 0);
    server.signal("-HUP");
    becomes(&folder, &mail, &["jobs", "--queue", "mail"], 1, "(401)");
    // An invalid file changes nothing.
    let text = std::fs::read_to_string(folder.path().join("tokens.toml")).unwrap();
    std::fs::write(folder.path().join("tokens.toml"), "token = nonsense").unwrap();
    server.signal("-HUP");
    let before = server.log_until("the previous tokens stay in use");
    assert_eq!(ask(&folder, newer, &["jobs", "--queue", "mail"]).code, 0);
    assert!(ask(&folder, &mail, &["jobs", "--queue", "mail"]).err.contains("(401)"), "nor is more let in");
    std::fs::write(folder.path().join("tokens.toml"), text).unwrap();
    let (_, out, log) = server.stop();
    let log = before + &log;
    for secret in [&admin, &mail, newer] {
        assert!(!log.contains(secret) && !out.contains(secret));
    }
}

#[test]
fn a_token_that_is_taken_out_is_refused_from_the_next_sighup_on() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    // A plain file, another that `semel token` wrote, and the configuration: each names tokens and loses them.
    write("plain", "first\nsecond\n");
    let server = Server::start(&folder, &["--token-file", "plain"]);
    assert_eq!(ask(&folder, "first", &["jobs"]).code, 0);
    write("plain", "second\n");
    server.signal("-HUP");
    becomes(&folder, "first", &["jobs"], 1, "(401)");
    assert_eq!(ask(&folder, "second", &["jobs"]).code, 0);
    write("plain", "# none is left\n");
    server.signal("-HUP");
    becomes(&folder, "second", &["jobs"], 1, "(401)");
    let log = server.stop().2;
    assert!(log.contains("no tokens are left"), "{log}");
    let (id, text) = create(&folder, &["--role", "admin"]);
    let server = Server::start(&folder, &["--tokens", "tokens.toml"]);
    assert_eq!(ask(&folder, &text, &["jobs"]).code, 0);
    assert_eq!(folder.run(&["token", "revoke", &id, "--tokens", "tokens.toml"]).code, 0);
    server.signal("-HUP");
    becomes(&folder, &text, &["jobs"], 1, "(401)");
    server.stop();
    write("others", "third\n");
    write("semel.toml", "token_file = \"others\"\n");
    let server = Server::start(&folder, &[]);
    assert_eq!(ask(&folder, "third", &["jobs"]).code, 0);
    write("semel.toml", "");
    server.signal("-HUP");
    becomes(&folder, "third", &["jobs"], 1, "(401)");
    // It does not start if a token file it was given holds no token.
    let refused = folder.run(&["serve", "--listen", "127.0.0.1:0", "--token-file", "plain"]);
    assert_eq!((refused.code, refused.err.contains("contains no tokens")), (2, true), "{}", refused.err);
}

/// Otherwise a mistake in a template would keep a revoked token valid, and one in the tokens an old template.
#[test]
fn a_token_is_revoked_whatever_is_wrong_with_templates() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let (id, revoked) = create(&folder, &["--role", "admin"]);
    let (_, admin) = create(&folder, &["--role", "admin"]);
    std::fs::create_dir(folder.path().join("templates")).unwrap();
    write("templates/mail.yaml", "namespace: mail\nname: send\n");
    let server = Server::start(&folder, &["--tokens", "tokens.toml", "--templates", "templates"]);
    let has_template = |kind: &str| {
        let ran = ask(&folder, &admin, &["explain", kind, "{}", "--json"]);
        serde_json::from_str::<Value>(&ran.out).unwrap()["key"].is_string()
    };
    assert!(has_template("mail.send") && !has_template("mail.other"));
    assert_eq!(ask(&folder, &revoked, &["keys"]).code, 0);
    write("templates/mail.yaml", "namespace: mail\n");
    assert_eq!(folder.run(&["token", "revoke", &id, "--tokens", "tokens.toml"]).code, 0);
    server.signal("-HUP");
    let log = server.log_until("mail.yaml:1:1: /name is missing");
    let taken = "reloaded tokens, but the previous certificates and templates stay in use";
    assert!(log.contains("ERROR") && log.contains(taken), "{log}");
    assert!(ask(&folder, &revoked, &["keys"]).err.contains("(401)"));
    assert!(has_template("mail.send"), "the old templates hold");
    // The other way round.
    write("templates/mail.yaml", "namespace: mail\nname: other\n");
    write("tokens.toml", "token = nonsense");
    server.signal("-HUP");
    let log = server.log_until("the previous tokens stay in use");
    assert!(log.contains("reloaded certificates and templates"), "{log}");
    assert!(has_template("mail.other") && !has_template("mail.send"));
    assert!(ask(&folder, &revoked, &["keys"]).err.contains("(401)"));
    drop(server);
}

/// A token in both files would have the rights of the plain file, which are all: what the other file says of
/// it, and its end there, would be ignored.
#[test]
fn a_token_that_has_an_entry_is_no_plain_one_too() {
    let folder = Folder::new();
    let (id, least) = create(&folder, &["--role", "producer", "--queue", "mail", "--expires", "PT1H"]);
    let plain = |text: &str| std::fs::write(folder.path().join("plain"), text).unwrap();
    plain(&format!("# those of the tests\n\nother\n  {least}\n"));
    let both = ["--tokens", "tokens.toml", "--token-file", "plain"];
    let refused = folder.run(&[&["serve", "--listen", "127.0.0.1:0"], &both[..]].concat());
    assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{}", refused.err);
    for needle in ["line 4 of the --token-file", &id, "tokens.toml", "next: remove the line"] {
        assert!(refused.err.contains(needle), "{needle:?} is not in {}", refused.err);
    }
    assert!(!refused.err.contains(&least), "{}", refused.err);
    plain("other\n");
    let server = Server::start(&folder, &both);
    assert_eq!(ask(&folder, "other", &["keys"]).code, 0);
    assert!(ask(&folder, &least, &["keys"]).err.contains("(403)"));
    // Nor is it accepted when it is added while the server runs.
    plain(&format!("other\n{least}\n"));
    server.signal("-HUP");
    server.log_until("the previous tokens stay in use");
    assert!(ask(&folder, &least, &["keys"]).err.contains("(403)"));
    drop(server);
}

#[test]
fn the_file_is_nobody_elses_and_holds_no_token() {
    let folder = Folder::new();
    let ran = folder.run(&["token", "create", "--tokens", "tokens.toml", "--role", "worker"]);
    // The token is alone on stdout, so that it can be redirected to where it is kept.
    let token = ran.out.trim_end();
    assert!(token.starts_with("semel_") && token.len() == 70, "{ran:?}");
    let path = folder.path().join("tokens.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&token[6..]) && text.contains("sha256"), "{text}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let listed = folder.run(&["token", "list", "--tokens", "tokens.toml"]);
    assert!(listed.out.contains("worker") && !listed.out.contains(&token[6..]), "{}", listed.out);
}

/// A service of another user reads the file through its group: a change that took this away would leave a
/// revoked token valid, for the service would keep the tokens it had.
#[cfg(unix)]
#[test]
fn a_change_keeps_who_may_read_the_file() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let folder = Folder::new();
    let path = folder.path().join("tokens.toml");
    let (id, _) = create(&folder, &["--role", "admin"]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    // The user who runs this may not be allowed to give a file away; then the file stays that user's.
    drop(chown(&path, None, Some(65_532)));
    let before = std::fs::metadata(&path).unwrap();
    create(&folder, &["--role", "worker"]);
    folder.json(&["token", "rotate", &id, "--tokens", "tokens.toml"]);
    assert_eq!(folder.run(&["token", "revoke", &id, "--tokens", "tokens.toml"]).code, 0);
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((after.mode() & 0o7777, after.uid(), after.gid()), (0o640, before.uid(), before.gid()));
}

/// A new file in the link's place would leave the token in the file that the server reads.
#[cfg(unix)]
#[test]
fn a_token_is_revoked_in_the_file_that_a_link_leads_to() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let (id, _) = create(&folder, &["--role", "admin"]);
    let (real, link) = (folder.path().join("tokens.toml"), folder.path().join("etc/link.toml"));
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    symlink("../tokens.toml", &link).unwrap();
    let revoked = folder.run(&["token", "revoke", &id, "--tokens", "etc/link.toml"]);
    assert_eq!(revoked.code, 0, "{}", revoked.err);
    assert!(!std::fs::read_to_string(&real).unwrap().contains(&id));
    assert!(link.symlink_metadata().unwrap().is_symlink() && real.symlink_metadata().unwrap().is_file());
    let beside: Vec<_> = std::fs::read_dir(folder.path().join("etc")).unwrap().collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
    // A dangling link is left as it is.
    std::fs::remove_file(&real).unwrap();
    let made = folder.run(&["token", "create", "--role", "admin", "--tokens", "etc/link.toml"]);
    assert!(made.code == 1 && made.err.contains("a link to a file that does not exist"), "{made:?}");
    assert!(link.symlink_metadata().unwrap().is_symlink() && !real.exists());
}

fn listed(folder: &Folder) -> Vec<Value> {
    folder.json(&["token", "list", "--tokens", "tokens.toml"])["tokens"].as_array().unwrap().clone()
}

fn time(of: &Value, member: &str) -> Timestamp {
    Timestamp::parse(of[member].as_str().unwrap(), "").unwrap()
}

/// A token rotated on its last day must give one with the full lifetime, not one that ends on that day.
#[test]
fn a_rotated_token_is_good_for_as_long_as_the_old_one_was() {
    let folder = Folder::new();
    let (id, _) = create(&folder, &["--role", "worker", "--expires", "P90D"]);
    let rotate = |id: &str| folder.run(&["token", "rotate", id, "--tokens", "tokens.toml"]);
    // The token was created 89 days ago.
    let path = folder.path().join("tokens.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let [old] = &*listed(&folder) else { panic!() };
    let days = |n: u64| Duration::from_secs(n * 24 * 3600);
    let back = |member: &str| {
        let at = time(old, member).as_micros() - i64::try_from(days(89).as_micros()).unwrap();
        (old[member].as_str().unwrap().to_owned(), Timestamp::from_micros(at).to_string())
    };
    let (created, ends) = (back("created_at"), back("expires_at"));
    std::fs::write(&path, text.replace(&created.0, &created.1).replace(&ends.0, &ends.1)).unwrap();
    assert_eq!(rotate(&id).code, 0);
    let [old, new] = &*listed(&folder) else { panic!() };
    assert_eq!(old["expires_at"], ends.1, "one that ends sooner by itself still does");
    assert_eq!(time(new, "expires_at").since(time(new, "created_at")), days(90));
    // The replaced token is ending, so it is not rotated again.
    let twice = rotate(&id);
    assert!(twice.code == 3 && twice.err.contains(new["id"].as_str().unwrap()), "{twice:?}");
    assert_eq!(rotate(new["id"].as_str().unwrap()).code, 0);
    // Nor is an expired one.
    let (id, _) = create(&folder, &["--role", "worker", "--expires", "PT0.001S"]);
    let over = listed(&folder).into_iter().find(|token| token["id"] == *id).unwrap();
    while SystemClock.now() <= time(&over, "expires_at") {}
    let over = rotate(&id);
    assert!(over.code == 3 && over.err.contains("semel token create"), "{over:?}");
    assert_eq!(listed(&folder).len(), 4);
}

/// A tenant's token reveals nothing about others' jobs unless it is allowed to.
#[test]
fn a_tenants_token_reads_if_it_may() {
    let folder = Folder::new();
    let (_, blind) = create(&folder, &["--role", "producer", "--tenant", "acme"]);
    let (_, seeing) = create(&folder, &["--role", "producer", "--tenant", "acme", "--inspect"]);
    let _server = Server::start(&folder, &["--tokens", "tokens.toml"]);
    assert!(ask(&folder, &blind, &["jobs"]).err.contains("(403)"));
    assert_eq!(ask(&folder, &seeing, &["jobs"]).code, 0);
    // The list says which token may, also for tokens without a tenant.
    create(&folder, &["--role", "producer", "--no-inspect"]);
    let may: Vec<Value> = listed(&folder).iter().map(|token| token["inspect"].clone()).collect();
    assert_eq!(may, [false, true, false]);
    let shown = folder.run(&["token", "list", "--tokens", "tokens.toml"]).out;
    assert!(shown.contains("INSPECTS"), "{shown}");
    let both = ["token", "create", "--tokens", "t.toml", "--role", "worker", "--inspect", "--no-inspect"];
    assert_eq!(folder.run(&both).code, 2);
}

/// In words for the command line, not only for a query.
#[test]
fn a_token_for_some_queues_is_told_to_name_one() {
    let folder = Folder::new();
    let (_, some) = create(&folder, &["--role", "worker", "--queue", "mail"]);
    let _server = Server::start(&folder, &["--tokens", "tokens.toml"]);
    let refused = ask(&folder, &some, &["jobs"]);
    assert!(refused.code == 1 && refused.err.contains("--queue mail"), "{}", refused.err);
    assert_eq!(ask(&folder, &some, &["jobs", "--queue", "mail"]).code, 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = Folder::new();
    let refused = |words: &[&str], code: i32, needle: &str| {
        let ran = folder.run(&[&["token"], words].concat());
        assert_eq!((ran.code, ran.err.contains(needle)), (code, true), "{words:?}: {}", ran.err);
    };
    refused(&["list"], 2, "--tokens FILE");
    refused(&["list", "--tokens", "no.toml"], 2, "semel token create");
    refused(&["create", "--tokens", "t.toml"], 2, "--role");
    refused(&["create", "--tokens", "t.toml", "--role", "root"], 2, "producer");
    refused(&["create", "--tokens", "t.toml", "--role", "worker", "--queue", "a b"], 2, "not a queue");
    refused(&["create", "--tokens", "t.toml", "--role", "worker", "--expires", "soon"], 2, "PT1H");
    refused(&["create", "--tokens", "etc/semel/t.toml", "--role", "admin"], 1, "mkdir -p etc/semel ");
    assert!(!folder.path().join("t.toml").exists(), "nothing was written");
    folder.json(&["token", "create", "--tokens", "t.toml", "--role", "admin"]);
    refused(&["revoke", "tok_0", "--tokens", "t.toml"], 4, "semel token list");
}

#[test]
fn two_at_once_are_both_kept() {
    let folder = Folder::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| create(&folder, &["--role", "worker"]));
        }
    });
    let listed: Value = folder.json(&["token", "list", "--tokens", "tokens.toml"]);
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 8);
}

/// What `release --help` says of the log.
#[test]
fn the_log_says_by_which_token_a_key_was_released_and_why() {
    let folder = Folder::new();
    let (id, admin) = create(&folder, &["--role", "admin", "--name", "me"]);
    let server = Server::start(&folder, &["--tokens", "tokens.toml"]);
    let words = ["enqueue", "a.b", "{\"n\": 1}", "--unique", "{\"keys\":[\"args\"]}", "--json"];
    let made: Value = serde_json::from_str(&ask(&folder, &admin, &words).out).unwrap();
    let key = made.pointer("/job/unique_key").or_else(|| made.get("unique_key")).unwrap();
    let words = ["release", key.as_str().unwrap(), "--reason", "a broken mail server", "--yes"];
    assert_eq!(ask(&folder, &admin, &words).code, 0);
    let (_, _, log) = server.stop();
    let line = log.lines().find(|line| line.contains("release_key")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains(&id) && line.contains("a broken mail server"), "{line}");
}
