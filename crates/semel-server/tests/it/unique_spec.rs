//! Requirements of the unique-jobs specification (sections 4, 7 to 9 and 14) that OJS's suites do not test.

use serde_json::{Value, json};

use crate::harness::{Server, Told};

/// Offers a job of one type.
async fn offer(server: &Server, queue: &str, args: &Value, meta: &Value, unique: &Value) -> Told {
    let body = json!({
        "type": "email.send", "args": args, "meta": meta, "options": { "queue": queue, "unique": unique },
    });
    server.post("/ojs/v1/jobs", &body).await
}

/// The statuses of two consecutive offers on a fresh server.
async fn pair(first: (&str, Value, Value), second: (&str, Value, Value), unique: &Value) -> (u16, u16) {
    let server = Server::in_memory().await;
    let mut statuses = Vec::new();
    for (queue, args, meta) in [first, second] {
        statuses.push(offer(&server, queue, &args, &meta, unique).await.status);
    }
    server.stop().await;
    (statuses[0], statuses[1])
}

#[tokio::test]
async fn chosen_args_and_meta_alone_make_two_jobs_the_same() {
    let by_user = json!({ "keys": ["type", "args"], "args_keys": ["user"] });
    let args = |user: u32, text: &str| json!([{ "user": user, "text": text }]);
    let with = |args: Value| ("q", args, json!({}));
    assert_eq!(pair(with(args(1, "a")), with(args(1, "b")), &by_user).await, (201, 409));
    assert_eq!(pair(with(args(1, "a")), with(args(2, "a")), &by_user).await, (201, 201));
    assert_eq!(pair(with(json!([{ "text": "a" }])), with(args(1, "a")), &by_user).await.0, 400);
    assert_eq!(pair(with(json!([1, 2])), with(args(1, "a")), &by_user).await.0, 400);

    let by_tenant = json!({ "keys": ["type", "meta"], "meta_keys": ["tenant"] });
    let meta = |tenant: &str, trace: &str| ("q", json!([]), json!({ "tenant": tenant, "trace": trace }));
    assert_eq!(pair(meta("a", "1"), meta("a", "2"), &by_tenant).await, (201, 409));
    assert_eq!(pair(meta("a", "1"), meta("b", "1"), &by_tenant).await, (201, 201));
    // A missing member equals a missing member, and differs from every value.
    let none = |trace: &str| ("q", json!([]), json!({ "trace": trace }));
    assert_eq!(pair(none("1"), none("2"), &by_tenant).await, (201, 409));
    assert_eq!(pair(none("1"), meta("a", "1"), &by_tenant).await, (201, 201));
}

#[tokio::test]
async fn a_queue_is_part_of_the_key_only_when_it_is_named() {
    let jobs = || (("a", json!([1]), json!({})), ("b", json!([1]), json!({})));
    let (first, second) = jobs();
    assert_eq!(pair(first, second, &json!({ "keys": ["type", "args"] })).await, (201, 409));
    let (first, second) = jobs();
    assert_eq!(pair(first, second, &json!({ "keys": ["type", "args", "queue"] })).await, (201, 201));
}

