//! How long ended jobs are kept, as `semel.toml` says it.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::requests;
use crate::run::{Folder, Server};

const PAGE: &str = include_str!("../../../../docs/guide/operating.md");

fn manifest(server: &Server) -> Value {
    let (_, text) = requests::ask(&server.url, "GET /ojs/manifest", "", "").unwrap();
    serde_json::from_str(&text).unwrap()
}

fn defaults(server: &Server) -> [Value; 3] {
    let limits = manifest(server)["limits"].clone();
    ["completed", "cancelled", "discarded"].map(|end| limits[format!("retention_{end}_s")].clone())
}

/// Whether the job is gone within the time that any deletion takes; it exists at first.
fn goes(folder: &Folder, id: &str, on: [&str; 2]) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        match folder.run(&[&["job", id], &on[..]].concat()).code {
            0 => std::thread::sleep(Duration::from_millis(50)),
            code => return code == 4,
        }
    }
    false
}

fn cancelled(folder: &Folder, words: &[&str], on: [&str; 2]) -> String {
    let job = folder.json(&[&["enqueue"], words, &on[..]].concat());
    let id = job["job"]["id"].as_str().unwrap().to_owned();
    assert_eq!(folder.run(&[&["job", &id, "cancel"], &on[..]].concat()).code, 0);
    id
}

#[test]
fn the_table_of_the_page_is_served_by() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    assert_eq!(defaults(&server), [86_400, 86_400, 15_552_000].map(Value::from));
    drop(server);
    let (_, table) = PAGE.split_once("```toml\n[retention]").unwrap();
    let (table, _) = table.split_once("```").unwrap();
    std::fs::write(folder.path().join("semel.toml"), format!("[retention]{table}")).unwrap();
    let server = Server::start(&folder, &[]);
    assert_eq!(defaults(&server), [129_600, 86_400, 31_557_600].map(Value::from));
}

#[cfg(unix)]
#[test]
fn a_table_that_was_changed_counts_from_the_next_start_on() {
    let folder = Folder::new();
    let write = |text: &str| std::fs::write(folder.path().join("semel.toml"), text).unwrap();
    write("[retention]\ncompleted = \"PT1H\"\n");
    let server = Server::start(&folder, &[]);
    let completed = |server: &Server| defaults(server)[0].clone();
    assert_eq!(completed(&server), 3_600);
    write("[retention]\ncompleted = \"PT2H\"\n");
    server.signal("-HUP");
    server.log_until("reloaded tokens");
    assert_eq!(completed(&server), 3_600);
    server.stop();
    assert_eq!(completed(&Server::start(&folder, &[])), 7_200);
}

#[test]
fn a_job_goes_when_its_time_is_over_and_its_neighbour_stays() {
    let folder = Folder::new();
    let text = "[retention]\ncancelled = \"P1D\"\n[retention.queues.short]\ncancelled = \"PT0.5S\"\n\
                [retention.types.\"a.kept\"]\ncancelled = \"PT1H\"\n";
    std::fs::write(folder.path().join("semel.toml"), text).unwrap();
    // In a file store, it would take half a minute until the job has a row that can be deleted.
    let server = Server::start(&folder, &["--store", "memory:"]);
    let on = ["--server", &server.url];
    let kept = cancelled(&folder, &["a.kept", "--queue", "short"], on);
    let other = cancelled(&folder, &["a.b"], on);
    let short = cancelled(&folder, &["a.b", "--queue", "short"], on);
    assert!(goes(&folder, &short, on));
    for id in [&kept, &other] {
        assert_eq!(folder.json(&[&["job", id], &on[..]].concat())["state"], "cancelled");
    }
}

#[test]
fn a_table_that_cannot_be_read_is_refused_at_the_start_by_its_line() {
    let folder = Folder::new();
    for (text, line, needle) in [
        ("[retention]\ncompleted = \"1 day\"\n", 2, "PT1H, P30D or P1Y"),
        ("[retention.queues.billing]\nfinished = \"P1D\"\n", 2, "`completed`, `cancelled`, `discarded`"),
    ] {
        std::fs::write(folder.path().join("semel.toml"), text).unwrap();
        let ran = folder.run(&["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        let told = ran.err.contains(&format!("semel.toml line {line}:")) && ran.err.contains(needle);
        assert!(told && ran.err.contains("next:"), "{}", ran.err);
    }
}
