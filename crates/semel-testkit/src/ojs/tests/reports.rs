//! Many tests: loading, resetting, counting.

use serde_json::json;

use super::*;
use crate::ojs::canned::{Canned, reply};
use crate::ojs::{Report, SuiteTest, load, load_suite, run_all};

#[tokio::test]
async fn a_reset_comes_before_each_test_and_must_work() {
    let server = Canned::start(|number, _| reply(if number == 2 { 404 } else { 200 }, "{}")).await;
    let reset = semel_client::Client::new(&format!("{}/reset", server.client().base_url())).unwrap();
    let tests = [demanding(&json!({"status": 200})), demanding(&json!({"status": 200}))];
    let report = run_all(&tests, &server.client(), Some(&reset)).await;
    let seen: Vec<_> =
        server.seen().into_iter().map(|(method, path, ..)| format!("{method} {path}")).collect();
    assert_eq!(seen, ["POST /reset", "GET /", "POST /reset", "GET /"]);
    assert_eq!(report.passed(), 1);
    let failed: Vec<_> = report.failed().collect();
    assert_eq!(failed[0].failures[0].step, "reset");
}

#[tokio::test]
async fn a_report_counts_by_suite_and_tells_surprises() {
    let server = Canned::always(201, "{}").await;
    let file = |path: &str, status: u16| {
        let step = json!({"id": "s", "action": "GET", "raw_body": "", "assertions": {"status": status}});
        SuiteTest::parse(path.to_owned(), &json!({"test_id": "T-1", "steps": [step]}).to_string())
    };
    let tests = [file("l0/a.json", 201), file("l0/b.json", 200), file("l1/x/c.json", 201)];
    let report = run_all(&tests, &server.client(), None).await;
    let text = report.to_string();
    let rows: Vec<_> =
        text.lines().map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(rows[..4], ["suite tests passed failed", "l0 2 1 1", "l1 1 1 0", "total 3 2 1"]);
    assert!(
        text.contains("FAILED l0/b.json (T-1, )\n  s: status: expected 200, got 201 with {}\n"),
        "{text}"
    );
    assert!(text.contains("  l1/x/c.json: s: raw_body\n"), "{text}");
    let surprises =
        |known: &[&str]| report.surprises(&known.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
    assert_eq!(surprises(&["l0/b.json"]), Vec::<String>::new());
    assert_eq!(surprises(&[]), ["l0/b.json failed"]);
    assert_eq!(
        surprises(&["l0/b.json", "l0/a.json"]),
        ["l0/a.json passed, but is listed as a known failure"]
    );
    assert_eq!(surprises(&["l0/b.json", "l9.json"]), ["l9.json was not run"]);
    assert_eq!(Report::default().surprises(&[]), ["no test was run"]);
}

#[test]
fn files_are_loaded_in_the_order_of_their_paths() {
    let root = std::env::temp_dir().join(format!("semel-suites-{}", std::process::id()));
    let file = r#"{"test_id": "T", "steps": [{"id": "s", "action": "GET"}]}"#;
    for path in ["l1/b.json", "l1/a/z.json", "l0/x.json", "l0/LICENSE"] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file).unwrap();
    }
    std::fs::create_dir_all(root.join("empty")).unwrap();
    let paths = |tests: Vec<SuiteTest>| tests.into_iter().map(|test| test.path).collect::<Vec<_>>();
    let (all, suite, below) = (load(&root), load_suite(&root, "l1"), load(&root.join("l1")));
    let (empty, none) = (load_suite(&root, "empty"), load_suite(&root, "l7"));
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(paths(all.unwrap()), ["l0/x.json", "l1/a/z.json", "l1/b.json"]);
    assert_eq!(paths(suite.unwrap()), ["l1/a/z.json", "l1/b.json"]);
    assert_eq!(paths(below.unwrap()), ["a/z.json", "b.json"]);
    assert!(empty.unwrap_err().to_string().contains("no test (*.json)"));
    assert!(none.unwrap_err().to_string().contains("cannot read"));
}