#[tokio::test]
async fn the_same_value_in_another_spelling_is_the_same() {
    let server = Server::in_memory().await;
    let policy = r#""options":{"unique":{"keys":["type","args"]}}"#;
    let send = async |args: &str| {
        server.post_text("/ojs/v1/jobs", &format!(r#"{{"type":"a.b","args":{args},{policy}}}"#)).await.status
    };
    for (args, status) in [
        (r#"[{"a":1,"b":{"c":2,"d":"caf\u00e9"}}]"#, 201),
        (r#"[ { "b" : {"d":"cafe\u0301", "c":2.0}, "a":1e0 } ]"#, 409),
        (r#"[{"b":{"d":"café","c":2},"a":10e-1}]"#, 409),
        (r#"[{"a":1,"b":{"c":2,"d":"cafe"}}]"#, 201),
        (r#"[{"a":1,"b":{"c":2,"d":"café","e":null}}]"#, 201),
        (r#"[9007199254740993]"#, 400),
        (r#"[{"a":1,"a":2}]"#, 400),
    ] {
        assert_eq!(send(args).await, status, "{args}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_policy_that_means_nothing_is_refused_at_its_place() {
    let server = Server::in_memory().await;
    for (unique, place) in [
        (json!({ "keys": ["colour"] }), "/keys/0"),
        (json!({ "keys": ["Type"] }), "/keys/0"),
        (json!({ "keys": ["meta"] }), "/meta_keys"),
        (json!({ "keys": ["meta"], "meta_keys": [] }), "/meta_keys"),
        (json!({ "states": ["done"] }), "/states/0"),
        (json!({ "on_conflict": "drop" }), "/on_conflict"),
        (json!({ "period": "1 hour" }), "/period"),
        (json!({ "arg_keys": ["a"] }), "/arg_keys"),
        (json!({ "arg_keys": null }), "/arg_keys"),
        (json!({ "key": null }), "/key"),
        (json!({ "key": null, "on_conflict": "ignore", "states": null, "period_ms": 5 }), "/key"),
    ] {
        let told = offer(&server, "q", &json!([]), &json!({}), &unique).await;
        assert_eq!((told.status, told.code()), (400, "invalid_request"), "{unique}");
        assert_eq!(told.pointer(), format!("/options/unique{place}"), "{unique}");
    }
    assert_eq!(server.stored().await, 0);
    server.stop().await;
}

async fn end(server: &Server, how: &str) {
    let id = server.take("q", "w").await["id"].clone();
    let told = match how {
        "completed" => server.post("/ojs/v1/workers/ack", &json!({ "job_id": id })).await,
        "cancelled" => server.delete(&format!("/ojs/v1/jobs/{}", id.as_str().unwrap())).await,
        _ => {
            let failure = json!({ "code": "x", "message": "x", "retryable": how == "retryable" });
            server.post("/ojs/v1/workers/nack", &json!({ "job_id": id, "error": failure })).await
        }
    };
    assert_eq!(told.status, 200, "{}", told.body);
}

#[tokio::test]
async fn an_end_frees_the_key_unless_the_policy_looks_at_it() {
    for state in ["completed", "cancelled", "discarded"] {
        let server = Server::start().await;
        let watching = json!({ "states": ["available", "active", state] });
        let (args, meta) = (json!([]), json!({}));
        assert_eq!(offer(&server, "q", &args, &meta, &watching).await.status, 201);
        end(&server, state).await;
        assert_eq!(offer(&server, "q", &args, &meta, &watching).await.status, 409, "{state}");
        assert_eq!(offer(&server, "q", &args, &meta, &json!({})).await.status, 201, "{state}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_job_that_waits_for_its_next_attempt_holds_its_key() {
    let server = Server::start().await;
    let (args, meta, unique) = (json!([]), json!({}), json!({}));
    offer(&server, "q", &args, &meta, &unique).await;
    end(&server, "retryable").await;
    let told = offer(&server, "q", &args, &meta, &unique).await;
    assert_eq!(
        (told.status, &told.body["error"]["details"]["existing_job_state"]),
        (409, &json!("retryable"))
    );
    server.stop().await;
}

/// After a window has passed, or with narrow states, several live jobs hold one key, and each of them counts.
#[tokio::test]
async fn every_holder_counts_and_not_the_newest_alone() {
    let server = Server::start().await;
    let (args, meta) = (json!([]), json!({}));
    let narrow = json!({ "states": ["available"] });
    let first = offer(&server, "q", &args, &meta, &narrow).await.job_id().to_owned();
    server.take("q", "w").await;
    let second = offer(&server, "q", &args, &meta, &narrow).await;
    assert_eq!(second.status, 201);
    assert_eq!(server.delete(&format!("/ojs/v1/jobs/{}", second.job_id())).await.status, 200);
    let told = offer(&server, "q", &args, &meta, &json!({})).await;
    assert_eq!((told.status, &told.body["error"]["details"]["existing_job_id"]), (409, &json!(first)));
    // A replacement replaces all of them.
    offer(&server, "q", &args, &meta, &narrow).await;
    let told = offer(&server, "q", &args, &meta, &json!({ "on_conflict": "replace" })).await;
    assert_eq!((told.status, told.body["replaced"].as_array().map(Vec::len)), (201, Some(2)));
    server.stop().await;
}

#[tokio::test]
async fn an_ignored_duplicate_says_that_it_is_one() {
    let server = Server::start().await;
    let (args, meta, ignore) = (json!([]), json!({}), json!({ "on_conflict": "ignore" }));
    let first = offer(&server, "q", &args, &meta, &ignore).await;
    assert!(first.body.get("deduplicated").is_none_or(|flag| *flag == json!(false)));
    let again = offer(&server, "q", &args, &meta, &ignore).await;
    assert_eq!(
        (again.status, &again.body["deduplicated"], again.job_id()),
        (200, &json!(true), first.job_id())
    );
    server.stop().await;
}

#[tokio::test]
async fn a_replaced_run_can_no_longer_complete() {
    let server = Server::start().await;
    let (args, meta, replace) = (json!([]), json!({}), json!({ "on_conflict": "replace" }));
    offer(&server, "q", &args, &meta, &replace).await;
    let old = server.take("q", "w").await;
    let new = offer(&server, "q", &args, &meta, &replace).await;
    assert_eq!(new.status, 201);
    for ack in [json!({ "job_id": old["id"] }), json!({ "job_id": old["id"], "lease": old["lease"] })] {
        let told = server.post("/ojs/v1/workers/ack", &ack).await;
        assert_eq!((told.status, told.code()), (409, "conflict"));
    }
    assert_eq!(server.take("q", "w").await["id"], new.job_id());
    server.stop().await;
}

#[tokio::test]
async fn a_batch_sees_its_own_duplicates() {
    let server = Server::start().await;
    let item = |on_conflict: &str| json!({ "type": "a.b", "args": [], "options": { "unique": { "on_conflict": on_conflict } } });
    let told = server.post("/ojs/v1/jobs/batch", &json!({ "jobs": [item("reject"), item("reject")] })).await;
    assert_eq!(
        (told.status, told.code(), &told.body["error"]["details"]["index"]),
        (409, "duplicate", &json!(1))
    );
    assert_eq!(server.stored().await, 0);
    let told = server.post("/ojs/v1/jobs/batch", &json!({ "jobs": [item("reject"), item("ignore")] })).await;
    assert_eq!((told.status, &told.body["counts"]["skipped"]), (201, &json!(1)));
    assert_eq!(told.body["jobs"][0]["id"], told.body["jobs"][1]["id"]);
    server.stop().await;
}

#[tokio::test]
async fn a_dead_letter_is_sent_back_under_its_own_policy() {
    let server = Server::start().await;
    let (args, meta) = (json!([]), json!({}));
    let body = json!({
        "type": "email.send", "args": args, "options": {
            "queue": "q", "unique": {}, "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" },
        },
    });
    let dead = server.create(&body).await.job_id().to_owned();
    end(&server, "discarded").await;
    let newer = offer(&server, "q", &args, &meta, &json!({})).await.job_id().to_owned();
    let path = format!("/ojs/v1/dead-letter/{dead}/retry");
    let told = server.post(&path, &json!({})).await;
    assert_eq!(
        (told.status, told.code(), &told.body["error"]["details"]["existing_job_id"]),
        (409, "duplicate", &json!(newer))
    );
    assert_eq!(server.get("/ojs/v1/dead-letter").await.body["jobs"][0]["id"], dead, "it stays");
    server.delete(&format!("/ojs/v1/jobs/{newer}")).await;
    assert_eq!(server.post(&path, &json!({})).await.status, 200);
    assert_eq!(offer(&server, "q", &args, &meta, &json!({})).await.status, 409, "it holds its key again");
    server.stop().await;
}

#[tokio::test]
async fn a_restart_forgets_no_key_limit_or_bound() {
    let server = Server::start().await;
    let (args, meta) = (json!([]), json!({}));
    let first = offer(&server, "q", &args, &meta, &json!({})).await.job_id().to_owned();
    let limited =
        json!({ "type": "a.b", "args": [], "options": { "rate_limit": { "key": "k", "concurrency": 1 } } });
    server.create(&limited).await;
    server.create(&limited).await;
    server.take("default", "w").await;
    server.put("/ojs/v1/admin/queues/full/config", &json!({ "backpressure": { "max_depth": 1 } })).await;
    server.put("/ojs/v1/admin/workers/w/directive", &json!({ "directive": "quiet" })).await;
    let server = server.restarted().await;
    let told = offer(&server, "q", &args, &meta, &json!({})).await;
    assert_eq!((told.status, &told.body["error"]["details"]["existing_job_id"]), (409, &json!(first)));
    let fetch = json!({ "queues": ["default"], "count": 5 });
    assert_eq!(server.post("/ojs/v1/workers/fetch", &fetch).await.body["jobs"], json!([]));
    assert_eq!(offer(&server, "full", &args, &meta, &json!({ "keys": ["queue"] })).await.status, 201);
    assert_eq!(offer(&server, "full", &json!([1]), &meta, &json!({ "keys": ["args"] })).await.status, 429);
    let beat =
        server.post("/ojs/v1/workers/heartbeat", &json!({ "worker_id": "w", "active_jobs": [] })).await;
    assert_eq!(beat.body["state"], "quiet");
    server.stop().await;
}
