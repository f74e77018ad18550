//! Raw requests, each over a connection of its own: what no verb sends.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// Sends `POST /path` or another one. The answer may be long in coming: reading it is the caller's affair.
pub fn send(url: &str, request: &str, headers: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://"))?;
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes())?;
    Ok(stream)
}

/// Sends a request and reads the answer: its status and body. `None` if the connection broke before the
/// answer was there.
pub fn ask(url: &str, request: &str, headers: &str, body: &str) -> Option<(u16, String)> {
    let mut answer = String::new();
    send(url, request, headers, body).ok()?.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// The same, with JSON.
pub fn post(url: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let (status, answer) = ask(url, &format!("POST {path}"), "", &body.to_string())?;
    Some((status, serde_json::from_str(&answer).ok()?))
}
