//! Slow clients, too many of them, and shutdown: none of them holds the server up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_client::Method;
use semel_core::ident::JobId;
use semel_core::state::State;
use semel_server::auth::{Role, Token, Tokens, digest};
use semel_server::{Bounds, Config, Limits};
use semel_store::Backend;
use semel_store::decor::{Fault, Faulty};
use semel_store::memory::Memory;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{Server, header, job};

const SHORT: Duration = Duration::from_millis(100);

/// Sends `text` and reads until the server closes the connection.
async fn say(server: &Server, text: &str) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A reset connection has nothing more to read.
    drop(stream.read_to_string(&mut answer).await);
    answer
}

fn bounded(bounds: Bounds) -> Config {
    Config { allow_reset: true, bounds, ..Config::default() }
}

#[tokio::test]
async fn half_a_header_is_not_waited_for() {
    let limits = Limits { header_timeout: SHORT, ..Limits::default() };
    let server = Server::with_limits(Config::default(), limits).await;
    for text in ["", "GET /health HT", "GET /health HTTP/1.1\r\nhost: x\r\nx-slow: "] {
        let answer = say(&server, text).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    // A connection that was quick at first and then goes silent is closed too.
    let answer = say(&server, "GET /live HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

/// Without backpressure, the answers to a client that pipelines requests and reads nothing would pile up in
/// memory.
#[tokio::test]
async fn who_reads_nothing_is_held_back() {
    const SENT: usize = 300;
    let server = Server::with(Config::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let one = "GET /ojs/v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(one.repeat(SENT).as_bytes()).await.unwrap();
    // Each answer is about 0.4 MB; the sockets' buffers hold only a few of them.
    let (mut answered, mut same) = (0, 0);
    while same < 30 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let metrics = server.get_text("/metrics").await;
        let line = metrics.lines().find(|line| {
            line.starts_with("semel_http_responses_total")
                && line.contains("/openapi.json")
                && line.contains("2xx")
        });
        let now: usize = line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
        same = if now > 0 && now == answered { same + 1 } else { 0 };
        answered = now;
    }
    assert!(answered < SENT / 3, "{answered} of {SENT} were answered into memory");
    drop(stream);
    server.stop().await;
}

#[tokio::test]
async fn a_head_is_bounded() {
    let server = Server::with(Config::default()).await;
    let head = |bytes: usize| {
        let x = "x".repeat(bytes);
        format!("GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-long: {x}\r\n\r\n")
    };
    let answer = say(&server, &head(32 * 1024)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = say(&server, &head(100 * 1024)).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn half_a_body_is_answered() {
    let server = Server::with(bounded(Bounds { body_time: SHORT, ..Bounds::default() })).await;
    let answer = say(
        &server,
        "POST /ojs/v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{\"type\":",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
    assert_eq!(server.stored().await, 0);
    server.stop().await;
}

#[tokio::test]
async fn too_much_at_once_is_refused_at_once() {
    let server = Server::with(bounded(Bounds { requests: 0, ..Bounds::default() })).await;
    let told = server.get("/ojs/v1/jobs").await;
    assert_eq!((told.status, told.code()), (503, "unavailable"), "{}", told.body);
    assert_eq!(told.headers["retry-after"], "1");
    assert_eq!(server.get("/health").await.status, 200, "whoever watches the server still sees it");
    server.stop().await;

    let server =
        Server::with(bounded(Bounds { body_bytes: 10, body_bytes_free: 0, ..Bounds::default() })).await;
    let told = server.post("/ojs/v1/jobs", &json!({ "type": "a.b", "args": [] })).await;
    assert_eq!((told.status, told.code()), (503, "unavailable"));
    server.stop().await;

    let tokens = Tokens::only(vec![Token::new("w", digest("w"), vec![Role::Worker])]);
    let bounds = Bounds { requests_per_token: 0, ..Bounds::default() };
    let server = Server::with(Config { tokens, bounds, ..Config::default() }).await;
    let body = Some(r#"{"queues":["default"]}"#);
    let told =
        server.ask(Method::POST, "/ojs/v1/workers/fetch", body, header("authorization", "Bearer w")).await;
    assert_eq!((told.status, told.code()), (429, "rate_limited"), "{}", told.body);
    assert_eq!(told.headers["retry-after"], "1");
    server.stop().await;
}

/// Otherwise the server would have to keep every answer of a client that reads none.
#[tokio::test]
async fn an_answer_that_finds_no_room_is_refused_unless_it_tells_what_was_done() {
    let bounds = Bounds { answer_bytes: 10, answer_bytes_free: 1_024, ..Bounds::default() };
    let server = Server::with(bounded(bounds)).await;
    let made = server.create(&job(&json!("x".repeat(4_096)), &json!({}))).await;
    let id = JobId::parse(made.job_id(), "").unwrap();
    let told = server.get("/ojs/v1/jobs").await;
    assert_eq!((told.status, told.code()), (503, "unavailable"), "{}", told.body);
    assert_eq!(told.headers["retry-after"], "1");
    assert_eq!(server.get("/ojs/v1/jobs?state=completed").await.status, 200, "a small one");
    let told = server.post("/ojs/v1/workers/fetch", &json!({ "queues": ["default"] })).await;
    assert_eq!((told.status, told.code()), (503, "unavailable"), "{}", told.body);
    // A job that was not handed out is given back, at no cost to its attempts.
    let head = loop {
        let head = server.engine.heads(vec![id]).await.unwrap().remove(0);
        if head.state == State::Available {
            break head;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(head.attempt, 0);
    let bulk = json!({ "jobs": [{ "type": "a.b", "args": [], "options": { "unique": { "key": "k" } } }] });
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &bulk).await.status, 200);
    server.stop().await;
}

/// The outcomes of a batch are always reported; without room, existing jobs appear by their heads only.
#[tokio::test]
async fn a_bulk_that_finds_no_room_tells_heads() {
    let bounds = Bounds { answer_bytes: 1_024, answer_bytes_free: 1_024, ..Bounds::default() };
    let server = Server::with(bounded(bounds)).await;
    let unique = json!({ "unique": { "key": "k", "on_conflict": "ignore" } });
    let first = job(&json!("x".repeat(8_192)), &unique);
    let id = server.create(&first).await.job_id().to_owned();
    let bulk = json!({ "jobs": [job(&json!(1), &unique)] });
    let told = server.post("/ojs/v1/jobs/bulk", &bulk).await;
    let item = &told.body["results"][0]["job"];
    assert_eq!((told.status, &item["id"], item.get("args")), (200, &json!(id), None), "{}", told.body);
    server.stop().await;
}

#[tokio::test]
async fn who_waits_takes_no_place() {
    let server = Server::with(bounded(Bounds { requests: 2, polls: 1, ..Bounds::default() })).await;
    let fetch = json!({ "queues": ["default"], "wait_ms": 30_000 });
    let mut waiting = Box::pin(server.post("/ojs/v1/workers/fetch", &fetch));
    // Ask until the poll is waiting: the same `select!` sends it.
    loop {
        tokio::select! {
            told = &mut waiting => panic!("nothing to fetch, and yet {}", told.body),
            text = server.get_text("/metrics") => if text.contains("semel_http_polls_waiting 1\n") { break },
        }
    }
    // The second fetch finds no room to wait, and is answered at once.
    let told = server.post("/ojs/v1/workers/fetch", &fetch).await;
    assert_eq!((told.status, &told.body["jobs"]), (200, &json!([])));
    // A new job ends the first fetch's wait.
    server.create(&json!({ "type": "a.b", "args": [] })).await;
    assert_eq!(waiting.await.body["jobs"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn the_end_is_told_to_who_waits() {
    let config = bounded(Bounds::default());
    let drain = config.drain.clone();
    let server = Server::with(config).await;
    assert_eq!(server.get("/ready").await.status, 200);
    let fetch = json!({ "queues": ["default"], "wait_ms": 30_000 });
    let (told, ()) = tokio::join!(server.post("/ojs/v1/workers/fetch", &fetch), async {
        while !server.get_text("/metrics").await.contains("semel_http_polls_waiting 1\n") {}
        drain.begin();
    });
    assert_eq!((told.status, &told.body["jobs"]), (200, &json!([])));
    assert_eq!(server.get("/ready").await.status, 503);
    assert_eq!(server.get("/live").await.status, 200);
    server.stop().await;
}

/// The server stops reading its requests, and does not keep the answers held back for it for ever.
#[tokio::test]
async fn who_goes_on_reading_nothing_is_let_go() {
    let limits = Limits { write_timeout: SHORT, ..Limits::default() };
    let server = Server::with_limits(Config::default(), limits).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let many = "GET /ojs/v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(300);
    let closed = async { while stream.write_all(many.as_bytes()).await.is_ok() {} };
    assert!(tokio::time::timeout(Duration::from_secs(20), closed).await.is_ok(), "it is still connected");
    server.stop().await;
}

/// A client that sends headers and body apart, as many do, keeps its connection even if the handler ignores
/// the body.
#[tokio::test]
async fn a_body_that_nobody_reads_costs_no_connection() {
    const ID: &str = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
    let server = Server::with(Config::default()).await;
    let head = |path: &str, more: &str| format!("POST {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n");
    for (path, status) in [
        (format!("/ojs/v1/dead-letter/{ID}/retry"), "404"),
        (format!("/ojs/v1/jobs/{ID}/activate"), "404"),
        ("/ojs/v1/cron/none/trigger".to_owned(), "404"),
        ("/ojs/v1/queues/a/pause".to_owned(), "200"),
        ("/nothing/here".to_owned(), "404"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let mut left = 3;
        while left > 0 {
            let began = Instant::now();
            stream.write_all(head(&path, "content-length: 2\r\n").as_bytes()).await.unwrap();
            // Long enough for an answer that does not wait for the body.
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(b"{}").await.unwrap();
            let told = one_answer(&mut stream).await;
            assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {told}");
            if told.contains("connection: close") && began.elapsed() >= Duration::from_secs(1) {
                // This machine was stalled for as long as the server waits for a body.
                stream = TcpStream::connect(server.address).await.unwrap();
                continue;
            }
            assert!(!told.contains("connection: close"), "{path}: {told}");
            left -= 1;
        }
    }
    // A chunked body that was requested and read is complete.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..2 {
        let more = "content-type: application/json\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n";
        let body = r#"{"type":"a.b","args":[]}"#;
        let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        stream.write_all((head("/ojs/v1/jobs", more) + &body).as_bytes()).await.unwrap();
        let mut told = one_head(&mut stream).await;
        if told.starts_with("HTTP/1.1 100") {
            told = one_head(&mut stream).await;
        }
        assert!(told.starts_with("HTTP/1.1 201") && !told.contains("connection: close"), "{told}");
        rest_of(&told, &mut stream).await;
    }
    // A body that never comes, comes only on request, or is too long, closes the connection.
    for more in [
        "content-length: 2\r\n",
        "content-length: 2\r\nexpect: 100-continue\r\n",
        &format!("content-length: 100000\r\n\r\n{}", "x".repeat(100_000)),
    ] {
        let told = say(&server, &head(&format!("/ojs/v1/jobs/{ID}/activate"), more)).await;
        assert!(told.starts_with("HTTP/1.1 404") && told.contains("connection: close"), "{told}");
    }
    server.stop().await;
}

/// Reads exactly one answer, and no byte more.
async fn one_answer(stream: &mut TcpStream) -> String {
    let head = one_head(stream).await;
    let body = rest_of(&head, stream).await;
    head + &body
}

async fn one_head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(text).unwrap()
}

async fn rest_of(head: &str, stream: &mut TcpStream) -> String {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    String::from_utf8(body).unwrap()
}

/// Monitoring sees that nothing can be enqueued, although reads work, and sees the recovery.
#[tokio::test]
async fn a_store_that_takes_no_writes_is_not_well() {
    let store = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let server = Server::on_store(Arc::clone(&store) as Arc<dyn Backend>, Config::default()).await;
    for (fault, health, ready) in [(Fault::Before, 503, 503), (Fault::None, 200, 200)] {
        // The last result of the health check is reused for a moment.
        tokio::time::sleep(Duration::from_millis(300)).await;
        store.script_commits([fault; 100]);
        let told = server.get("/health").await;
        assert_eq!(told.status, health, "{fault:?}");
        let reason = told.body["backend"]["reason"].as_str();
        assert_eq!(reason.is_some_and(|reason| reason.contains("a fault was injected")), health == 503);
        assert_eq!(server.get("/ready").await.status, ready, "{fault:?}");
        let well = format!("\nsemel_store_well {}\n", u8::from(health == 200));
        assert!(server.get_text("/metrics").await.contains(&well), "{fault:?}");
        assert_eq!(server.get("/live").await.status, 200);
        assert_eq!(server.get("/ojs/v1/jobs").await.status, 200);
    }
    server.stop().await;
}

/// The cause may name machines and files.
#[tokio::test]
async fn what_ails_a_store_is_told_to_those_who_may_do_everything() {
    let bound = Token { tenant: Some("acme".to_owned()), ..Token::all("bound", "bound") };
    let metrics = Token::new("metrics", digest("metrics"), vec![Role::Metrics]);
    let tokens = Tokens::only(vec![Token::all("all", "all"), bound, metrics]);
    let store = Arc::new(Faulty::new(Arc::new(Memory::default())));
    store.script_commits([Fault::Before; 100]);
    let config = Config { tokens, ..Config::default() };
    let server = Server::on_store(Arc::clone(&store) as Arc<dyn Backend>, config).await;
    for (bearer, is_told) in
        [("Bearer all", true), ("Bearer bound", false), ("Bearer metrics", false), ("Bearer none", false)]
    {
        let told = server.ask(Method::GET, "/health", None, header("authorization", bearer)).await;
        assert_eq!(told.status, 503, "{bearer}");
        assert_eq!(told.body["backend"]["reason"].is_string(), is_told, "{bearer}");
    }
    assert!(server.get("/health").await.body["backend"]["reason"].is_null());
    server.stop().await;
}
