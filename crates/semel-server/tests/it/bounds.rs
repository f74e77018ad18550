//! Bounds on one request: answers of bounded size, lists of bounded length.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_server::{Bounds, Config, Limits};
use serde_json::{Value, json};

use crate::harness::{Server, job};
use crate::tasks;

/// Bound on an answer with whole jobs, plus one job.
const ANSWER_BYTES: usize = (16 + 2) << 20;

/// Args of about 900 KiB.
fn large() -> Value {
    json!("x".repeat(900 * 1024))
}

/// Enqueues `count` large jobs.
async fn large_jobs(server: &Server, count: usize) {
    let text = job(&large(), &json!({})).to_string();
    for _ in 0..count {
        assert_eq!(server.post_text("/ojs/v1/jobs", &text).await.status, 201);
    }
}

fn bytes(body: &Value) -> usize {
    body.to_string().len()
}

/// Reads a list page by page, each of bounded size. Returns the member `name` of all its items, and the
/// number of pages.
async fn pages(server: &Server, path: &str, list: &str, name: &str) -> (BTreeSet<String>, usize) {
    let (mut seen, mut cursor, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let told = server.get(&format!("{path}{cursor}")).await.body;
        assert!(bytes(&told) < ANSWER_BYTES, "{path}: {}", bytes(&told));
        pages += 1;
        for item in told[list].as_array().unwrap() {
            assert!(seen.insert(item[name].as_str().unwrap().to_owned()), "{path}: told twice");
        }
        assert_eq!(told["pagination"]["has_more"], told["pagination"]["next_cursor"].is_string());
        match told["pagination"]["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (seen, pages),
        }
    }
}

/// If each duplicate were answered with its whole job, however often, a request of one megabyte could get an
/// answer of gigabytes.
#[tokio::test]
async fn a_bulk_tells_a_whole_job_as_often_as_there_is_room() {
    let server = Server::start().await;
    let unique = json!({ "unique": { "key": "k", "on_conflict": "ignore" } });
    let id = server.create(&job(&large(), &unique)).await.job_id().to_owned();
    let jobs = vec![job(&json!(1), &unique); 200];
    for (path, list) in [("/ojs/v1/jobs/bulk", "results"), ("/ojs/v1/jobs/batch", "jobs")] {
        let told = server.post(path, &json!({ "jobs": jobs })).await;
        assert!(told.status < 300, "{path}: {}", told.status);
        assert!(bytes(&told.body) < ANSWER_BYTES, "{path}: {} bytes", bytes(&told.body));
        let items = told.body[list].as_array().unwrap();
        assert_eq!(items.len(), 200);
        let shown = |at: usize| if list == "results" { &items[at]["job"] } else { &items[at] };
        let whole = (0..200).filter(|at| shown(*at)["args"].is_array()).count();
        assert!((10..30).contains(&whole) && shown(0)["args"].is_array(), "{path}: {whole} are told whole");
        for at in 0..200 {
            let item = shown(at);
            assert_eq!((&item["id"], &item["state"]), (&json!(id), &json!("available")), "{path} {at}");
            assert_eq!((&item["type"], &item["queue"]), (&json!("email.send"), &json!("default")));
            assert_eq!((&item["deduplicated"], item.get("args").is_some()), (&json!(true), at < whole));
        }
    }
    server.stop().await;
}

/// Distinct jobs are returned whole for as long as there is room.
#[tokio::test]
async fn a_bulk_has_an_answer_of_bounded_size() {
    let server = Server::start().await;
    let unique = |at: usize| json!({ "unique": { "key": format!("k{at}"), "on_conflict": "ignore" } });
    for at in 0..30 {
        server.create(&job(&large(), &unique(at))).await;
    }
    let jobs: Vec<Value> = (0..30).map(|at| job(&json!(1), &unique(at))).collect();
    let told = server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await;
    assert_eq!(told.status, 200);
    let whole =
        told.body["results"].as_array().unwrap().iter().filter(|item| item["job"].get("args").is_some());
    assert!((10..30).contains(&whole.count()));
    assert!(bytes(&told.body) < ANSWER_BYTES, "{}", bytes(&told.body));
    server.stop().await;
}

