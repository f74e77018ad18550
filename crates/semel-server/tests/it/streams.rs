//! The log as a stream: what is sent, where it resumes, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_client::{HeaderMap, Method};
use semel_server::auth::{Role, Token, Tokens};
use semel_server::{Config, Limits};
use semel_store::backend::BoxFuture;
use semel_store::clock::{Clock as _, SystemClock};
use semel_store::layer::Layer;
use semel_store::memory::Memory;
use semel_store::{Backend, LogPage, StoreError};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};

use crate::harness::{Server, header, job};

/// A stream as a client reads it, including its chunks.
struct Stream(BufReader<TcpStream>);

#[derive(Debug, Default)]
struct Message {
    id: String,
    event: String,
    data: Value,
    comment: String,
}

impl Stream {
    async fn open(server: &Server, path: &str, last: Option<&str>) -> Self {
        let last = last.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        Self::open_with(server, path, &last).await
    }

    /// Opens a stream with these header lines.
    async fn open_with(server: &Server, path: &str, headers: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // A small buffer, so that a test needs little to outrun a reader.
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut socket = socket.connect(server.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Self(BufReader::new(socket));
        let head = stream.head().await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        assert!(head.contains("ojs-version: 1.0") && head.contains("x-request-id: "), "{head}");
        assert_eq!(stream.next().await.unwrap().comment, "the stream begins");
        stream
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(Duration::from_secs(60), self.0.read_line(&mut line));
        if read.await.expect("the stream says something").unwrap_or(0) == 0 { None } else { Some(line) }
    }

    async fn head(&mut self) -> String {
        let mut head = String::new();
        while let Some(line) = self.line().await {
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        head
    }

    /// The next message, an event or a comment; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Message> {
        let mut message = Message::default();
        loop {
            let line = self.line().await?;
            let line = line.trim_end_matches(['\r', '\n']);
            // Chunk lengths are hexadecimal numbers; no line of the stream is one.
            if line == "0" {
                return None;
            } else if let Some(text) = line.strip_prefix("data: ") {
                message.data = serde_json::from_str(text).unwrap();
            } else if let Some(text) = line.strip_prefix("id: ") {
                message.id = text.to_owned();
            } else if let Some(text) = line.strip_prefix("event: ") {
                message.event = text.to_owned();
            } else if let Some(text) = line.strip_prefix(": ") {
                message.comment = text.to_owned();
            } else if line.is_empty() && !(message.event.is_empty() && message.comment.is_empty()) {
                return Some(message);
            }
        }
    }

    /// Reads the remaining events, to the end of the stream.
    async fn rest(&mut self) -> Vec<String> {
        let rest = async {
            let mut events = Vec::new();
            while let Some(message) = self.next().await {
                events.extend(Some(message.event).filter(|event| !event.is_empty()));
            }
            events
        };
        // A stream that stays open sends a heartbeat again and again, so no single line is late.
        tokio::time::timeout(Duration::from_secs(60), rest).await.expect("the stream ends")
    }

    async fn event(&mut self) -> Message {
        loop {
            let message = self.next().await.expect("the stream goes on");
            if !message.event.is_empty() {
                return message;
            }
        }
    }
}

/// A store whose log is visible only up to a sequence number, as PostgreSQL's is while another client's
/// transaction is open.
struct HeldUp {
    inner: Memory,
    shown: AtomicU64,
}

impl Layer for HeldUp {
    type Inner = Memory;

    fn inner(&self) -> &Memory {
        &self.inner
    }

    fn events(&self, cursor: u64, limit: u32) -> BoxFuture<'_, Result<LogPage, StoreError>> {
        Box::pin(async move {
            let mut page = self.inner.events(cursor, limit).await?;
            let shown = self.shown.load(Ordering::SeqCst);
            page.waits = page.newest > shown;
            page.newest = page.newest.min(shown);
            page.events.retain(|recorded| recorded.cursor <= shown);
            Ok(page)
        })
    }
}

