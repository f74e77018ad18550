//! Every bound has an error of its own, with its pointer, and nothing is stored.

use serde_json::{Value, json};

use crate::harness::Server;

#[tokio::test]
async fn what_goes_too_far_is_refused_and_not_stored() {
    let server = Server::start().await;
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let unique =
        |policy: Value| json!({ "type": "a.b", "args": [1], "options": { "unique": policy } }).to_string();
    let cases = [
        (unique(json!({ "arg_keys": ["a"] })), 400, "invalid_request", "/options/unique/arg_keys"),
        (unique(json!({ "states": ["availabel"] })), 400, "invalid_request", "/options/unique/states/0"),
        (unique(json!("unheard_of")), 400, "invalid_request", "/options/unique"),
        (
            r#"{"type":"a.b","args":[9007199254740992],"unique":{"keys":["args"]}}"#.to_owned(),
            400,
            "invalid_request",
            "/args/0",
        ),
        (format!(r#"{{"type":"a.b","args":["{}"]}}"#, "x".repeat(2_000_000)), 413, "payload_too_large", ""),
        (r#"{"type":"a.b","args":[],"meta":{"a":1},"meta":{}}"#.to_owned(), 400, "invalid_request", "/meta"),
    ];
    for (body, status, code, pointer) in cases {
        let told = server.post_text("/ojs/v1/jobs", &body).await;
        assert_eq!((told.status, told.code(), told.pointer()), (status, code, pointer), "{}", told.body);
    }
    let told = server.post_text("/ojs/v1/jobs", &format!(r#"{{"type":"a.b","args":{deep}}}"#)).await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"));
    assert!(told.pointer().starts_with("/args/0/0"), "{}", told.body);
    assert!(told.body["error"]["message"].as_str().unwrap().contains("64 levels"));

    let many = format!(r#"{{"jobs":[{}]}}"#, vec![r#"{"type":"a.b","args":[]}"#; 10_001].join(","));
    let told = server.post_text("/ojs/v1/jobs/batch", &many).await;
    assert_eq!((told.status, told.code(), told.pointer()), (413, "payload_too_large", "/jobs"));
    let told = server.post_text("/ojs/v1/jobs/bulk", &"x".repeat(17 * 1024 * 1024)).await;
    assert_eq!((told.status, told.code()), (413, "payload_too_large"));
    assert_eq!(told.body["error"]["details"]["limit_bytes"], 16 * 1024 * 1024);
    assert_eq!(server.stored().await, 0);
    server.stop().await;
}

/// The stored size of a job has the same bound whatever else is in its request.
#[tokio::test]
async fn a_job_among_others_may_be_as_large_as_one_alone() {
    let server = Server::start().await;
    let job = |bytes: usize| format!(r#"{{"type":"a.b","args":[],"x_own":"{}"}}"#, "x".repeat(bytes));
    let (small, large) = (job(900 * 1024), job(1024 * 1024));
    let alone = server.post_text("/ojs/v1/jobs", &large).await;
    assert_eq!((alone.status, alone.code()), (413, "payload_too_large"));
    let batch = format!(r#"{{"jobs":[{small},{large},{small}]}}"#);
    let told = server.post_text("/ojs/v1/jobs/batch", &batch).await;
    assert_eq!((told.status, told.code(), told.pointer()), (413, "payload_too_large", "/jobs/1"));
    assert_eq!(told.body["error"]["details"]["index"], 1);
    assert_eq!(server.stored().await, 0);
    let told = server.post_text("/ojs/v1/jobs/bulk", &batch).await;
    assert_eq!((told.status, &told.body["failed"]), (207, &json!(1)));
    assert_eq!(told.body["results"][1]["error"]["code"], "payload_too_large");
    assert_eq!(server.stored().await, 2);
    let chain = format!(r#"{{"type":"chain","steps":[{small},{large}]}}"#);
    let told = server.post_text("/ojs/v1/workflows", &chain).await;
    assert_eq!((told.status, told.code(), told.pointer()), (413, "payload_too_large", "/steps/1"));
    server.stop().await;
}

#[tokio::test]
async fn the_largest_batch_is_taken() {
    let server = Server::start().await;
    let many = format!(r#"{{"jobs":[{}]}}"#, vec![r#"{"type":"a.b","args":[]}"#; 10_000].join(","));
    let told = server.post_text("/ojs/v1/jobs/batch", &many).await;
    assert_eq!((told.status, &told.body["count"]), (201, &10_000.into()));
    let stats = server.get("/ojs/v1/queues/default/stats").await;
    assert_eq!(stats.body["queue"]["available"], 10_000);
    server.stop().await;
}
