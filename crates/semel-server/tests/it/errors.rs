//! What all answers have in common, including errors.

use std::sync::Arc;

use semel_client::{HeaderMap, Method};
use semel_core::hex;
use semel_ojs::Problem;
use semel_ojs::problem::CATALOGUE;
use semel_server::auth::Tokens;
use semel_server::{Config, check_listen};
use semel_store::Backend;
use semel_store::decor::{Fault, Faulty};
use semel_store::memory::Memory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Server, Told, header};

const UNKNOWN: &str = "/ojs/v1/jobs/01961111-aaaa-7bbb-8ccc-dddddddddddd";

fn assert_common(told: &Told) {
    assert_eq!(told.headers["content-type"], "application/openjobspec+json");
    assert_eq!(told.headers["ojs-version"], "1.0");
    assert!(!told.headers["x-request-id"].is_empty());
}

fn assert_problem(told: &Told, status: u16, code: &str) {
    assert_common(told);
    assert_eq!((told.status, told.code()), (status, code), "{}", told.body);
    let error = &told.body["error"];
    for member in ["message", "hint", "docs_url", "type"] {
        assert!(error[member].as_str().is_some_and(|text| !text.is_empty()), "{member} in {error}");
    }
    assert!(error["retryable"].is_boolean() && error["details"].is_object());
    assert_eq!(error["request_id"], told.headers["x-request-id"].to_str().unwrap());
}

#[tokio::test]
async fn every_answer_has_the_headers_and_every_error_a_body() {
    let server = Server::start().await;
    assert_common(&server.get("/ojs/v1/health").await);
    for path in [UNKNOWN, "/ojs/v1/jobs/x", "/ojs/v1/nothing", "/nothing", "/ojs/v1/jobs/%ff"] {
        assert_problem(&server.get(path).await, 404, "not_found");
    }
    let wrong = server.ask(Method::PUT, "/ojs/v1/jobs", Some("{}"), HeaderMap::new()).await;
    assert_problem(&wrong, 405, "method_not_allowed");
    assert!(wrong.headers.contains_key("allow"));
    for (method, path, status) in [("FETCH", "/ojs/v1/jobs", 405), ("ASSERT", "/nothing", 404)] {
        let told =
            server.ask(Method::from_bytes(method.as_bytes()).unwrap(), path, None, HeaderMap::new()).await;
        assert_common(&told);
        assert_eq!(told.status, status);
    }
    server.stop().await;
}

/// Unknown members are kept with a job, so a misspelt policy would be no policy, and the same work be done
/// twice.
#[tokio::test]
async fn a_member_that_is_misspelt_is_refused_and_one_of_the_senders_own_is_kept() {
    let server = Server::start().await;
    let unique = json!({ "keys": ["type", "args"] });
    let step = json!({ "id": "b", "type": "a.b", "args": [], "dependson": ["a"] });
    let first = json!({ "id": "a", "type": "a.b", "args": [] });
    let cron = |name: &str, value: Value| json!({ "name": "c", "expression": "0 3 * * *", "type": "a.b", "args": [], name: value });
    for (path, body, pointer, meant) in [
        ("jobs", json!({ "type": "a.b", "args": [], "unqiue": unique }), "/unqiue", "unique"),
        (
            "jobs",
            json!({ "type": "a.b", "args": [], "options": { "uniqe": unique } }),
            "/options/uniqe",
            "unique",
        ),
        ("jobs", json!({ "type": "a.b", "args": [], "maxAttempts": 1 }), "/maxAttempts", "max_attempts"),
        (
            "jobs",
            json!({ "type": "a.b", "args": [], "options": { "uniqueKey": "k" } }),
            "/options/uniqueKey",
            "unique_key",
        ),
        ("jobs", json!({ "type": "a.b", "args": [], "unique-key": "k" }), "/unique-key", "unique_key"),
        ("jobs", json!({ "type": "a.b", "args": [], "optoins": {} }), "/optoins", "options"),
        ("cron", cron("timezon", json!("Europe/Berlin")), "/timezon", "timezone"),
        ("cron", cron("overlap_polcy", json!("allow")), "/overlap_polcy", "overlap_policy"),
        ("cron", cron("quueu", json!("mail")), "/quueu", ""),
        ("cron", cron("queues", json!("mail")), "/queues", "queue"),
        ("workflows", json!({ "steps": [first, step] }), "/steps/1/dependson", "depends_on"),
        ("workers/nack", json!({ "job_id": UNKNOWN[13..], "error": {}, "leas": "1" }), "/leas", "lease"),
        (
            "workers/nack",
            json!({ "job_id": UNKNOWN[13..], "error": { "retriable": false } }),
            "/error/retriable",
            "retryable",
        ),
        ("workers/fetch", json!({ "queues": ["q"], "workerId": "w" }), "/workerId", "worker_id"),
        ("workers/heartbeat", json!({ "active_job": [] }), "/active_job", "active_jobs"),
    ] {
        let told = server.post(&format!("/ojs/v1/{path}"), &body).await;
        if meant.is_empty() {
            assert_eq!(told.status, 201, "two slips may be a name of its own: {}", told.body);
            continue;
        }
        assert_problem(&told, 400, "invalid_request");
        assert_eq!(told.body["error"]["details"]["pointer"], pointer, "{}", told.body);
        assert!(told.body["error"]["message"].as_str().unwrap().contains(meant), "{}", told.body);
    }
    let own = json!({ "type": "a.b", "args": [], "time": 1, "source": "/x", "my_queue": "q", "schema": "s" });
    let kept = server.create(&own).await.body["job"].clone();
    assert_eq!((&kept["time"], &kept["source"], &kept["my_queue"]), (&json!(1), &json!("/x"), &json!("q")));
    server.stop().await;
}

