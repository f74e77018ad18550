//! Uniqueness as callers see it: conflicts, explanations, keys.

use std::sync::Arc;
use std::time::Duration;

use semel_client::{HeaderMap, Method};
use semel_server::Config;
use semel_store::clock::ManualClock;
use semel_store::memory::Memory;
use serde_json::{Value, json};

use crate::harness::{Server, header};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn request(unique: &Value) -> Value {
    json!({ "type": "email.send", "args": [{ "user_id": 42 }], "options": { "unique": unique } })
}

#[tokio::test]
async fn a_duplicate_is_told_of_the_job_that_holds_the_key() {
    let server = Server::start().await;
    let body = request(&json!({ "keys": ["type", "args"] }));
    let first = server.create(&body).await;
    let told = server.post("/ojs/v1/jobs", &body).await;
    assert_eq!((told.status, told.code()), (409, "duplicate"));
    let details = &told.body["error"]["details"];
    assert_eq!(details["existing_job_id"], first.job_id());
    assert_eq!(details["existing_job_state"], "available");
    assert_eq!(details["unique_key"].as_str().map(str::len), Some(64));
    assert_eq!(details["unique_key"], details["uniqueness_key"]);
    assert_eq!(told.body["error"]["retryable"], false);

    let ignored = server
        .post("/ojs/v1/jobs", &request(&json!({ "keys": ["type", "args"], "on_conflict": "use_existing" })))
        .await;
    assert_eq!(
        (ignored.status, ignored.job_id(), &ignored.body["deduplicated"]),
        (200, first.job_id(), &true.into())
    );

    let replaced =
        server.create(&request(&json!({ "keys": ["type", "args"], "on_conflict": "replace" }))).await;
    assert_eq!(
        (&replaced.body["outcome"], &replaced.body["replaced"][0]),
        (&"replaced".into(), &first.job_id().into())
    );
    let old = server.get(&format!("/ojs/v1/jobs/{}", first.job_id())).await;
    assert_eq!(old.body["job"]["state"], "cancelled");
    server.stop().await;
}

