//! Objects for a server to be asked about: without them, paths could name only invented ids, and every answer
//! would be that there is no such object.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

/// Creates one of each object at the server, and returns the values for path parameters, as settings of
/// schemathesis.
///
/// # Errors
/// What was not answered as expected.
pub fn make(url: &str) -> Result<String, String> {
    let address = url.trim_start_matches("http://");
    let post = |path: &str, body: Value| post(address, path, &body);
    let id = |told: &Value, pointer: &str| {
        let id = told.pointer(pointer).and_then(Value::as_str);
        id.map(str::to_owned).ok_or_else(|| format!("there is no {pointer} in {told}"))
    };
    let job = |queue: &str, more: Value| {
        let mut options = json!({ "queue": queue });
        if let (Some(options), Value::Object(more)) = (options.as_object_mut(), more) {
            options.extend(more);
        }
        json!({ "type": "a.b", "args": [{ "n": 1 }], "options": options })
    };
    let held = post("/jobs", job("held", json!({ "unique": { "keys": ["args"] } })))?;
    let run = id(
        &post("/jobs", job("run", json!({ "rate_limit": { "key": "l", "concurrency": 1 } })))?,
        "/job/id",
    )?;
    post("/workers/fetch", json!({ "queues": ["run"], "worker_id": "w" }))?;
    let once = json!({ "retry": { "max_attempts": 1, "on_exhaustion": "dead_letter" } });
    let dead = id(&post("/jobs", job("dead", once))?, "/job/id")?;
    post("/workers/fetch", json!({ "queues": ["dead"], "worker_id": "w" }))?;
    post("/workers/nack", json!({ "job_id": dead, "error": { "code": "x", "message": "y" } }))?;
    let step = job("steps", json!({}));
    post("/cron", json!({ "name": "c", "expression": "0 3 1 1 *", "job_template": step }))?;
    let flow = post("/workflows", json!({ "type": "chain", "steps": [step, step] }))?;
    let hook =
        post("/webhooks/subscriptions", json!({ "url": "https://example.com", "events": ["job.failed"] }))?;
    let rows = [
        (r"/jobs/\\{id\\}/(ack|nack|progress)$", "id", run),
        (r"/jobs/\\{id\\}(/activate|/cancel)?$", "id", id(&held, "/job/id")?),
        (r"/dead-letter/\\{id\\}|/jobs/\\{id\\}/retry", "id", dead),
        (r"/cron/\\{name\\}", "name", "c".to_owned()),
        (r"/queues/\\{name\\}", "name", "held".to_owned()),
        (r"/workflows/\\{id\\}", "id", id(&flow, "/workflow/id")?),
        (r"/subscriptions/\\{id\\}", "id", id(&hook, "/subscription/id")?),
        (r"/rate-limits/\\{key\\}", "key", "l".to_owned()),
        (r"/unique-jobs/\\{key\\}", "key", id(&held, "/job/unique_key")?),
        // Its health is 503 once it has been silent for a minute, as intended.
        (r"/admin/workers/\\{id\\}", "id", "w".to_owned()),
    ];
    let row = |(paths, name, value): &(&str, &str, String)| {
        format!("[[operations]]\ninclude-path-regex = \"{paths}\"\nparameters = {{ {name} = \"{value}\" }}\n")
    };
    Ok(rows.iter().map(row).collect())
}

fn post(address: &str, path: &str, body: &Value) -> Result<Value, String> {
    let failed = |error: std::io::Error| format!("{path} at {address}: {error}");
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    let length = body.len();
    let request = format!(
        "POST /ojs/v1{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if !head.starts_with("HTTP/1.1 2") {
        return Err(format!("{path} was answered {answer}"));
    }
    serde_json::from_str(body).map_err(|error| format!("{path} was answered {body}: {error}"))
}
