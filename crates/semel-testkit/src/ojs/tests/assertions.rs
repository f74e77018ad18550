//! Demands on an answer, satisfied and violated.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::ojs::canned::{Canned, reply};
use crate::ojs::{Outcome, run};

#[tokio::test]
async fn statuses_accept_and_refuse() {
    for (assertions, good, bad) in [
        (json!({"status": 201}), &[201][..], &[200, 409][..]),
        (json!({"status": "number:range(400,422)"}), &[400, 422], &[399, 423, 200]),
        (json!({"status": "one_of:400, 422"}), &[400, 422], &[401, 200]),
        (json!({"status": {"$in": [200, 409]}}), &[200, 409], &[201]),
        (json!({"status_in": [200, 429]}), &[200, 429], &[201]),
        (json!({"status": 200, "status_in": [200, 429]}), &[200], &[429]),
    ] {
        for (statuses, is_good) in [(good, true), (bad, false)] {
            for status in statuses {
                let server = Canned::always(*status, "{}").await;
                let outcome = run(&demanding(&assertions), &server.client()).await;
                assert_eq!(outcome.passed(), is_good, "{assertions} on {status}: {:?}", outcome.failures);
            }
        }
    }
}

#[tokio::test]
async fn headers_accept_and_refuse() {
    let server = Canned::always(200, "{}").await;
    for (name, demand, is_good) in [
        ("Content-Type", json!("application/openjobspec+json"), true),
        ("content-type", json!("application/json"), false),
        ("Content-Type", json!("application/openjobspec"), false),
        ("OJS-Version", json!({"$eq": "1.0"}), true),
        ("OJS-Version", json!({"$eq": "1"}), false),
        ("Content-Type", json!({"$match": "application/(openjobspec\\+)?json"}), true),
        ("Content-Type", json!({"$match": "^text/"}), false),
        ("OJS-Version", json!({"$exists": true}), true),
        ("OJS-Version", json!({"$exists": false}), false),
        ("X-Other", json!({"$exists": false}), true),
        ("X-Other", json!({"$exists": true}), false),
        ("X-Other", json!({"$match": ""}), false),
        ("X-Other", json!(""), false),
    ] {
        let outcome = run(&demanding(&json!({"headers": {name: demand}})), &server.client()).await;
        assert_eq!(outcome.passed(), is_good, "{name}: {demand}: {:?}", outcome.failures);
    }
}

