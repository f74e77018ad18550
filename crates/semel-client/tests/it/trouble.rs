//! What a caller may assume when there is no answer.

use std::time::Duration;

use semel_client::{Client, ClientError, RESPONSE_BYTES_MAX};
use serde_json::json;

use crate::canned::{Canned, reply};

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    // Bound and dropped: a port that nobody listens on.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let error = Client::new(&url).unwrap().get_json("/").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().ends_with(&format!("is `semel serve` running at {url}?")), "{error}");
}

#[tokio::test]
async fn a_silent_server_runs_into_the_timeout() {
    let server = Canned::start(&[""]).await;
    let client = server.client().with_timeout(Duration::from_millis(50));
    let error = client.post_json("/ojs/v1/jobs", &json!({})).await.unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("nothing within 50ms"), "{error}");
    assert!(error.hint().unwrap().contains("may have been carried out"), "{error}");
}

#[tokio::test]
async fn the_timeout_covers_the_body() {
    let server = Canned::start(&["HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"]).await;
    let error = server.client().with_timeout(Duration::from_millis(50)).get_json("/").await.unwrap_err();
    assert!(error.to_string().contains("nothing within 50ms"), "{error}");
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_the_outcome_open() {
    let partial = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{ cut short";
    for rude in ["HTTP/1.1 200", partial] {
        let server = Canned::start(&[rude]).await;
        let error = server.client().post_json("/", &json!({})).await.unwrap_err();
        assert!(matches!(error, ClientError::NoAnswer { .. }), "{rude:?}: {error:?}");
        // Never sent twice behind the caller's back.
        assert_eq!(server.requests().len(), 1, "{rude:?}");
    }
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_a_protocol_error() {
    let server = Canned::start(&["220 mail.example ESMTP\r\n\r\n"]).await;
    let error = server.client().get_json("/").await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    assert!(error.to_string().contains("is it an OJS server"), "{error}");
}

#[tokio::test]
async fn a_connection_closed_between_requests_is_replaced() {
    let closing = reply("200 OK", "{}").replace("x-from: canned", "connection: close");
    let server = Canned::start(&[&closing]).await;
    let client = server.client();
    client.get_json("/").await.unwrap();
    client.get_json("/").await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_it_is_sent() {
    let server = Canned::start(&[&reply("200 OK", "{}")]).await;
    let error = server.client().get_json("no-slash").await.unwrap_err();
    assert!(matches!(error, ClientError::Request { .. }), "{error:?}");
    assert_eq!((server.requests().len(), error.hint()), (0, None));
}

#[tokio::test]
async fn an_endless_answer_is_not_read() {
    let server = Canned::start(&[&reply("200 OK", &" ".repeat(RESPONSE_BYTES_MAX + 1))]).await;
    let error = server.client().get_json("/").await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    assert!(error.to_string().contains("longer than 67108864 bytes"), "{error}");
}
