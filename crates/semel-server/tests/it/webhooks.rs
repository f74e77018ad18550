//! Subscriptions, and which events are delivered to whom.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_client::{HeaderMap, HeaderValue, Method};
use semel_core::event::{Event, EventKind};
use semel_core::time::Timestamp;
use semel_core::webhook::{Subscription, Wish, signature};
use semel_engine::follow::Wanted;
use semel_engine::webhooks::Wording;
use semel_server::Config;
use semel_server::webhooks::{Courier, Rules};
use semel_store::clock::{Clock as _, ManualClock, SystemClock};
use semel_store::memory::Memory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::harness::{Server, Told, header, job};

pub(crate) const PATH: &str = "/ojs/v1/webhooks/subscriptions";
pub(crate) const SECRET: &str = "whk_test_secret_001";

/// In place of an answer: never answer.
pub(crate) const NEVER: &str = "never";

/// A request that a subscriber received.
#[derive(Debug)]
pub(crate) struct Got {
    head: String,
    pub(crate) body: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.head)).split_once(':').unwrap().1.trim()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A subscriber that gives these answers in order, and 200 from then on.
pub(crate) async fn subscriber(answers: &[&str]) -> (String, mpsc::UnboundedReceiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (tell, told) = mpsc::unbounded_channel();
    let answers: Arc<Mutex<Vec<String>>> =
        Arc::new(Mutex::new(answers.iter().rev().map(|answer| (*answer).to_owned()).collect()));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (tell, answers) = (tell.clone(), Arc::clone(&answers));
            tokio::spawn(async move {
                let mut read = Vec::new();
                let (head, length) = loop {
                    let mut buffer = [0; 4_096];
                    let count = socket.read(&mut buffer).await.unwrap_or(0);
                    if count == 0 {
                        return;
                    }
                    read.extend_from_slice(&buffer[..count]);
                    let text = String::from_utf8_lossy(&read).into_owned();
                    if let Some(end) = text.find("\r\n\r\n") {
                        let head = text[..end].to_owned();
                        let length = head.to_lowercase().lines().find_map(|line| {
                            line.strip_prefix("content-length:")?.trim().parse::<usize>().ok()
                        });
                        break (head, end + 4 + length.unwrap_or(0));
                    }
                };
                while read.len() < length {
                    let mut buffer = [0; 4_096];
                    let count = socket.read(&mut buffer).await.unwrap_or(0);
                    read.extend_from_slice(&buffer[..count]);
                }
                let body = String::from_utf8_lossy(&read[head.len() + 4..]).into_owned();
                let answer = answers.lock().unwrap().pop().unwrap_or_else(|| "200 OK".to_owned());
                let _ = tell.send(Got { head, body });
                if answer == NEVER {
                    std::future::pending::<()>().await;
                }
                // A 204 must not have a length; either way the connection closes after it.
                let length = if answer.starts_with("204") { "" } else { "content-length: 0\r\n" };
                let answer = format!("HTTP/1.1 {answer}\r\n{length}\r\n");
                drop(socket.write_all(answer.as_bytes()).await);
            });
        }
    });
    (url, told)
}

pub(crate) async fn next(told: &mut mpsc::UnboundedReceiver<Got>) -> Got {
    tokio::time::timeout(Duration::from_secs(60), told.recv()).await.expect("a delivery").unwrap()
}

async fn private() -> Server {
    let webhooks = Rules { allow_private: true };
    Server::with(Config { allow_reset: true, webhooks, ..Config::default() }).await
}

pub(crate) async fn subscribe(server: &Server, tenant: Option<&str>, body: &Value) -> Told {
    let mut headers = HeaderMap::new();
    if let Some(tenant) = tenant {
        headers.insert("x-ojs-tenant", HeaderValue::try_from(tenant).unwrap());
    }
    server.ask(Method::POST, PATH, Some(&body.to_string()), headers).await
}