#[tokio::test]
async fn bodies_accept_and_refuse() {
    let either = json!({"body": {"$or": [{"$.jobs": {"$size": 0}}, {"$empty": true}]}});
    let pair = json!({"body": {"$or": [{"$.a": 1, "$.b": 2}, {"$.c": 3}]}});
    for (assertions, body, is_good) in [
        (&either, r#"{"jobs": []}"#, true),
        (&either, "", true),
        (&either, r#"{"jobs": [1]}"#, false),
        (&either, "<html>", false),
        (&pair, r#"{"a": 1, "b": 2}"#, true),
        (&pair, r#"{"c": 3}"#, true),
        (&pair, r#"{"a": 1, "b": 3}"#, false),
        (&json!({"body": {"$empty": true}}), "", true),
        (&json!({"body": {"$empty": true}}), "{}", false),
        (&json!({"body_absent": ["$.a.b"]}), r#"{"a": {}}"#, true),
        (&json!({"body_absent": ["$.a.b"]}), r#"{"a": {"b": 1}}"#, false),
        (&json!({"body_contains": ["a b", "c"]}), "a b c", true),
        (&json!({"body_contains": ["a b", "d"]}), "a b c", false),
        // The official runner skips these.
        (&json!({"body": {"$.job.id": "any"}}), "<html>", false),
        (&json!({"body": {"$.job.error": "absent"}}), "", false),
        (&json!({"body": {"$.job.error": "absent"}}), r#"{"job": "x"}"#, false),
        (&json!({"body": {"$.jobs[?(@.id=='a')]": "absent"}}), "{}", false),
        (&json!({"body": {"$.jobs[?(@.id=='a')]": "absent"}}), r#"{"jobs": [{"id": "b"}]}"#, true),
        (&json!({"body": {"$.jobs[?(@.id=='a')]": "absent"}}), r#"{"jobs": [{"id": "a"}]}"#, false),
        (
            &json!({"body": {"$.jobs[?(@.id=='a')].n": 2}}),
            r#"{"jobs": [{"id": "b", "n": 1}, {"id": "a", "n": 2}]}"#,
            true,
        ),
        (&json!({"body": {"$.jobs[*].id": "contains:b"}}), r#"{"jobs": [{"id": "a"}, {"id": "b"}]}"#, true),
        (
            &json!({"body": {"$.jobs[*].id": "not_contains:b"}}),
            r#"{"jobs": [{"id": "a"}, {"id": "b"}]}"#,
            false,
        ),
        (&json!({"body": {"$.jobs[*].id": "not_contains:b"}}), "{}", false),
    ] {
        let server = Canned::always(200, body).await;
        let outcome = run(&demanding(assertions), &server.client()).await;
        assert_eq!(outcome.passed(), is_good, "{assertions} on {body}: {:?}", outcome.failures);
    }
}

#[tokio::test]
async fn timings_accept_and_refuse() {
    let server = Canned::start(|_, _| {
        std::thread::sleep(Duration::from_millis(300));
        reply(200, "{}")
    })
    .await;
    for (timing, is_good) in [
        (json!({"less_than": 10_000}), true),
        (json!({"less_than": 10}), false),
        (json!({"greater_than": 10}), true),
        (json!({"greater_than": 10_000}), false),
        (json!({"approximate": 600}), true),
        (json!({"approximate": 10_000}), false),
    ] {
        let outcome = run(&demanding(&json!({"timing_ms": timing})), &server.client()).await;
        assert_eq!(outcome.passed(), is_good, "{timing}: {:?}", outcome.failures);
    }
}

/// Answers two fetches with these bodies, the first one only once both requests have arrived.
async fn two_fetches(first: &'static str, second: &'static str) -> Outcome {
    let server =
        Canned::start(move |number, _| reply(200, [r#"{"job":{"id":"j"}}"#, first, second, "{}"][number]))
            .await;
    let steps = json!([
        {"id": "push", "action": "POST", "path": "/"},
        {"id": "a", "action": "POST", "path": "/a", "parallel_with": "b", "body": {}},
        {"id": "b", "action": "POST", "path": "/b", "parallel_with": "a", "body": {}},
        {"id": "claim", "action": "ASSERT", "assertions": {"exclusive_claim": {
            "job_id": "{{steps.push.response.body.job.id}}",
            "fetches": ["{{steps.a.response.body.jobs}}", "{{steps.b.response.body.jobs}}"],
            "exactly_one_has_job": true, "exactly_one_empty": true,
        }}},
    ]);
    let outcome = run(&test(&steps), &server.client()).await;
    assert_eq!(server.seen()[3].0, "ASSERT");
    outcome
}

#[tokio::test]
async fn an_exclusive_claim_is_checked() {
    let (job, none) = (r#"{"jobs":[{"id":"j"}]}"#, r#"{"jobs":[]}"#);
    assert!(two_fetches(job, none).await.passed());
    assert!(two_fetches(none, job).await.passed());
    for (first, second) in
        [(job, job), (none, none), (job, r#"{"jobs":[{"id":"k"}]}"#), (job, "{}"), (job, r#"{"jobs":1}"#)]
    {
        let outcome = two_fetches(first, second).await;
        assert!(
            !outcome.passed() && outcome.failures.iter().all(|failure| failure.step == "claim"),
            "{first} {second}"
        );
    }
}

#[tokio::test]
async fn equality_is_checked() {
    for (second, is_good) in [(r#"{"job":{"n":1}}"#, true), (r#"{"job":{"n":2}}"#, false), ("no json", false)]
    {
        let server =
            Canned::start(move |number, _| reply(200, [r#"{"job":{"n":1}}"#, second, "{}"][number])).await;
        let steps = json!([
            {"id": "a", "action": "GET"},
            {"id": "b", "action": "GET"},
            {"id": "same", "action": "ASSERT", "assertions": {
                "equality": {"$.steps.a.response.body": "{{steps.b.response.body}}"},
            }},
        ]);
        let outcome = run(&test(&steps), &server.client()).await;
        assert_eq!(outcome.passed(), is_good, "{second}: {:?}", outcome.failures);
    }
}
