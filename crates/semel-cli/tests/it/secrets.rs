//! Private data stays out of the log.

use serde_json::{Value, json};

use crate::requests;
use crate::run::{Folder, Ran, Server};

const TOKEN: &str = "canary-token-7f3a";
const WRONG: &str = "canary-wrong-88aa";
const ARGS: &str = "canary-args-91bc";
const KEY: &str = "canary-key-55d0";
const META: &str = "canary-meta-0e2f";
const PROGRESS: &str = "canary-progress-b7d4";
const FAILURE: &str = "canary-failure-6c1e";
const RESULT: &str = "canary-result-23fa";
const CANARIES: [&str; 8] = [TOKEN, WRONG, ARGS, KEY, META, PROGRESS, FAILURE, RESULT];

#[test]
fn tokens_args_and_keys_are_not_logged() {
    // What each store logs itself. Its client logs nothing now; if that changed, this test would find it.
    let stores: [fn() -> String; 3] = [
        || "sqlite:semel.db".to_owned(),
        semel_testkit::database::store_url,
        semel_testkit::redis::store_url,
    ];
    for store in stores {
        // At the highest log level, in both formats.
        for format in ["text", "json"] {
            a_whole_run_is_searched(&store(), format);
        }
    }
}

fn a_whole_run_is_searched(store: &str, format: &str) {
    let folder = Folder::new();
    std::fs::write(folder.path().join("tokens"), TOKEN).unwrap();
    let words = ["serve", "--listen", "127.0.0.1:0", "--token-file", "tokens", "--log-format", format];
    let mut command = folder.semel(&[&words[..], &["--store", store]].concat());
    command.env("SEMEL_LOG", "trace");
    let server = Server::start_command(command);
    let semel = |words: &[&str], token: &str| {
        let mut command = folder.semel(words);
        command.env("SEMEL_TOKEN", token);
        // The server of a file is found through the file.
        if !store.starts_with("sqlite:") {
            command.env("SEMEL_SERVER", &server.url);
        }
        Ran::of(&mut command)
    };
    let meta = format!("{{\"note\": \"{META}\"}}");
    let words = ["enqueue", "a.b", ARGS, "--key", KEY, "--meta", &meta];
    let mut err = String::new();
    let mut hash = String::new();
    for (verb, code) in [("enqueue", 0), ("enqueue", 3), ("explain", 0)] {
        let ran = semel(&[&[verb], &words[1..], &["--json"]].concat(), TOKEN);
        assert_eq!(ran.code, code, "{verb}: {}", ran.err);
        if verb == "explain" {
            let explained: Value = serde_json::from_str(&ran.out).unwrap();
            hash = explained["key"].as_str().unwrap().to_owned();
        }
        err.push_str(&ran.err);
    }
    let denied = semel(&["jobs"], WRONG);
    assert_eq!(denied.code, 1);
    err.push_str(&denied.err);
    let released = semel(&["release", &hash, "--reason", "x", "--yes"], TOKEN);
    assert_eq!(released.code, 0, "{}", released.err);
    let broken = semel(&["enqueue", "a.b", ARGS, "--key", " "], TOKEN);
    assert_ne!(broken.code, 0);
    work(&server);
    let (status, out, log) = server.stop();
    assert_eq!(status.code(), Some(0));
    assert!(log.contains("ready") && log.contains("release_key"), "{log}");
    for route in ["unique-jobs/{key}", "workers/fetch", "workers/ack", "workers/nack", "jobs/{id}/progress"] {
        let route = format!("/ojs/v1/{route}");
        assert!(log.contains(&route), "requests are logged by their route, {route}: {log}");
    }
    if format == "json" {
        for line in log.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
        }
    }
    for canary in CANARIES {
        for (name, text) in [("stdout", &out), ("log", &log), ("errors", &err)] {
            assert!(!text.contains(canary), "{store}: {canary} is in the {name}:\n{text}");
        }
    }
    // The caller gets its key's hash in an answer; the log does not.
    assert!(!out.contains(&hash) && !log.contains(&hash), "{log}");
}

/// A worker's reports of two runs, and an operator who looks for their jobs.
fn work(server: &Server) {
    let ask = |request: &str, body: &str| {
        let authorization = format!("authorization: Bearer {TOKEN}\r\n");
        let (status, answer) = requests::ask(&server.url, request, &authorization, body).unwrap();
        assert!(matches!(status, 200 | 201), "{request}: {status}: {answer}");
        answer
    };
    let post = |path: &str, body: Value| -> Value {
        serde_json::from_str(&ask(&format!("POST /ojs/v1/{path}"), &body.to_string())).unwrap()
    };
    // Besides the job that was enqueued, and whose key was released.
    post("jobs", json!({ "type": "a.b", "args": [ARGS], "meta": { "note": META } }));
    // One at a time, with waits: the record of a duplicate may be written to one of them just now.
    let one_more = json!({ "queues": ["default"], "count": 1, "wait_ms": 10_000, "worker_id": "w" });
    let fetched = [post("workers/fetch", one_more.clone()), post("workers/fetch", one_more)];
    let [one, other] = fetched.each_ref().map(|fetched| fetched["jobs"][0]["id"].as_str().unwrap());
    assert!(fetched.iter().all(|fetched| fetched.to_string().contains(ARGS)), "{fetched:?}");
    let progress = json!({ "progress": 0.5, "message": PROGRESS, "data": { "at": PROGRESS } });
    ask(&format!("PUT /ojs/v1/jobs/{one}/progress"), &progress.to_string());
    post("workers/ack", json!({ "job_id": one, "result": { "is": RESULT } }));
    let error = json!({ "code": "broken", "message": FAILURE, "details": { "trace": FAILURE } });
    post("workers/nack", json!({ "job_id": other, "error": error }));
    let found = ask(&format!("GET /ojs/v1/jobs?where=/args/0%3D%22{ARGS}%22"), "");
    assert!(found.contains(one) && found.contains(other), "{found}");
}
