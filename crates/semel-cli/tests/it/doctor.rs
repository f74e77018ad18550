//! `semel doctor` ends as its help says.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use crate::run::{Folder, Server};

/// Answers as a server whose store is ill: it promises, and is not well.
fn ill() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
            let path = head.next().unwrap().unwrap();
            while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let (status, body) = match path.split_whitespace().nth(1) {
                Some("/ojs/manifest") => ("200 OK", r#"{"unique_job_strength":"strong"}"#),
                Some("/ojs/v1/health") => ("503 Service Unavailable", r#"{"status":"unhealthy"}"#),
                _ => ("404 Not Found", "{}"),
            };
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    url
}

#[test]
fn the_doctor_ends_with_1_when_it_is_not_well_and_with_5_when_nobody_answers() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let well = folder.run(&["doctor", "--server", &server.url]);
    assert!(well.code == 0 && well.out.contains("uniqueness"), "{well:?}");
    let ill = folder.run(&["doctor", "--server", &ill()]);
    assert_eq!(ill.code, 1, "{ill:?}");
    assert!(ill.out.contains("strong") && ill.err.contains("503"), "what it promises is shown: {ill:?}");
    let nobody = folder.run(&["doctor", "--server", "http://127.0.0.1:9"]);
    assert_eq!((nobody.code, &*nobody.out), (5, ""), "{nobody:?}");
    for store in ["redis://127.0.0.1:9", "postgres://semel@127.0.0.1:9/jobs"] {
        let nobody = folder.run(&["doctor", "--store", store]);
        assert_eq!((nobody.code, &*nobody.out), (5, ""), "{nobody:?}");
    }
}