/// Also for a caller without a token.
#[tokio::test]
async fn the_docs_url_of_every_error_leads_to_its_code() {
    let server = Server::with(Config { tokens: Tokens::new(["s3cret"]), ..Config::default() }).await;
    let refused = server.get(UNKNOWN).await;
    assert_eq!(refused.body["error"]["docs_url"], "/docs/errors#unauthorized");
    for entry in CATALOGUE {
        let mut text = String::new();
        Problem::new(entry.code, "x").write("", &mut text);
        let told: Value = serde_json::from_str(&text).unwrap();
        let (path, anchor) = told["error"]["docs_url"].as_str().unwrap().split_once('#').unwrap();
        let page = server.client.request(Method::GET, path, None, HeaderMap::new()).await.unwrap();
        assert_eq!(page.status.as_u16(), 200, "{path}");
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
        let page = String::from_utf8(page.body.to_vec()).unwrap();
        assert_eq!(page.matches(&format!("id=\"{anchor}\"")).count(), 1, "{anchor}: {page}");
        assert!(anchor == entry.wire && page.contains(entry.hint), "{anchor}: {page}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_keeps_its_own_id() {
    let server = Server::start().await;
    for path in ["/health", UNKNOWN] {
        let told = server.ask(Method::GET, path, None, header("x-request-id", "mine-1")).await;
        assert_eq!(told.headers["x-request-id"], "mine-1");
    }
    let told = server.ask(Method::GET, "/health", None, header("x-request-id", "two words")).await;
    let given = told.headers["x-request-id"].to_str().unwrap();
    let digits = given.strip_prefix("req_").unwrap();
    assert!(digits.len() == 28 && digits.bytes().all(|digit| hex::value(digit).is_some()), "{given}");
    // The server's own ids are told apart by their suffix.
    let next = server.get("/health").await;
    let next = next.headers["x-request-id"].to_str().unwrap();
    assert!(next[..20] == given[..20] && next[20..] > given[20..], "{given} {next}");
    server.stop().await;
}

#[tokio::test]
async fn other_media_types_and_versions_are_refused() {
    let server = Server::start().await;
    let job = r#"{"type":"a.b","args":[]}"#;
    for (kind, status) in [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("application/openjobspec+json", 201),
        ("text/plain", 400),
        ("application/x-www-form-urlencoded", 400),
    ] {
        let told = server.ask(Method::POST, "/ojs/v1/jobs", Some(job), header("content-type", kind)).await;
        assert_eq!(told.status, status, "{kind}");
    }
    for (version, status) in [("1", 200), ("1.0", 200), ("1.0.0-rc.1", 200), ("2.0", 422), ("0.9", 422)] {
        let told = server.ask(Method::GET, "/ojs/v1/jobs", None, header("ojs-version", version)).await;
        assert_eq!(told.status, status, "{version}");
        if status == 422 {
            assert_problem(&told, 422, "unsupported");
        }
    }
    // Clients look up the supported versions here, and monitoring only asks whether the server is well.
    for path in ["/ojs/manifest", "/ojs/v1/health", "/health", "/ready", "/live", "/metrics"] {
        let told =
            server.client.request(Method::GET, path, None, header("ojs-version", "2.0")).await.unwrap();
        assert_eq!(told.status.as_u16(), 200, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_not_json_is_an_invalid_payload() {
    let server = Server::start().await;
    for body in ["", "{", "nope", "{\"type\":\"a.b\",\"args\":[\"\\ud80\"]}"] {
        assert_problem(&server.post_text("/ojs/v1/jobs", body).await, 400, "invalid_payload");
    }
    // Valid JSON by its grammar: the fault is a value, so it has a pointer.
    for unique in ["", ",\"unique\":{\"keys\":[\"args\"]}"] {
        let body = format!("{{\"type\":\"a.b\",\"args\":[\"\\ud800\"]{unique}}}");
        let told = server.post_text("/ojs/v1/jobs", &body).await;
        assert_problem(&told, 400, "invalid_request");
        assert!(told.body.to_string().contains("/args/0"), "{}", told.body);
    }
    assert_problem(
        &server.ask(Method::POST, "/ojs/v1/jobs", None, HeaderMap::new()).await,
        400,
        "invalid_payload",
    );
    server.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_utf8_are_answered() {
    let server = Server::start().await;
    let send = async |bytes: &[u8]| {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = send(
        b"POST /ojs/v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n\xff\xfe",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("UTF-8"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_token_is_asked_for_when_one_is_set() {
    let config = Config { tokens: Tokens::new(["s3cret", "other"]), ..Config::default() };
    assert!(!format!("{config:?}").contains("s3cret"));
    let server = Server::with(config).await;
    let told = server.get(UNKNOWN).await;
    assert_problem(&told, 401, "unauthorized");
    assert_eq!(told.headers["www-authenticate"], "Bearer");
    for (value, status) in [
        ("Bearer s3cret", 404),
        ("bearer other", 404),
        ("Bearer s3cre", 401),
        ("Bearer", 401),
        ("Basic s3cret", 401),
        ("Bearer s3cret2", 401),
    ] {
        assert_eq!(
            server.ask(Method::GET, UNKNOWN, None, header("authorization", value)).await.status,
            status,
            "{value}"
        );
    }
    for open in ["/health", "/ready", "/live", "/ojs/manifest"] {
        assert_eq!(server.get(open).await.status, 200, "{open}");
    }
    server.stop().await;
}

#[tokio::test]
async fn pages_of_other_sites_are_kept_out_without_a_token() {
    let body = Some(r#"{"type":"a.b","args":[]}"#);
    let server = Server::start().await;
    for (name, value, status) in [
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-origin", 201),
        ("host", "rebound.example:8080", 403),
        ("host", "localhost:8080", 201),
        // Browsers that do not send `Sec-Fetch-Site` send the page's origin.
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("origin", &format!("http://{}", server.address), 201),
    ] {
        let mut headers = header("accept-language", "en");
        headers.extend(header(name, value));
        let told = server.ask(Method::POST, "/ojs/v1/jobs", body, headers).await;
        assert_eq!(told.status, status, "{name}: {value}: {}", told.body);
        if status == 403 {
            assert_problem(&told, 403, "forbidden");
        }
    }
    let mut headers = header("accept-language", "en");
    headers.extend(header("host", "rebound.example"));
    let told = server.ask(Method::GET, "/ojs/v1/jobs", None, headers).await;
    assert_problem(&told, 403, "forbidden");
    // `Sec-Fetch-Site` takes precedence: a proxy may have changed the request's host.
    let mut headers = header("origin", "https://jobs.example");
    headers.extend(header("sec-fetch-site", "same-origin"));
    assert_eq!(server.ask(Method::POST, "/ojs/v1/jobs", body, headers).await.status, 201);
    let foreign = header("origin", "http://evil.example");
    assert_eq!(server.ask(Method::GET, "/ojs/v1/jobs", None, foreign).await.status, 200, "changes nothing");
    assert_eq!(server.stored().await, 4);
    server.stop().await;
}

#[test]
fn strangers_are_kept_out_without_a_token() {
    let open = Config::default();
    let closed = Config { tokens: Tokens::new(["t"]), ..Config::default() };
    let (near, far) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
    assert!(check_listen(near, &open).is_ok() && check_listen(far, &closed).is_ok());
    assert!(check_listen(far, &open).unwrap_err().to_string().contains("token"));
    assert!(check_listen(far, &Config { tokens: Tokens::new([" "]), ..Config::default() }).is_err());
}

#[tokio::test]
async fn reset_is_not_there_unless_allowed() {
    let server = Server::with(Config::default()).await;
    server.create(&json!({ "type": "a.b", "args": [] })).await;
    assert_problem(&server.post("/ojs/v1/admin/reset", &json!({})).await, 404, "not_found");
    assert_eq!(server.stored().await, 1);
    server.stop().await;
}

/// The cause of a store's failure is for its owner: in the log when others use the server, in the answer when
/// the owner is the one asking.
#[tokio::test]
async fn what_failed_is_told_to_who_owns_the_store_alone() {
    for tells_causes in [false, true] {
        let store = Arc::new(Faulty::new(Arc::new(Memory::default())));
        let config = Config { tells_causes, ..Config::default() };
        let server = Server::on_store(Arc::clone(&store) as Arc<dyn Backend>, config).await;
        store.script_commits([Fault::Before; 100]);
        let told = server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [] })).await;
        assert_eq!((told.status, told.code()), (503, "unavailable"));
        let message = told.body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("the store cannot be reached or cannot write now"), "{message}");
        assert_eq!(message.contains("a fault was injected"), tells_causes, "{message}");
        server.stop().await;
    }
}
