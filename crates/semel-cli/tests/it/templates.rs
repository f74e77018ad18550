//! Templates on the command line, and a server that reloads them.

use semel_testkit::database::{store_url, url};
use serde_json::{Value, json};

use crate::run::{Folder, Server};

const TASK: &str =
    "namespace: payments\nname: process\nsteps:\n  - name: check\n    handler: payment.check\n";

fn write(folder: &Folder, name: &str, text: &str) {
    let path = folder.path().join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_directory_is_checked_listed_and_shown() {
    let folder = Folder::new();
    write(&folder, "templates/payments/process.yaml", TASK);
    let ran = folder.run(&["templates", "check", "templates"]);
    assert_eq!((ran.code, ran.out.contains("1 templates, all valid")), (0, true), "{ran:?}");
    let ran = folder.run(&["templates", "list", "templates"]);
    assert!(ran.out.contains("payments.process") && ran.out.contains("strict"), "{ran:?}");
    let ran = folder.run(&["templates", "show", "payments.process", "templates", "--json"]);
    let shown: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&shown["version"], &shown["steps"][0]["name"]), (&"1.0.0".into(), &"check".into()));
    let ran = folder.run(&["templates", "show", "payments.other", "templates"]);
    assert_eq!(ran.code, 4, "{ran:?}");
}

/// With the preset's name alone, a reader would take the template for that preset.
#[test]
fn what_stands_over_a_preset_is_listed_with_it() {
    let folder = Folder::new();
    for (name, unique) in [
        ("plain", "content"),
        ("over", "{ preset: strict, period: P1D, disclose: always, scope: null }"),
        ("own", "{ keys: [type, args] }"),
    ] {
        let text = format!("namespace: mail\nname: {name}\nunique: {unique}\n");
        write(&folder, &format!("templates/{name}.yaml"), &text);
    }
    let ran = folder.run(&["templates", "list", "templates"]);
    let of = |name: &str| {
        let line = ran.out.lines().find(|line| line.starts_with(&format!("mail.{name} ")));
        line.unwrap_or_else(|| panic!("{ran:?}"))
    };
    assert!(of("plain").contains("content") && !of("plain").contains("with"), "{ran:?}");
    assert!(of("over").contains("strict with its own ") && !of("over").contains("scope"), "{ran:?}");
    assert!(of("over").contains("period") && of("over").contains("disclose"), "{ran:?}");
    assert!(of("own").contains("its own policy"), "{ran:?}");
}

