//! `semel top`: the overview in a terminal.

use serde_json::json;

use crate::requests::post;
use crate::run::{Folder, Server};

const ENQUEUE: [&str; 6] = ["enqueue", "invoice.pay", "42", "--key", "invoice-42", "--on-conflict"];

#[test]
fn it_shows_queues_outcomes_and_the_hottest_keys_of_a_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    for _ in 0..4 {
        let ran = folder.run(&[&ENQUEUE[..], &["ignore", "--server", &server.url]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    // Two workers announce themselves; one of them has asked twice.
    for worker in ["w1", "w2", "w2"] {
        let wish = json!({ "queues": ["none"], "worker_id": worker });
        assert_eq!(post(&server.url, "/ojs/v1/workers/fetch", &wish).unwrap().1["jobs"], json!([]));
    }
    let told = folder.json(&["top", "--once", "--server", &server.url]);
    assert_eq!((&told["queues"][0]["available"], &told["workers"]["total"]), (&1.into(), &2.into()));
    assert_eq!(told["queues_total"], 1);
    assert_eq!(told["hottest"]["items"][0]["absorbed"], 3);
    assert_eq!(told["history"]["step_s"], 60);
    let key = told["hottest"]["items"][0]["key"].as_str().unwrap();

    // The server that owns the store is found without being named.
    let shown = folder.run(&["top", "--once"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    for needle in [
        "1 available",
        "BY MINUTE",
        "suppressed",
        "QUEUE",
        "default",
        "DUPLICATES",
        "invoice.pay",
        key,
        "heard from 2 worker(s)",
    ] {
        assert!(shown.out.contains(needle), "{needle:?} is not in\n{}", shown.out);
    }
    assert!(!shown.out.contains('\u{1b}'), "no colours off a terminal");
    assert_eq!(server.stop().0.code(), Some(0));
}

#[test]
fn it_works_on_a_store_that_nobody_serves() {
    let folder = Folder::new();
    let missing = folder.run(&["top", "--once"]);
    assert_ne!(missing.code, 0, "there is no store");
    assert_eq!(folder.run(&[&ENQUEUE[..], &["ignore"]].concat()).code, 0);
    let told = folder.json(&["top", "--once"]);
    assert_eq!((&told["queues"][0]["available"], &told["hottest"]["items"]), (&1.into(), &json!([])));
}
