//! Limits on starting jobs: concurrency and rates.

use std::time::{Duration, Instant};

use semel_testkit::patience::quickest;
use serde_json::{Value, json};

use crate::harness::{Server, Told, job};

async fn limited(server: &Server, queue: &str, limit: &Value) -> String {
    let options = json!({ "queue": queue, "rate_limit": limit });
    server.create(&job(&json!({}), &options)).await.job_id().to_owned()
}

async fn fetch(server: &Server, queues: &[&str], count: u32, wait_ms: u32) -> Vec<Value> {
    let body = json!({ "queues": queues, "count": count, "worker_id": "w", "wait_ms": wait_ms });
    let told = server.post("/ojs/v1/workers/fetch", &body).await;
    assert_eq!(told.status, 200, "{}", told.body);
    told.body["jobs"].as_array().unwrap().clone()
}

async fn ack(server: &Server, id: &Value) -> Told {
    server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await
}

#[tokio::test]
async fn so_many_of_a_key_run_at_once_whatever_their_queues() {
    for server in [Server::start().await, Server::in_memory().await] {
        for queue in ["a", "a", "b", "b", "b"] {
            limited(&server, queue, &json!({ "key": "k", "concurrency": 2 })).await;
        }
        let running = fetch(&server, &["a", "b"], 5, 0).await;
        assert_eq!(running.len(), 2);
        assert_eq!(fetch(&server, &["a", "b"], 5, 0).await.len(), 0);
        let seen = server.get("/ojs/v1/rate-limits/k").await.body;
        assert_eq!((&seen["concurrency"]["active"], &seen["remaining"]), (&json!(2), &json!(0)));
        // Jobs held back by a limit are still counted as available.
        let stats = server.get("/ojs/v1/queues/b/stats").await.body;
        assert_eq!((&stats["queue"]["available"], &stats["queue"]["active"]), (&json!(3), &json!(0)));
        server.stop().await;
    }
}