#[tokio::test]
async fn a_list_of_large_jobs_ends_early_and_goes_on() {
    let server = Server::start().await;
    large_jobs(&server, 40).await;
    let (seen, pages) = pages(&server, "/ojs/v1/jobs?limit=200", "jobs", "id").await;
    assert_eq!((seen.len(), pages > 1), (40, true), "{pages} pages");
    // A listing by page number has the same jobs on each page; those beyond the room come without args.
    let told = server.get("/ojs/v1/admin/jobs?per_page=40").await.body;
    assert!(bytes(&told) < ANSWER_BYTES, "{}", bytes(&told));
    let items = told["items"].as_array().unwrap();
    assert_eq!(items.len(), 40);
    assert!(items[0].get("args").is_some() && items[39].get("args").is_none());
    assert!(items.iter().all(|item| item["id"].is_string() && item["queue"] == "default"));
    server.stop().await;
}

/// A job that has failed sixty times must not add sixty megabytes to each answer that lists or leases it.
#[tokio::test]
async fn what_failed_runs_leave_behind_is_bounded() {
    const JOBS: usize = 10;
    let server = Server::start().await;
    let jobs = vec![job(&json!(1), &json!({ "retry": { "max_attempts": 60 } })); JOBS];
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await.status, 200);
    let fetch = json!({ "queues": ["default"], "worker_id": "w", "count": JOBS, "wait_ms": 5_000 });
    let text = "\u{e9}".repeat(225 * 1024);
    let details = json!({ "stack": text });
    let error = json!({ "code": "x", "message": text, "details": details, "retry_after_ms": 0 });
    let mut failed = 0;
    while failed < 5 * JOBS {
        let told = server.post("/ojs/v1/workers/fetch", &fetch).await.body;
        assert!(bytes(&told) < JOBS << 19, "{} bytes after {failed}", bytes(&told));
        for job in told["jobs"].as_array().unwrap() {
            let nack = json!({ "job_id": job["id"], "error": error });
            let told = server.post("/ojs/v1/workers/nack", &nack).await;
            assert_eq!(told.status, 200, "{}", told.body["error"]);
            failed += 1;
        }
    }
    let listed = server.get("/ojs/v1/jobs?limit=200").await.body;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), JOBS);
    assert!(bytes(&listed) < JOBS << 19, "{}", bytes(&listed));
    let path = format!("/ojs/v1/jobs/{}", listed["jobs"][0]["id"].as_str().unwrap());
    let told = server.get(&path).await.body;
    assert!(bytes(&told) < 1 << 20, "{}", bytes(&told));
    let last = told["job"]["errors"].as_array().unwrap().last().unwrap();
    assert_eq!(last["message"].as_str().unwrap().len(), 64 * 1024);
    let omitted = json!({ "semel.omitted": true, "bytes": details.to_string().len() });
    assert_eq!(last["details"], omitted);
    server.stop().await;
}

/// With two groups in sequence, each step of the second names all steps of the first.
#[tokio::test]
async fn a_workflow_has_an_answer_of_bounded_size_and_so_has_a_list_of_them() {
    let server = Server::start().await;
    let group = |name: char, count: usize| {
        let step = |at: usize| json!({ "id": format!("{name}{at:x>254}"), "type": "a.b", "args": [] });
        json!({ "type": "group", "jobs": (0..count).map(step).collect::<Vec<_>>() })
    };
    let two = |count: usize| json!({ "type": "chain", "steps": [group('a', count), group('b', count)] });
    let told = server.post("/ojs/v1/workflows", &two(500)).await;
    assert_eq!((told.status, told.code()), (413, "payload_too_large"), "{} bytes", bytes(&told.body));
    assert_eq!(server.stored().await, 0);
    for _ in 0..6 {
        let told = server.post("/ojs/v1/workflows", &two(120)).await;
        assert_eq!(told.status, 201);
        assert!(bytes(&told.body) < ANSWER_BYTES, "{}", bytes(&told.body));
    }
    for (filter, count) in [("", 6), ("&state=running", 6), ("&state=failed", 0)] {
        let path = format!("/ojs/v1/workflows?limit=200{filter}");
        let (seen, pages) = pages(&server, &path, "workflows", "id").await;
        assert_eq!((seen.len(), pages > 1), (count, count > 0), "{path}: {pages} pages");
    }
    server.stop().await;
}

