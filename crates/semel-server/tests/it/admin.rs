//! What operators can ask for and do.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use semel_client::{HeaderMap, Method};
use semel_engine::Engine;
use semel_server::Config;
use semel_store::decor::Slow;
use semel_store::memory::Memory;
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::harness::{Server, header, job};

async fn dead_letter(server: &Server, queue: &str, unique: Option<Value>) -> String {
    let retry = json!({ "max_attempts": 1, "on_exhaustion": "dead_letter" });
    let mut options = json!({ "queue": queue, "retry": retry });
    if let Some(unique) = unique {
        options["unique"] = unique;
    }
    let id = server.create(&job(&json!({ "k": 1 }), &options)).await.job_id().to_owned();
    server.take(queue, "w").await;
    let failure = json!({ "job_id": id, "error": { "code": "x", "message": "x" } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &failure).await.body["state"], "discarded");
    id
}

#[tokio::test]
async fn a_worker_is_told_what_an_operator_says_until_it_is_taken_back() {
    let server = Server::start().await;
    let beat = async || {
        let told =
            server.post("/ojs/v1/workers/heartbeat", &json!({ "worker_id": "w-1", "active_jobs": [] })).await;
        told.body["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(beat().await, "running");
    for directive in ["quiet", "terminate", "running"] {
        let told =
            server.put("/ojs/v1/admin/workers/w-1/directive", &json!({ "directive": directive })).await;
        assert_eq!(told.status, 200, "{}", told.body);
        assert_eq!(beat().await, directive);
        assert_eq!(server.get("/ojs/v1/workers/w-1/health").await.body["directive"], directive);
    }
    let told = server.put("/ojs/v1/admin/workers/w-1/directive", &json!({ "directive": "sing" })).await;
    assert_eq!((told.status, told.pointer()), (400, "/directive"));
    // Other workers do not get the directive.
    server.put("/ojs/v1/admin/workers/w-2/directive", &json!({ "directive": "quiet" })).await;
    assert_eq!(beat().await, "running");
    server.stop().await;
}

#[tokio::test]
async fn jobs_direct_their_workers_on_test_servers_only() {
    for (allow_reset, expected) in [(true, "terminate"), (false, "running")] {
        let config = semel_server::Config { allow_reset, ..semel_server::Config::default() };
        let server = Server::with(config).await;
        let body = json!({ "type": "a.b", "args": [], "options": { "metadata": { "test_directive": "terminate" } } });
        let id = server.create(&body).await.job_id().to_owned();
        server.take("default", "w").await;
        let beat =
            server.post("/ojs/v1/workers/heartbeat", &json!({ "worker_id": "w", "active_jobs": [id] })).await;
        assert_eq!(beat.body["state"], expected);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_worker_that_is_about_to_end_gets_no_more_jobs() {
    let server = Server::start().await;
    server.create(&json!({ "type": "a.b", "args": [] })).await;
    let beat = |state: &str| json!({ "worker_id": "w", "state": state, "active_jobs": 2 });
    assert_eq!(server.get("/ojs/v1/workers/w/health").await.status, 404);
    let told = server.post("/ojs/v1/workers/beat", &beat("drain")).await;
    assert_eq!((told.status, &told.body["acknowledged"]), (200, &json!(true)));
    let health = server.get("/ojs/v1/workers/w/health").await;
    assert_eq!(
        (health.status, &health.body["state"], &health.body["active_jobs"]),
        (503, &json!("draining"), &json!(2))
    );
    let fetch = json!({ "queues": ["default"], "worker_id": "w" });
    assert_eq!(server.post("/ojs/v1/workers/fetch", &fetch).await.body["jobs"], json!([]));
    server.post("/ojs/v1/workers/beat", &beat("running")).await;
    assert_eq!(server.get("/ojs/v1/workers/w/health").await.status, 200);
    assert_eq!(server.post("/ojs/v1/workers/fetch", &fetch).await.body["jobs"].as_array().unwrap().len(), 1);
    let listed = server.get("/ojs/v1/admin/workers").await.body;
    assert_eq!(
        (&listed["summary"]["total"], &listed["items"][0]["queues"]),
        (&json!(1), &json!(["default"]))
    );
    server.stop().await;
}

#[tokio::test]
async fn the_whole_server_is_shown_in_a_few_numbers() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.create(&job(&json!({}), &json!({ "queue": "a" }))).await;
    }
    let id = server.take("a", "w").await["id"].clone();
    server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await;
    server.take("a", "w").await;
    let stats = server.get("/ojs/v1/admin/stats").await.body;
    assert_eq!((&stats["queues"], &stats["workers"]), (&json!(1), &json!(1)));
    let jobs = &stats["jobs"];
    assert_eq!(
        (&jobs["available"], &jobs["active"], &jobs["completed"], &jobs["discarded"]),
        (&json!(1), &json!(1), &json!(1), &json!(0))
    );
    assert_eq!(stats["throughput"], json!({ "processed_per_minute": 1, "failed_per_minute": 0 }));
    // A tenant sees only its own figures.
    let acme = || header("x-ojs-tenant", "acme");
    let stats = server.ask(Method::GET, "/ojs/v1/admin/stats", None, acme()).await.body;
    assert_eq!(stats["throughput"], json!({ "processed_per_minute": 0, "failed_per_minute": 0 }));
    let theirs = job(&json!({}), &json!({})).to_string();
    server.ask(Method::POST, "/ojs/v1/jobs", Some(&theirs), acme()).await;
    let fetch = json!({ "queues": ["default"] }).to_string();
    let taken = server.ask(Method::POST, "/ojs/v1/workers/fetch", Some(&fetch), acme()).await;
    let failure = json!({ "job_id": taken.body["jobs"][0]["id"], "error": { "code": "x", "message": "y" } });
    server.ask(Method::POST, "/ojs/v1/workers/nack", Some(&failure.to_string()), acme()).await;
    for (headers, processed, failed) in [(acme(), 0, 1), (HeaderMap::new(), 1, 0)] {
        let stats = server.ask(Method::GET, "/ojs/v1/admin/stats", None, headers).await.body;
        assert_eq!(
            stats["throughput"],
            json!({ "processed_per_minute": processed, "failed_per_minute": failed })
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn listings_come_by_page_numbers() {
    let server = Server::start().await;
    for n in 0..5 {
        server.create(&job(&json!({ "n": n }), &json!({ "queue": format!("q{n}") }))).await;
    }
    for path in ["/ojs/v1/admin/jobs", "/ojs/v1/admin/queues"] {
        let page = server.get(&format!("{path}?page=3&per_page=2")).await.body;
        assert_eq!(page["items"].as_array().unwrap().len(), 1, "{page}");
        assert_eq!(
            page["pagination"],
            json!({ "total": 5, "is_lower_bound": false, "page": 3, "per_page": 2, "total_pages": 3, "has_more": false })
        );
        assert_eq!(server.get(&format!("{path}?page=9")).await.body["items"], json!([]));
        for query in ["page=0", "per_page=101", "page=x"] {
            assert_eq!(server.get(&format!("{path}?{query}")).await.status, 400, "{query}");
        }
    }
    let newest = server.get("/ojs/v1/admin/jobs?per_page=1").await.body["items"][0].clone();
    let same = server.get(&format!("/ojs/v1/admin/jobs/{}", newest["id"].as_str().unwrap())).await;
    assert_eq!((same.status, &same.body), (200, &newest));
    server.stop().await;
}

/// As in Open Job Spec's OpenAPI document.
#[tokio::test]
async fn listings_come_by_offset_too() {
    let server = Server::start().await;
    for n in 0..5 {
        server.create(&job(&json!({ "n": n }), &json!({ "queue": format!("q{n}") }))).await;
    }
    for path in ["/ojs/v1/admin/jobs", "/ojs/v1/admin/queues"] {
        let all = server.get(path).await.body["items"].as_array().unwrap().clone();
        for (query, expected, has_more) in [
            ("limit=2", &all[..2], true),
            ("limit=2&offset=1", &all[1..3], true),
            ("limit=2&offset=3", &all[3..], false),
            ("offset=4", &all[4..], false),
            ("offset=9", &all[..0], false),
            ("limit=2&page=2", &all[2..4], true),
        ] {
            let page = server.get(&format!("{path}?{query}")).await.body;
            assert_eq!(page["items"], json!(expected), "{query}");
            let told = &page["pagination"];
            assert_eq!((&told["total"], &told["has_more"]), (&json!(5), &json!(has_more)), "{query}");
        }
        let page = server.get(&format!("{path}?limit=2&offset=1")).await.body["pagination"].clone();
        assert_eq!((&page["limit"], &page["offset"]), (&json!(2), &json!(1)));
        for query in ["limit=0", "limit=101", "offset=x", "limit=2&per_page=2", "offset=2&page=2"] {
            assert_eq!(server.get(&format!("{path}?{query}")).await.status, 400, "{query}");
        }
    }
    for path in ["/ojs/v1/admin/dead-letter", "/ojs/v1/admin/workers"] {
        assert_eq!(server.get(&format!("{path}?limit=1&offset=1")).await.body["pagination"]["offset"], 1);
    }
    server.stop().await;
}

#[tokio::test]
async fn dead_letters_are_listed_sent_back_and_deleted() {
    let server = Server::start().await;
    let (first, second) = (dead_letter(&server, "a", None).await, dead_letter(&server, "b", None).await);
    let listed = server.get("/ojs/v1/admin/dead-letter").await.body;
    assert_eq!((&listed["items"][0]["id"], &listed["pagination"]["total"]), (&json!(second), &json!(2)));
    assert_eq!(server.get("/ojs/v1/admin/dead-letter/stats").await.body["total"], 2);
    let told = server.post(&format!("/ojs/v1/admin/dead-letter/{first}/retry"), &json!({})).await;
    assert_eq!(
        (told.status, &told.body["job"]["state"], &told.body["job"]["attempt"]),
        (200, &json!("available"), &json!(0))
    );
    let told = server.delete(&format!("/ojs/v1/admin/dead-letter/{second}")).await;
    assert_eq!(told.status, 204);
    assert_eq!(server.delete(&format!("/ojs/v1/admin/dead-letter/{second}")).await.status, 404);
    assert_eq!(server.get("/ojs/v1/admin/dead-letter").await.body["items"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn what_is_done_to_many_must_be_meant() {
    let server = Server::start().await;
    dead_letter(&server, "a", None).await;
    let kept = dead_letter(&server, "a", Some(json!({ "keys": ["args"] }))).await;
    // Another job holds its key by now: the retry is an ordinary conflict, and the dead letter stays.
    server.create(&job(&json!({ "k": 1 }), &json!({ "queue": "b", "unique": { "keys": ["args"] } }))).await;
    for confirm in [json!({}), json!({ "confirm": false })] {
        let told = server.post("/ojs/v1/admin/jobs/bulk/retry", &confirm).await;
        assert_eq!((told.status, told.pointer()), (400, "/confirm"));
    }
    let odd = json!({ "confirm": true, "filter": { "colour": "red" } });
    assert_eq!(server.post("/ojs/v1/admin/jobs/bulk/cancel", &odd).await.pointer(), "/filter/colour");
    let wish = json!({ "confirm": true, "filter": { "state": "discarded", "queue": "a" } });
    let told = server.post("/ojs/v1/admin/jobs/bulk/retry", &wish).await;
    assert_eq!(
        (&told.body["matched"], &told.body["retried"], &told.body["failed"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!(told.body["failures"], json!([{ "job_id": kept, "reason": "duplicate" }]));
    let told = server
        .post("/ojs/v1/admin/jobs/bulk/cancel", &json!({ "confirm": true, "filter": { "queue": "a" } }))
        .await;
    assert_eq!(told.body["cancelled"], 1, "{}", told.body);
    let told = server.post("/ojs/v1/admin/jobs/bulk/delete", &json!({ "confirm": true })).await;
    assert_eq!(told.body["job_ids"], json!([kept]));
    assert_eq!((&told.body["has_more"], &told.body["next_cursor"]), (&json!(false), &Value::Null));
    // The next request continues where the last one stopped.
    for n in 0..3 {
        server.create(&job(&json!({ "n": n }), &json!({ "queue": "many" }))).await;
    }
    let bulk = async |cursor: &Value| {
        let wish = json!({ "confirm": true, "filter": { "queue": "many" }, "limit": 2, "cursor": cursor });
        server.post("/ojs/v1/admin/jobs/bulk/cancel", &wish).await.body
    };
    let first = bulk(&Value::Null).await;
    assert_eq!((&first["cancelled"], &first["has_more"]), (&json!(2), &json!(true)), "{first}");
    // This job is newer than the cursor.
    server.create(&job(&json!({ "n": 3 }), &json!({ "queue": "many" }))).await;
    let rest = bulk(&first["next_cursor"]).await;
    assert_eq!((&rest["cancelled"], &rest["has_more"]), (&json!(1), &json!(false)), "{rest}");
    let odd = json!({ "confirm": true, "cursor": "x" });
    assert_eq!(server.post("/ojs/v1/admin/jobs/bulk/cancel", &odd).await.pointer(), "/cursor");
    assert_eq!(server.get("/ojs/v1/queues/b/stats").await.body["queue"]["available"], 1);
    server.stop().await;
}

/// A server whose store takes 100 ms per commit, on a paused clock: cancelling five hundred jobs one commit
/// at a time would take fifty seconds.
#[tokio::test(start_paused = true)]
async fn many_jobs_share_commits() {
    let store = Slow::new(Arc::new(Memory::default()), Duration::from_millis(100));
    let engine = Engine::without_duties(Arc::new(store)).unwrap();
    let app = semel_server::router(engine, Config::default());
    let ask = async |path: &str, body: Value| {
        let request = Request::builder().method("POST").uri(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let began = tokio::time::Instant::now();
        let response = app.clone().call(request).await.unwrap();
        let took = began.elapsed();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (serde_json::from_slice::<Value>(&bytes).unwrap(), took)
    };
    let offered = |queue: &str| json!({ "type": "a.b", "args": [], "options": { "queue": queue } });
    let batch = |queue: &str| json!({ "jobs": vec![offered(queue); 500] });
    for (path, queue, wish, member) in [
        (
            "/ojs/v1/admin/jobs/bulk/cancel",
            "a",
            json!({ "confirm": true, "filter": { "queue": "a" } }),
            "cancelled",
        ),
        ("/ojs/v1/queues/b/purge", "b", json!({}), "purged"),
    ] {
        ask("/ojs/v1/jobs/bulk", batch(queue)).await;
        let (told, took) = ask(path, wish).await;
        assert_eq!(told[member], 500, "{told}");
        assert!(took < Duration::from_secs(10), "{path}: {took:?}");
    }
}

#[tokio::test]
async fn a_purge_ends_what_waits_and_nothing_else() {
    let server = Server::start().await;
    let unique = json!({ "queue": "q", "unique": { "keys": ["args"] } });
    server.create(&job(&json!({ "n": 0 }), &unique)).await;
    let running = server.take("q", "w").await["id"].clone();
    server.create(&job(&json!({ "n": 1 }), &unique)).await;
    server.create(&job(&json!({ "n": 2 }), &json!({ "queue": "q", "scheduled_at": "+PT1H" }))).await;
    server.create(&job(&json!({ "n": 3 }), &json!({ "queue": "other" }))).await;
    let told = server.post("/ojs/v1/queues/q/purge", &json!({})).await;
    assert_eq!((told.status, &told.body["purged"]), (200, &json!(1)), "{}", told.body);
    let stats = server.get("/ojs/v1/queues/q/stats").await.body["queue"].clone();
    assert_eq!(
        (&stats["active"], &stats["scheduled"], &stats["cancelled"]),
        (&json!(1), &json!(1), &json!(1))
    );
    // The purged job's key is free, and the running job is unaffected.
    server.create(&job(&json!({ "n": 1 }), &unique)).await;
    assert_eq!(server.post("/ojs/v1/workers/ack", &json!({ "job_id": running })).await.status, 200);
    let told = server.post("/ojs/v1/queues/q/purge", &json!({ "states": ["available", "scheduled"] })).await;
    assert_eq!(told.body["purged"], 2);
    let told = server.post("/ojs/v1/queues/q/purge", &json!({ "states": ["active"] })).await;
    assert_eq!((told.status, told.pointer()), (400, "/states"));
    server.stop().await;
}

/// OJS requires confirmation of every destructive endpoint below `/admin`.
#[tokio::test]
async fn an_operators_purge_is_confirmed() {
    let server = Server::in_memory().await;
    for (method, path) in
        [(Method::POST, "/ojs/v1/admin/queues/q/purge"), (Method::DELETE, "/ojs/v1/admin/queues/q/jobs")]
    {
        let id = server.create(&job(&json!({}), &json!({ "queue": "q" }))).await.job_id().to_owned();
        for unsaid in [None, Some("{}"), Some(r#"{"states":["available"]}"#), Some(r#"{"confirm":false}"#)] {
            let told = server.ask(method.clone(), path, unsaid, HeaderMap::new()).await;
            assert_eq!((told.status, told.pointer()), (400, "/confirm"), "{path} {unsaid:?}: {}", told.body);
        }
        assert_eq!(server.get(&format!("/ojs/v1/jobs/{id}")).await.body["state"], "available", "{path}");
        let told = server.ask(method, path, Some(r#"{"confirm":true}"#), HeaderMap::new()).await;
        assert_eq!((told.status, &told.body["purged"]), (200, &json!(1)), "{path}: {}", told.body);
    }
    server.stop().await;
}

#[tokio::test]
async fn policies_in_use_say_how_often_they_matched() {
    let server = Server::start().await;
    let offer =
        |job_type: &str, n: u32, unique: Value| json!({ "type": job_type, "args": [n], "unique": unique });
    let post = async |body: Value| server.post("/ojs/v1/jobs", &body).await.status;
    let by_key = |key: &str| json!({ "key": key, "on_conflict": "ignore" });
    for (key, status) in [("secret-1", 201), ("secret-1", 200), ("secret-2", 201), ("secret-2", 200)] {
        assert_eq!(post(offer("pay.card", 1, by_key(key))).await, status);
    }
    for n in 0..5 {
        assert_eq!(post(offer("log.line", n, json!({ "keys": ["args"] }))).await, 201);
    }
    let latest = json!({ "keys": ["type"], "on_conflict": "replace" });
    for n in 0..2 {
        assert_eq!(post(offer("map.draw", n, latest.clone())).await, 201);
    }
    // A batch is counted item by item; items without a policy are not counted.
    let batch = json!({ "jobs": [offer("map.draw", 9, latest), { "type": "free.type", "args": [] }] });
    assert_eq!(server.post("/ojs/v1/jobs/batch", &batch).await.status, 201);
    let told = server.get("/ojs/v1/admin/stats/policies").await;
    let counts = |item: &Value| {
        ["created", "suppressed", "replaced", "followed_up"].map(|name| item[name].as_u64().unwrap())
    };
    let items = told.body["items"].as_array().unwrap();
    let seen: Vec<_> = items.iter().map(|item| (item["type"].as_str().unwrap(), counts(item))).collect();
    let expected = [("log.line", [5, 0, 0, 0]), ("pay.card", [2, 2, 0, 0]), ("map.draw", [1, 0, 2, 0])];
    assert_eq!(seen, expected);
    assert_eq!((&told.body["uncounted"], items[0]["policy"]["keys"][0].as_str()), (&json!(0), Some("type")));
    assert!(items[0]["sentence"].as_str().unwrap().contains("args"), "{}", items[0]);
    assert!(!told.body.to_string().contains("secret"), "{}", told.body);
    let theirs =
        server.ask(Method::GET, "/ojs/v1/admin/stats/policies", None, header("x-ojs-tenant", "acme")).await;
    assert_eq!(theirs.body["items"], json!([]));
    server.stop().await;
}

/// A filter in the wrong place would limit nothing.
#[tokio::test]
async fn a_change_is_refused_with_parameters_that_nobody_reads() {
    let server = Server::in_memory().await;
    let id =
        server.create(&job(&json!({}), &json!({ "queue": "q", "unique": {} }))).await.job_id().to_owned();
    let key = server.get(&format!("/ojs/v1/jobs/{id}")).await.body["unique_key"].as_str().unwrap().to_owned();
    let key = format!("/ojs/v1/unique-jobs/{key}");
    let purge = "/ojs/v1/queues/q/purge".to_owned();
    let all = json!({ "confirm": true });
    for (method, path, parameter, body) in [
        (Method::POST, format!("{purge}?states=scheduled"), "states", None),
        (Method::POST, "/ojs/v1/admin/jobs/bulk/cancel?queue=other".to_owned(), "queue", Some(&all)),
        (Method::DELETE, format!("/ojs/v1/jobs/{id}?state=scheduled"), "state", None),
        (Method::POST, format!("/ojs/v1/admin/jobs/{id}/cancel?dry_run"), "dry_run", None),
        (Method::DELETE, format!("{key}?reason=a&dry_run=1"), "dry_run", None),
        (Method::DELETE, format!("{key}?reason=a&reason=b"), "reason", None),
    ] {
        let text = body.map(Value::to_string);
        let told = server.ask(method, &path, text.as_deref(), HeaderMap::new()).await;
        let named = &told.body["error"]["details"]["parameter"];
        assert_eq!((told.status, told.code(), named), (400, "invalid_request", &json!(parameter)), "{path}");
        if path.starts_with(&key) {
            assert!(told.body["error"]["message"].as_str().unwrap().contains("reason"), "{}", told.body);
        }
    }
    let job = server.get(&format!("/ojs/v1/jobs/{id}")).await.body;
    assert_eq!((&job["state"], job.get("unique_key").is_some()), (&json!("available"), true));
    assert_eq!(server.delete(&format!("{key}?reason=a")).await.status, 200);
    // A read ignores parameters that it does not know, but takes none twice.
    assert_eq!(server.get("/ojs/v1/jobs?queue=q&page=1").await.status, 200);
    let told = server.get("/ojs/v1/jobs?queue=q&queue=other").await;
    assert_eq!((told.status, &told.body["error"]["details"]["parameter"]), (400, &json!("queue")));
    assert_eq!(server.post(&purge, &json!({})).await.body["purged"], 1);
    server.stop().await;
}

/// The job exists, but has not failed for good.
#[tokio::test]
async fn a_job_that_is_no_dead_letter_is_in_no_state_to_be_retried() {
    let server = Server::in_memory().await;
    let id = server.create(&job(&json!({}), &json!({ "queue": "q" }))).await.job_id().to_owned();
    let retry = async |id: &str| server.post(&format!("/ojs/v1/admin/jobs/{id}/retry"), &json!({})).await;
    let told = retry(&id).await;
    let state = &told.body["error"]["details"]["current_state"];
    assert_eq!((told.status, told.code(), state), (409, "conflict", &json!("available")), "{}", told.body);
    let told = retry("01961111-aaaa-7bbb-8ccc-dddddddddddd").await;
    assert_eq!((told.status, told.code()), (404, "not_found"));
    let dead = dead_letter(&server, "broken", None).await;
    let told = retry(&dead).await;
    assert_eq!((told.status, &told.body["job"]["state"]), (200, &json!("available")), "{}", told.body);
    // This job was discarded without becoming a dead letter: by its state alone it would look retryable.
    let once = json!({ "queue": "once", "retry": { "max_attempts": 1 } });
    let id = server.create(&job(&json!({}), &once)).await.job_id().to_owned();
    server.take("once", "w").await;
    let failure = json!({ "job_id": id, "error": { "code": "x", "message": "x" } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &failure).await.body["state"], "discarded");
    let told = retry(&id).await;
    let details = &told.body["error"]["details"];
    let said = (&details["reason"], &details["current_state"]);
    assert_eq!((told.status, said), (409, (&json!("no_dead_letter"), &json!("discarded"))), "{}", told.body);
    assert!(told.body["error"]["message"].as_str().unwrap().contains("on_exhaustion"), "{}", told.body);
    for path in ["dead-letter", "admin/dead-letter"] {
        let told = server.delete(&format!("/ojs/v1/{path}/{id}")).await;
        let kind = &told.body["error"]["details"]["resource_type"];
        assert_eq!((told.status, kind), (404, &json!("dead_letter")), "{path}: {}", told.body);
    }
    server.stop().await;
}

/// Since then another job was admitted because nobody held the key.
#[tokio::test]
async fn a_dead_letter_whose_key_was_released_is_enqueued_anew_and_not_sent_back() {
    let server = Server::in_memory().await;
    let dead = dead_letter(&server, "q", Some(json!({ "keys": ["args"] }))).await;
    let key = server.get(&format!("/ojs/v1/jobs/{dead}")).await.body["job"]["unique_key"].clone();
    let path = format!("/ojs/v1/unique-jobs/{}", key.as_str().unwrap());
    let released = server.ask(Method::DELETE, &path, Some(r#"{"reason":"a test"}"#), HeaderMap::new()).await;
    assert_eq!(released.status, 200, "{}", released.body);
    let again = server.create(&job(&json!({ "k": 1 }), &json!({ "unique": { "keys": ["args"] } }))).await;
    assert_eq!(again.status, 201);
    for path in [format!("/ojs/v1/dead-letter/{dead}/retry"), format!("/ojs/v1/admin/jobs/{dead}/retry")] {
        let told = server.post(&path, &json!({})).await;
        let reason = &told.body["error"]["details"]["reason"];
        assert_eq!((told.status, told.code(), reason), (409, "conflict", &json!("key_released")));
    }
    let wish = json!({ "confirm": true });
    let told = server.post("/ojs/v1/admin/jobs/bulk/retry", &wish).await;
    assert_eq!((&told.body["matched"], &told.body["retried"]), (&json!(1), &json!(0)), "{}", told.body);
    assert_eq!(told.body["failures"], json!([{ "job_id": dead, "reason": "key_released" }]));
    server.stop().await;
}

/// The holder absorbs the retry like any other duplicate: in its record, the metrics and the log.
#[tokio::test]
async fn a_dead_letter_that_is_not_sent_back_is_a_duplicate_like_any_other() {
    let server = Server::in_memory().await;
    let unique = json!({ "keys": ["args"] });
    let dead = dead_letter(&server, "q", Some(unique.clone())).await;
    let options = json!({ "queue": "q", "unique": unique });
    let holder = server.create(&job(&json!({ "k": 1 }), &options)).await.job_id().to_owned();
    let headers = header("x-request-id", "by hand");
    for path in [format!("/ojs/v1/dead-letter/{dead}/retry"), format!("/ojs/v1/admin/jobs/{dead}/retry")] {
        let told = server.ask(Method::POST, &path, Some("{}"), headers.clone()).await;
        assert_eq!((told.status, told.code()), (409, "duplicate"), "{}", told.body);
        assert_eq!(told.body["error"]["details"]["existing_job_id"], json!(holder));
    }
    let told = server.post("/ojs/v1/admin/jobs/bulk/retry", &json!({ "confirm": true })).await;
    assert_eq!(told.body["failed"], 1, "{}", told.body);
    let shown = server.get(&format!("/ojs/v1/jobs/{holder}")).await;
    let duplicates = &shown.body["job"]["unique"]["duplicates"];
    assert_eq!((&duplicates["count"], &duplicates["recent"][0]["source"]), (&json!(3), &json!("by hand")));
    let text = server.get_text("/metrics").await;
    assert!(text.contains("queue=\"q\",type=\"email.send\",outcome=\"rejected\"} 3\n"), "{text}");
    server.stop().await;
}
