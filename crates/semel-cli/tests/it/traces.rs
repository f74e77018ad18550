//! A trace goes from the caller that enqueues to the worker, and the server's part of it to the collector.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::requests::ask;
use crate::run::{Folder, Server};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Enqueues with a trace and fetches. Returns what the worker finds in meta.
fn carried(server: &Server) -> String {
    let headers = format!("traceparent: {PARENT}\r\n");
    let job = r#"{"type":"a.b","args":[],"meta":{"own":1}}"#;
    assert_eq!(ask(&server.url, "POST /ojs/v1/jobs", &headers, job).unwrap().0, 201);
    let fetched = server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"] }));
    assert_eq!(fetched["jobs"][0]["meta"]["own"], 1, "{fetched}");
    fetched["jobs"][0]["meta"]["traceparent"].as_str().unwrap().to_owned()
}

#[test]
fn a_trace_reaches_the_worker_as_it_was() {
    let folder = Folder::new();
    assert_eq!(carried(&Server::start(&folder, &[])), PARENT);
}

#[test]
fn the_servers_part_reaches_the_collector() {
    let folder = Folder::new();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let collected = std::thread::spawn(move || {
        // One message: it has all that is sent before the end.
        let (mut stream, _) = collector.accept().unwrap();
        let mut message = Vec::new();
        let mut chunk = [0; 65_536];
        loop {
            let read = stream.read(&mut chunk).unwrap();
            message.extend_from_slice(&chunk[..read]);
            let text = String::from_utf8_lossy(&message).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str::<Value>(body)
            {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
                return (head.to_owned(), body);
            }
            assert!(read > 0, "{text}");
        }
    });
    let server = Server::start(&folder, &["--otlp", &url]);
    let carried = carried(&server);
    assert!(
        carried.starts_with(&PARENT[..36]) && carried != PARENT,
        "the same trace, the server's part: {carried}"
    );
    assert_eq!(server.stop().0.code(), Some(0));
    let (head, message) = collected.join().unwrap();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1") && head.contains("application/json"), "{head}");
    let spans = message["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    let span = spans.iter().find(|span| span["name"] == "POST /ojs/v1/jobs").unwrap();
    assert_eq!(span["traceId"], &PARENT[3..35]);
    assert_eq!(span["parentSpanId"], &PARENT[36..52]);
    assert_eq!(span["spanId"], &carried[36..52]);
    let times = ["startTimeUnixNano", "endTimeUnixNano"]
        .map(|name| span[name].as_str().unwrap().parse::<u64>().unwrap());
    assert!(times[0] > 1_600_000_000_000_000_000 && times[1] >= times[0], "{span}");
}
