//! What is sent, and how answers are read.

use semel_client::{Bytes, ClientError, HeaderMap, Method};
use serde_json::json;

use crate::canned::{Canned, reply};

#[tokio::test]
async fn a_body_is_sent_as_ojs_and_a_get_has_none() {
    let server = Canned::start(&[&reply("200 OK", r#"{"a":1}"#)]).await;
    let client = server.client();
    assert_eq!(client.post_json("/ojs/v1/jobs", &json!({"type": "x"})).await.unwrap(), json!({"a": 1}));
    assert_eq!(client.get_json("/ojs/v1/jobs/1?full=yes").await.unwrap(), json!({"a": 1}));
    assert_eq!(client.delete_json("/ojs/v1/jobs/1").await.unwrap(), json!({"a": 1}));
    let [post, get, delete] = &server.requests()[..] else { panic!("not three requests") };
    assert!(post.starts_with("POST /ojs/v1/jobs HTTP/1.1\r\n"), "{post}");
    assert!(post.contains("content-type: application/openjobspec+json\r\n"), "{post}");
    assert!(post.ends_with("\r\n\r\n{\"type\":\"x\"}"), "{post}");
    assert!(get.starts_with("GET /ojs/v1/jobs/1?full=yes HTTP/1.1\r\n"), "{get}");
    assert!(delete.starts_with("DELETE /ojs/v1/jobs/1 HTTP/1.1\r\n"), "{delete}");
    for bare in [get, delete] {
        assert!(!bare.contains("content-type") && !bare.contains("content-length"), "{bare}");
    }
}

#[tokio::test]
async fn connections_are_kept() {
    let server = Canned::start(&[&reply("200 OK", "{}")]).await;
    let client = server.client();
    for _ in 0..5 {
        client.clone().get_json("/").await.unwrap();
    }
    assert_eq!((server.requests().len(), server.connections()), (5, 1));
}

#[tokio::test]
async fn a_request_sends_the_callers_method_and_headers() {
    let server = Canned::start(&[&reply("418 I'm a teapot", "no")]).await;
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("x-mine", "1".parse().unwrap());
    let method = Method::from_bytes(b"ASSERT").unwrap();
    let response =
        server.client().request(method, "", Some(Bytes::from_static(b"{}")), headers).await.unwrap();
    assert_eq!((response.status.as_u16(), &response.body[..]), (418, &b"no"[..]));
    assert_eq!(response.headers["x-from"], "canned");
    let request = &server.requests()[0];
    assert!(request.starts_with("ASSERT / HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains("content-type: application/json\r\n") && request.contains("x-mine: 1\r\n"),
        "{request}"
    );
    assert!(!request.contains("openjobspec") && !request.contains("authorization"), "{request}");
}

#[tokio::test]
async fn a_token_is_sent_and_never_shown() {
    let server = Canned::start(&[&reply("401 Unauthorized", "")]).await;
    let client = server.client().with_token("s3cret\n").unwrap();
    let error = client.get_json("/").await.unwrap_err();
    assert!(server.requests()[0].contains("authorization: Bearer s3cret\r\n"));
    for shown in [format!("{client:?}"), format!("{error:?}"), error.to_string()] {
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    let refused = client.clone().with_token("s3c\nret").unwrap_err();
    assert!(!format!("{refused:?} {refused}").contains("s3c"), "{refused:?}");
    assert!(client.with_token(" ").is_err());
}

#[tokio::test]
async fn a_success_without_a_body_is_null_and_a_refusal_is_an_error() {
    let refusal = reply("409 Conflict", r#"{"error":{"code":"duplicate","message":"it is queued"}}"#);
    let server = Canned::start(&[&reply("200 OK", ""), &refusal, &reply("200 OK", "<html>")]).await;
    let client = server.client();
    assert_eq!(client.get_json("/").await.unwrap(), serde_json::Value::Null);
    let ClientError::Status { status, code, body, .. } = client.get_json("/").await.unwrap_err() else {
        panic!("not a status")
    };
    assert_eq!((status.as_u16(), code.as_deref()), (409, Some("duplicate")));
    assert!(body.starts_with(b"{\"error\""));
    let foreign = client.get_json("/").await.unwrap_err();
    assert!(matches!(foreign, ClientError::Protocol { .. }), "{foreign:?}");
    // An answer to a request with the caller's own headers is read by the same rules.
    let response = client.request(Method::GET, "/", None, HeaderMap::new()).await.unwrap();
    assert!(matches!(client.read(response).unwrap_err(), ClientError::Protocol { .. }));
}
