//! What one request may ask for: answers of bounded size, lists of bounded length.

use serde_json::{Value, json};

use crate::harness::{Server, job};

/// As much as an answer with whole jobs is to hold, and one job more.
const ANSWER_BYTES: usize = (16 + 2) << 20;

/// A job's args of some 900 KiB.
fn large() -> Value {
    json!("x".repeat(900 * 1024))
}

/// Enqueues so many large jobs.
async fn large_jobs(server: &Server, count: usize) {
    let text = job(&large(), &json!({})).to_string();
    for _ in 0..count {
        assert_eq!(server.post_text("/ojs/v1/jobs", &text).await.status, 201);
    }
}

fn bytes(body: &Value) -> usize {
    body.to_string().len()
}

/// Each duplicate was once answered with the whole of its job, however many there were: a request of a megabyte, with an answer of gigabytes.
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

/// Distinct jobs are told whole as long as there is room for them.
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
    let (mut seen, mut cursor, mut pages) = (std::collections::BTreeSet::new(), String::new(), 0);
    loop {
        let told = server.get(&format!("/ojs/v1/jobs?limit=200{cursor}")).await.body;
        assert!(bytes(&told) < ANSWER_BYTES, "{}", bytes(&told));
        pages += 1;
        let ids = told["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
        seen.extend(ids);
        assert_eq!(told["pagination"]["has_more"], told["pagination"]["next_cursor"].is_string());
        match told["pagination"]["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!((seen.len(), pages > 1), (40, true), "{pages} pages");
    // A list by numbers of pages has the same jobs on each, those beyond the room without args.
    let told = server.get("/ojs/v1/admin/jobs?per_page=40").await.body;
    assert!(bytes(&told) < ANSWER_BYTES, "{}", bytes(&told));
    let items = told["items"].as_array().unwrap();
    assert_eq!(items.len(), 40);
    assert!(items[0].get("args").is_some() && items[39].get("args").is_none());
    assert!(items.iter().all(|item| item["id"].is_string() && item["queue"] == "default"));
    server.stop().await;
}

/// What a worker cannot be told it must not hold a lease of.
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
    // Of small ones there are as many as are asked for.
    let jobs = vec![job(&json!(1), &json!({})); 300];
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await.status, 200);
    let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
    assert_eq!(told.body["jobs"].as_array().unwrap().len(), 300);
    server.stop().await;
}

/// Where small jobs are followed by large ones, more of these may be leased than are told.
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
    // An attempt that nobody was told of is none.
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
    // The same again is the same.
    for list in [names(64), ["q"; 500].join(",")] {
        let told = server.get(&format!("/ojs/v1/events?queues={list}&jobs={}", [id; 99].join(","))).await;
        assert_eq!(told.status, 200, "{}", told.body);
    }
    server.stop().await;
}