/// Also after all of them have ended; and a tenant sees the ids that it knows.
#[tokio::test]
async fn jobs_say_whom_they_come_after_and_who_came_after_them() {
    let server = Server::start().await;
    for tenant in [None, Some("acme")] {
        let mut headers = HeaderMap::new();
        if let Some(tenant) = tenant {
            headers.insert("x-ojs-tenant", tenant.parse().unwrap());
        }
        let ask = async |method, path: &str, body: Option<Value>| {
            let body = body.map(|body| body.to_string());
            server.ask(method, path, body.as_deref(), headers.clone()).await
        };
        let create = async |unique: Value| {
            let told = ask(Method::POST, "/ojs/v1/jobs", Some(request(&unique))).await;
            assert_eq!(told.status, 201, "{}", told.body);
            told.job_id().to_owned()
        };
        let lineage = async |id: &str| {
            let job = ask(Method::GET, &format!("/ojs/v1/jobs/{id}"), None).await.body["job"].clone();
            ["replaces", "replaced_by", "follow_up_of", "follow_up_id"].map(|name| job[name].clone())
        };
        let policy = |on_conflict: &str| json!({ "key": "k", "on_conflict": on_conflict });
        let first = create(policy("reject")).await;
        let second = create(policy("replace")).await;
        let run = async |id: &str| {
            let fetch = json!({ "queues": ["default"], "worker_id": "w" });
            let job = ask(Method::POST, "/ojs/v1/workers/fetch", Some(fetch)).await.body["jobs"][0].clone();
            assert_eq!(job["id"], *id);
            json!({ "job_id": job["id"], "lease": job["lease"] })
        };
        let ack = run(&second).await;
        let third = create(policy("follow_up")).await;
        assert_eq!(ask(Method::POST, "/ojs/v1/workers/ack", Some(ack)).await.status, 200);
        let ack = run(&third).await;
        assert_eq!(ask(Method::POST, "/ojs/v1/workers/ack", Some(ack)).await.status, 200);
        let none = Value::Null;
        assert_eq!(lineage(&first).await, [none.clone(), json!(second), none.clone(), none.clone()]);
        assert_eq!(lineage(&second).await, [json!([first]), none.clone(), none.clone(), json!(third)]);
        assert_eq!(lineage(&third).await, [none.clone(), none.clone(), json!([second]), none.clone()]);

        // An undisclosed job is not named by the others either.
        for (old, new) in [("never", "always"), ("always", "never"), ("never", "never")] {
            let key = format!("{old} {new}");
            let first = create(json!({ "key": key, "disclose": old })).await;
            let second = create(json!({ "key": key, "on_conflict": "replace", "disclose": new })).await;
            for id in [first, second] {
                assert_eq!(lineage(&id).await, [const { Value::Null }; 4], "{key}");
            }
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn an_undisclosed_holder_does_not_show() {
    let server = Server::start().await;
    let hidden = json!({ "keys": ["type", "args"], "disclose": "never", "states": ["available", "active", "completed"] });
    server.create(&request(&hidden)).await;
    // A caller whose own policy would disclose the holder learns no more, whether the holder is live or
    // finished.
    let curious = request(
        &json!({ "keys": ["type", "args"], "states": ["available", "active", "completed"], "on_conflict": "ignore" }),
    );
    let live = server.post("/ojs/v1/jobs", &curious).await;
    let explained = server.post("/ojs/v1/unique/explain", &curious).await;
    assert_eq!((&explained.body["disclosed"], &explained.body["holders"]), (&false.into(), &json!([])));
    assert_eq!(
        (&explained.body["decision"], &explained.body["duplicates"]),
        (&"reject".into(), &Value::Null)
    );
    assert!(explained.body.get("strategies").is_none() && explained.body.get("existing_job_id").is_none());
    let job = server.take("default", "w").await;
    server.post("/ojs/v1/workers/ack", &json!({ "job_id": job["id"] })).await;
    let finished = server.post("/ojs/v1/jobs", &curious).await;
    for told in [&live, &finished] {
        assert_eq!((told.status, told.code()), (409, "duplicate"));
        assert_eq!(told.body["error"]["details"], json!({}));
    }
    assert_eq!(live.body["error"]["message"], finished.body["error"]["message"]);
    assert_eq!(server.get("/ojs/v1/unique-jobs").await.body["items"], json!([]));
    let key = explained.body["key"].as_str().unwrap();
    let shown = server.get(&format!("/ojs/v1/unique-jobs/{key}")).await.body;
    assert_eq!(
        shown,
        json!({ "key": key, "holders": [], "hidden": 1, "is_lower_bound": false }),
        "an operator is told that there is one"
    );
    server.stop().await;
}

/// An operator inspecting a key must not take one holder of a thousand for all of them.
#[tokio::test]
async fn a_key_with_more_holders_than_are_looked_at_says_so() {
    let server = Server::start().await;
    // Each considers completed jobs only, so all of them are admitted.
    let one = json!({ "type": "a.b", "args": [], "unique": { "key": "k", "states": ["completed"] } });
    let jobs = vec![one; 1_001];
    let told = server.post("/ojs/v1/jobs/batch", &json!({ "jobs": jobs })).await;
    let key =
        told.body["jobs"][0]["unique_key"].as_str().unwrap_or_else(|| panic!("{}", told.body)).to_owned();
    let path = format!("/ojs/v1/unique-jobs/{key}");
    assert_eq!(server.get(&path).await.body["is_lower_bound"], true);
    let told = server.ask(semel_client::Method::DELETE, &path, None, Default::default()).await;
    assert_eq!((told.status, told.code()), (409, "too_many_holders"));
    server.stop().await;
}

#[tokio::test]
async fn other_work_under_the_same_key_is_a_mismatch() {
    let server = Server::start().await;
    let keyed = |args: Value| json!({ "type": "a.b", "args": args, "unique": { "key": "order-7", "on_mismatch": "reject" } });
    server.create(&keyed(json!([{ "sum": 1, "to": "x" }]))).await;
    let told = server.post("/ojs/v1/jobs", &keyed(json!([{ "sum": 2, "to": "x" }]))).await;
    assert_eq!((told.status, told.code()), (422, "payload_mismatch"));
    assert_eq!(told.body["error"]["details"]["pointers"], json!(["/args/0/sum"]));
    assert!(!told.body.to_string().contains("order-7"));
    assert_eq!(
        server.post("/ojs/v1/jobs", &keyed(json!([{ "to": "x", "sum": 1.0 }]))).await.code(),
        "duplicate"
    );
    server.stop().await;
}

#[tokio::test]
async fn an_explanation_says_why_and_writes_nothing() {
    let server = Server::start().await;
    let body = request(&json!({ "keys": ["type", "args"], "args_keys": ["user_id"], "period": "PT1H" }));
    let before = server.post("/ojs/v1/unique/explain", &body).await;
    assert_eq!(
        (before.status, &before.body["decision"], &before.body["holders"]),
        (200, &"create".into(), &json!([]))
    );
    assert_eq!(before.body["canonical"], r#"{"args":{"user_id":42},"type":"email.send"}"#);
    assert_eq!((before.body["policy"]["period"].as_str(), server.stored().await), (Some("PT1H"), 0));

    let job = server.create(&body).await;
    assert_eq!(job.body["job"]["unique_key"], before.body["key"]);
    let mut traced = header("user-agent", "cli/1");
    traced.extend(header("traceparent", TRACE));
    server.ask(Method::POST, "/ojs/v1/jobs", Some(&body.to_string()), traced).await;
    let after = server.post("/ojs/v1/unique/explain", &body).await.body;
    let holder = &after["holders"][0];
    assert_eq!((&after["decision"], &holder["job_id"]), (&"reject".into(), &job.job_id().into()));
    assert_eq!(
        (&holder["blocks"], &holder["reason"], &holder["state"]),
        (&true.into(), &"in_window".into(), &"available".into())
    );
    assert!(holder["until"].is_string());
    assert_eq!(
        (&after["duplicates"]["count"], &after["duplicates"]["recent"][0]["source"]),
        (&1.into(), &"cli/1".into())
    );
    assert_eq!(after["duplicates"]["recent"][0]["meta"], json!({ "traceparent": TRACE }));
    assert_eq!(
        (&after["strategies"]["ignore"], &after["strategies"]["replace"]),
        (&"existing".into(), &"replace".into())
    );
    assert!(
        after["sentences"]
            .as_array()
            .unwrap()
            .iter()
            .any(|text| text.as_str().unwrap().contains("blocks until"))
    );
    let events = server.get("/ojs/v1/events?types=job.enqueued").await;
    assert_eq!(events.body["events"].as_array().unwrap().len(), 1);

    let plain = server.post("/ojs/v1/unique/explain", &json!({ "type": "a.b", "args": [] })).await.body;
    assert_eq!((&plain["key"], &plain["decision"]), (&Value::Null, &"create".into()));
    // A job found by its id has absorbed no duplicates of this request.
    let id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
    let own = |args: Value| json!({ "type": "a.b", "id": id, "args": args });
    server.create(&own(json!([]))).await;
    for (args, decision) in [(json!([]), "repeat"), (json!([1]), "id_taken")] {
        let told = server.post("/ojs/v1/unique/explain", &own(args)).await.body;
        assert_eq!((&told["decision"], &told["existing_job_id"]), (&decision.into(), &id.into()));
        assert_eq!(told["duplicates"], Value::Null);
    }
    assert_eq!(server.post("/ojs/v1/unique/explain", &json!({ "type": "a.b" })).await.pointer(), "/args");
    server.stop().await;
}

#[tokio::test]
async fn keys_are_listed_shown_and_released() {
    let server = Server::start().await;
    let body = request(&json!({ "keys": ["type", "args"] }));
    let job = server.create(&body).await;
    server.create(&json!({ "type": "a.b", "args": [], "unique": {} })).await;
    server.create(&json!({ "type": "a.b", "args": [] })).await;
    let listed = server.get("/ojs/v1/unique-jobs?page=1&per_page=1").await.body;
    assert_eq!(
        (listed["items"].as_array().unwrap().len(), &listed["pagination"]["has_more"]),
        (1, &true.into())
    );
    assert_eq!(listed["pagination"]["next_cursor"], Value::Null, "it was looked through");
    let newest = listed["items"][0]["job_id"].as_str().unwrap();
    let older = server.get(&format!("/ojs/v1/unique-jobs?cursor={newest}")).await.body;
    assert_eq!(older["items"].as_array().unwrap().len(), 1);
    assert_eq!(older["items"][0]["job_id"], job.job_id());
    assert_eq!(server.get("/ojs/v1/unique-jobs?cursor=x").await.status, 400);
    let listed = server.get("/ojs/v1/unique-jobs?type=email.send").await.body;
    let item = &listed["items"][0];
    assert_eq!(
        (&item["job_id"], &item["state"], &item["locked_until"]),
        (&job.job_id().into(), &"available".into(), &Value::Null)
    );

    let path = format!("/ojs/v1/unique-jobs/{}", item["key"].as_str().unwrap());
    assert_eq!(server.post("/ojs/v1/jobs", &body).await.status, 409);
    let shown = server.get(&path).await.body;
    assert_eq!(
        (&shown["holders"][0]["job_id"], &shown["holders"][0]["duplicates"]["count"]),
        (&job.job_id().into(), &1.into())
    );
    let released = server.ask(Method::DELETE, &path, Some(r#"{"reason":"stuck"}"#), HeaderMap::new()).await;
    assert_eq!(
        (released.status, &released.body["released"][0], &released.body["reason"]),
        (200, &job.job_id().into(), &"stuck".into())
    );
    assert_eq!(server.get(&path).await.status, 404);
    assert_eq!(server.delete(&path).await.code(), "not_found");
    assert_eq!(server.get(&format!("/ojs/v1/jobs/{}", job.job_id())).await.body["job"]["state"], "available");
    server.create(&body).await;
    assert_eq!(server.get("/ojs/v1/unique-jobs/short").await.status, 400);
    server.stop().await;
}

/// The listing applies the same rules as an admission: once its window is over the key is free, even if the
/// job waits for years, unless its policy says `while_active`.
#[tokio::test]
async fn who_holds_a_key_and_until_when_is_what_the_next_job_would_meet() {
    let clock = ManualClock::default();
    let store = Arc::new(Memory::new(clock.clone()));
    let server = Server::on_store(store, Config::default()).await;
    let offer = |name: &str, unique: Value| {
        let mut unique = unique;
        unique["keys"] = json!(["args"]);
        json!({ "type": "a.b", "args": [name], "options": { "scheduled_at": "2099-01-01T00:00:00Z", "unique": unique } })
    };
    let jobs = [
        offer("over", json!({ "period": "PT1S" })),
        offer("while active", json!({ "period": "PT1S", "while_active": true })),
        offer("within", json!({ "period": "PT1H" })),
        offer("within, and while active", json!({ "period": "PT1H", "while_active": true })),
        offer("by state", json!({})),
    ];
    for job in &jobs {
        server.create(job).await;
    }
    clock.advance(Duration::from_secs(2));
    // Before anything is admitted again.
    let metrics = server.get_text("/metrics").await;
    let held = metrics.lines().find(|line| line.starts_with("semel_keys_held ")).unwrap();
    assert_eq!(held, "semel_keys_held 4");
    let listed = server.get("/ojs/v1/unique-jobs").await.body["items"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 4);
    let expected = [(false, false), (true, false), (true, true), (true, false), (true, false)];
    for (job, (holds, until)) in jobs.iter().zip(expected) {
        let explained = server.post("/ojs/v1/unique/explain", job).await.body;
        let key = explained["key"].as_str().unwrap();
        let shown = server.get(&format!("/ojs/v1/unique-jobs/{key}")).await.body["holders"][0].clone();
        assert_eq!(
            (&shown["holds"], shown["locked_until"].is_string()),
            (&holds.into(), until),
            "{job}: {shown}"
        );
        let item = listed.iter().find(|item| item["key"] == key);
        assert_eq!(item.map(|item| item["locked_until"].is_string()), holds.then_some(until), "{job}");
        let status = server.post("/ojs/v1/jobs", job).await.status;
        assert_eq!(status, if holds { 409 } else { 201 }, "{job}");
    }
    server.stop().await;
}

/// A release also takes the key from undisclosed jobs: whoever confirms it is told how many there are, but
/// not which.
#[tokio::test]
async fn hidden_holders_are_counted_and_not_named() {
    let server = Server::start().await;
    let body =
        |disclose: &str| request(&json!({ "keys": ["args"], "states": ["active"], "disclose": disclose }));
    let hidden = [server.create(&body("never")).await, server.create(&body("never")).await];
    // The answers about undisclosed holders do not contain their key.
    let key = server.post("/ojs/v1/unique/explain", &body("always")).await.body["key"].clone();
    let path = format!("/ojs/v1/unique-jobs/{}", key.as_str().unwrap());
    let told = server.get(&path).await;
    assert_eq!((told.status, &told.body["holders"], &told.body["hidden"]), (200, &json!([]), &json!(2)));
    let shown = server.create(&body("always")).await;
    let told = server.get(&path).await.body;
    assert_eq!((told["holders"].as_array().unwrap().len(), &told["hidden"]), (1, &json!(2)));
    let released = server.delete(&path).await;
    assert_eq!(
        (&released.body["released"], &released.body["hidden"]),
        (&json!([shown.job_id()]), &json!(2)),
        "{}",
        released.body
    );
    for job in &hidden {
        assert!(!released.body.to_string().contains(job.job_id()));
    }
    assert_eq!(server.get(&path).await.status, 404, "all of them lost it");
    server.stop().await;
}

#[tokio::test]
async fn a_follow_up_runs_after_the_run_it_follows() {
    let server = Server::start().await;
    let body = |args: i32| json!({ "type": "sync.user", "args": [args], "unique": { "key": "u1", "on_conflict": "follow_up" } });
    let first = server.create(&body(1)).await;
    let amended = server.post("/ojs/v1/jobs", &body(2)).await;
    assert_eq!(
        (amended.status, amended.job_id(), &amended.body["job"]["args"]),
        (200, first.job_id(), &json!([2]))
    );
    let run = server.take("default", "w").await;
    assert_eq!(run["args"], json!([2]));
    let follow_up = server.create(&body(3)).await;
    assert_eq!(
        (&follow_up.body["outcome"], &follow_up.body["job"]["state"]),
        (&"follow_up".into(), &"pending".into())
    );
    let early = server.post_text(&format!("/ojs/v1/jobs/{}/activate", follow_up.job_id()), "").await;
    assert_eq!((early.status, &early.body["error"]["details"]["reason"]), (409, &"awaits_run".into()));
    let acked = server.post("/ojs/v1/workers/ack", &json!({ "job_id": run["id"] })).await;
    assert_eq!(acked.status, 200, "{}", acked.body);
    assert_eq!(server.take("default", "w").await["id"], follow_up.job_id());
    server.stop().await;
}