#[tokio::test]
async fn a_subscription_is_made_shown_changed_and_deleted_and_its_secret_shown_once() {
    let server = Server::start().await;
    let body =
        json!({ "url": "https://example.com/x", "events": ["job.completed"], "metadata": { "team": "a" } });
    let made = subscribe(&server, None, &body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let subscription = &made.body["subscription"];
    let (id, secret) = (subscription["id"].as_str().unwrap(), subscription["secret"].as_str().unwrap());
    assert!(secret.len() > 60 && subscription["active"] == true, "{subscription}");
    let own = json!({ "url": "https://example.com/y", "events": ["*"], "secret": SECRET });
    assert_eq!(subscribe(&server, None, &own).await.body["subscription"]["secret"], SECRET);
    let one = format!("{PATH}/{id}");
    for path in [PATH, &one, "/ojs/v1/jobs", "/ojs/v1/events", "/ojs/v1/queues"] {
        let told = server.get(path).await;
        let text = told.body.to_string();
        assert!(told.status == 200 && !text.contains(secret) && !text.contains(SECRET), "{path}: {text}");
        assert!(!text.contains("semel."), "the server's own jobs are nobody's: {path}: {text}");
    }
    let page = server.get(&format!("{PATH}?limit=1")).await;
    assert_eq!(page.body["subscriptions"].as_array().unwrap().len(), 1);
    let cursor = page.body["pagination"]["next_cursor"].as_str().unwrap();
    let rest = server.get(&format!("{PATH}?limit=1&cursor={cursor}")).await;
    assert_eq!(
        (rest.body["subscriptions"].as_array().unwrap().len(), &rest.body["pagination"]["has_more"]),
        (1, &json!(false))
    );
    let patch = json!({ "events": ["job.failed", "job.*"], "active": false }).to_string();
    let changed = server.ask(Method::PATCH, &one, Some(&patch), HeaderMap::new()).await;
    let subscription = &changed.body["subscription"];
    assert_eq!(
        (changed.status, &subscription["active"], subscription["events"].as_array().unwrap().len()),
        (200, &json!(false), 2)
    );
    assert_eq!(
        (&subscription["url"], &subscription["secret"]),
        (&json!("https://example.com/x"), &Value::Null)
    );
    let rotated = server.post_text(&format!("{one}/rotate-secret"), "").await;
    let new = rotated.body["subscription"]["secret"].as_str().unwrap();
    assert!(new.len() > 60 && secret != new);
    for tenant in ["acme"] {
        let mut headers = HeaderMap::new();
        headers.insert("x-ojs-tenant", HeaderValue::try_from(tenant).unwrap());
        for (method, path) in
            [(Method::GET, one.clone()), (Method::DELETE, one.clone()), (Method::PATCH, one.clone())]
        {
            let body = (method == Method::PATCH).then_some("{}");
            assert_eq!(server.ask(method, &path, body, headers.clone()).await.status, 404);
        }
        assert_eq!(server.ask(Method::GET, PATH, None, headers).await.body["subscriptions"], json!([]));
    }
    assert_eq!(server.delete(&one).await.status, 200);
    for told in [server.delete(&one).await, server.get(&one).await] {
        assert_eq!((told.status, told.code()), (404, "not_found"));
    }
    server.stop().await;
}

#[tokio::test]
async fn an_url_that_is_not_public_is_refused() {
    let server = Server::start().await;
    for url in [
        "http://example.com",
        "https://127.0.0.1",
        "https://localhost:9",
        "https://x.localhost/",
        "https://[::1]/",
        "https://10.1.2.3",
        "https://169.254.169.254/latest",
        "https://[::ffff:127.0.0.1]",
        "https://192.168.0.1",
        "ftp://example.com",
        "https://u:p@example.com",
        "https://example.com/<id>",
        "nonsense",
    ] {
        let told = subscribe(&server, None, &json!({ "url": url, "events": ["*"] })).await;
        assert_eq!((told.status, told.code(), told.pointer()), (400, "invalid_request", "/url"), "{url}");
    }
    assert_eq!(server.get(PATH).await.body["subscriptions"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn what_happens_is_delivered_once_signed_and_only_what_was_asked_for() {
    let server = private().await;
    let courier = Courier::start(&server.engine, Rules { allow_private: true });
    server.create(&job(&json!("before"), &json!({ "queue": "q" }))).await;
    let (url, mut told) = subscriber(&[]).await;
    let body = json!({ "url": url, "events": ["job.enqueued", "job.completed"], "secret": SECRET, "filter": { "queues": ["q"] } });
    let made = subscribe(&server, None, &body).await;
    server.create(&job(&json!(0), &json!({ "queue": "other" }))).await;
    let id = server.create(&job(&json!(1), &json!({ "queue": "q" }))).await.job_id().to_owned();
    let got = next(&mut told).await;
    assert!(got.head.starts_with("POST /hook HTTP/1.1"), "{}", got.head);
    let said = got.json();
    assert_eq!((&said["event_type"], &said["data"]["subject"]), (&json!("job.enqueued"), &json!(id)));
    assert_eq!(said["subscription_id"], made.body["subscription"]["id"]);
    assert_eq!(got.header("content-type"), "application/json");
    assert_eq!(got.header("x-ojs-event-type"), "job.enqueued");
    assert_eq!(got.header("x-ojs-delivery-id"), said["delivery_id"].as_str().unwrap());
    let timestamp: i64 = got.header("x-ojs-timestamp").parse().unwrap();
    assert_eq!(said["timestamp"], timestamp);
    assert_eq!(got.header("x-ojs-signature"), signature(SECRET, timestamp, got.body.as_bytes()));
    let before = server.engine.store().secret();
    assert!(!got.body.contains("before") && before != [0; 16]);
    // A second courier on the same store does not deliver again.
    let second = Courier::start(&server.engine, Rules { allow_private: true });
    let run = server.take("q", "w").await;
    assert_eq!(run["args"][0], "before");
    let run = server.take("q", "w").await;
    server.post("/ojs/v1/workers/ack", &json!({ "job_id": run["id"] })).await;
    let got = next(&mut told).await;
    assert_eq!(
        (got.json()["event_type"].as_str(), &got.json()["data"]["subject"]),
        (Some("job.completed"), &json!(id))
    );
    courier.stop().await;
    second.stop().await;
    assert!(told.try_recv().is_err(), "nothing twice");
    server.stop().await;
}

#[tokio::test]
async fn a_redirect_is_a_failure() {
    let server = private().await;
    let courier = Courier::start(&server.engine, Rules { allow_private: true });
    let (elsewhere, mut followed) = subscriber(&[]).await;
    let redirect = format!("302 Found\r\nlocation: {elsewhere}");
    let (redirecting, mut redirected) = subscriber(&[&redirect]).await;
    subscribe(&server, None, &json!({ "url": redirecting, "events": ["job.enqueued"], "secret": SECRET }))
        .await;
    server.create(&job(&json!(1), &json!({}))).await;
    next(&mut redirected).await;
    // Only the delivery's outcome shows that the answer was read.
    let own = server.engine.webhooks_tenant();
    let kinds = Some(vec![EventKind::Failed]);
    let mut follow = own.follow(0, Wanted { kinds, ..Wanted::default() });
    let refused = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            for failed in follow.next(1, Duration::from_secs(60)).await.unwrap().events {
                let delivery = own.job(failed.event.job).await.unwrap().unwrap();
                let mut failures = delivery.failures.0.iter();
                if failures.any(|failure| failure.message.contains("redirects are not followed")) {
                    return;
                }
            }
        }
    });
    refused.await.expect("a delivery that fails because it was redirected");
    courier.stop().await;
    assert!(followed.try_recv().is_err(), "the redirect was followed");
    server.stop().await;
}

#[tokio::test]
async fn an_address_is_checked_when_it_is_delivered_to() {
    // Subscribed while private addresses were allowed; delivered by a courier that may not reach them.
    let server = private().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("https://localhost:{}/hook", listener.local_addr().unwrap().port());
    subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    server.create(&job(&json!(1), &json!({}))).await;
    let courier = Courier::start(&server.engine, Rules::default());
    let own = server.engine.webhooks_tenant();
    let failed = tokio::time::timeout(Duration::from_secs(60), async {
        let wanted = Wanted { kinds: Some(vec![EventKind::Failed]), ..Wanted::default() };
        own.follow(0, wanted).next(1, Duration::from_secs(60)).await.unwrap()
    });
    let failed = failed.await.unwrap().events;
    let delivery = own.job(failed[0].event.job).await.unwrap().unwrap();
    let message = &delivery.failures.0[0].message;
    assert!(message.contains("loopback") && message.contains("public"), "{message}");
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nobody was spoken to");
    courier.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_is_told_of_its_own_jobs_by_its_own_ids() {
    let server = private().await;
    let courier = Courier::start(&server.engine, Rules { allow_private: true });
    let (url, mut told) = subscriber(&[]).await;
    let body = json!({ "url": url, "events": ["*"], "secret": SECRET });
    assert_eq!(subscribe(&server, Some("acme"), &body).await.status, 201);
    server.create(&job(&json!("not theirs"), &json!({}))).await;
    let mut headers = HeaderMap::new();
    headers.insert("x-ojs-tenant", HeaderValue::from_static("acme"));
    let theirs = job(&json!(1), &json!({ "queue": "q" })).to_string();
    let theirs = server.ask(Method::POST, "/ojs/v1/jobs", Some(&theirs), headers).await;
    let got = next(&mut told).await.json();
    assert_eq!(
        (&got["data"]["subject"], &got["data"]["data"]["queue"]),
        (&json!(theirs.job_id()), &json!("q"))
    );
    courier.stop().await;
    assert!(told.try_recv().is_err());
    server.stop().await;
}

/// An answer without a body, whose connection closes at the same moment, is still an answer.
#[tokio::test]
async fn a_subscriber_may_answer_204_and_hang_up() {
    let server = private().await;
    let courier = Courier::start(&server.engine, Rules { allow_private: true });
    let (url, mut told) = subscriber(&["204 No Content", "204 No Content\r\nconnection: close"]).await;
    subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    let own = server.engine.webhooks_tenant();
    for number in 0..2 {
        server.create(&job(&json!(number), &json!({}))).await;
        next(&mut told).await;
    }
    // Both have completed: neither is retried.
    let kinds = Some(vec![EventKind::Completed, EventKind::Failed]);
    let mut follow = own.follow(0, Wanted { kinds, ..Wanted::default() });
    let mut settled = Vec::new();
    while settled.len() < 2 {
        let more = follow.next(2, Duration::from_secs(30)).await.unwrap().events;
        assert!(!more.is_empty(), "a delivery is not settled");
        settled.extend(more.into_iter().map(|told| told.event.kind));
    }
    assert_eq!(settled, [EventKind::Completed; 2]);
    courier.stop().await;
    server.stop().await;
}

/// A subscriber that does not answer has more deliveries waiting than are ever under way; all others are
/// still delivered.
#[tokio::test]
async fn a_subscriber_who_does_not_answer_keeps_nobody_waiting() {
    const EVENTS: usize = 80;
    let server = private().await;
    let (deaf, mut begun) = subscriber(&[NEVER; EVENTS]).await;
    let (url, mut told) = subscriber(&[]).await;
    for url in [deaf, url] {
        subscribe(&server, None, &json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET })).await;
    }
    let jobs = json!({ "jobs": vec![json!({ "type": "a.b", "args": [] }); EVENTS] });
    assert_eq!(server.post("/ojs/v1/jobs/bulk", &jobs).await.status, 200);
    let started = std::time::Instant::now();
    let courier = Courier::start(&server.engine, Rules { allow_private: true });
    let all = tokio::time::timeout(Duration::from_secs(60), async {
        for _ in 0..EVENTS {
            told.recv().await.unwrap();
        }
    });
    all.await.expect("deliveries to the other subscriber");
    let mut to_the_deaf = 0_u64;
    while begun.try_recv().is_ok() {
        to_the_deaf += 1;
    }
    // Four at a time, each given up after 15 seconds.
    let most = 4 * (1 + started.elapsed().as_secs() / 15);
    assert!((1..=most).contains(&to_the_deaf), "{to_the_deaf} under way to one subscriber");
    drop(courier);
    server.stop().await;
}

