//! Lists, queues, the log, the manifest and metrics.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use semel_client::{HeaderMap, Method};
use semel_core::draft::{Draft, Reads};
use semel_core::event::{Event, EventKind};
use semel_core::ident::JobId;
use semel_core::job::NoteKind;
use semel_core::time::Timestamp;
use semel_engine::webhooks::Wording;
use semel_server::Config;
use semel_server::webhooks::Rules;
use semel_store::clock::{Clock as _, ManualClock, SystemClock};
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, job};

#[tokio::test]
async fn jobs_are_listed_in_pages() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for at in 0..7 {
        let queue = if at % 2 == 0 { "even" } else { "odd" };
        ids.push(server.create(&job(&json!(at), &json!({ "queue": queue }))).await.job_id().to_owned());
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/ojs/v1/jobs?limit=3".to_owned();
    loop {
        let page = server.get(&path).await;
        seen.extend(
            page.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = page.body["pagination"]["next_cursor"].as_str() else { break };
        path = format!("/ojs/v1/jobs?limit=3&cursor={next}");
    }
    assert_eq!(seen, ids);
    let some = server.get("/ojs/v1/jobs?queue=odd&state=available,active&type=email.send").await;
    assert_eq!(some.body["jobs"].as_array().unwrap().len(), 3);
    for query in ["state=x", "limit=0", "limit=201", "limit=a", "cursor=z", "queue=A", "type=A"] {
        let told = server.get(&format!("/ojs/v1/jobs?{query}")).await;
        assert_eq!((told.status, told.code()), (400, "invalid_request"), "{query}");
        assert!(query.starts_with(told.body["error"]["details"]["parameter"].as_str().unwrap()), "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn jobs_are_found_by_what_is_in_them() {
    let server = Server::start().await;
    let mut of_seven = Vec::new();
    let jobs: Vec<Value> = (0..240)
        .map(|n| {
            let sensitive = if n % 2 == 0 { json!(["/args/0/card"]) } else { json!([]) };
            let options = json!({ "queue": if n < 120 { "old" } else { "new" }, "sensitive": sensitive });
            job(&json!({ "user": n % 60, "card": n % 60 }), &options)
        })
        .collect();
    let made = server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await;
    for (n, result) in made.body["results"].as_array().unwrap().iter().enumerate() {
        if n % 60 == 7 {
            of_seven.push(result["job"]["id"].as_str().unwrap().to_owned());
        }
    }
    of_seven.reverse();
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for _ in 0..4 {
        let page = server.get(&format!("/ojs/v1/jobs?where=/args/0/user%3D7&limit=3{cursor}")).await;
        let found = page.body["jobs"].as_array().unwrap();
        assert!(found.len() <= 3, "{}", page.body);
        seen.extend(found.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        let Some(next) = page.body["pagination"]["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, of_seven);
    for (query, count) in [
        ("where=/args/0/user%3D7&queue=old", 2),
        ("where=/args/0/user%3D%227%22", 0),
        ("where=/args/0/card%3D7", 4),
        // Sensitive values cannot be found by guessing.
        ("where=/args/0/card%3D8", 0),
    ] {
        let told = server.get(&format!("/ojs/v1/jobs?{query}")).await;
        assert_eq!(told.body["jobs"].as_array().unwrap().len(), count, "{query}");
    }
    let told = server.get("/ojs/v1/jobs?where=user").await;
    assert_eq!((told.status, &told.body["error"]["details"]["parameter"]), (400, &"where".into()));
    server.stop().await;
}

/// Searching for a rare value must not scan all jobs for one page.
#[tokio::test]
async fn a_page_looks_at_so_many_jobs_and_the_next_goes_on() {
    let server = Server::start().await;
    server.create(&job(&json!({ "user": 1 }), &json!({}))).await;
    let others = vec![job(&json!({ "user": 2 }), &json!({})); 2_000];
    server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": others })).await;
    let first = server.get("/ojs/v1/jobs?where=/args/0/user%3D1").await;
    assert_eq!((&first.body["jobs"], &first.body["pagination"]["has_more"]), (&json!([]), &true.into()));
    let cursor = first.body["pagination"]["next_cursor"].as_str().unwrap();
    let rest = server.get(&format!("/ojs/v1/jobs?where=/args/0/user%3D1&cursor={cursor}")).await;
    assert_eq!(rest.body["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(rest.body["pagination"]["has_more"], false);
    server.stop().await;
}

#[tokio::test]
async fn lists_go_on_past_a_job_that_cannot_be_read() {
    let server = Server::in_memory().await;
    let mut ids = Vec::new();
    for user in 0..3 {
        let unique = json!({ "unique": { "keys": ["args"], "states": ["available"], "period": "P1D" } });
        ids.push(server.create(&job(&json!({ "user": user }), &unique)).await.job_id().to_owned());
    }
    let spoiled = JobId::parse(&ids[1], "").unwrap();
    let reads = Reads { heads: vec![spoiled], ..Reads::default() };
    let garble = move |draft: &mut Draft| {
        let Some(mut head) = draft.head(spoiled)? else { return Ok(()) };
        draft.update(&mut head);
        draft.note(spoiled, NoteKind::Failures, Some(b"{".as_slice().into()));
        Ok(())
    };
    server.engine.store().decide(reads, garble).await.unwrap();
    let told = server.get("/ojs/v1/jobs").await;
    let jobs = told.body["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3, "{}", told.body);
    for job in jobs {
        let is_spoiled = job["id"] == ids[1].as_str();
        assert_eq!(job.get("args").is_none(), is_spoiled, "{job}");
        assert_eq!(job["errors"][0]["code"] == "unreadable", is_spoiled, "{job}");
    }
    let keys = server.get("/ojs/v1/unique-jobs").await;
    assert_eq!((keys.status, keys.body.to_string().matches("\"job_id\"").count()), (200, 3), "{}", keys.body);
    let found = server.get("/ojs/v1/jobs?where=/args/0/user%3D2").await;
    assert_eq!(found.body["jobs"].as_array().unwrap().len(), 1, "{}", found.body);
    server.stop().await;
}

/// Paging by number ends there, so the answer must have a cursor to continue with.
#[tokio::test]
async fn the_last_page_of_keys_that_a_number_reaches_says_where_to_go_on() {
    let server = Server::start().await;
    let keyed = |number: u32| json!({ "type": "a.b", "args": [number], "options": { "unique": { "keys": ["args"] } } });
    let numbers: Vec<u32> = (0..10_050).collect();
    for piece in numbers.chunks(1_000) {
        let jobs: Vec<_> = piece.iter().copied().map(keyed).collect();
        assert_eq!(server.post("/ojs/v1/jobs/batch", &json!({ "jobs": jobs })).await.status, 201);
    }
    let list =
        async |query: &str| server.get(&format!("/ojs/v1/unique-jobs?per_page=200&{query}")).await.body;
    let before = list("page=49").await["pagination"].clone();
    assert_eq!((&before["has_more"], &before["next_cursor"]), (&true.into(), &json!(null)));
    let last = list("page=50").await;
    assert_eq!(
        (&last["pagination"]["has_more"], last["items"].as_array().unwrap().len()),
        (&true.into(), 200)
    );
    let cursor = last["pagination"]["next_cursor"].as_str().unwrap();
    assert_eq!(last["items"][199]["job_id"], cursor);
    let rest = list(&format!("cursor={cursor}")).await;
    assert_eq!(rest["items"].as_array().unwrap().len(), 50);
    assert_eq!(rest["pagination"]["has_more"], false);
    server.stop().await;
}

#[tokio::test]
async fn a_queue_is_shown_paused_and_resumed() {
    let server = Server::start().await;
    assert_eq!(server.get("/ojs/v1/queues/none/stats").await.body["queue"]["available"], 0);
    let paused = server.post_text("/ojs/v1/queues/mail/pause", "").await;
    assert_eq!((paused.status, &paused.body["queue"]["paused"]), (200, &true.into()));
    server.create(&job(&json!(1), &json!({ "queue": "mail" }))).await;
    let fetch = json!({ "queues": ["mail"] });
    assert_eq!(server.post("/ojs/v1/workers/fetch", &fetch).await.body, json!({ "jobs": [] }));
    // The job waits at least this long.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(server.get("/ojs/v1/queues/mail").await.body["queue"]["paused"], true);
    assert_eq!(server.post("/ojs/v1/queues/mail/resume", &json!({})).await.body["queue"]["paused"], false);
    assert_eq!(server.get("/ojs/v1/queues").await.body["queues"][0]["latency"], Value::Null);
    let run = server.take("mail", "w").await;
    let queues = server.get("/ojs/v1/queues").await;
    let mail = queues.body["queues"]
        .as_array()
        .unwrap()
        .iter()
        .find(|queue| queue["name"] == "mail")
        .unwrap()
        .clone();
    assert_eq!((&mail["active"], &mail["created"]), (&1.into(), &1.into()));
    let latency = &mail["latency"];
    assert_eq!((&latency["wait"]["count"], &latency["run"]["count"]), (&1.into(), &0.into()), "{latency}");
    assert!(
        latency["wait"]["p50_ms"].as_f64() >= Some(50.0),
        "it waited while the queue was paused: {latency}"
    );
    let ack = json!({ "job_id": run["id"], "lease": run["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    let one = server.get("/ojs/v1/queues/mail/stats").await;
    assert_eq!(one.body["queue"]["latency"]["run"]["count"], 1, "{}", one.body);
    assert_eq!(server.get("/ojs/v1/queues/UPPER/stats").await.status, 400);
    server.stop().await;
}

/// The answer says that there are more: the overview, here and in a terminal, reads the first page only.
#[tokio::test]
async fn queues_are_listed_in_pages() {
    let server = Server::start().await;
    for queue in ["c", "a", "b-1", "b"] {
        server.create(&job(&json!(1), &json!({ "queue": queue }))).await;
    }
    let (mut names, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let told = server.get(&format!("/ojs/v1/queues?limit=3{cursor}")).await.body;
        let queues = told["queues"].as_array().unwrap();
        names.extend(queues.iter().map(|queue| queue["name"].as_str().unwrap().to_owned()));
        pages += 1;
        assert_eq!((&told["pagination"]["total"], &told["pagination"]["limit"]), (&json!(4), &json!(3)));
        assert_eq!(told["pagination"]["has_more"], pages == 1);
        assert_eq!(told["pagination"]["has_more"], told["pagination"]["next_cursor"].is_string());
        let Some(next) = told["pagination"]["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!((names, pages), (["a", "b", "b-1", "c"].map(str::to_owned).to_vec(), 2));
    let whole = server.get("/ojs/v1/queues").await.body;
    assert_eq!(
        (whole["queues"].as_array().unwrap().len(), &whole["pagination"]["has_more"]),
        (4, &json!(false))
    );
    // The default limit.
    assert_eq!(whole["pagination"]["limit"], 10_000);
    assert_eq!(server.get("/ojs/v1/queues?limit=10001").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn the_log_is_read_from_a_cursor() {
    let server = Server::start().await;
    for queue in ["a", "b", "a"] {
        server.create(&job(&json!(1), &json!({ "queue": queue }))).await;
    }
    let first = server.get("/ojs/v1/events?queues=a&types=job.enqueued&limit=1").await;
    assert_eq!(first.body["events"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&first.body["has_more"], &first.body["events"][0]["data"]["queue"]),
        (&true.into(), &"a".into())
    );
    let cursor = first.body["cursor"].as_str().unwrap();
    let rest = server.get(&format!("/ojs/v1/events?queues=a&after={cursor}")).await;
    assert_eq!((rest.body["events"].as_array().unwrap().len(), &rest.body["has_more"]), (1, &false.into()));
    assert_eq!(server.get("/ojs/v1/events?after=x").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn the_server_says_what_it_is_and_how_it_does() {
    let server = Server::start().await;
    server.create(&job(&json!(1), &json!({}))).await;
    let manifest = server.get("/ojs/manifest").await.body;
    assert_eq!(
        (&manifest["specversion"], &manifest["unique_job_strength"]),
        (&"1.0".into(), &"strong".into())
    );
    assert!(manifest["capabilities"]["unique_jobs"].as_bool().unwrap() && manifest["extensions"].is_array());
    assert_eq!(server.get("/ojs/v1/health").await.body["backend"]["status"], "ok");
    assert_eq!(server.get("/ready").await.body["status"], "ready");
    let metrics = server.client.request(Method::GET, "/metrics", None, HeaderMap::new()).await.unwrap();
    assert_eq!(metrics.headers["content-type"], "text/plain");
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(text.contains("semel_jobs{queue=\"default\",state=\"available\"} 1\n"), "{text}");
    assert!(text.contains("outcome=\"created\"} 1\n"), "{text}");
    server.stop().await;
}

/// Nothing else reveals that a clock was ahead for a while, or is behind, before something runs early or
/// late.
#[tokio::test]
async fn how_far_the_stores_time_is_from_the_clock_is_told() {
    let clock = ManualClock::at(SystemClock.now().saturating_add(Duration::from_secs(3_600)));
    let time = clock.now().as_micros() as f64 / 1e6;
    let server = Server::on_store(Arc::new(Memory::new(clock)), Config::default()).await;
    let ahead = server.get("/health").await.body["backend"]["time_ahead_ms"].as_i64().unwrap();
    assert!((3_540_000..=3_600_000).contains(&ahead), "{ahead}");
    let text = server.get_text("/metrics").await;
    assert!(text.contains(&format!("\nsemel_store_time_seconds {time:.3}\n")), "{text}");
    server.stop().await;
}

/// One-word bodies for webhooks.
struct Words;

impl Wording for Words {
    fn name(&self, _: EventKind) -> &'static str {
        "job.enqueued"
    }

    fn event(&self, _: u64, _: Timestamp, _: &Event) -> String {
        "{}".to_owned()
    }
}

/// Operators see that a subscriber does not answer; the server's internal jobs are never shown among the
/// users' jobs.
#[tokio::test]
async fn metrics_show_deliveries_and_do_not_count_their_keys() {
    let webhooks = Rules { allow_private: true };
    let server = Server::with(Config { webhooks, ..Config::default() }).await;
    let wish = json!({ "url": "http://127.0.0.1:9/hook", "events": ["job.enqueued"] });
    assert_eq!(server.post("/ojs/v1/webhooks/subscriptions", &wish).await.status, 201);
    let unique = json!({ "unique": { "keys": ["args"] } });
    server.create(&job(&json!(1), &unique)).await;
    // Nothing delivers here, so the delivery waits.
    server.engine.webhooks(Arc::new(Words)).relay_once().await.unwrap();
    let text = server.get_text("/metrics").await;
    for line in [
        "semel_queue_depth{queue=\"deliveries\",tenant=\"~\"} 1\n",
        "semel_jobs{queue=\"deliveries\",tenant=\"~\",state=\"available\"} 1\n",
        "semel_keys_held 1\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // The internal job that stores the list of subscriptions is not pending work.
    assert!(!text.contains("semel_jobs{queue=\"documents\""), "{text}");
    for path in ["/ojs/v1/queues", "/ojs/v1/admin/queues", "/ojs/v1/admin/stats"] {
        let told = server.get(path).await;
        assert!(told.status == 200 && !told.body.to_string().contains("deliveries"), "{path}: {}", told.body);
    }
    server.stop().await;
}

/// The output of `promtool` for the text, which it reads with Prometheus's own parser.
fn promtool(text: &str) -> String {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let end = if output.status.success() { "" } else { "refused" };
    format!("{}{end}", String::from_utf8(said).unwrap())
}

/// A text with metric families of every kind.
async fn metrics_of_some_requests(server: &Server) -> String {
    server.create(&job(&json!(1), &json!({ "queue": "a.b-c" }))).await;
    server.get("/ojs/v1/jobs/nothing").await;
    server.get_text("/metrics").await
}

#[tokio::test]
async fn metrics_are_what_promtool_reads() {
    let server = Server::start().await;
    let text = metrics_of_some_requests(&server).await;
    assert_eq!(promtool(&text), "", "{text}");
    let broken = text.replacen("# TYPE semel_jobs gauge", "# TYPE semel_jobs gouge", 1);
    assert!(promtool(&broken).ends_with("refused"), "the tool would say so");
    server.stop().await;
}

/// What Prometheus's text parser requires: a family's HELP and TYPE once and before its samples, samples of
/// one family together, names and labels in their alphabets, and buckets that grow to `+Inf` and equal the
/// count.
#[tokio::test]
async fn metrics_are_what_prometheus_reads() {
    let server = Server::start().await;
    let text = metrics_of_some_requests(&server).await;
    let mut family = String::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut samples = std::collections::BTreeSet::new();
    let mut buckets: Option<(String, f64)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(seen.insert(family.clone()), "{family} twice");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(samples.insert(series.to_owned()), "{series} twice");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(base == family || name == family, "{name} below {family}");
        assert!(labels.ends_with('}') && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
        if let Some((which, _)) = labels.split_once(",le=") {
            let before = buckets.take().filter(|(own, _)| own == which).map_or(0.0, |(_, count)| count);
            assert!(value >= before, "{line} shrinks");
            buckets = Some((which.to_owned(), value));
        } else if name.ends_with("_count") {
            let (which, count) = buckets.take().unwrap();
            assert_eq!((which, count), (labels.trim_end_matches('}').to_owned(), value));
        }
    }
    for wanted in [
        "semel_queue_depth{queue=\"a.b-c\"} 1",
        "semel_queue_oldest_seconds{queue=\"a.b-c\"} ",
        "semel_http_responses_total{method=\"POST\",route=\"/ojs/v1/jobs\",class=\"2xx\"} 1",
        "semel_http_request_duration_seconds_bucket{method=\"GET\",route=\"/ojs/v1/jobs/{id}\",le=\"+Inf\"} 1",
    ] {
        assert!(text.contains(wanted), "{wanted} in {text}");
    }
    server.stop().await;
}
