//! What the dashboard costs, measured in a real browser on a server that runs already:
//!
//! ```text
//! cargo run --release -p semel-testkit --example dashboard -- http://127.0.0.1:8080 first 10
//! cargo run --release -p semel-testkit --example dashboard -- http://127.0.0.1:8080 live PID 20
//! cargo run --release -p semel-testkit --example dashboard -- http://127.0.0.1:8080 enqueue PID 20000
//! ```
//!
//! `first`: so often, with an empty cache, how long from the start of the navigation until something is painted and until the overview
//! has its figures, beside what the browser needs for a page of text. `live`: the processor time of the server of that id, without a page and with one open, so many seconds each.
//! `enqueue`: its processor time and the time by the clock for so many keyed jobs, in turns without a page and with one.
//!
//! `SEMEL_TEST_CHROMIUM` names the browser.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a command-line tool prints, and ends where it cannot go on"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_client::Client;
use semel_testkit::chromium::Browser;
use serde_json::json;

const USAGE: &str = "usage: dashboard URL first ROUNDS | live PID SECONDS | enqueue PID JOBS";
/// Notes when the overview has its figures, and is drawn.
const NOTE: &str = "new MutationObserver((_, self) => {
    if (!document.querySelector('.tiles li strong')) return;
    self.disconnect();
    requestAnimationFrame(() => setTimeout(() => { globalThis.shownAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });";
/// What this browser needs for a page that asks for nothing more: a text of the same server.
const TEXT: &str = "/dashboard/style.css";
const PAINT: &str = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0";
/// Callers that enqueue at a time.
const CALLERS: u64 = 32;
/// Turns of `enqueue`.
const TURNS: usize = 5;

#[tokio::main(flavor = "multi_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [url, "first", rounds] if rounds.parse::<usize>().is_ok_and(|rounds| rounds > 0) => {
            first(url, rounds.parse().unwrap());
        }
        [url, "live", pid, seconds] if seconds.parse::<u64>().is_ok_and(|seconds| seconds > 0) => {
            live(url, pid, Duration::from_secs(seconds.parse().unwrap()));
        }
        [url, "enqueue", pid, jobs] if jobs.parse::<u64>().is_ok_and(|jobs| jobs > 0) => {
            enqueue(url, pid, jobs.parse().unwrap()).await;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn first(url: &str, rounds: usize) {
    let mut browser = Browser::start(url);
    browser.call("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": NOTE }));
    let (mut plain, mut painted, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        browser.call("Network.clearBrowserCache", &json!({}));
        browser.begin(TEXT);
        plain.push(browser.until("the text is painted", PAINT).as_f64().unwrap());
        browser.call("Network.clearBrowserCache", &json!({}));
        browser.begin("/");
        shown.push(browser.until("the overview has its figures", "globalThis.shownAt").as_f64().unwrap());
        painted.push(browser.until("something is painted", PAINT).as_f64().unwrap());
    }
    println!("limit: a page of text alone, ms: {}", spread(&mut plain));
    println!("first content painted, ms: {}", spread(&mut painted));
    println!("overview with its figures, ms: {}", spread(&mut shown));
}

/// The first, as the browser had never been there; and the rest.
fn spread(all: &mut [f64]) -> String {
    let first = all[0];
    all.sort_by(f64::total_cmp);
    format!(
        "first {first:.0}; least {:.0}, median {:.0}, most {:.0}",
        all[0],
        all[all.len() / 2],
        all[all.len() - 1]
    )
}

fn live(url: &str, pid: &str, time: Duration) {
    let mut browser = Browser::start(url);
    for (what, path) in [("no page", None), ("one page", Some("/"))] {
        if let Some(path) = path {
            browser.open(path);
        }
        let before = ticks(pid);
        std::thread::sleep(time);
        let used = ticks(pid) - before;
        println!("{what}: {:.2} % of a core", used / time.as_secs_f64() * 100.0);
    }
}

async fn enqueue(url: &str, pid: &str, jobs: u64) {
    let mut browser = Browser::start(url);
    let mut found = [Vec::new(), Vec::new()];
    // Turn by turn, and the other way round in every second, so that a machine's moods are shared out.
    for turn in 0..TURNS {
        for part in 0..2 {
            let with_page = (turn + part) % 2;
            if with_page == 1 {
                browser.open("/");
            } else {
                browser.call("Page.navigate", &json!({ "url": "about:blank" }));
            }
            let (before, begun) = (ticks(pid), Instant::now());
            offer(url, jobs).await;
            let (each, took) = ((ticks(pid) - before) / jobs as f64 * 1e6, begun.elapsed().as_secs_f64());
            found[with_page].push((each, jobs as f64 / took));
        }
    }
    for (what, figures) in ["no page", "one page"].into_iter().zip(&mut found) {
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<f64> = figures.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let (each, rate) = (median(|it| it.0), median(|it| it.1));
        println!("{what}: {each:.1} us of processor time a job, {rate:.0} jobs/s");
    }
}

/// Enqueues so many jobs, each with a key of its own.
async fn offer(url: &str, jobs: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let run = std::process::id();
    let client = Arc::new(Client::new(url).unwrap());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                for _ in (caller..jobs).step_by(CALLERS as usize) {
                    let number = NEXT.fetch_add(1, Ordering::Relaxed);
                    let unique = json!({ "key": format!("{run}-{number}") });
                    let body =
                        json!({ "type": "load.test", "args": [number], "options": { "unique": unique } });
                    client.post_json("/ojs/v1/jobs", &body).await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}

/// The processor time of a process in seconds (proc(5)): user and system, after the name, which may have spaces.
fn ticks(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}
