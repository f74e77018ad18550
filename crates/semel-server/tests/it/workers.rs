//! Workers: leases and their fences, failures, heartbeats, dead letters.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Server, job};

#[tokio::test]
async fn a_lease_fences_off_who_has_lost_it() {
    let server = Server::start().await;
    let body = json!({ "type": "a.b", "args": [], "unique": { "on_conflict": "replace" } });
    server.create(&body).await;
    let old = server.take("default", "w1").await;
    assert!(old["lease"].as_str().unwrap().starts_with("l1-") && old["worker_id"] == "w1");
    server.create(&body).await;
    // Replaced: the heartbeat says so, and later reports are refused.
    let beat = server
        .post(
            "/ojs/v1/workers/heartbeat",
            &json!({ "worker_id": "w1", "active_jobs": [old["id"]], "lease": old["lease"] }),
        )
        .await;
    assert_eq!(
        (&beat.body["jobs_extended"], &beat.body["jobs_lost"][0]["reason"]),
        (&json!([]), &"cancelled".into())
    );
    let late =
        server.post("/ojs/v1/workers/ack", &json!({ "job_id": old["id"], "lease": old["lease"] })).await;
    assert_eq!((late.status, late.code()), (409, "conflict"));
    assert_eq!(late.body["error"]["details"]["reason"], "stale_lease");

    let new = server.take("default", "w2").await;
    let foreign =
        server.post("/ojs/v1/workers/ack", &json!({ "job_id": new["id"], "worker_id": "w1" })).await;
    assert_eq!((foreign.status, &foreign.body["error"]["details"]["reason"]), (409, &"other_worker".into()));
    let wrong =
        server.post("/ojs/v1/workers/ack", &json!({ "job_id": new["id"], "lease": old["lease"] })).await;
    assert_eq!(wrong.status, 409);
    let ack = json!({ "job_id": new["id"], "lease": new["lease"], "result": { "n": 1 } });
    for _ in 0..2 {
        // A repeated report gets the first answer.
        let told = server.post("/ojs/v1/workers/ack", &ack).await;
        assert_eq!(
            (told.status, &told.body["state"], &told.body["id"]),
            (200, &"completed".into(), &new["id"])
        );
    }
    let without = server.post("/ojs/v1/workers/ack", &json!({ "job_id": new["id"] })).await;
    assert_eq!((without.status, without.code()), (409, "conflict"));
    let read = server.get(&format!("/ojs/v1/jobs/{}", new["id"].as_str().unwrap())).await;
    assert_eq!(read.body["job"]["result"], json!({ "n": 1 }));
    assert!(read.body["job"].get("lease").is_none());
    server.stop().await;
}

#[tokio::test]
async fn a_failure_is_kept_and_the_job_tried_again() {
    let server = Server::start().await;
    server.create(&job(&json!(1), &json!({ "retry": { "max_attempts": 2, "initial_interval": "PT0.05S", "jitter": false, "on_exhaustion": "dead_letter" } }))).await;
    let run = server.take("default", "w").await;
    let nack = json!({ "job_id": run["id"], "error": { "code": "e1", "message": "m", "details": { "error_class": "Broken" } } });
    let told = server.post("/ojs/v1/workers/nack", &nack).await;
    assert_eq!(
        (told.status, &told.body["state"], &told.body["retry_delay_ms"]),
        (200, &"retryable".into(), &50.into())
    );
    assert!(told.body["next_attempt_at"].is_string());
    let wait = json!({ "queues": ["default"], "wait_ms": 5_000 });
    let again = server.post("/ojs/v1/workers/fetch", &wait).await.body["jobs"][0].clone();
    assert_eq!(
        (&again["id"], &again["attempt"], &again["error"]["type"]),
        (&run["id"], &2.into(), &"Broken".into())
    );
    let told = server.post("/ojs/v1/workers/nack", &nack).await;
    assert_eq!(told.body["state"], "discarded");
    assert!(told.body["completed_at"].is_string() && told.body["discarded_at"].is_string());

    let dead = server.get("/ojs/v1/dead-letter").await.body;
    assert_eq!(
        (&dead["jobs"][0]["errors"][1]["attempt"], &dead["pagination"]["total"]),
        (&2.into(), &1.into())
    );
    assert_eq!(server.get("/ojs/v1/dead-letter/stats").await.body["total"], 1);
    let path = format!("/ojs/v1/dead-letter/{}", run["id"].as_str().unwrap());
    let revived = server.post_text(&format!("{path}/retry"), "").await;
    assert_eq!((&revived.body["job"]["state"], &revived.body["attempt"]), (&"available".into(), &0.into()));
    assert_eq!(server.delete(&path).await.code(), "not_found");
    server.stop().await;
}

