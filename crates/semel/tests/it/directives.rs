//! Operators' directives to workers, in the program and over HTTP.

use std::sync::Arc;

use semel::{Failure, JobState, Progress, Semel, State, Worker};
use tokio::sync::{Notify, mpsc};

use crate::harness::{Add, add, memory, soon, still};

async fn tell(url: &str, worker: &str, directive: &str) {
    let client = semel_client::Client::new(url).unwrap();
    let path = format!("/ojs/v1/admin/workers/{worker}/directive");
    let text = format!("{{\"directive\":\"{directive}\"}}");
    let response =
        client.request(http::Method::PUT, &path, Some(text.into()), http::HeaderMap::new()).await.unwrap();
    assert_eq!(response.status, 200);
}

/// The worker as the API shows it.
async fn shown(url: &str) -> serde_json::Value {
    let client = semel_client::Client::new(url).unwrap();
    client.get_json("/ojs/v1/workers/w-1/health").await.unwrap()
}

/// A worker with a short lease, so that it sends heartbeats often.
fn worker(builder: Worker, begun: mpsc::UnboundedSender<i64>) -> Worker {
    builder.name("w-1").lease(std::time::Duration::from_millis(300)).concurrency(1).state(begun).handle(
        async |job: Add, State(begun): State<mpsc::UnboundedSender<i64>>| {
            begun.send(job.a).unwrap();
        },
    )
}

/// Lets another worker run job after job of another queue, long enough that a worker still taking jobs would
/// have taken the waiting ones.
async fn others_work(semel: &Semel, builder: Worker) {
    let _working = builder.name("w-2").queue("other", 1).handle(add).start().unwrap();
    for a in 0..20 {
        let job = semel.enqueue(Add { a, b: 0 }).queue("other").await.unwrap();
        assert_eq!(soon(job.wait()).await.unwrap().state(), JobState::Completed);
    }
}

async fn told_before_it_starts(semel: &Semel, url: &str, builder: impl Fn() -> Worker) {
    let (begun, mut has_begun) = mpsc::unbounded_channel();
    tell(url, "w-1", "terminate").await;
    let working = worker(builder(), begun).start().unwrap();
    soon(working.told_to_end()).await;
    assert_eq!(shown(url).await["state"], "terminate");
    // The fetch under way may take one job; the worker takes no more, and can be stopped as usual.
    let jobs = [7, 8].map(|a| Add { a, b: 0 });
    let jobs = semel.enqueue_many(jobs).await.unwrap().outcomes;
    others_work(semel, builder()).await;
    soon(working.stop()).await;
    let begun = std::iter::from_fn(|| has_begun.try_recv().ok()).count();
    let mut left = 0;
    for job in jobs {
        let stored = job.unwrap().job().unwrap().load().await.unwrap().unwrap();
        left += usize::from(stored.state() == JobState::Available);
    }
    assert!(begun <= 1 && begun + left == 2, "{begun} begun, {left} left");
}

#[tokio::test]
async fn a_worker_told_to_end_says_so() {
    for is_remote in [false, true] {
        // One queue each, so that a job left behind by one worker is not taken by the next. The store's clock
        // is paused, so no lease ends and leaves a job begun.
        let (semel, _clock) = still();
        let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
        let url = admin.url();
        let builder = || if is_remote { Worker::remote(&url).unwrap() } else { Worker::new(&semel) };
        told_before_it_starts(&semel, &url, builder).await;
        admin.stop().await.unwrap();
    }
}

#[tokio::test]
async fn run_until_ends_when_an_operator_says_so() {
    let semel = memory().await;
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    tell(&admin.url(), "w-1", "terminate").await;
    let (begun, _has_begun) = mpsc::unbounded_channel();
    let remote = worker(Worker::remote(&admin.url()).unwrap(), begun);
    soon(remote.run_until(std::future::pending())).await.unwrap();
    admin.stop().await.unwrap();
}

/// Told to be quiet it finishes its jobs and takes no more, until it is told to go on.
#[tokio::test]
async fn a_quiet_worker_finishes_what_it_has_and_waits() {
    // Its lease is short, so heartbeats are frequent, and never ends, since the store's clock is paused.
    let (semel, _clock) = still();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let (begun, mut has_begun) = mpsc::unbounded_channel::<i64>();
    let go = Arc::new(Notify::new());
    let working = Worker::remote(&admin.url())
        .unwrap()
        .name("w-1")
        .lease(std::time::Duration::from_millis(90))
        .concurrency(1)
        .state((begun, Arc::clone(&go)))
        .handle(async |job: Add, State((begun, go)): State<(mpsc::UnboundedSender<i64>, Arc<Notify>)>| {
            begun.send(job.a).unwrap();
            go.notified().await;
        })
        .start()
        .unwrap();
    let first = semel.enqueue(Add { a: 1, b: 0 }).await.unwrap();
    assert_eq!(soon(has_begun.recv()).await, Some(1));
    tell(&admin.url(), "w-1", "quiet").await;
    // A heartbeat every 30 ms tells the worker while it holds the job.
    soon(working.told_to_be_quiet()).await;
    let second = semel.enqueue(Add { a: 2, b: 0 }).await.unwrap();
    // If this heartbeat did not report the job yet, the next one will.
    soon(async { while shown(&admin.url()).await["active_jobs"] != 1 {} }).await;
    go.notify_one();
    assert_eq!(soon(first.wait()).await.unwrap().state(), JobState::Completed);
    others_work(&semel, Worker::new(&semel)).await;
    let waits = second.job().unwrap().load().await.unwrap().unwrap();
    assert_eq!(waits.state(), JobState::Available);
    drop(has_begun);
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}

/// Progress reported over HTTP is stored like progress reported in the program.
#[tokio::test]
async fn progress_is_told_over_http_as_well() {
    let semel = memory().await;
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let working = Worker::remote(&admin.url())
        .unwrap()
        .handle(async |_: Add, progress: Progress| {
            progress
                .set(&serde_json::json!({ "page": 3 }))
                .await
                .map_err(|error| Failure::new("Lost", error.to_string()))
        })
        .start()
        .unwrap();
    let job = semel.enqueue(Add { a: 1, b: 0 }).max_attempts(1).await.unwrap();
    let ended = soon(job.wait()).await.unwrap();
    assert_eq!(ended.state(), JobState::Completed, "{:?}", ended.job.last_failure());
    let client = semel_client::Client::new(&admin.url()).unwrap();
    let path = format!("/ojs/v1/jobs/{}", job.id().unwrap());
    let shown = client.get_json(&path).await.unwrap();
    assert_eq!(shown["job"]["progress"]["page"], 3);
    soon(working.stop()).await;
    admin.stop().await.unwrap();
}
