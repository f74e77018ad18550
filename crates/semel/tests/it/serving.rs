//! The server inside the program: its deliveries, and its shutdown with clients still connected.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use axum::routing::{any, post};
use futures_util::FutureExt as _;
use semel::{Error, Semel, Worker};
use semel_client::Client;
use semel_testkit::TempDir;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tower_service::Service as _;

use crate::harness::{Add, add, memory, soon};

/// The URL of a file that only this test uses.
fn file(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("jobs.db").display())
}

/// Reads until `word` has arrived.
async fn read_until(stream: &mut TcpStream, word: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(word) {
        let mut piece = [0; 4_096];
        let count = soon(stream.read(&mut piece)).await.unwrap();
        assert!(count > 0, "the end, without {word}: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..count]);
    }
}

/// A client that follows events, as the dashboard does.
async fn follower(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /ojs/v1/events/stream HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, "the stream begins").await;
    stream
}

const SUBSCRIPTIONS: &str = "/ojs/v1/webhooks/subscriptions";

/// A webhook subscriber on this machine: its address, and what it receives.
async fn subscriber() -> (String, mpsc::UnboundedReceiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (tell, told) = mpsc::unbounded_channel();
    let hook = move |body: String| async move { tell.send(serde_json::from_str(&body).unwrap()).unwrap() };
    let app = Router::new().route("/hook", post(hook));
    tokio::spawn(semel_server::serve(listener, app, semel_server::Limits::default(), std::future::pending()));
    (url, told)
}

fn subscription(url: &str) -> String {
    json!({ "url": url, "events": ["job.completed"] }).to_string()
}

/// Runs a job, and waits until the subscriber is told of its end.
async fn is_told_of_a_job(semel: &Semel, told: &mut mpsc::UnboundedReceiver<Value>) {
    let working = Worker::new(semel).handle(add).start().unwrap();
    let job = semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    let event = soon(told.recv()).await.unwrap();
    assert_eq!(event["event_type"], "job.completed", "{event}");
    assert!(event["data"].to_string().contains(&job.id().unwrap().to_string()), "{event}");
    soon(working.stop()).await;
}

#[tokio::test]
async fn who_subscribes_at_the_programs_server_is_told_of_what_happens() {
    let (hook, mut told) = subscriber().await;
    let semel = Semel::open("memory:").webhooks_allow_private().await.unwrap();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let client = Client::new(&admin.url()).unwrap();
    let body = Some(subscription(&hook).into());
    let made = client.request(Method::POST, SUBSCRIPTIONS, body, HeaderMap::new()).await.unwrap();
    assert_eq!(made.status, 201);
    is_told_of_a_job(&semel, &mut told).await;
    // The subscription belongs to the store, not to that server.
    soon(admin.stop()).await.unwrap();
    is_told_of_a_job(&semel, &mut told).await;
    soon(semel.close()).await.unwrap();
}

#[tokio::test]
async fn who_subscribes_at_mounted_routes_is_told_of_what_happens() {
    let (hook, mut told) = subscriber().await;
    let semel = Semel::open("memory:").webhooks_allow_private().await.unwrap();
    let mut router = semel.router().unwrap();
    let mut subscribe = async |body: String| {
        let request = Request::post(SUBSCRIPTIONS).header("content-type", "application/json");
        router.call(request.body(Body::from(body)).unwrap()).await.unwrap().status().as_u16()
    };
    assert_eq!(subscribe(subscription(&hook)).await, 201);
    is_told_of_a_job(&semel, &mut told).await;
    soon(semel.close()).await.unwrap();
}

/// Otherwise anyone who may call the program could make it connect inside its own network.
#[tokio::test]
async fn webhooks_go_to_no_private_address_unless_the_program_says_so() {
    let semel = memory().await;
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let client = Client::new(&admin.url()).unwrap();
    let body = Some(subscription("http://127.0.0.1:9/hook").into());
    let refused = client.request(Method::POST, SUBSCRIPTIONS, body, HeaderMap::new()).await.unwrap();
    assert_eq!(refused.status, 400);
    admin.stop().await.unwrap();
    semel.close().await.unwrap();
}

