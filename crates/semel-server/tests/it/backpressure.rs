//! Bounds on the number of jobs waiting in a queue.

use serde_json::{Value, json};

use crate::harness::{Server, Told, job};
use crate::tasks;

async fn bounded(server: &Server, bound: u64) {
    let config =
        json!({ "backpressure": { "max_depth": bound, "strategy": "reject", "warning_threshold": 0.5 } });
    let told = server.put("/ojs/v1/admin/queues/q/config", &config).await;
    assert_eq!((told.status, &told.body["config"]["backpressure"]["max_depth"]), (200, &json!(bound)));
}

async fn offer(server: &Server, n: u32, unique: Option<Value>) -> Told {
    let options = match unique {
        Some(unique) => json!({ "queue": "q", "unique": unique }),
        None => json!({ "queue": "q" }),
    };
    server.post("/ojs/v1/jobs", &job(&json!({ "n": n }), &options)).await
}

#[tokio::test]
async fn a_full_queue_takes_no_more_and_says_how_full_it_is() {
    for server in [Server::start().await, Server::in_memory().await] {
        bounded(&server, 2).await;
        for n in 0..2 {
            let told = offer(&server, n, None).await;
            assert_eq!(told.status, 201);
            assert_eq!(told.headers["x-ojs-queue-depth"], (n + 1).to_string());
        }
        let told = offer(&server, 2, None).await;
        assert_eq!((told.status, told.code()), (429, "QUEUE_FULL"), "{}", told.body);
        for (name, value) in [("x-ojs-queue-depth", "2"), ("x-ojs-queue-bound", "2"), ("retry-after", "1")] {
            assert_eq!(told.headers[name], value, "{name}");
        }
        assert_eq!(told.body["error"]["retryable"], true);
        let stats = server.get("/ojs/v1/queues/q/stats").await.body;
        assert_eq!((&stats["stats"]["depth"], &stats["stats"]["max_depth"]), (&json!(2), &json!(2)));
        // Running jobs do not count as waiting.
        server.take("q", "w").await;
        assert_eq!(offer(&server, 3, None).await.status, 201);
        assert_eq!(offer(&server, 4, None).await.status, 429);
        // Other queues have no bound, and neither has this one once its bound is removed.
        assert_eq!(server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [] })).await.status, 201);
        assert_eq!(server.put("/ojs/v1/admin/queues/q/config", &json!({})).await.status, 200);
        assert_eq!(offer(&server, 5, None).await.status, 201);
        server.stop().await;
    }
}

