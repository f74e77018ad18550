//! Latency of a job for a worker in a long poll, and of scheduled jobs.

use std::time::{Duration, Instant};

use semel_testkit::patience::quickest;
use serde_json::json;

use crate::harness::{Server, job};

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_worker_has_a_new_job_within_milliseconds() {
    let server = Server::start().await;
    let took = quickest(Duration::from_millis(50), async || {
        let fetch = json!({ "queues": ["default"], "worker_id": "w", "wait_ms": 20_000 });
        let waiting = server.post("/ojs/v1/workers/fetch", &fetch);
        let (told, sent) = tokio::join!(waiting, async {
            // Until the fetch waits; if it came later, it would find the job without waiting.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let sent = Instant::now();
            server.create(&json!({ "type": "a.b", "args": [] })).await;
            sent
        });
        assert_eq!(told.body["jobs"].as_array().unwrap().len(), 1);
        sent.elapsed()
    })
    .await;
    assert!(took < Duration::from_millis(50), "{took:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_within_a_tenth_of_a_second_of_its_time() {
    let server = Server::start().await;
    let late = quickest(Duration::from_millis(100), async || {
        let sent = Instant::now();
        server.create(&job(&json!({}), &json!({ "scheduled_at": "+PT0.3S" }))).await;
        let fetch = json!({ "queues": ["default"], "worker_id": "w", "wait_ms": 20_000 });
        let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
        assert_eq!(told.body["jobs"].as_array().unwrap().len(), 1);
        let waited = sent.elapsed();
        assert!(waited >= Duration::from_millis(295), "{waited:?}: too early");
        waited.saturating_sub(Duration::from_millis(300))
    })
    .await;
    assert!(late < Duration::from_millis(100), "{late:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_is_tried_again_within_a_tenth_of_a_second_of_its_time() {
    let server = Server::start().await;
    let retry = json!({ "initial_interval": "PT0.2S", "jitter": false, "max_attempts": 9 });
    let late = quickest(Duration::from_millis(100), async || {
        let id = server.create(&job(&json!({}), &json!({ "retry": retry }))).await.job_id().to_owned();
        server.take("default", "w").await;
        let failed = Instant::now();
        let failure = json!({ "job_id": id, "error": { "code": "x", "message": "x" } });
        assert_eq!(server.post("/ojs/v1/workers/nack", &failure).await.body["retry_delay_ms"], 200);
        let fetch = json!({ "queues": ["default"], "worker_id": "w", "wait_ms": 20_000 });
        assert_eq!(server.post("/ojs/v1/workers/fetch", &fetch).await.body["jobs"][0]["id"], *id);
        let waited = failed.elapsed();
        assert!(waited >= Duration::from_millis(195), "{waited:?}: too early");
        assert_eq!(server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await.status, 200);
        waited.saturating_sub(Duration::from_millis(200))
    })
    .await;
    assert!(late < Duration::from_millis(100), "{late:?}");
    server.stop().await;
}

/// Polls do not count as requests under way, so thousands of them could scan the whole log side by side.
#[tokio::test]
async fn a_poll_waits_at_the_end_of_the_log_alone() {
    let server = Server::in_memory().await;
    // More events than one answer scans.
    let jobs = json!({ "jobs": vec![json!({ "type": "a.b", "args": [] }); 7_000] });
    for _ in 0..3 {
        assert_eq!(server.post("/ojs/v1/jobs/bulk", &jobs).await.status, 200);
    }
    let path = "/ojs/v1/events?types=job.cancelled";
    let told = server.get(&format!("{path}&wait_ms=25000")).await.body;
    assert_eq!((&told["events"], &told["has_more"]), (&json!([]), &json!(true)), "{told}");
    let rest = server.get(&format!("{path}&after={}", told["cursor"].as_str().unwrap())).await.body;
    assert_eq!((&rest["events"], &rest["has_more"]), (&json!([]), &json!(false)), "{rest}");
    server.stop().await;
}

/// As in the guide's table of limits.
#[tokio::test]
async fn a_longer_wait_than_there_is_is_refused() {
    let server = Server::in_memory().await;
    let longest = json!({ "queues": ["default"], "wait_ms": 30_001 });
    let told = server.post("/ojs/v1/workers/fetch", &longest).await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"));
    let told = server.get("/ojs/v1/events?wait_ms=25001").await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"));
    server.stop().await;
}
