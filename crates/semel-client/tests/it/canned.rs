//! A server with canned answers: it reads whole requests and writes the bytes that it was given, so that
//! tests can also make it misbehave.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use semel_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers request n with reply n, and repeats the last one; an empty reply is never sent.
pub(crate) struct Canned {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Canned {
    pub(crate) async fn start(replies: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let replies: Arc<[String]> = replies.iter().map(|reply| (*reply).to_owned()).collect();
        let (requests, connections) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let canned = Self { url, requests: Arc::clone(&requests), connections: Arc::clone(&connections) };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(converse(stream, Arc::clone(&replies), Arc::clone(&requests)));
            }
        });
        canned
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url).unwrap()
    }

    /// The requests received, with header names in lower case as hyper sends them.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A complete reply.
pub(crate) fn reply(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nx-from: canned\r\n\r\n{body}", body.len())
}

async fn converse(mut stream: TcpStream, replies: Arc<[String]>, requests: Arc<Mutex<Vec<String>>>) {
    while let Some(request) = read_request(&mut stream).await {
        let number = {
            let mut requests = requests.lock().unwrap();
            requests.push(request);
            requests.len() - 1
        };
        let reply = &replies[number.min(replies.len() - 1)];
        if reply.is_empty() {
            std::future::pending::<()>().await;
        }
        stream.write_all(reply.as_bytes()).await.unwrap();
        if !reply.contains("content-length") || reply.contains("cut short") {
            return;
        }
    }
}

/// Reads the next whole request on a connection; `None` when it ends.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}