/// An answer contains each cron's content six times.
#[tokio::test]
async fn a_list_of_large_crons_ends_early_and_goes_on() {
    let server = Server::start().await;
    let template = json!({ "type": "a.b", "args": [large()] });
    for at in 0..12 {
        let name = format!("tick-{at}");
        let cron = json!({ "name": name, "expression": "0 3 1 1 *", "job_template": template });
        assert_eq!(server.post("/ojs/v1/cron", &cron).await.status, 201);
    }
    for filter in ["", "&enabled=true"] {
        let path = format!("/ojs/v1/cron?limit=200{filter}");
        let (seen, pages) = pages(&server, &path, "crons", "name").await;
        assert_eq!((seen.len(), pages > 1), (12, true), "{path}: {pages} pages");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_list_of_large_tasks_ends_early_and_goes_on() {
    let config = Config { templates: tasks::templates(), ..Config::default() };
    let server = Server::with(config).await;
    let text = large();
    for at in 0..24 {
        let context = json!({ "at": at, "text": text });
        let task = json!({ "namespace": "payments", "name": "process", "context": context });
        assert_eq!(server.post("/v1/tasks", &task).await.status, 201);
    }
    let (seen, pages) = pages(&server, "/v1/tasks?limit=200", "tasks", "task_uuid").await;
    assert_eq!((seen.len(), pages > 1), (24, true), "{pages} pages");
    server.stop().await;
}

/// A worker must not hold leases of jobs that did not fit into its answer.
#[tokio::test]
async fn a_fetch_of_large_jobs_leases_fewer() {
    let server = Server::start().await;
    large_jobs(&server, 80).await;
    let fetch = json!({ "queues": ["default"], "worker_id": "w", "count": 1_000 });
    let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
    let first = told.body["jobs"].as_array().unwrap().len();
    assert!((10..64).contains(&first), "{first}");
    assert!(bytes(&told.body) < 49 << 20, "{}", bytes(&told.body));
    let active = server.get("/ojs/v1/admin/jobs?state=active&per_page=1").await;
    assert_eq!(active.body["pagination"]["total"], first, "{}", active.body["pagination"]);
    let mut all = first;
    while all < 80 {
        let more = server.post("/ojs/v1/workers/fetch", &fetch).await.body["jobs"].as_array().unwrap().len();
        assert!(more > 0, "{all}");
        all += more;
    }
    // Of small jobs it leases as many as are asked for.
    let jobs = vec![job(&json!(1), &json!({})); 300];
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await.status, 200);
    let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
    assert_eq!(told.body["jobs"].as_array().unwrap().len(), 300);
    server.stop().await;
}

/// When small jobs are followed by large ones, more of these may be leased than fit into the answer.
#[tokio::test]
async fn what_a_fetch_leases_and_does_not_tell_it_gives_back() {
    let server = Server::start().await;
    let jobs = vec![job(&json!(1), &json!({})); 10];
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await.status, 200);
    large_jobs(&server, 64).await;
    let fetch = json!({ "queues": ["default"], "worker_id": "w", "count": 1_000 });
    let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
    let first = told.body["jobs"].as_array().unwrap().len();
    assert!((40..74).contains(&first) && bytes(&told.body) < 49 << 20, "{first}, {}", bytes(&told.body));
    let active = server.get("/ojs/v1/admin/jobs?state=active&per_page=1").await;
    assert_eq!(active.body["pagination"]["total"], first, "{}", active.body["pagination"]);
    // An attempt that was never handed out does not count.
    let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
    let rest = told.body["jobs"].as_array().unwrap();
    assert_eq!(rest.len(), (74 - first).min(rest.len()));
    assert!(!rest.is_empty() && rest.iter().all(|job| job["attempt"] == 1), "{}", rest[0]["attempt"]);
    server.stop().await;
}