/// An unsupported keyword is a fault of its line; a valid schema is shown, and enforced without a server,
/// too.
#[test]
fn a_schema_is_checked_by_its_lines_shown_and_held_to() {
    let folder = Folder::new();
    let mail = "namespace: mail\nname: send\nschema:\n  minItems: 1\n  items:\n    type: string\n";
    write(&folder, "templates/mail.yaml", &format!("{mail}    format: email\n    patern: a\n"));
    let ran = folder.run(&["templates", "check", "templates"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    for place in ["mail.yaml:7:5: /schema/items/format", "mail.yaml:8:5: /schema/items/patern"] {
        assert!(ran.err.contains(place), "{place} is not in {}", ran.err);
    }
    let told = ran.err.lines().filter(|line| line.contains("mail.yaml:")).count();
    assert_eq!(told, 2, "each in a line of its own: {}", ran.err);
    write(&folder, "templates/mail.yaml", mail);
    let ran = folder.run(&["templates", "show", "mail.send", "templates"]);
    assert!(
        ran.code == 0 && ran.out.contains("schema of the args") && ran.out.contains("minItems"),
        "{ran:?}"
    );
    let shown = folder.json(&["templates", "show", "mail.send", "templates"]);
    assert_eq!(shown["schema"]["items"]["type"], "string", "{shown}");
    write(&folder, "semel.toml", "templates = \"templates\"\n");
    let ran = folder.run(&["enqueue", "mail.send", "7"]);
    assert!(ran.code != 0 && ran.err.contains("/args/0 is not of type string"), "{ran:?}");
    let ran = folder.run(&["enqueue", "mail.send", "\"a\""]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// The page's own template: its schema is valid, and does what the page says.
#[test]
fn the_schema_of_the_page_is_held_to() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/guide/templates.md")).unwrap();
    let (_, rest) = page.split_once("```yaml\n").unwrap();
    let (block, rest) = rest.split_once("```").unwrap();
    assert!(!rest.contains("```"), "another block, which nothing tries");
    let folder = Folder::new();
    write(&folder, "templates/mail.yaml", block);
    write(&folder, "semel.toml", "templates = \"templates\"\n");
    for (args, code) in [
        (&[r#"{"to": "a@b.example", "retries": 3}"#][..], 0),
        (&[r#"{"to": "nobody"}"#], 1),
        (&[r#"{"retries": 3}"#], 1),
        (&[r#"{"to": "a@b.example", "cc": "c@d.example"}"#], 1),
        (&[r#"{"to": "a@b.example"}"#, "1"], 1),
    ] {
        let ran = folder.run(&[&["enqueue", "mail.send"], args].concat());
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    }
}

/// Valid, yet perhaps not what was meant: two live jobs may come to share a key, and the advice says how.
#[test]
fn a_policy_that_is_open_under_retry_is_pointed_out() {
    let folder = Folder::new();
    let open =
        "namespace: n\nname: open\nunique:\n  keys: [args]\n  states: [available, scheduled, active]\n";
    write(&folder, "templates/open.yaml", open);
    write(&folder, "templates/mail.yaml", "namespace: mail\nname: send\n");
    let ran = folder.run(&["templates", "check", "templates"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.out.matches("advice: ").count(), 1, "{ran:?}");
    assert!(ran.out.contains("advice: n.open 1.0.0: ") && ran.out.contains("add retryable"), "{ran:?}");
    let told = folder.json(&["templates", "check", "templates"]);
    assert_eq!((&told["valid"], told["advice"].as_array().map(Vec::len)), (&true.into(), Some(1)), "{told}");
    let server = Server::start(&folder, &["--templates", "templates"]);
    let log = server.log_until("add retryable");
    assert!(log.contains("n.open 1.0.0"), "{log}");
    server.stop();
}

#[test]
fn every_fault_is_told_with_its_file_and_line() {
    let folder = Folder::new();
    write(&folder, "templates/a.yaml", "namespace: n\nname: a\nqueue: \"?\"\npriority: 1000\n");
    write(&folder, "templates/b.yaml", "namespace: [\n");
    let ran = folder.run(&["templates", "check", "templates"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    for place in ["a.yaml:3:1: /queue", "a.yaml:4:1: /priority", "b.yaml:"] {
        assert!(ran.err.contains(place), "{place} is not in {}", ran.err);
    }
    let ran = folder.run(&["templates", "check", "templates", "--json"]);
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&told["valid"], &told["faults"][0]["line"]), (&false.into(), &3.into()));
    // And a server does not start with them.
    let ran = folder.run(&["serve", "--listen", "127.0.0.1:0", "--templates", "templates"]);
    assert_eq!((ran.code, ran.err.contains("a.yaml:3:1")), (2, true), "{ran:?}");
}

/// A context is its caller's data, and must not control the operator's terminal.
#[test]
fn a_tasks_context_is_shown_as_plain_text() {
    let folder = Folder::new();
    write(&folder, "templates/process.yaml", TASK);
    let server = Server::start(&folder, &["--store", "memory:", "--templates", "templates"]);
    let task = json!({ "namespace": "payments", "name": "process", "context": { "note": "a\u{202e}b" } });
    let made = server.post("/v1/tasks", &task);
    let id = made["task_uuid"].as_str().unwrap_or_else(|| panic!("{made}"));
    let shown = folder.run(&["tasks", "show", id, "--server", &server.url]);
    assert!(shown.out.contains("context {\"note\":\"a\u{fffd}b\"}"), "{shown:?}");
    server.stop();
}

/// Templates apply whichever way a job comes: a command that finds no server reads them itself.
#[test]
fn without_a_server_templates_hold_as_well() {
    let folder = Folder::new();
    write(&folder, "templates/mail.yaml", "namespace: mail\nname: send\nqueue: post\n");
    write(&folder, "semel.toml", "templates = \"templates\"\n");
    let ran = folder.run(&["enqueue", "mail.send", "{}", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("\"post\""), "{ran:?}");
    let again = folder.run(&["enqueue", "mail.send", "{}", "--json"]);
    assert_ne!(again.code, 0, "{again:?}");
    let jobs = folder.json(&["jobs"]);
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "{jobs}");
    // Errors in them are reported before anything is done.
    write(&folder, "templates/mail.yaml", "namespace: mail\n");
    let ran = folder.run(&["enqueue", "other.job", "{}"]);
    assert_eq!((ran.code, ran.err.contains("mail.yaml:1:1")), (2, true), "{ran:?}");
}

/// An invalid set changes nothing, and the log says so; a valid one replaces the one before.
#[cfg(unix)]
#[test]
fn templates_are_read_again_as_a_whole_or_not_at_all() {
    let folder = Folder::new();
    write(&folder, "templates/process.yaml", TASK);
    let server = Server::start(&folder, &["--templates", "templates"]);
    let explain = |kind: &str| {
        let ran = folder.run(&["explain", kind, "{}", "--json"]);
        let told: Value = serde_json::from_str(&ran.out).unwrap();
        told["key"].is_string()
    };
    let becomes = |kind: &str, templated: bool| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while explain(kind) != templated {
            assert!(std::time::Instant::now() < until, "{kind}");
            std::thread::yield_now();
        }
    };
    assert!(explain("payments.process") && !explain("mail.send"));
    write(&folder, "templates/mail.yaml", "namespace: mail\nname: send\n");
    server.signal("-HUP");
    becomes("mail.send", true);
    // One of the two files is invalid: the other one's change does not take effect either.
    write(&folder, "templates/mail.yaml", "namespace: mail\nname: other\n");
    write(&folder, "templates/process.yaml", "namespace: payments\n");
    server.signal("-HUP");
    let log = server.log_until("process.yaml:1:1: /name is missing");
    assert!(log.contains("the previous certificates and templates stay in use"), "{log}");
    assert!(explain("mail.send") && explain("payments.process") && !explain("mail.other"));
    write(&folder, "templates/process.yaml", TASK);
    server.signal("-HUP");
    becomes("mail.other", true);
    assert!(!explain("mail.send"));
    server.stop();
}

/// Whichever way a job comes, its template sets its identity; and a task's template makes no job.
#[test]
fn what_is_put_into_the_outbox_goes_by_its_template_too() {
    let (folder, store) = (Folder::new(), store_url());
    write(&folder, "templates/process.yaml", TASK);
    write(
        &folder,
        "templates/mail.yaml",
        "namespace: mail\nname: send\nunique:\n  keys: [args]\n  on_conflict: ignore\n",
    );
    let server = Server::start(&folder, &["--store", &store, "--templates", "templates"]);
    let job = folder.json(&["enqueue", "mail.send", "1", "--server", &server.url]);
    let schema = store.split("schema=").nth(1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let told: Vec<(String, Option<String>)> = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let insert = format!("INSERT INTO {schema}.outbox (envelope) VALUES ($1::text::json)");
        for text in [r#"{"type": "mail.send", "args": [1]}"#, r#"{"type": "payments.process", "args": [{}]}"#]
        {
            client.execute(&insert, &[&text]).await.unwrap();
        }
        let told = format!(
            "SELECT outcome, job::text FROM {schema}.outbox WHERE outcome IS NOT NULL ORDER BY outcome"
        );
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let rows = client.query(&told, &[]).await.unwrap();
            if rows.len() == 2 {
                return rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            }
            assert!(std::time::Instant::now() < until, "the outbox was not relayed");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let id = job["job"]["id"].as_str().map(str::to_owned);
    assert_eq!(told, [("existing".to_owned(), id), ("invalid".to_owned(), None)]);
}
