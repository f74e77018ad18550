//! A running example program.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Killed without warning when it is dropped.
pub(crate) struct Program {
    child: Child,
}

impl Program {
    pub(crate) fn start(path: &str, url: &str) -> Self {
        let mut command = Command::new(path);
        command.env("DATABASE_URL", url).env("LISTEN", "127.0.0.1:0").stdout(Stdio::piped());
        Self { child: command.spawn().unwrap() }
    }

    /// The address that it says it listens on.
    pub(crate) fn address(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim_end().strip_prefix("listening on http://").expect("it listens").to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Posts a body; answers the status and the JSON of the response.
pub(crate) fn post(address: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}
