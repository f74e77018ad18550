//! Every call that Open Job Spec's own admin pages (ojs-admin-ui) make. They send `application/json` and
//! display an error's message, so a missing feature must be reported like any other refusal.

use semel_client::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::harness::{Server, Told, header};

async fn ask(server: &Server, method: Method, path: &str, body: Option<Value>) -> Told {
    let headers: HeaderMap = header("content-type", "application/json");
    server.ask(method, path, body.map(|body| body.to_string()).as_deref(), headers).await
}

async fn dead(server: &Server) -> String {
    let retry = json!({ "max_attempts": 1, "on_exhaustion": "dead_letter" });
    server
        .create(&json!({ "type": "a.b", "args": [], "options": { "queue": "broken", "retry": retry } }))
        .await;
    let job = server.take("broken", "w").await;
    let nack =
        json!({ "job_id": job["id"], "lease": job["lease"], "error": { "code": "x", "message": "y" } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &nack).await.status, 200);
    job["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_it_lists_is_there() {
    let server = Server::in_memory().await;
    let keyed =
        json!({ "type": "a.b", "args": [1], "options": { "queue": "mail", "unique": { "keys": ["args"] } } });
    let id = server.create(&keyed).await.job_id().to_owned();
    dead(&server).await;
    let cron = json!({ "name": "nightly", "expression": "0 3 1 1 *", "job_template": { "type": "n.r", "args": [] } });
    assert_eq!(server.post("/ojs/v1/cron", &cron).await.status, 201);
    let chain = json!({ "type": "chain", "steps": [{ "type": "s.s", "args": [] }] });
    let flow =
        server.post("/ojs/v1/workflows", &chain).await.body["workflow"]["id"].as_str().unwrap().to_owned();
    for (path, pointers) in [
        ("/ojs/manifest", &["/implementation/name", "/conformance_level", "/protocols/0", "/backend"][..]),
        ("/ojs/v1/health", &["/status", "/backend/status"]),
        (
            "/ojs/v1/admin/stats",
            &["/queues", "/workers", "/jobs/available", "/throughput/processed_per_minute"],
        ),
        (
            "/ojs/v1/admin/queues?page=1&per_page=50",
            &["/items/0/name", "/items/0/counts/available", "/pagination/total"],
        ),
        ("/ojs/v1/admin/queues/mail", &["/queue/name", "/queue/available", "/queue/paused"]),
        (
            "/ojs/v1/admin/jobs?queue=mail&page=1&per_page=25",
            &["/items/0/id", "/items/0/state", "/pagination/per_page"],
        ),
        (&format!("/ojs/v1/admin/jobs/{id}"), &["/id", "/args/0", "/state"]),
        (
            "/ojs/v1/admin/workers?page=1&per_page=50",
            &["/items/0/state", "/summary/total", "/pagination/page"],
        ),
        ("/ojs/v1/admin/dead-letter?page=1", &["/items/0/id", "/pagination/total"]),
        ("/ojs/v1/admin/dead-letter/stats", &["/total"]),
        ("/ojs/v1/crons?page=1&per_page=50", &["/items/0/name", "/items/0/enabled", "/pagination/total"]),
        ("/ojs/v1/crons/nightly", &["/name", "/enabled", "/created_at"]),
        ("/ojs/v1/workflows?page=1", &["/workflows/0/id", "/workflows/0/steps_total"]),
        (&format!("/ojs/v1/workflows/{flow}"), &["/id", "/state", "/steps/0/id"]),
        ("/ojs/v1/events?page=1&per_page=50", &["/events/0/id", "/events/0/type"]),
        (
            "/ojs/v1/unique-jobs?page=1&per_page=50",
            &["/items/0/key", "/items/0/job_id", "/items/0/state", "/pagination/page"],
        ),
        ("/ojs/v1/webhooks/subscriptions?page=1&per_page=50", &["/subscriptions"]),
    ] {
        let told = ask(&server, Method::GET, path, None).await;
        assert_eq!(told.status, 200, "{path}: {}", told.body);
        for pointer in pointers {
            assert!(told.body.pointer(pointer).is_some(), "{path} has no {pointer}: {}", told.body);
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn what_it_presses_does_what_it_says() {
    let server = Server::in_memory().await;
    let post = async |path: &str, body: Value| ask(&server, Method::POST, path, Some(body)).await;
    let plain = json!({ "type": "a.b", "args": [1], "options": { "queue": "mail" } });
    let paused = async || server.get("/ojs/v1/admin/queues/mail").await.body["queue"]["paused"].clone();
    let id = server.create(&plain).await.job_id().to_owned();
    assert_eq!(ask(&server, Method::POST, "/ojs/v1/admin/queues/mail/pause", None).await.status, 200);
    assert_eq!(paused().await, true);
    assert_eq!(ask(&server, Method::POST, "/ojs/v1/admin/queues/mail/resume", None).await.status, 200);
    assert_eq!(paused().await, false);
    assert_eq!(
        ask(&server, Method::POST, &format!("/ojs/v1/admin/jobs/{id}/cancel"), None).await.status,
        200
    );
    server.create(&plain).await;
    let confirmed = |filter: Value| json!({ "filter": filter, "confirm": true });
    let told = post("/ojs/v1/admin/jobs/bulk/cancel", confirmed(json!({ "queue": "mail" }))).await;
    assert_eq!((told.status, &told.body["matched"], &told.body["succeeded"]), (200, &1.into(), &1.into()));

    server.create(&plain).await;
    let path = "/ojs/v1/admin/queues/mail/jobs";
    for (some, odd) in [
        (json!({ "states": ["available"], "older_than": "P1D", "confirm": true }), "/older_than"),
        (json!({ "state": "scheduled" }), "/state"),
        (json!({ "limit": 1 }), "/limit"),
    ] {
        let told = ask(&server, Method::DELETE, path, Some(some)).await;
        assert_eq!((told.status, told.pointer()), (400, odd), "more than was asked for must not go");
    }
    let higher = json!({ "confirm": true, "queue_name": "elsewhere" });
    let told = post("/ojs/v1/admin/jobs/bulk/cancel", higher).await;
    assert_eq!((told.status, told.pointer()), (400, "/queue_name"), "{}", told.body);
    let all = json!({ "states": ["available"], "confirm": true });
    let told = ask(&server, Method::DELETE, path, Some(all)).await;
    assert_eq!((told.status, &told.body["purged_count"]), (200, &1.into()), "{}", told.body);

    for path in ["/ojs/v1/admin/jobs/bulk/retry", "/ojs/v1/admin/dead-letter/retry"] {
        dead(&server).await;
        let told = post(path, confirmed(json!({ "queue": "broken" }))).await;
        assert_eq!((told.status, &told.body["succeeded"]), (200, &1.into()), "{path}: {}", told.body);
        assert_eq!(server.take("broken", "w").await["attempt"], 1);
    }
    let id = dead(&server).await;
    assert_eq!(post(&format!("/ojs/v1/admin/dead-letter/{id}/retry"), json!({})).await.status, 200);
    server.take("broken", "w").await;
    let id = dead(&server).await;
    let told = ask(&server, Method::DELETE, &format!("/ojs/v1/admin/dead-letter/{id}"), None).await;
    assert_eq!(told.status, 204);

    assert_eq!(ask(&server, Method::POST, "/ojs/v1/admin/workers/w/quiet", None).await.status, 200);
    let beat =
        server.post("/ojs/v1/workers/heartbeat", &json!({ "worker_id": "w", "active_jobs": [] })).await;
    assert_eq!(beat.body["state"], "quiet", "{}", beat.body);

    let cron = json!({ "name": "nightly", "expression": "0 3 1 1 *", "job_template": { "type": "n.r", "args": [] } });
    server.post("/ojs/v1/cron", &cron).await;
    let off = ask(&server, Method::PATCH, "/ojs/v1/crons/nightly", Some(json!({ "enabled": false }))).await;
    assert_eq!((off.status, &off.body["enabled"]), (200, &false.into()), "{}", off.body);
    assert_eq!(ask(&server, Method::DELETE, "/ojs/v1/crons/nightly", None).await.status, 200);

    let flow =
        post("/ojs/v1/workflows", json!({ "type": "chain", "steps": [{ "type": "s.s", "args": [] }] })).await;
    let flow = flow.body["workflow"]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        ask(&server, Method::POST, &format!("/ojs/v1/workflows/{flow}/cancel"), None).await.status,
        200
    );

    let hook = json!({ "url": "https://example.com/x", "events": ["job.failed"], "secret": "a secret of many letters" });
    let made = post("/ojs/v1/webhooks/subscriptions", hook).await;
    let path =
        format!("/ojs/v1/webhooks/subscriptions/{}", made.body["subscription"]["id"].as_str().unwrap());
    let changed = ask(&server, Method::PUT, &path, Some(json!({ "active": false }))).await;
    assert_eq!(
        (changed.status, &changed.body["subscription"]["active"]),
        (200, &false.into()),
        "{}",
        changed.body
    );
    assert_eq!(ask(&server, Method::DELETE, &path, None).await.status, 200);
    server.stop().await;
}

/// Features that this server does not have: the calls change nothing, and the pages show why.
#[tokio::test]
async fn what_there_is_not_is_said_to_be_missing() {
    let server = Server::in_memory().await;
    let id = server.create(&json!({ "type": "a.b", "args": [1] })).await.job_id().to_owned();
    let missing = [
        (Method::GET, "/ojs/v1/rate-limits?page=1".to_owned()),
        (Method::PUT, "/ojs/v1/rate-limits/smtp".to_owned()),
        (Method::DELETE, "/ojs/v1/rate-limits/smtp/override".to_owned()),
        (Method::DELETE, "/ojs/v1/admin/workers/w".to_owned()),
        (Method::PATCH, format!("/ojs/v1/admin/jobs/{id}")),
        (Method::GET, "/ojs/v1/queues/default/priority-stats".to_owned()),
        (Method::GET, "/ojs/v1/middleware".to_owned()),
        (Method::GET, "/ojs/v1/admin/tenants?page=1".to_owned()),
        (Method::GET, "/ojs/v1/admin/pools".to_owned()),
        (Method::GET, "/ojs/v1/admin/scheduling/stats".to_owned()),
        (Method::GET, "/ojs/v1/admin/schemas".to_owned()),
        (Method::GET, "/ojs/v1/admin/system/maintenance".to_owned()),
        (Method::GET, format!("/ojs/v1/jobs/{id}/result")),
    ];
    for (method, path) in missing {
        let told = ask(&server, method.clone(), &path, Some(json!({ "priority": 9 }))).await;
        assert!([404, 405].contains(&told.status), "{method} {path}: {} {}", told.status, told.body);
        let error = &told.body["error"];
        assert!(error["message"].is_string() && error["code"].is_string(), "{method} {path}: {}", told.body);
    }
    // No route changes a job's priority, so it is still the old one.
    assert_eq!(server.get(&format!("/ojs/v1/jobs/{id}")).await.body["job"]["priority"], 0);
    server.stop().await;
}