#[tokio::test]
async fn a_dead_letter_comes_back_only_if_its_key_is_free() {
    let server = Server::start().await;
    let body = json!({ "type": "a.b", "args": [], "unique": {}, "options": { "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } } });
    server.create(&body).await;
    let run = server.take("default", "w").await;
    server.post("/ojs/v1/workers/nack", &json!({ "job_id": run["id"], "error": { "code": "x" } })).await;
    let next = server.create(&body).await;
    let path = format!("/ojs/v1/dead-letter/{}", run["id"].as_str().unwrap());
    let told = server.post_text(&format!("{path}/retry"), "{}").await;
    assert_eq!((told.status, told.code()), (409, "duplicate"));
    assert_eq!(told.body["error"]["details"]["existing_job_id"], next.job_id());
    let deleted = server.delete(&path).await;
    assert_eq!((&deleted.body["deleted"], &deleted.body["job_id"]), (&true.into(), &run["id"]));
    server.stop().await;
}

#[tokio::test]
async fn a_job_that_is_given_back_keeps_its_attempts() {
    let server = Server::start().await;
    server.create(&job(&json!(1), &json!({}))).await;
    let run = server.take("default", "w").await;
    assert_eq!(run["attempt"], 1);
    let told = server.post("/ojs/v1/workers/nack", &json!({ "job_id": run["id"], "requeue": true })).await;
    assert_eq!((&told.body["state"], &told.body["attempt"]), (&"available".into(), &0.into()));
    server.stop().await;
}

#[tokio::test]
async fn a_worker_puts_a_job_off_or_says_when_to_try_again() {
    let server = Server::start().await;
    server.create(&job(&json!(1), &json!({}))).await;
    let run = server.take("default", "w").await;
    let nack = json!({ "job_id": run["id"], "requeue": true, "delay_ms": 3_600_000 });
    let told = server.post("/ojs/v1/workers/nack", &nack).await;
    assert_eq!((&told.body["state"], &told.body["attempt"]), (&"scheduled".into(), &0.into()));
    server.create(&job(&json!(2), &json!({}))).await;
    let run = server.take("default", "w").await;
    let nack = json!({ "job_id": run["id"], "error": { "code": "busy", "retry_after_ms": 3_600_000 } });
    let told = server.post("/ojs/v1/workers/nack", &nack).await;
    assert_eq!((&told.body["state"], &told.body["retry_delay_ms"]), (&"retryable".into(), &3_600_000.into()));
    server.stop().await;
}

#[tokio::test]
async fn what_is_marked_sensitive_is_shown_to_the_worker_and_nobody_else() {
    let server = Server::start().await;
    let body = json!({
        "type": "card.charge", "args": [{ "user": 7, "card": "4242" }], "meta": { "email": "a@b.c", "n": 1 },
        "options": { "sensitive": ["/args/0/card", "/meta/email"], "unique": { "keys": ["args"] } },
    });
    let created = server.create(&body).await;
    let id = created.job_id().to_owned();
    let duplicate = server.post("/ojs/v1/jobs", &body).await;
    assert_eq!(duplicate.status, 409);
    let explained = server.post("/ojs/v1/unique/explain", &body).await;
    let canonical = explained.body["canonical"].as_str().unwrap();
    assert!(canonical.contains("[sensitive]") && canonical.contains("\"user\":7"), "{canonical}");
    let told = [
        created.body.to_string(),
        server.get(&format!("/ojs/v1/jobs/{id}")).await.body.to_string(),
        server.get("/ojs/v1/jobs").await.body.to_string(),
        duplicate.body.to_string(),
        explained.body.to_string(),
        server.get("/ojs/v1/unique-jobs").await.body.to_string(),
    ];
    for text in told {
        assert!(!text.contains("4242") && !text.contains("a@b.c"), "{text}");
    }
    let run = server.take("default", "w").await;
    assert_eq!((&run["args"][0]["card"], &run["meta"]["email"]), (&"4242".into(), &"a@b.c".into()));
    let wrong = json!({ "type": "a.b", "args": [], "options": { "sensitive": ["card"] } });
    assert_eq!(server.post("/ojs/v1/jobs", &wrong).await.status, 400);
    server.stop().await;
}

/// Names inside a sensitive value are as secret as the value, and whether a guess matches is not revealed
/// either.
#[tokio::test]
async fn a_mismatch_names_nothing_inside_of_a_sensitive_value() {
    let server = Server::start().await;
    let job = |args: Value, sensitive: Value| {
        let unique = json!({ "key": "order 7", "on_mismatch": "reject" });
        json!({ "type": "card.charge", "args": args, "options": { "sensitive": sensitive, "unique": unique } })
    };
    let card = json!({ "number": "4242", "pin": "7", "of": "Ada" });
    server.create(&job(json!([{ "card": card, "n": 1 }]), json!(["/args/0/card"]))).await;
    for (args, sensitive, places) in [
        (
            json!([{ "card": { "number": "1", "cvc": 2 }, "n": 2 }]),
            json!([]),
            json!(["/args/0/n", "/args/0/card"]),
        ),
        (
            json!([{ "card": card, "n": { "own": 1 } }]),
            json!(["/args/0/n"]),
            json!(["/args/0/n", "/args/0/card"]),
        ),
    ] {
        let told = server.post("/ojs/v1/jobs", &job(args, sensitive)).await;
        assert_eq!((told.status, told.code()), (422, "payload_mismatch"), "{}", told.body);
        assert_eq!(told.body["error"]["details"]["pointers"], places, "{}", told.body);
    }
    server.stop().await;
}

/// A later request that replaces a waiting job's content brings its own `sensitive` pointers.
#[tokio::test]
async fn what_an_amendment_marks_sensitive_is_hidden_too() {
    let server = Server::start().await;
    let job = |args: Value, sensitive: Value| {
        let unique = json!({ "key": "order 7", "on_conflict": "follow_up" });
        json!({ "type": "card.charge", "args": args, "options": { "sensitive": sensitive, "unique": unique } })
    };
    let made = server.create(&job(json!([{ "n": 1 }]), json!([]))).await;
    let told = server
        .post("/ojs/v1/jobs", &job(json!([{ "card": { "pin": "4242" } }]), json!(["/args/0/card"])))
        .await;
    assert_eq!((told.status, told.job_id()), (200, made.job_id()), "{}", told.body);
    let shown = server.get(&format!("/ojs/v1/jobs/{}", made.job_id())).await;
    assert_eq!(shown.body["job"]["args"], json!([{ "card": "[sensitive]" }]), "{}", shown.body);
    let mut other = job(json!([{ "card": { "cvc": 1 } }]), json!([]));
    other["options"]["unique"]["on_mismatch"] = "reject".into();
    let told = server.post("/ojs/v1/jobs", &other).await;
    assert_eq!(told.body["error"]["details"]["pointers"], json!(["/args/0/card"]), "{}", told.body);
    assert_eq!(server.take("default", "w").await["args"], json!([{ "card": { "pin": "4242" } }]));
    server.stop().await;
}

#[tokio::test]
async fn a_fetch_may_wait_for_work() {
    let server = Server::start().await;
    let fetch = async |wait_ms: u32| {
        let began = Instant::now();
        let told =
            server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"], "wait_ms": wait_ms })).await;
        (told.body["jobs"].clone(), began.elapsed())
    };
    let (jobs, took) = fetch(300).await;
    assert!(jobs == json!([]) && took >= Duration::from_millis(300), "{took:?}");
    let later = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.create(&job(&json!(1), &json!({}))).await
    };
    let ((jobs, took), created) = tokio::join!(fetch(20_000), later);
    assert_eq!(jobs[0]["id"], Value::from(created.job_id()));
    assert!(took < Duration::from_secs(10), "{took:?}");
    server.stop().await;
}
