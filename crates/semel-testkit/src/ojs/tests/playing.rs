//! Steps: templates, pauses, parallel steps.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::ojs::canned::{Canned, reply};
use crate::ojs::run;

#[tokio::test]
async fn templates_carry_values_from_step_to_step() {
    let id = r#"a"b"#;
    let job = json!({"job": {"id": id, "n": 7, "tags": ["x"]}}).to_string();
    let server = Canned::always(200, &job).await;
    let steps = json!([
        {"id": "one", "action": "POST", "path": "/jobs", "headers": {"Content-Type": "application/json"},
            "body": {"literal": "{{job_id}} ${job_id}"}},
        {"id": "two", "action": "POST",
            "path": "/n/{{steps.one.response.body.job.n}}/{{steps.one.response.body.job.tags[0]}}",
            "body": {"job_id": "{{steps.one.response.body.job.id}}", "n": "{{steps.one.response.body.job.n}}"},
            "assertions": {"body": {
                "$.job.id": "{{steps.one.response.body.job.id}}",
                "$.job.tags": "contains:{{steps.one.response.body.job.tags[0]}}",
            }}},
        {"id": "three", "action": "GET", "assertions": {"body": {"$.job.id": "x{{steps.one.response.body.job.id}}"}}},
    ]);
    let outcome = run(&test(&steps), &server.client()).await;
    assert_eq!(reasons(&outcome), [r#"three: $.job.id: expected "xa\"b", got "a\"b""#]);
    let seen = server.seen();
    let ojs = Some("application/openjobspec+json".to_owned());
    assert_eq!(seen[0].2.as_deref(), Some("application/json"));
    assert_eq!(seen[0].3, r#"{"literal":"{{job_id}} ${job_id}"}"#);
    assert_eq!(
        seen[1],
        ("POST".to_owned(), "/n/7/x".to_owned(), ojs, r#"{"job_id":"a\"b","n":"7"}"#.to_owned())
    );
    assert_eq!(seen[2], ("GET".to_owned(), "/".to_owned(), None, String::new()));
}

#[tokio::test]
async fn a_server_cannot_choose_what_is_demanded_of_it() {
    // An id that looks like a matcher is still only an id.
    let server =
        Canned::start(|number, _| reply(200, if number == 0 { r#"{"id":"any"}"# } else { r#"{"id":"b"}"# }))
            .await;
    let steps = json!([
        {"id": "one", "action": "GET", "path": "/"},
        {"id": "two", "action": "GET", "assertions": {"body": {"$.id": "{{steps.one.response.body.id}}"}}},
    ]);
    let outcome = run(&test(&steps), &server.client()).await;
    assert_eq!(reasons(&outcome), [r#"two: $.id: expected "any", got "b""#]);
}

#[tokio::test]
async fn a_template_that_cannot_be_filled_in_fails_and_sends_nothing() {
    let server = Canned::always(200, r#"{"job": {"id": null, "o": {}}}"#).await;
    for template in ["job.gone", "job.id", "job.id.deeper[0]", "job.o.a[*]"] {
        let path = format!("/{{{{steps.one.response.body.{template}}}}}");
        let steps = json!([{"id": "one", "action": "GET"}, {"id": "two", "action": "GET", "path": path}]);
        let outcome = run(&test(&steps), &server.client()).await;
        assert_eq!(outcome.failures.len(), 1, "{template}: {:?}", outcome.failures);
        assert_eq!(outcome.failures[0].step, "two");
    }
    let spliced = json!([
        {"id": "one", "action": "GET"},
        {"id": "two", "action": "POST", "body": {"a": "{{steps.one.response.body.job}}"}, "assertions": {"status": 200}},
        {"id": "three", "action": "GET", "path": "/{{steps.four.response.body.a}}"},
        {"id": "four", "action": "GET"},
    ]);
    let outcome = run(&test(&spliced), &server.client()).await;
    let [two, three] = &outcome.failures[..] else { panic!("{:?}", outcome.failures) };
    assert!(two.step == "two" && two.reason.contains("not JSON once"), "{two:?}");
    assert!(three.step == "three" && three.reason.contains("no answer"), "{three:?}");
    assert_eq!(server.seen().len(), 4 + 2);
}

#[tokio::test]
async fn parallel_steps_are_sent_at_the_same_time() {
    // Each answer waits until both requests have arrived; sent one after the other, the test would never end.
    let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let both = std::sync::Arc::clone(&both);
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                both.wait().await;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            });
        }
    });
    let client = semel_client::Client::new(&url).unwrap().with_timeout(Duration::from_secs(5));
    let steps = json!([
        {"id": "a", "action": "GET", "parallel_with": "b", "assertions": {"status": 200}},
        {"id": "b", "action": "GET", "assertions": {"status": 200}},
    ]);
    let outcome = run(&test(&steps), &client).await;
    assert!(outcome.passed(), "{:?}", outcome.failures);
}

#[tokio::test]
async fn pauses_are_kept() {
    let server = Canned::always(200, "{}").await;
    let steps = json!([
        {"id": "a", "action": "GET", "delay_ms": 60},
        {"id": "w", "action": "WAIT", "duration_ms": 60},
        {"id": "v", "action": "wait", "delay_ms": 60},
    ]);
    let outcome = run(&test(&steps), &server.client()).await;
    assert!(outcome.passed() && outcome.took >= Duration::from_millis(180), "{outcome:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn what_the_official_runner_ignores_is_noted() {
    let steps = json!([{
        "id": "s", "action": "POST", "path": "/", "raw_body": "{", "captures": {}, "expect": {"status": 500},
        "assertions": {"status": 200, "status_one_of": [500], "body_comment": "x"},
    }]);
    let server = Canned::always(200, "{}").await;
    let outcome = run(&test(&steps), &server.client()).await;
    assert!(outcome.passed(), "{:?}", outcome.failures);
    assert_eq!(
        outcome.notes,
        [
            "s: captures",
            "s: expect",
            "s: raw_body",
            "s: assertions.body_comment",
            "s: assertions.status_one_of"
        ]
    );
    assert_eq!(server.seen()[0].3, "");
}

#[tokio::test]
async fn an_unreachable_server_fails_every_step() {
    let client = semel_client::Client::new("http://127.0.0.1:1").unwrap();
    let outcome =
        run(&test(&json!([{"id": "a", "action": "GET"}, {"id": "b", "action": "GET"}])), &client).await;
    assert_eq!(outcome.failures.len(), 2);
    assert!(outcome.failures[0].reason.contains("is `semel serve` running"), "{:?}", outcome.failures);
}
