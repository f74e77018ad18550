//! `semel demo`, with few events.

use serde_json::Value;

use crate::run::{Folder, Server};

fn check(report: &Value, events: u64) {
    assert_eq!(report["ok"], true, "{report}");
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((number("events"), number("created"), number("executed")), (events, events, events + 1));
    assert_eq!(number("executed_twice"), 0);
    assert_eq!(number("delivered"), number("created") + number("deduplicated"));
    let reasons = report["deduplicated_by_reason"].as_object().unwrap();
    assert_eq!(reasons["replay"], events);
    assert!(reasons.values().all(|count| count.as_u64().unwrap() > 0), "{reasons:?}");
    assert_eq!(reasons.values().map(|count| count.as_u64().unwrap()).sum::<u64>(), number("deduplicated"));
    assert!(number("taken_back") > 0 && number("late_acks_refused") >= number("taken_back"));
    assert!(report["checks"].as_array().unwrap().iter().all(|check| check["ok"] == true));
}

#[test]
fn everything_runs_once_on_a_file() {
    let folder = Folder::new();
    check(&folder.json(&["demo", "--events", "600", "--seed", "3"]), 600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the demo leaves nothing behind");
}

#[test]
fn everything_runs_once_in_memory_and_on_a_running_server_twice() {
    let folder = Folder::new();
    check(&folder.json(&["demo", "--events", "400", "--store", "memory:"]), 400);
    let server = Server::start(&folder, &[]);
    for _ in 0..2 {
        check(&folder.json(&["demo", "--events", "400", "--server", &server.url]), 400);
    }
    assert_eq!(server.stop().0.code(), Some(0));
}

#[test]
fn people_see_a_table_and_what_to_try_next() {
    let folder = Folder::new();
    let ran = folder.run(&["demo", "--events", "400"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for needle in
        ["delivering", "replaying the log", "executed twice", "double click", "verified:", "semel explain"]
    {
        assert!(ran.out.contains(needle), "{needle:?} is not in\n{}", ran.out);
    }
    assert!(!ran.out.contains('\u{1b}'), "no colours off a terminal");
}

#[test]
fn without_uniqueness_it_fails_and_says_why() {
    let folder = Folder::new();
    let ran = folder.run(&["demo", "--events", "200", "--without-policy", "--json"]);
    assert_eq!(ran.code, 6, "{}", ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["ok"], false);
    assert!(report["executed_twice"].as_u64().unwrap() > 0);
    let error: Value = serde_json::from_str(&ran.err).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("the demo's checks found differences"));
    let next = error["error"]["hint"].as_str().unwrap();
    assert!(next.ends_with("--events 200 --without-policy"), "else it would not be the same: {next}");
}

#[test]
fn a_store_of_the_environment_is_not_played_on() {
    let folder = Folder::new();
    let mut command = folder.semel(&["demo", "--events", "60", "--json"]);
    let ran = crate::run::Ran::of(command.env("SEMEL_STORE", "sqlite:real-work.db"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!folder.path().join("real-work.db").exists());
}