async fn create(server: &Server, queue: &str) -> String {
    server.create(&job(&json!(1), &json!({ "queue": queue }))).await.job_id().to_owned()
}

#[tokio::test]
async fn what_happens_is_told_at_once_and_the_stream_goes_on_where_it_was_left() {
    let server = Server::start().await;
    create(&server, "before").await;
    let mut stream = Stream::open(&server, "/ojs/v1/events/stream", None).await;
    let first = create(&server, "a").await;
    let told = stream.event().await;
    assert_eq!((told.event.as_str(), &told.data["subject"]), ("job.enqueued", &json!(first)));
    assert_eq!((&told.data["id"], &told.data["specversion"]), (&json!(told.id), &json!("1.0")));
    drop(stream);
    // While no client is listening.
    let second = create(&server, "b").await;
    server.take("b", "w").await;
    let mut stream = Stream::open(&server, "/ojs/v1/events/stream", Some(&told.id)).await;
    let (second_told, started) = (stream.event().await, stream.event().await);
    assert_eq!((&second_told.data["subject"], started.event.as_str()), (&json!(second), "job.started"));
    // The same position, for clients that poll, and as a parameter for those that cannot set the header.
    let polled = server.get(&format!("/ojs/v1/events?after={}", told.id)).await;
    assert_eq!(polled.body["events"][0]["id"], second_told.id);
    let mut again = Stream::open(&server, &format!("/ojs/v1/events/stream?after={}", told.id), None).await;
    assert_eq!(again.event().await.id, second_told.id);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_tells_of_one_job_one_queue_or_some_types() {
    let server = Server::start().await;
    let id = create(&server, "a").await;
    let paths = [
        format!("/ojs/v1/jobs/{id}/events"),
        format!("/ojs/v1/events/stream?channel=job:{id}"),
        "/ojs/v1/queues/a/events".to_owned(),
        "/ojs/v1/events/stream?channel=queue:a".to_owned(),
        "/ojs/v1/events/stream?types=job.cancelled&job_types=email.send&queues=a,z".to_owned(),
    ];
    let mut streams = Vec::new();
    for path in &paths {
        streams.push(Stream::open(&server, path, None).await);
    }
    let other = create(&server, "b").await;
    server.delete(&format!("/ojs/v1/jobs/{other}")).await;
    server.delete(&format!("/ojs/v1/jobs/{id}")).await;
    for (stream, path) in streams.iter_mut().zip(&paths) {
        let told = stream.event().await;
        assert_eq!((told.event.as_str(), &told.data["subject"]), ("job.cancelled", &json!(id)), "{path}");
    }
    for (path, status) in [
        ("/ojs/v1/jobs/01961111-aaaa-7bbb-8ccc-dddddddddddd/events", 404),
        ("/ojs/v1/queues/UPPER/events", 400),
        ("/ojs/v1/events/stream?channel=x", 400),
        ("/ojs/v1/events/stream?types=job.nonsense", 400),
        ("/ojs/v1/events/stream?after=x", 400),
    ] {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
    server.stop().await;
}

/// Open Job Spec: the stream closes when the job reaches a terminal state.
#[tokio::test]
async fn a_stream_of_one_job_ends_with_the_job() {
    let server = Server::start().await;
    let id = create(&server, "a").await;
    let path = format!("/ojs/v1/jobs/{id}/events");
    let mut stream = Stream::open(&server, &path, None).await;
    let mut narrow = Stream::open(&server, &format!("{path}?types=job.started"), None).await;
    let run = server.take("a", "w").await;
    let ack = json!({ "job_id": id, "lease": run["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    assert_eq!(stream.rest().await, ["job.started", "job.completed"]);
    assert_eq!(narrow.rest().await, ["job.started"], "the end is seen by who does not want to be told of it");
    // A later client gets only what is left.
    assert_eq!(Stream::open(&server, &path, None).await.rest().await, [""; 0]);
    let mut whole = Stream::open(&server, &format!("{path}?after=0"), None).await;
    let told = [whole.event().await, whole.event().await];
    assert_eq!(told.each_ref().map(|told| told.event.as_str()), ["job.enqueued", "job.started"]);
    assert_eq!(whole.rest().await, ["job.completed"]);
    let mut again = Stream::open(&server, &path, Some(&told[1].id)).await;
    assert_eq!(again.rest().await, ["job.completed"]);
    server.stop().await;
}

/// Otherwise a client that connects a moment too late would never see it.
#[tokio::test]
async fn the_end_of_a_job_is_told_though_the_log_shows_it_late() {
    let store = Arc::new(HeldUp { inner: Memory::default(), shown: AtomicU64::new(u64::MAX) });
    let server = Server::on_store(Arc::clone(&store) as Arc<dyn Backend>, Config::default()).await;
    let id = create(&server, "a").await;
    let path = format!("/ojs/v1/jobs/{id}/events");
    store.shown.store(server.engine.log_end().await.unwrap(), Ordering::SeqCst);
    let run = server.take("a", "w").await;
    let ack = json!({ "job_id": id, "lease": run["lease"] });
    assert_eq!(server.post("/ojs/v1/workers/ack", &ack).await.status, 200);
    let mut stream = Stream::open(&server, &path, None).await;
    // Sent once the log was read as far as it is visible.
    assert_eq!(stream.next().await.unwrap().comment, "heartbeat");
    store.shown.store(u64::MAX, Ordering::SeqCst);
    create(&server, "b").await;
    assert_eq!(stream.rest().await, ["job.started", "job.completed"]);
    // A client that has seen the end does not wait for other held-up events.
    store.shown.store(server.engine.log_end().await.unwrap(), Ordering::SeqCst);
    create(&server, "b").await;
    let mut whole = Stream::open(&server, &format!("{path}?after=0"), None).await;
    assert_eq!(whole.rest().await, ["job.enqueued", "job.started", "job.completed"]);
    server.stop().await;
}

#[tokio::test]
async fn a_stream_of_a_job_that_was_sent_back_goes_on() {
    let server = Server::start().await;
    let retry = json!({ "max_attempts": 1, "on_exhaustion": "dead_letter" });
    let made = server.create(&job(&json!(1), &json!({ "queue": "a", "retry": retry }))).await;
    let id = made.job_id();
    let run = server.take("a", "w").await;
    let error = json!({ "code": "x", "message": "y" });
    let nack = json!({ "job_id": id, "lease": run["lease"], "error": error });
    assert_eq!(server.post("/ojs/v1/workers/nack", &nack).await.status, 200);
    let path = format!("/ojs/v1/jobs/{id}/events?after=0");
    let first = ["job.enqueued", "job.started", "job.failed", "job.discarded"];
    assert_eq!(Stream::open(&server, &path, None).await.rest().await, first);
    assert_eq!(server.post(&format!("/ojs/v1/dead-letter/{id}/retry"), &json!({})).await.status, 200);
    let mut stream = Stream::open(&server, &path, None).await;
    for expected in [&first[..], &["job.available"]].concat() {
        assert_eq!(stream.event().await.event, expected);
    }
    server.delete(&format!("/ojs/v1/jobs/{id}")).await;
    assert_eq!(stream.rest().await, ["job.cancelled"]);
    server.stop().await;
}

#[tokio::test]
async fn a_silent_stream_shows_that_it_lives_and_moves_past_what_is_not_wanted() {
    let config = Config {
        allow_reset: true,
        stream_heartbeat: Duration::from_millis(50),
        streams_max: 1,
        ..Config::default()
    };
    let server = Server::with(config).await;
    let mut stream = Stream::open(&server, "/ojs/v1/events/stream?queues=wanted", None).await;
    let first = stream.next().await.unwrap();
    assert_eq!((first.comment.as_str(), first.event.as_str()), ("heartbeat", ""));
    create(&server, "other").await;
    let moved = loop {
        let message = stream.next().await.unwrap();
        if message.id != first.id {
            break message;
        }
    };
    assert_eq!(moved.event, "");
    let refused = server.get("/ojs/v1/events/stream").await;
    assert_eq!(
        (refused.status, refused.code()),
        (503, "unavailable"),
        "one stream is all this server allows"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_reader_who_would_miss_events_is_told_so() {
    let server = Server::start().await;
    create(&server, "a").await;
    let before = server.get("/ojs/v1/events").await.body["cursor"].as_str().unwrap().to_owned();
    let mut stream = Stream::open(&server, "/ojs/v1/events/stream", None).await;
    // More than fits into the socket; the server does not buffer it elsewhere.
    let burst: Vec<_> = (0..8_000).map(|at| job(&json!(at), &json!({}))).collect();
    assert_eq!(server.post("/ojs/v1/jobs/batch", &json!({ "jobs": burst })).await.status, 201);
    assert_eq!(stream.event().await.event, "job.enqueued");
    server.post_text("/ojs/v1/admin/reset", "").await;
    create(&server, "a").await;
    let mut read = 1;
    let gap = loop {
        let message = stream.event().await;
        if message.event == "gap" {
            break message;
        }
        read += 1;
    };
    assert!(read < 8_000, "he has missed some of {read}");
    assert_eq!((gap.event.as_str(), &gap.data["error"]["code"]), ("gap", &json!("cursor_gone")));
    assert!(gap.id.is_empty() && gap.data["error"]["details"]["oldest"].is_string());
    assert!(stream.next().await.is_none(), "the stream ends");
    for path in ["/ojs/v1/events", "/ojs/v1/events/stream"] {
        for cursor in [before.as_str(), "evt_999999999999999999"] {
            let gone = server.get(&format!("{path}?after={cursor}")).await;
            assert_eq!((gone.status, gone.code()), (410, "cursor_gone"), "{path} {cursor}");
        }
        let header = header("last-event-id", &before);
        if path.ends_with("stream") {
            assert_eq!(server.ask(Method::GET, path, None, header).await.status, 410);
        }
    }
    let rest = server.get("/ojs/v1/events?after=0").await;
    assert_eq!(rest.body["events"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn streams_end_with_the_server_and_do_not_hold_it() {
    let limits = Limits { drain: Duration::from_secs(60), ..Limits::default() };
    let config = Config::default();
    let drain = config.drain.clone();
    let server = Server::with_limits(config, limits).await;
    let mut stream = Stream::open(&server, "/ojs/v1/events/stream", None).await;
    drain.begin();
    let stopping = tokio::spawn(server.stop());
    assert!(stream.next().await.unwrap().comment.contains("shutting down"));
    assert!(stream.next().await.is_none());
    tokio::time::timeout(Duration::from_secs(60), stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_failure_and_a_duplicate_are_told_with_their_reasons() {
    let server = Server::start().await;
    let with =
        |strategy: &str| job(&json!(1), &json!({ "unique": { "keys": ["args"], "on_conflict": strategy } }));
    server.create(&with("reject")).await;
    assert_eq!(server.post("/ojs/v1/jobs", &with("reject")).await.status, 409);
    assert_eq!(server.post("/ojs/v1/jobs", &with("ignore")).await.status, 200);
    assert_eq!(server.post("/ojs/v1/jobs", &with("ignore")).await.status, 200);
    let mut stream =
        Stream::open(&server, "/ojs/v1/events/stream?types=job.deduplicated&after=0", None).await;
    let (one, other) = (stream.event().await.data["data"].clone(), stream.event().await.data["data"].clone());
    let said = |data: &Value| (data["reason"].as_str().unwrap().to_owned(), data["count"].as_u64().unwrap());
    assert_eq!([said(&one), said(&other)], [("existing".to_owned(), 2), ("rejected".to_owned(), 1)]);
    let run = server.take("default", "w").await;
    let failure = json!({ "job_id": run["id"], "error": { "code": "x", "message": "y" } });
    assert_eq!(server.post("/ojs/v1/workers/nack", &failure).await.status, 200);
    let log = server.get("/ojs/v1/events?types=job.failed,job.retrying,job.started").await;
    let types: Vec<_> =
        log.body["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(types, ["job.started", "job.failed", "job.retrying"]);
    assert!(log.body["events"][2]["data"]["retry_delay_ms"].as_u64().unwrap() > 0);
    let later = job(&json!(2), &json!({ "scheduled_at": "+PT1H" }));
    server.create(&later).await;
    let log = server.get("/ojs/v1/events?types=job.scheduled").await;
    assert_eq!(log.body["events"].as_array().unwrap().len(), 1);
    assert_eq!(
        server.ask(Method::GET, "/ojs/v1/events?types=queue.paused", None, HeaderMap::new()).await.body["events"],
        json!([])
    );
    server.stop().await;
}

#[tokio::test]
async fn a_stream_ends_with_the_token_it_was_opened_with() {
    let tokens = Tokens::only(vec![Token::all("old", "one"), Token::all("new", "two")]);
    let stream_heartbeat = Duration::from_millis(20);
    let server = Server::with(Config { tokens: tokens.clone(), stream_heartbeat, ..Config::default() }).await;
    let mut old = Stream::open_with(&server, "/ojs/v1/events/stream", "Authorization: Bearer one\r\n").await;
    let mut new = Stream::open_with(&server, "/ojs/v1/events/stream", "Authorization: Bearer two\r\n").await;
    assert_eq!(old.next().await.unwrap().comment, "heartbeat");
    // One token is removed; the other is reloaded unchanged.
    tokens.replace(vec![Token::all("new", "two")]);
    let body = job(&json!(1), &json!({})).to_string();
    let created =
        server.ask(Method::POST, "/ojs/v1/jobs", Some(&body), header("authorization", "Bearer two")).await;
    assert_eq!(created.status, 201);
    let mut said = Vec::new();
    while let Some(message) = old.next().await {
        assert_eq!(message.event, "", "it is told nothing more");
        said.push(message.comment);
    }
    assert!(said.last().unwrap().contains("token"), "{said:?}");
    assert_eq!(new.event().await.event, "job.enqueued");
    // A token with fewer rights than before also has to connect again.
    let roles = vec![Role::Worker];
    tokens.replace(vec![Token { roles, ..Token::all("new", "two") }]);
    while new.next().await.is_some() {}
    server.stop().await;
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires() {
    let tokens = Tokens::only(vec![Token::all("one", "one")]);
    let stream_heartbeat = Duration::from_millis(20);
    let server = Server::with(Config { tokens: tokens.clone(), stream_heartbeat, ..Config::default() }).await;
    let authorization = "Authorization: Bearer one\r\n";
    let mut stream = Stream::open_with(&server, "/ojs/v1/events/stream", authorization).await;
    // The token gets its expiry once the stream is open, so even on a slow machine it was accepted first.
    let end = SystemClock.now().saturating_add(Duration::from_millis(500));
    tokens.replace(vec![Token { expires_at: Some(end), ..Token::all("one", "one") }]);
    let mut said = Vec::new();
    while let Some(message) = stream.next().await {
        said.push(message.comment);
        assert!(SystemClock.now() < end.saturating_add(Duration::from_secs(60)), "it goes on");
    }
    assert!(SystemClock.now() >= end, "it ended too early: {said:?}");
    assert!(said.last().unwrap().contains("token"), "{said:?}");
    server.stop().await;
}
