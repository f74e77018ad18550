//! `semel bench`, and that it reports honestly what it measured.

use std::time::Duration;

use serde_json::json;

use crate::run::Folder;

/// Over HTTP too, beside the same server with nothing to do.
#[test]
fn the_bench_asks_over_http_beside_a_constant_answer() {
    let folder = Folder::new();
    let asked = ["--seconds", "1", "--waiting", "0", "--only", "HTTP", "--connections", "4", "--folder", "."];
    let report = folder.json(&[&["bench"], &asked[..]].concat());
    let figures = report["figures"].as_array().unwrap();
    let [.., limit, figure, open] = &figures[..] else { panic!("{report}") };
    assert_eq!(
        (&limit["name"], limit["share_of_limit"].is_null()),
        (&"limit: a constant answer over HTTP".into(), true)
    );
    assert_eq!(figure["name"], "unique enqueue over HTTP");
    assert!(limit["jobs"].as_u64() > Some(0) && figure["jobs"].as_u64() > Some(0), "{report}");
    assert!(figure["share_of_limit"].as_f64() > Some(0.0), "{report}");
    assert_eq!(open["name"], "new jobs over HTTP, open loop");
    // A schedule of one second.
    let half = figure["per_second"].as_f64().unwrap() / 2.0;
    for offered in [&open["offered_per_second"], &open["jobs"]] {
        assert!((offered.as_f64().unwrap() - half).abs() <= 1.0, "{report}");
    }
    let without =
        folder.json(&["bench", "--seconds", "1", "--waiting", "0", "--only", "HTTP", "--connections", "0"]);
    assert!(without["figures"].as_array().unwrap().len() < figures.len(), "{without}");
}

/// As many jobs as are due, and no fewer if answers come late.
#[test]
fn the_bench_offers_jobs_by_a_schedule() {
    let folder = Folder::new();
    let short = ["bench", "--seconds", "1", "--waiting", "0", "--connections", "0", "--only", "open loop"];
    let report = folder.json(&[&short[..], &["--rate", "2000"]].concat());
    let figures = report["figures"].as_array().unwrap();
    let [_, _, open] = &figures[..] else { panic!("{report}") };
    assert_eq!(open["name"], "new jobs, open loop, empty");
    assert_eq!((&open["jobs"], &open["offered_per_second"]), (&json!(2000), &json!(2000.0)));
    assert!(open["p99_ms"].as_f64() > Some(0.0), "{report}");
    // The rate says nothing about how fast the store is.
    assert_eq!(report["baseline"]["cases"], json!([]));
    // Without a rate, it follows from the callers who wait.
    let told = folder.run(&short).out;
    let line = |name: &str| told.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let number = |name: &str, at: usize| -> f64 {
        line(name).split_whitespace().rev().nth(at).unwrap().parse().unwrap()
    };
    // From the right: of limit, p99, p50, per second, offered.
    let (reached, offered) = (number("unique enqueue, empty", 3), number("new jobs, open loop, empty", 4));
    assert!((reached / 2.0 - offered).abs() <= 1.0, "{told}");
}

/// A regression guard compares shares of the limits that each run measures for itself.
#[test]
fn the_bench_is_compared_with_an_earlier_one() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let odd = folder.run(&["bench", "--compare", &file("odd.json", "{}")]);
    assert_eq!(odd.code, 2, "before a minute is spent: {}", odd.err);
    assert!(odd.err.contains("semel bench --rounds 5 --json"), "{}", odd.err);

    let short = ["--seconds", "1", "--waiting", "0", "--connections", "0", "--only", "one caller"];
    let one = folder.json(&[&["bench"], &short[..]].concat());
    let mut kept = one["baseline"].clone();
    let cases = kept["cases"].as_array_mut().unwrap();
    assert_eq!(cases.len(), 1, "{one}");
    cases[0]["shares"] = json!([1e9, 1e9, 1e9]);
    let kept = file("kept.json", &json!({ "baseline": kept }).to_string());
    let few = folder.run(&["bench", "--compare", &kept]);
    assert_eq!(few.code, 2, "before a minute is spent: {}", few.err);
    assert!(few.err.contains("--rounds 3"), "{}", few.err);
    let slower = folder.run(&[&["bench", "--compare", &kept, "--rounds", "3"], &short[..]].concat());
    assert_eq!(slower.code, 1, "{}", slower.err);
    assert!(slower.err.contains("slower than the baseline by more than 0.25: one caller"), "{}", slower.err);
    assert!(slower.out.contains("NOW ÷ BEFORE"), "{}", slower.out);
}

#[test]
fn a_bench_that_is_told_to_stop_leaves_nothing() {
    let folder = Folder::new();
    let words = ["bench", "--folder", ".", "--seconds", "60", "--waiting", "0", "--connections", "0"];
    let mut bench = folder.semel(&words).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let log = crate::log::Log::of(bench.stderr.take().unwrap());
    log.until("measuring: limits");
    while std::fs::read_dir(folder.path()).unwrap().count() == 0 {}
    let began = std::time::Instant::now();
    assert!(semel_testkit::signal::kill("-INT", bench.id()).status().unwrap().success());
    let (status, told) = (bench.wait().unwrap(), log.rest());
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("what it had created is removed"), "{told}");
    assert!(began.elapsed() < Duration::from_secs(30), "it went on: {:?}", began.elapsed());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