#[tokio::test]
async fn a_subscription_can_be_tried() {
    let store = Arc::new(Memory::default());
    let webhooks = Rules { allow_private: true };
    let server = Server::on_store(store.clone(), Config { webhooks, ..Config::default() }).await;
    let (url, mut told) = subscriber(&["200 OK", "500 Broken"]).await;
    let made =
        subscribe(&server, None, &json!({ "url": url, "events": ["job.failed"], "secret": SECRET })).await;
    let path = format!("{PATH}/{}/test", made.body["subscription"]["id"].as_str().unwrap());
    let tried = server.post_text(&path, "").await;
    assert_eq!((tried.status, &tried.body["delivered"]), (200, &json!(true)), "{}", tried.body);
    let got = next(&mut told).await;
    let timestamp: i64 = got.header("x-ojs-timestamp").parse().unwrap();
    assert_eq!(got.header("x-ojs-signature"), signature(SECRET, timestamp, got.body.as_bytes()));
    assert_eq!(got.json()["event_type"], "webhook.test");
    let tried = server.post_text(&path, "").await;
    assert_eq!(
        (tried.status, &tried.body["delivered"], &tried.body["error"]),
        (200, &json!(false), &json!("answered 500"))
    );
    // Addresses that are not allowed, or not HTTPS, are not tried either.
    let strict = Server::on_store(store, Config::default()).await;
    let tried = strict.post_text(&path, "").await;
    assert!(tried.body["error"].as_str().unwrap().contains("not https"), "{}", tried.body);
    let wish = json!({ "url": "https://localhost:9/hook", "events": ["job.failed"], "secret": SECRET });
    let made = subscribe(&server, None, &wish).await;
    let near = format!("{PATH}/{}/test", made.body["subscription"]["id"].as_str().unwrap());
    let tried = strict.post_text(&near, "").await;
    assert!(tried.body["error"].as_str().unwrap().contains("loopback"), "{}", tried.body);
    strict.stop().await;
    assert_eq!(server.post_text(&path.replace("/test", "x/test"), "").await.status, 404);
    server.stop().await;
}