#[tokio::test]
async fn who_follows_events_is_told_of_the_servers_end_and_does_not_hold_it_up() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let mut follower = follower(admin.address()).await;
    soon(admin.stop()).await.unwrap();
    read_until(&mut follower, "shutting down").await;
    soon(semel.close()).await.unwrap();
    Semel::open(&file(&dir)).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_queue_that_is_closed_ends_its_servers_and_lets_go_of_the_file() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let admin = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let mut follower = follower(admin.address()).await;
    soon(semel.close()).await.unwrap();
    let again = Semel::open(&file(&dir)).await.unwrap();
    read_until(&mut follower, "shutting down").await;
    soon(admin.stop()).await.unwrap();
    assert!(matches!(semel.serve_admin("127.0.0.1:0").await, Err(Error::Closed)));
    again.close().await.unwrap();
}

/// As when a time limit for closing ends before a webhook is delivered.
#[tokio::test]
async fn a_closing_that_nobody_waits_for_any_more_goes_on() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).webhooks_allow_private().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = format!("http://{}/hook", listener.local_addr().unwrap());
    let request = Request::post(SUBSCRIPTIONS).header("content-type", "application/json");
    let request = request.body(Body::from(subscription(&hook))).unwrap();
    let made = semel.router().unwrap().call(request).await.unwrap();
    assert_eq!(made.status(), 201);
    let working = Worker::new(&semel).handle(add).start().unwrap();
    semel.enqueue(Add { a: 1, b: 2 }).await.unwrap();
    // The delivery is under way, and not answered.
    let (mut delivery, _) = soon(listener.accept()).await.unwrap();
    read_until(&mut delivery, "job.completed").await;
    soon(working.stop()).await;
    assert!(semel.close().now_or_never().is_none());
    assert!(matches!(semel.close().await, Err(Error::Closed)));
    delivery.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let again = soon(async {
        loop {
            match Semel::open(&file(&dir)).await {
                Ok(again) => return again,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    again.await.close().await.unwrap();
}

#[tokio::test]
async fn what_is_mounted_admits_nothing_once_the_queue_is_closed() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let mut router = semel.router().unwrap();
    let mut post = async || {
        let request = Request::post("/ojs/v1/jobs").header("content-type", "application/json");
        let request = request.body(Body::from(r#"{"type": "a.b", "args": []}"#)).unwrap();
        router.call(request).await.unwrap().status().as_u16()
    };
    assert_eq!(post().await, 201);
    soon(semel.close()).await.unwrap();
    assert_eq!(post().await, 503);
    // The router still exists, but the file is free.
    Semel::open(&file(&dir)).await.unwrap().close().await.unwrap();
    assert_eq!(post().await, 503);
}

/// Sends a request to the program's own router.
async fn ask(app: &mut Router, request: Request<Body>) -> (u16, HeaderMap, Value) {
    let (parts, body) = app.call(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    (parts.status.as_u16(), parts.headers, serde_json::from_slice(&body).unwrap_or_default())
}

/// A way in which a program mounts our routes.
type Mount = fn(Router) -> Router;

const PLAIN: (&str, &str) = ("accept", "application/json");

fn request(
    prefix: &str,
    method: Method,
    path: &str,
    header: (&str, &str),
    body: &'static str,
) -> Request<Body> {
    let request = Request::builder().method(method).uri(format!("{prefix}{path}"));
    let request = request.header("content-type", "application/json").header(header.0, header.1);
    request.body(Body::from(body)).unwrap()
}

/// Asserts that the audit, the check of a request's origin, and server-wide endpoints work as at the root.
async fn are_those_of_the_table(app: &mut Router, prefix: &str) {
    let request = |method, path, header, body| request(prefix, method, path, header, body);
    let paused = request(Method::POST, "/ojs/v1/queues/default/pause", PLAIN, "");
    assert_eq!(ask(app, paused).await.0, 200, "{prefix}");
    let (_, _, told) = ask(app, request(Method::GET, "/ojs/v1/admin/audit", PLAIN, "")).await;
    assert_eq!(told["entries"][0]["action"], "pauseQueue", "{prefix}: {told}");
    let task = r#"{"type":"a.b","args":[]}"#;
    let foreign = request(Method::POST, "/v1/tasks", ("sec-fetch-site", "cross-site"), task);
    assert_eq!(ask(app, foreign).await.0, 403, "{prefix}");
    let of_a_tenant = request(Method::GET, "/metrics", ("x-ojs-tenant", "acme"), "");
    assert_eq!(ask(app, of_a_tenant).await.0, 404, "{prefix}");
}

/// Nested, nested twice or as a service: the endpoints keep their table entries, with audit and checks.
#[tokio::test]
async fn what_is_mounted_below_a_prefix_is_what_it_is_at_the_root() {
    let mounts: [(&str, Mount); 5] = [
        ("/jobs", |router| Router::new().nest("/jobs", router)),
        ("/jobs", |router| Router::new().nest("/jobs/", router)),
        ("/jobs", |router| Router::new().nest_service("/jobs", router)),
        ("/own/jobs", |router| Router::new().nest("/own", Router::new().nest("/jobs", router))),
        ("", |router| Router::new().merge(router)),
    ];
    for (prefix, mount) in mounts {
        let semel = memory().await;
        let mut app = mount(semel.router().unwrap());
        are_those_of_the_table(&mut app, prefix).await;
        let made = request(prefix, Method::POST, "/ojs/v1/jobs", PLAIN, r#"{"type":"a.b","args":[]}"#);
        let (status, headers, told) = ask(&mut app, made).await;
        let place = format!("{prefix}/ojs/v1/jobs/{}", told["job"]["id"].as_str().unwrap());
        assert_eq!((status, headers["location"].to_str().unwrap()), (201, place.as_str()));
        let there = Request::get(place).body(Body::empty()).unwrap();
        assert_eq!(ask(&mut app, there).await.0, 200, "{prefix}");
        semel.close().await.unwrap();
    }
}

/// The handler's own route then precedes our path, and a path that is not found in the table would not be
/// checked.
#[tokio::test]
async fn what_a_handler_of_the_program_asks_is_what_it_is_at_the_root() {
    let semel = memory().await;
    let routes = semel.router().unwrap();
    let handler = move |request: Request<Body>| {
        let mut routes = routes.clone();
        async move { routes.call(request).await }
    };
    let paths = ["/ojs/v1/queues/default/pause", "/ojs/v1/admin/audit", "/v1/tasks", "/metrics"];
    let own = paths.into_iter().fold(Router::<()>::new(), |own, path| own.route(path, any(handler.clone())));
    let mut app = Router::new().merge(own.clone()).nest("/own", own);
    for prefix in ["", "/own"] {
        are_those_of_the_table(&mut app, prefix).await;
    }
    semel.close().await.unwrap();
}

/// Otherwise tools would talk to whatever listens on that port next.
#[tokio::test]
async fn nobody_is_sent_to_a_server_that_has_stopped() {
    let dir = TempDir::new();
    let semel = Semel::open(&file(&dir)).await.unwrap();
    let met = async || Semel::open(&file(&dir)).await.unwrap_err().to_string();
    let first = semel.serve_admin("127.0.0.1:0").await.unwrap();
    let second = semel.serve_admin("127.0.0.1:0").await.unwrap();
    assert!(met().await.contains(&second.url()), "{}", met().await);
    second.stop().await.unwrap();
    assert!(met().await.contains(&first.url()), "{}", met().await);
    drop(first);
    let left = met().await;
    assert!(left.contains(&format!("(process {})", std::process::id())), "{left}");
    semel.close().await.unwrap();
}
