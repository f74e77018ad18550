//! How the server inside the program ends, whoever is still there.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::Request;
use semel::{Error, Semel};
use semel_testkit::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower_service::Service as _;

use crate::harness::soon;

/// The URL of a file of this test's own.
fn file(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("jobs.db").display())
}

/// Reads on until there is that text.
async fn read_until(stream: &mut TcpStream, word: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(word) {
        let mut piece = [0; 4_096];
        let count = soon(stream.read(&mut piece)).await.unwrap();
        assert!(count > 0, "the end, without {word}: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..count]);
    }
}

/// Somebody who follows what happens, as the dashboard does.
async fn follower(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /ojs/v1/events/stream HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, "the stream begins").await;
    stream
}

#[tokio::test]
async fn who_follows_events_is_told_of_the_servers_end_and_does_not_hold_it_up() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let mut follower = follower(admin.address()).await;
    soon(admin.stop()).await.unwrap();
    read_until(&mut follower, "shutting down").await;
    soon(semel.close()).await.unwrap();
    Semel::open(&file(&dir)).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_queue_that_is_closed_ends_its_servers_and_lets_go_of_the_file() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let mut follower = follower(admin.address()).await;
    soon(semel.close()).await.unwrap();
    let again = Semel::open(&file(&dir)).await.unwrap();
    read_until(&mut follower, "shutting down").await;
    soon(admin.stop()).await.unwrap();
    assert!(matches!(semel.serve_admin("127.0.0.1:0").await, Err(Error::Closed)));
    again.close().await.unwrap();
}

#[tokio::test]
async fn what_is_mounted_admits_nothing_once_the_queue_is_closed() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let mut router = semel.router().unwrap();
    let mut post = async || {
        let request = Request::post("/ojs/v1/jobs").header("content-type", "application/json");
        let request = request.body(Body::from(r#"{"type": "a.b", "args": []}"#)).unwrap();
        router.call(request).await.unwrap().status().as_u16()
    };
    assert_eq!(post().await, 201);
    soon(semel.close()).await.unwrap();
    assert_eq!(post().await, 503);
    // The router is still there, and the file is free all the same.
    Semel::open(&file(&dir)).await.unwrap().close().await.unwrap();
    assert_eq!(post().await, 503);
}

/// Else tools would talk to whatever listens at that port next.
#[tokio::test]
async fn nobody_is_sent_to_a_server_that_has_stopped() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let met = async || Semel::open(&file(&dir)).await.unwrap_err().to_string();
    let first = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let second = semel.serve_admin("127.0.0.1:0").await.unwrap();
    assert!(met().await.contains(&second.url()), "{}", met().await);
    second.stop().await.unwrap();
    assert!(met().await.contains(&first.url()), "{}", met().await);
    drop(first);
    let left = met().await;
    assert!(left.contains(&format!("(process {})", std::process::id())), "{left}");
    semel.close().await.unwrap();
}
