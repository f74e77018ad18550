//! Open Job Spec's own suites.

use std::path::{Path, PathBuf};

use semel_client::Client;
use semel_testkit::ojs;

use crate::harness::Server;

/// Asserts error types that its own requests never name; no honest server can pass it.
const IMPOSSIBLE: &str = "level-1-reliable/retry/retry-error-history-tracked.json";

fn suites() -> Option<PathBuf> {
    let given = std::env::var_os("OJS_SUITES").map(PathBuf::from);
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/ojs/suites"));
    given.or_else(|| beside.is_dir().then_some(beside))
}

#[allow(clippy::print_stderr, reason = "whoever runs the tests should know what was not run")]
async fn run(suite: &str, known: &[&str]) {
    let Some(dir) = suites() else {
        eprintln!("skipped: set OJS_SUITES to the directory of the OJS conformance suites");
        return;
    };
    // The same on every store, at the same time.
    let (embedded, memory) = (Server::start().await, Server::in_memory().await);
    tokio::join!(play(&embedded, &dir, suite, known), play(&memory, &dir, suite, known));
    embedded.stop().await;
    memory.stop().await;
}

async fn play(server: &Server, dir: &Path, suite: &str, known: &[&str]) {
    let tests = ojs::load_suite(dir, suite).unwrap();
    let reset = Client::new(&format!("{}/ojs/v1/admin/reset", server.client.base_url())).unwrap();
    let report = ojs::run_all(&tests, &server.client, Some(&reset)).await;
    let known: Vec<String> = known.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(report.surprises(&known), Vec::<String>::new(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn level_0() {
    run("level-0-core", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_1() {
    run("level-1-reliable", &[IMPOSSIBLE]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_2() {
    for suite in ["level-2-scheduled/delay", "level-2-scheduled/ttl"] {
        run(suite, &[]).await;
    }
    run_twice("level-2-scheduled/cron").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_3() {
    run_twice("level-3-workflows").await;
}

/// Both wait for a whole minute or two of the real clock: what they see is tested without waiting in the conformance kit,
/// and here when somebody has the time.
const SLOW: [&str; 2] = ["cron-fires-on-schedule.json", "cron-overlap-prevention.json"];

/// Twice on one process that forgets nothing in between, the second time in the opposite order.
#[allow(clippy::print_stderr, reason = "whoever runs the tests should know what was not run")]
async fn run_twice(suite: &str) {
    let Some(dir) = suites() else {
        eprintln!("skipped: set OJS_SUITES to the directory of the OJS conformance suites");
        return;
    };
    let is_patient = std::env::var_os("OJS_SLOW").is_some();
    let mut tests = ojs::load_suite(&dir, suite).unwrap();
    tests.retain(|test| is_patient || !SLOW.iter().any(|slow| test.path.ends_with(slow)));
    let (embedded, memory) = (Server::start().await, Server::in_memory().await);
    for _ in 0..2 {
        let reports = tokio::join!(
            ojs::run_all(&tests, &embedded.client, None),
            ojs::run_all(&tests, &memory.client, None)
        );
        for report in [reports.0, reports.1] {
            assert_eq!(report.surprises(&[]), Vec::<String>::new(), "{report}");
        }
        tests.reverse();
    }
    embedded.stop().await;
    memory.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_4_without_rate_limits() {
    for suite in ["unique", "bulk", "priority", "queue-ops"] {
        run(&format!("level-4-advanced/{suite}"), &[]).await;
    }
}