#[tokio::test]
async fn a_filter_of_events_names_so_many() {
    let server = Server::start().await;
    let names = |count: usize| (0..count).map(|at| format!("q{at}")).collect::<Vec<_>>().join(",");
    let id = "01961111-aaaa-7bbb-8ccc-dddddddddddd";
    let ids =
        (0..65).map(|at| format!("01961111-aaaa-7bbb-8ccc-dddddddddd{at:02}")).collect::<Vec<_>>().join(",");
    for path in ["/ojs/v1/events", "/ojs/v1/events/stream"] {
        for (name, list) in [("queues", names(65)), ("job_types", names(65)), ("jobs", ids.clone())] {
            let told = server.get(&format!("{path}?{name}={list}")).await;
            assert_eq!((told.status, told.code()), (400, "invalid_request"), "{path} {name}: {}", told.body);
            assert_eq!(told.body["error"]["details"]["parameter"], name, "{}", told.body);
        }
    }
    let channels = (0..65).map(|at| format!("queue:q{at}")).collect::<Vec<_>>().join(",");
    let told = server.get(&format!("/ojs/v1/events/stream?channel={channels}")).await;
    assert_eq!((told.status, &told.body["error"]["details"]["parameter"]), (400, &json!("channel")));
    // Repeated names count once.
    for list in [names(64), ["q"; 500].join(",")] {
        let told = server.get(&format!("/ojs/v1/events?queues={list}&jobs={}", [id; 99].join(","))).await;
        assert_eq!(told.status, 200, "{}", told.body);
    }
    server.stop().await;
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

fn mebibytes(bytes: usize) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Formats a number below a million as the page does: 4,096.
fn grouped(number: usize) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

/// The first cells of the rows of the page's table, each with the actual limit.
fn limits_of_the_page() -> [(&'static str, String); 15] {
    let (limits, bounds, config) = (Limits::default(), Bounds::default(), Config::default());
    let both = |all: String, own: String| format!("{all}; {own}");
    [
        ("time for a header", seconds(limits.header_timeout)),
        ("time for a body", seconds(bounds.body_time)),
        ("an answer that is not read", seconds(limits.write_timeout)),
        ("a request in all", seconds(config.request_timeout)),
        ("connections |", grouped(limits.connections)),
        ("connections of one address", grouped(limits.connections_per_client)),
        ("requests under way, long polls aside", grouped(bounds.requests)),
        ("requests under way of one token", grouped(bounds.requests_per_token)),
        ("long polls that wait", both(grouped(bounds.polls), grouped(bounds.polls_per_token))),
        ("streams of events", both(grouped(config.streams_max), grouped(bounds.streams_per_token))),
        ("a body; of a batch", both(mebibytes(config.body_bytes_max), mebibytes(config.batch_bytes_max))),
        ("bytes of bodies", mebibytes(bounds.body_bytes)),
        ("of those, one token's", mebibytes(bounds.body_bytes_per_token)),
        ("bytes of answers", mebibytes(bounds.answer_bytes)),
        ("of those answers, one token's", mebibytes(bounds.answer_bytes_per_token)),
    ]
}

#[test]
fn the_page_says_what_the_limits_are() {
    let page = include_str!("../../../../docs/guide/network.md");
    for (beginning, limit) in limits_of_the_page() {
        let row = page.lines().find(|line| line.starts_with(&format!("| {beginning}")));
        let row = row.unwrap_or_else(|| panic!("no row begins with {beginning}"));
        // The flag is in parentheses.
        let said = row.split(" | ").nth(1).unwrap().split(" (").next().unwrap();
        assert_eq!(said, limit, "{row}");
    }
    let bounds = Bounds::default();
    for (of, free) in [("answered yet", bounds.body_bytes_free), ("sent yet", bounds.answer_bytes_free)] {
        let free = format!("{of}, but for the first {} KiB of each", free >> 10);
        assert!(page.contains(&free), "{free}");
    }
    let drain = format!("`--drain` seconds ({})", Limits::default().drain.as_secs());
    assert!(page.contains(&drain), "{drain}");
    let events = include_str!("../../../../docs/guide/events.md");
    let heartbeat = format!("sends a comment every {} seconds", Config::default().stream_heartbeat.as_secs());
    assert!(events.replace('\n', " ").contains(&heartbeat), "{heartbeat}");
}
