//! Verbs that go on until they are told to stop, and a server that is away for a while.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::run::Folder;

/// Answers one request after the other, with a status and a body, or with nothing if there is none. Returns
/// what each asked for.
fn server(answers: Vec<Option<(&'static str, Value)>>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let told = std::thread::spawn(move || {
        let mut told = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") {
                let mut buffer = [0; 4_096];
                let count = stream.read(&mut buffer).unwrap();
                read.extend_from_slice(&buffer[..count]);
            }
            let head = String::from_utf8(read).unwrap();
            told.push(head.split(' ').nth(1).unwrap().to_owned());
            let Some((status, body)) = answer else { continue };
            let body = body.to_string();
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
        told
    });
    (url, told)
}

fn page(number: u32) -> Option<(&'static str, Value)> {
    let event = json!({ "type": format!("job.n{number}"), "time": "2026-01-01T00:00:00.000Z", "subject": "x", "data": {} });
    Some(("200 OK", json!({ "events": [event], "cursor": format!("evt_{number}"), "has_more": true })))
}

fn refused(status: &'static str, code: &str) -> Option<(&'static str, Value)> {
    Some((status, json!({ "error": { "code": code, "message": "no", "retryable": false } })))
}

#[test]
fn events_that_are_followed_go_on_from_where_they_were() {
    let folder = Folder::new();
    let busy = || refused("503 Service Unavailable", "unavailable");
    let (url, told) = server(vec![
        page(1),
        None,
        busy(),
        page(2),
        busy(),
        page(3),
        refused("401 Unauthorized", "unauthorized"),
    ]);
    let ran = folder.run(&["events", "--follow", "--server", &url]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for number in 1..=3 {
        assert_eq!(ran.out.matches(&format!("job.n{number}")).count(), 1, "{ran:?}");
    }
    // Once for each time that the server was away.
    assert_eq!(ran.err.matches("retrying until it answers").count(), 2, "{ran:?}");
    assert!(ran.err.contains("unauthorized (401)"), "{ran:?}");
    let after: Vec<String> = told
        .join()
        .unwrap()
        .iter()
        .map(|path| path.split("after=").nth(1).unwrap_or("").split('&').next().unwrap().to_owned())
        .collect();
    assert_eq!(after, ["", "evt_1", "evt_1", "evt_1", "evt_2", "evt_2", "evt_3"]);
}

/// Its name may be wrong, or it may be somebody else's.
#[test]
fn a_server_that_was_never_there_is_not_waited_for() {
    let folder = Folder::new();
    for verb in [&["events", "--follow"][..], &["top"]] {
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let ran = folder.run(&[verb, &["--server", &format!("http://{unused}")]].concat());
        assert_eq!((ran.code, ran.err.contains("retrying until it answers")), (5, false), "{ran:?}");
        let (url, told) = server(vec![Some(("404 Not Found", json!("no page")))]);
        assert_eq!(folder.run(&[verb, &["--server", &url]].concat()).code, 4);
        told.join().unwrap();
    }
}

#[test]
fn the_overview_is_shown_again_when_the_server_is_back() {
    let folder = Folder::new();
    let queues = |name: &str| Some(("200 OK", json!({ "queues": [{ "name": name, "available": 1 }] })));
    let who = || Some(("200 OK", json!({ "roles": ["viewer"], "queues": null })));
    let answers = vec![
        queues("first"),
        who(),
        None,
        queues("second"),
        who(),
        refused("401 Unauthorized", "unauthorized"),
    ];
    let (url, told) = server(answers);
    let ran = folder.run(&["top", "--every", "1", "--server", &url]);
    assert_eq!((ran.code, ran.err.matches("retrying until it answers").count()), (1, 1), "{ran:?}");
    assert!(ran.out.contains("first") && ran.out.contains("second"), "{ran:?}");
    told.join().unwrap();
}
