//! Many concurrent callers over real connections.

use std::sync::Arc;
use std::time::Duration;

use semel_client::Client;
use semel_server::{Config, Limits};
use semel_testkit::patience::{rounds, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Barrier;

use crate::harness::{Server, Told};

const CALLERS: usize = 64;

async fn race(strategy: &'static str) {
    let server = Server::start().await;
    // One connection pool per caller, so that each has its own connection.
    let clients: Vec<Client> = (0..CALLERS).map(|_| Client::new(server.client.base_url()).unwrap()).collect();
    let rounds = rounds("SEMEL_RACE_ROUNDS", 50_usize);
    for round in 0..rounds {
        let body = json!({ "type": "a.b", "args": [round], "options": { "unique": { "keys": ["type", "args"], "on_conflict": strategy } } });
        let start = Arc::new(Barrier::new(CALLERS));
        let calls: Vec<_> = clients
            .iter()
            .cloned()
            .map(|client| {
                let (start, body) = (Arc::clone(&start), body.to_string());
                tokio::spawn(async move {
                    start.wait().await;
                    let sent = client.request(
                        semel_client::Method::POST,
                        "/ojs/v1/jobs",
                        Some(body.into()),
                        Default::default(),
                    );
                    Told::from(sent.await.unwrap())
                })
            })
            .collect();
        let (mut created, mut others) = (Vec::new(), Vec::new());
        for call in calls {
            let told = call.await.unwrap();
            if told.status == 201 { created.push(told) } else { others.push(told) }
        }
        assert_eq!((created.len(), others.len()), (1, CALLERS - 1), "round {round}");
        let winner = created[0].job_id();
        for told in &others {
            match strategy {
                "ignore" => assert_eq!((told.status, told.job_id()), (200, winner)),
                _ => {
                    assert_eq!((told.status, told.code()), (409, "duplicate"));
                    assert_eq!(told.body["error"]["details"]["existing_job_id"], Value::from(winner));
                }
            }
        }
    }
    let stats = server.get("/ojs/v1/queues/default/stats").await;
    assert_eq!(stats.body["queue"]["created"], rounds);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_is_created_and_the_losers_are_told_of_it() {
    race("reject").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_is_created_and_the_losers_get_it() {
    race("ignore").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_requests_under_way_end() {
    let server = Server::start().await;
    let client = server.client.clone();
    let engine = server.engine.clone();
    let waiting = tokio::spawn(async move {
        client.post_json("/ojs/v1/workers/fetch", &json!({ "queues": ["late"], "wait_ms": 20_000 })).await
    });
    while !server.get_text("/metrics").await.contains("semel_http_polls_waiting 1\n") {}
    let address = server.address;
    let stopping = tokio::spawn(server.stop());
    // It has begun to stop once it accepts no new connections.
    until("it takes no new connections", async || TcpStream::connect(address).await.is_err()).await;
    let offer =
        semel_ojs::Enqueue::parse(r#"{"type":"a.b","args":[],"queue":"late"}"#, semel_ojs::Terms::trusted())
            .unwrap()
            .offer;
    engine.enqueue(offer, "test").await.unwrap();
    let fetched = waiting.await.unwrap().unwrap();
    assert_eq!(fetched["jobs"].as_array().unwrap().len(), 1);
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_not_waited_for() {
    let limits = Limits { connections: 1, header_timeout: Duration::from_millis(300), ..Limits::default() };
    let server = Server::with_limits(Config::default(), limits).await;
    // Takes the only slot and then sends half a header.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"GET /health HTTP/1.1\r\nhost:").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.get("/health").await.status, 200);
    let mut rest = Vec::new();
    drop(silent.read_to_end(&mut rest).await);
    assert!(!String::from_utf8_lossy(&rest).contains(" 200 "));
    server.stop().await;
}