/// Subscribers refuse a signature whose time differs from their own clock.
#[tokio::test]
async fn a_delivery_is_signed_for_the_time_of_the_clock_however_far_ahead_the_store_is() {
    let now = || SystemClock.now().as_millis() / 1_000;
    let ahead = Timestamp::from_millis((now() + 86_400) * 1_000);
    let webhooks = Rules { allow_private: true };
    let store = Arc::new(Memory::new(ManualClock::at(ahead)));
    let server = Server::on_store(store, Config { webhooks, ..Config::default() }).await;
    let courier = Courier::start(&server.engine, webhooks);
    let (url, mut told) = subscriber(&[]).await;
    let wish = json!({ "url": url, "events": ["job.enqueued"], "secret": SECRET });
    let made = subscribe(&server, None, &wish).await;
    let path = format!("{PATH}/{}/test", made.body["subscription"]["id"].as_str().unwrap());
    server.post_text(&path, "").await;
    let tried = next(&mut told).await;
    server.create(&job(&json!(1), &json!({}))).await;
    for got in [tried, next(&mut told).await] {
        let timestamp: i64 = got.header("x-ojs-timestamp").parse().unwrap();
        assert!((timestamp - now()).abs() < 600, "{timestamp}");
    }
    courier.stop().await;
    server.stop().await;
}