/// First steps come from outside like any job; steps that become ready when others end are let in.
#[tokio::test]
async fn a_full_queue_takes_no_first_steps() {
    let server = tasks::server().await;
    let config = json!({ "backpressure": { "max_depth": 2, "strategy": "reject" } });
    for queue in ["q", "steps"] {
        assert_eq!(server.put(&format!("/ojs/v1/admin/queues/{queue}/config"), &config).await.status, 200);
    }
    let step = |n: u32| json!({ "type": "a.b", "args": [n], "options": { "queue": "q" } });
    let group = |jobs: Vec<Value>| json!({ "type": "group", "jobs": jobs });
    let told = server.post("/ojs/v1/workflows", &group(vec![step(1), step(2), step(3)])).await;
    assert_eq!((told.status, told.code()), (429, "QUEUE_FULL"), "{}", told.body);
    assert_eq!(server.get("/ojs/v1/workflows").await.body["workflows"], json!([]));
    let chain = json!({ "type": "chain", "steps": [step(1), step(2), step(3)] });
    assert_eq!(server.post("/ojs/v1/workflows", &chain).await.status, 201);
    assert_eq!(server.post("/ojs/v1/workflows", &group(vec![step(4)])).await.status, 201);
    assert_eq!(server.post("/ojs/v1/workflows", &chain).await.status, 429);
    // A duplicate that is answered with the existing job needs no room.
    let twin = json!({ "keys": ["args"], "on_conflict": "ignore" });
    let same = json!({ "type": "a.b", "args": [4], "options": { "queue": "q", "unique": twin } });
    let held = json!({ "type": "a.b", "args": [4], "options": { "queue": "elsewhere", "unique": twin } });
    server.create(&held).await;
    let told = server.post("/ojs/v1/workflows", &group(vec![same])).await;
    assert_eq!(told.status, 201, "{}", told.body);
    // The chain continues although the queue is full again by then.
    let first = server.take("q", "w").await;
    assert_eq!(offer(&server, 9, None).await.status, 201);
    let ack = json!({ "job_id": first["id"], "lease": first["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    assert_eq!(server.get("/ojs/v1/queues/q/stats").await.body["stats"]["depth"], 3);

    let task = |n: u32| json!({ "namespace": "payments", "name": "process", "context": { "n": n } });
    for (n, status) in [(1, 201), (2, 201), (3, 429), (1, 409)] {
        let told = server.post("/v1/tasks", &task(n)).await;
        assert_eq!(told.status, status, "{n}: {}", told.body);
    }
    assert_eq!(server.get("/v1/tasks").await.body["tasks"].as_array().unwrap().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_duplicate_is_never_refused_for_want_of_room() {
    let server = Server::start().await;
    bounded(&server, 1).await;
    let ignore = json!({ "on_conflict": "ignore" });
    let first = offer(&server, 1, Some(ignore.clone())).await;
    let again = offer(&server, 1, Some(ignore)).await;
    assert_eq!((again.status, again.job_id()), (200, first.job_id()));
    let rejected = offer(&server, 1, Some(json!({ "on_conflict": "reject" }))).await;
    assert_eq!((rejected.status, rejected.code()), (409, "duplicate"));
    // A replacement takes the place of the job it replaces.
    assert_eq!(offer(&server, 2, Some(json!({ "on_conflict": "replace" }))).await.status, 201);
    assert_eq!(offer(&server, 3, None).await.status, 429);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_fits_or_is_refused_as_its_mode_says() {
    let server = Server::start().await;
    bounded(&server, 2).await;
    let jobs: Vec<Value> = (0..3).map(|n| job(&json!({ "n": n }), &json!({ "queue": "q" }))).collect();
    let told = server.post("/ojs/v1/jobs/batch", &json!({ "jobs": jobs })).await;
    assert_eq!((told.status, told.code()), (429, "QUEUE_FULL"));
    assert_eq!(told.body["error"]["details"]["index"], 2);
    assert_eq!(server.stored().await, 0);
    let told = server.post("/ojs/v1/jobs/bulk", &json!({ "jobs": jobs })).await;
    assert_eq!((told.status, &told.body["succeeded"], &told.body["failed"]), (207, &json!(2), &json!(1)));
    assert_eq!(told.body["results"][2]["error"]["code"], "QUEUE_FULL");
    server.stop().await;
}

#[tokio::test]
async fn answers_warn_from_the_threshold_on() {
    let server = Server::in_memory().await;
    bounded(&server, 4).await;
    let first = offer(&server, 1, None).await;
    assert!(!first.headers.contains_key("x-ojs-queue-pressure"));
    let second = offer(&server, 2, None).await;
    assert_eq!(second.headers["x-ojs-queue-pressure"], "0.50");
    server.stop().await;
}

/// With many concurrent callers none gets past the bound, in whatever order they come.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_holds_among_many_callers() {
    let server = std::sync::Arc::new(Server::start().await);
    bounded(&server, 10).await;
    let callers: Vec<_> = (0..40)
        .map(|n| {
            let server = std::sync::Arc::clone(&server);
            tokio::spawn(async move { offer(&server, n, None).await.status })
        })
        .collect();
    let mut admitted = 0;
    for caller in callers {
        match caller.await.unwrap() {
            201 => admitted += 1,
            429 => {}
            status => panic!("{status}"),
        }
    }
    assert_eq!(admitted, 10);
    std::sync::Arc::into_inner(server).unwrap().stop().await;
}

#[tokio::test]
async fn what_is_no_setting_is_refused_at_its_place() {
    let server = Server::in_memory().await;
    for (config, place) in [
        (json!({ "backpressure": {} }), "/backpressure"),
        (json!({ "backpressure": { "max_depth": 0 } }), "/backpressure/max_depth"),
        (json!({ "backpressure": { "max_depth": 1, "strategy": "drop_oldest" } }), "/backpressure/strategy"),
        (
            json!({ "backpressure": { "max_depth": 1, "warning_threshold": 2 } }),
            "/backpressure/warning_threshold",
        ),
        (json!({ "maxDepth": 3 }), "/maxDepth"),
    ] {
        let told = server.put("/ojs/v1/admin/queues/q/config", &config).await;
        assert_eq!((told.status, told.pointer()), (400, place), "{}", told.body);
    }
    server.stop().await;
}

/// Only its `overlap_policy` limits a cron's jobs.
#[tokio::test]
async fn what_a_cron_offers_is_let_in_to_a_full_queue() {
    let server = Server::start().await;
    bounded(&server, 1).await;
    offer(&server, 1, None).await;
    assert_eq!(offer(&server, 2, None).await.status, 429);
    let cron = json!({
        "name": "c", "expression": "0 0 1 1 *", "overlap_policy": "allow",
        "job_template": { "type": "a.b", "args": [], "options": { "queue": "q" } },
    });
    assert_eq!(server.post("/ojs/v1/cron", &cron).await.status, 201);
    let told = server.post("/ojs/v1/cron/c/trigger", &json!({})).await;
    assert_eq!(told.status, 200, "{}", told.body);
    let stats = server.get("/ojs/v1/queues/q/stats").await.body;
    assert_eq!((&stats["stats"]["depth"], &stats["stats"]["max_depth"]), (&json!(2), &json!(1)));
    server.stop().await;
}
