//! What a caller may assume when there is no answer.

use std::time::Duration;

use semel_client::{Client, ClientError, RESPONSE_BYTES_MAX, TIMEOUT_DEFAULT};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::canned::{Canned, read_request, reply};

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    // Bound and dropped: a port on which nothing listens.
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
    assert!(error.to_string().contains("nothing received within 50ms"), "{error}");
    assert!(error.hint().unwrap().contains("may have been carried out"), "{error}");
}

#[tokio::test]
async fn an_answer_that_stands_still_runs_into_the_timeout() {
    let server = Canned::start(&["HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"]).await;
    let error = server.client().with_timeout(Duration::from_millis(50)).get_json("/").await.unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("nothing more received within 50ms"), "{error}");
}

/// A client of a server that answers `/slow` with `bytes` bytes, one every twenty seconds. From here on the
/// clock is paused, and advances only while tasks wait for it.
async fn trickling(bytes: usize) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        read_request(&mut stream).await.unwrap();
        stream.write_all(reply("200 OK", "").as_bytes()).await.unwrap();
        read_request(&mut stream).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..bytes {
            tokio::time::sleep(Duration::from_secs(20)).await;
            if stream.write_all(b"1").await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    // The connection is open, so that only the answer is waited for.
    client.get_json("/").await.unwrap();
    tokio::time::pause();
    client
}

/// Jobs in the answer to a fetch are already leased, and giving it up would spend their attempts.
#[tokio::test]
async fn a_slow_answer_that_goes_on_coming_is_read_to_its_end() {
    let client = trickling(6).await;
    let began = tokio::time::Instant::now();
    assert_eq!(client.get_json("/slow").await.unwrap(), json!(111_111));
    assert!(began.elapsed() > 3 * TIMEOUT_DEFAULT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_answer_that_trickles_for_ever_is_given_up() {
    let client = trickling(usize::MAX >> 1).await;
    let began = tokio::time::Instant::now();
    let error = client.get_json("/slow").await.unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("did not arrive within 300s"), "{error}");
    assert_eq!(began.elapsed().as_secs(), 300);
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_the_outcome_open() {
    let partial = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{ cut short";
    for rude in ["HTTP/1.1 200", partial] {
        let server = Canned::start(&[rude]).await;
        let error = server.client().post_json("/", &json!({})).await.unwrap_err();
        assert!(matches!(error, ClientError::NoAnswer { .. }), "{rude:?}: {error:?}");
        // The client never resends it by itself.
        assert_eq!(server.requests().len(), 1, "{rude:?}");
    }
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_a_protocol_error() {
    let server = Canned::start(&["220 mail.example ESMTP\r\n\r\n"]).await;
    let error = server.client().get_json("/").await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    assert!(error.to_string().contains("an OJS server"), "{error}");
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