/// Accepting the header would promise something that is not kept: a repetition would make a second
/// subscription, and every event be sent twice.
#[tokio::test]
async fn a_subscription_takes_no_idempotency_key() {
    let server = Server::with(Config { webhooks: Rules { allow_private: true }, ..Config::default() }).await;
    let wish = json!({ "url": "http://127.0.0.1:9/hook", "events": ["*"] });
    let told =
        server.ask(Method::POST, PATH, Some(&wish.to_string()), header("idempotency-key", "once")).await;
    assert_eq!((told.status, told.code()), (400, "invalid_request"), "{}", told.body);
    assert_eq!(told.body["error"]["details"]["header"], "Idempotency-Key");
    assert_eq!(server.get(PATH).await.body["subscriptions"], json!([]));
    assert_eq!(server.post(PATH, &wish).await.status, 201);
    server.stop().await;
}

/// No bodies, since nothing is delivered here.
struct Unsaid;

impl Wording for Unsaid {
    fn name(&self, _: EventKind) -> &'static str {
        ""
    }

    fn event(&self, _: u64, _: Timestamp, _: &Event) -> String {
        String::new()
    }
}

/// Makes `count` subscriptions of a tenant, bypassing the API.
async fn subscribed(server: &Server, tenant: &'static str, count: usize) {
    let made = (0..count).map(|at| Subscription {
        id: format!("{tenant}-{at}"),
        tenant: tenant.to_owned(),
        wish: Wish::default(),
        created_at: 0,
        after: 0,
        epoch: 0,
    });
    let made: Vec<Subscription> = made.collect();
    let webhooks = server.engine.webhooks(Arc::new(Unsaid));
    webhooks.change(move |known, _| known.extend(made.iter().cloned())).await.unwrap();
}

#[tokio::test]
async fn a_tenant_has_a_hundred_subscriptions_and_a_server_a_thousand() {
    let server = Server::in_memory().await;
    let wish = json!({ "url": "https://example.com/x", "events": ["job.completed"] });
    let asked = async |tenant| {
        let told = subscribe(&server, tenant, &wish).await;
        let error = &told.body["error"];
        (told.status, error["details"]["limit"].as_u64(), error["message"].as_str().unwrap_or("").to_owned())
    };
    subscribed(&server, "", 99).await;
    assert_eq!(asked(None).await.0, 201);
    let (status, limit, message) = asked(None).await;
    assert_eq!((status, limit), (409, Some(100)));
    assert!(message.contains("delete one"), "{message}");
    subscribed(&server, "others", 899).await;
    assert_eq!(asked(Some("acme")).await.0, 201);
    // The tenant has just one, so deleting one would not help.
    let (status, limit, message) = asked(Some("acme")).await;
    assert_eq!((status, limit), (409, Some(1_000)));
    assert!(message.contains("operator"), "{message}");
    assert_eq!(asked(None).await.1, Some(100));
    server.stop().await;
}