/// Every end of a run frees its slot.
#[tokio::test]
async fn every_end_of_a_run_lets_the_next_one_start() {
    let server = Server::start().await;
    for _ in 0..6 {
        limited(&server, "q", &json!({ "key": "k", "concurrency": 1 })).await;
    }
    let take = async || {
        let mut jobs = fetch(&server, &["q"], 5, 0).await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        assert_eq!(fetch(&server, &["q"], 5, 0).await.len(), 0);
        jobs.remove(0)["id"].clone()
    };
    let id = take().await;
    assert_eq!(ack(&server, &id).await.status, 200);
    let id = take().await;
    let failure = json!({ "job_id": id, "error": { "code": "x", "message": "x", "retryable": false } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &failure).await.status, 200);
    let id = take().await;
    let told = server
        .post("/ojs/v1/workers/nack", &json!({ "job_id": id, "requeue": true, "delay_ms": 60_000 }))
        .await;
    assert_eq!(told.status, 200);
    let id = take().await;
    assert_eq!(server.delete(&format!("/ojs/v1/jobs/{}", id.as_str().unwrap())).await.status, 200);
    take().await;
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_fetch_has_the_next_job_as_soon_as_a_run_ends() {
    let server = Server::start().await;
    limited(&server, "q", &json!({ "key": "k", "concurrency": 1 })).await;
    let run = async |wait_ms: u32| fetch(&server, &["q"], 1, wait_ms).await[0]["id"].clone();
    let running = std::cell::RefCell::new(run(0).await);
    // Polling alone would take half a second or more.
    let took = quickest(Duration::from_millis(300), async || {
        limited(&server, "q", &json!({ "key": "k", "concurrency": 1 })).await;
        let first = running.borrow().clone();
        let (next, ended) = tokio::join!(run(20_000), async {
            // Until the fetch waits; if it came later, it would find the job without waiting.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(ack(&server, &first).await.status, 200);
            Instant::now()
        });
        *running.borrow_mut() = next;
        ended.elapsed()
    })
    .await;
    assert!(took < Duration::from_millis(300), "{took:?}: it was found by looking");
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_fetch_has_the_next_job_when_the_rate_allows_it() {
    let server = Server::start().await;
    let mut keys = 0..;
    // Polling alone would take two seconds.
    let took = quickest(Duration::from_secs(1), || {
        let limit = json!({ "key": format!("k{}", keys.next().unwrap()), "rate": 1, "period": "PT0.3S" });
        let server = &server;
        async move {
            for _ in 0..3 {
                limited(server, "q", &limit).await;
            }
            let began = Instant::now();
            for _ in 0..3 {
                assert_eq!(fetch(server, &["q"], 5, 20_000).await.len(), 1);
            }
            let took = began.elapsed();
            assert!(took >= Duration::from_millis(600), "{took:?}: too many were started");
            took
        }
    })
    .await;
    assert!(took < Duration::from_secs(1), "{took:?}: it was found by looking");
    server.stop().await;
}

#[tokio::test]
async fn jobs_that_are_held_back_hide_nothing_behind_them() {
    let server = Server::start().await;
    let held: Vec<Value> = (0..300)
        .map(|_| {
            let options =
                json!({ "queue": "q", "priority": 50, "rate_limit": { "key": "k", "concurrency": 1 } });
            job(&json!({}), &options)
        })
        .collect();
    let told = server.post("/ojs/v1/jobs/batch", &json!({ "jobs": held })).await;
    assert_eq!(told.status, 201, "{}", told.body);
    let free = server.create(&job(&json!({}), &json!({ "queue": "q" }))).await.job_id().to_owned();
    let jobs = fetch(&server, &["q"], 1, 0).await;
    assert_eq!(jobs[0]["priority"], 50, "what stands first is taken first");
    let jobs = fetch(&server, &["q"], 1, 0).await;
    assert_eq!(jobs[0]["id"], *free);
    assert_eq!(fetch(&server, &["q"], 1, 0).await.len(), 0);
    server.stop().await;
}

#[tokio::test]
async fn the_newest_job_says_what_the_limit_is() {
    let server = Server::start().await;
    limited(&server, "q", &json!({ "key": "k", "concurrency": 1 })).await;
    limited(&server, "q", &json!({ "key": "k", "concurrency": 1 })).await;
    assert_eq!(fetch(&server, &["q"], 5, 0).await.len(), 1);
    assert_eq!(fetch(&server, &["q"], 5, 0).await.len(), 0);
    limited(&server, "q", &json!({ "key": "k", "concurrency": 3 })).await;
    assert_eq!(fetch(&server, &["q"], 5, 0).await.len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_paused_queue_and_an_expired_job_stay_so_under_a_limit() {
    let server = Server::start().await;
    let limit = json!({ "key": "k", "concurrency": 5 });
    limited(&server, "q", &limit).await;
    assert_eq!(server.post("/ojs/v1/queues/q/pause", &json!({})).await.status, 200);
    assert_eq!(fetch(&server, &["q"], 5, 0).await.len(), 0);
    assert_eq!(server.post("/ojs/v1/queues/q/resume", &json!({})).await.status, 200);
    assert_eq!(fetch(&server, &["q"], 5, 0).await.len(), 1);
    let past = json!({ "queue": "r", "rate_limit": limit, "expires_at": "2020-01-01T00:00:00Z" });
    let told = server.post("/ojs/v1/jobs", &job(&json!({}), &past)).await;
    assert_eq!(told.status, 201, "{}", told.body);
    assert_eq!(fetch(&server, &["r"], 5, 0).await.len(), 0);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_limit_is_refused_at_its_place() {
    let server = Server::in_memory().await;
    for (limit, place) in [
        (json!({}), ""),
        (json!({ "key": "k" }), ""),
        (json!({ "concurrency": 0 }), "/concurrency"),
        (json!({ "concurrency": 1_001 }), "/concurrency"),
        (json!({ "rate": 1, "period": "fortnight" }), "/period"),
        (json!({ "rate": 1, "period": "P2D" }), "/period"),
        (json!({ "period": "second" }), ""),
        (json!({ "rate": 1, "max_per_second": 2 }), "/rate"),
        (json!({ "concurrency": 1, "on_limit": "drop" }), "/on_limit"),
        (json!({ "concurrency": 1, "key": "" }), "/key"),
        (json!({ "concurency": 1 }), "/concurency"),
    ] {
        let options = json!({ "rate_limit": limit });
        let told = server.post("/ojs/v1/jobs", &job(&json!({}), &options)).await;
        assert_eq!((told.status, told.code()), (400, "invalid_request"), "{limit}");
        assert_eq!(told.pointer(), format!("/options/rate_limit{place}"), "{limit}");
    }
    assert_eq!(server.get("/ojs/v1/rate-limits/nobody").await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_limit_without_a_key_is_the_queues_own_and_is_shown_as_it_was_sent() {
    let server = Server::in_memory().await;
    let id = limited(&server, "mail", &json!({ "max_per_minute": 3 })).await;
    limited(&server, "other", &json!({ "max_per_minute": 1 })).await;
    assert_eq!(fetch(&server, &["mail"], 9, 0).await.len(), 1);
    let seen = server.get("/ojs/v1/rate-limits/queue:mail").await.body;
    assert_eq!(
        (&seen["rate"]["limit"], &seen["rate"]["period_ms"], &seen["rate"]["started"], &seen["remaining"]),
        (&json!(3), &json!(60_000), &json!(1), &json!(2))
    );
    let shown = server.get(&format!("/ojs/v1/jobs/{id}")).await.body;
    assert_eq!(shown["job"]["options"]["rate_limit"], json!({ "max_per_minute": 3 }));
    // The server's internal rows are not listed as queues.
    let queues = server.get("/ojs/v1/queues").await.body;
    let names: Vec<&str> =
        queues["queues"].as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mail", "other"]);
    server.stop().await;
}

#[tokio::test]
async fn an_enqueue_is_told_what_the_limit_allows_and_what_is_left_of_it() {
    let server = Server::in_memory().await;
    let limited = job(&json!({}), &json!({ "queue": "q", "rate_limit": { "key": "k", "concurrency": 2 } }));
    let told = async || {
        let headers = server.create(&limited).await.headers;
        ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| headers[name].to_str().unwrap().to_owned())
    };
    assert_eq!(told().await, ["2", "2"]);
    assert_eq!(fetch(&server, &["q"], 1, 0).await.len(), 1);
    assert_eq!(told().await, ["2", "1"]);
    let free = server.create(&job(&json!({}), &json!({ "queue": "q" }))).await;
    assert!(!free.headers.contains_key("x-ratelimit-limit"), "{:?}", free.headers);
    server.stop().await;
}

/// A worker that runs one job at a time starts with the first in line.
#[tokio::test]
async fn jobs_under_a_limit_come_in_their_places_among_the_others() {
    let server = Server::start().await;
    let mut wanted = Vec::new();
    for (priority, limit) in [(-50, false), (50, true), (0, false), (0, true), (0, false), (-100, true)] {
        let mut options = json!({ "priority": priority });
        if limit {
            options["rate_limit"] = json!({ "key": "k", "concurrency": 5 });
        }
        let put = server.create(&json!({ "type": "a.b", "args": [], "options": options })).await;
        wanted.push((-priority, put.body["job"]["id"].clone()));
    }
    wanted.sort_by_key(|(priority, _)| *priority);
    let asked = json!({ "queues": ["default"], "worker_id": "w", "count": 10 });
    let told = server.post("/ojs/v1/workers/fetch", &asked).await;
    let got: Vec<&Value> = told.body["jobs"].as_array().unwrap().iter().map(|job| &job["id"]).collect();
    assert_eq!(got, wanted.iter().map(|(_, id)| id).collect::<Vec<_>>());
    server.stop().await;
}
