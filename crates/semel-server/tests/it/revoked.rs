//! A caller whose token is revoked or expires while it waits for an answer gets nothing.

use semel_client::{HeaderMap, Method};
use semel_server::Config;
use semel_server::auth::{Token, Tokens};
use semel_store::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::harness::{Server, Told, header, job};

const FETCH: &str = "/ojs/v1/workers/fetch";

async fn server() -> (Server, Tokens) {
    let tokens = Tokens::only(vec![Token::all("old", "one"), Token::all("new", "two")]);
    (Server::with(Config { tokens: tokens.clone(), ..Config::default() }).await, tokens)
}

fn bearer(token: &str) -> HeaderMap {
    header("authorization", &format!("Bearer {token}"))
}

async fn post(server: &Server, token: &str, path: &str, body: &Value) -> Told {
    server.ask(Method::POST, path, Some(&body.to_string()), bearer(token)).await
}

fn fetch() -> Value {
    json!({ "queues": ["default"], "worker_id": "w", "wait_ms": 20_000 })
}

/// Returns once a long poll is waiting.
async fn waits(server: &Server) {
    loop {
        let told = server.client.request(Method::GET, "/metrics", None, bearer("two")).await.unwrap();
        if String::from_utf8_lossy(&told.body).contains("semel_http_polls_waiting 1\n") {
            return;
        }
    }
}

/// Enqueues a job, which ends a waiting poll; returns its id.
async fn enqueue(server: &Server) -> String {
    let made = post(server, "two", "/ojs/v1/jobs", &job(&json!(1), &json!({}))).await;
    assert_eq!(made.status, 201, "{}", made.body);
    made.job_id().to_owned()
}

/// Fetches with a token that `end` ends during the wait. Returns the answer, and the job enqueued meanwhile.
async fn fetched(server: &Server, end: impl FnOnce()) -> (Told, String) {
    let body = fetch();
    tokio::join!(post(server, "one", FETCH, &body), async {
        waits(server).await;
        end();
        enqueue(server).await
    })
}

#[tokio::test]
async fn a_fetch_that_waits_is_given_nothing_once_its_token_is_gone() {
    let (server, tokens) = server().await;
    let (told, id) = fetched(&server, || tokens.replace(vec![Token::all("new", "two")])).await;
    assert_eq!((told.status, told.code()), (401, "unauthorized"), "{}", told.body);
    assert!(told.body.get("jobs").is_none(), "{}", told.body);
    // The job leased for it is given back, and its attempt does not count.
    let next = post(&server, "two", FETCH, &fetch()).await.body["jobs"][0].clone();
    assert_eq!((&next["id"], &next["attempt"]), (&json!(id), &json!(1)), "{next}");
    server.stop().await;
}

#[tokio::test]
async fn a_fetch_that_waits_is_given_nothing_once_its_token_is_over() {
    let (server, tokens) = server().await;
    let over = || {
        let old = Token { expires_at: Some(SystemClock.now()), ..Token::all("old", "one") };
        tokens.replace(vec![old, Token::all("new", "two")]);
    };
    let (told, id) = fetched(&server, over).await;
    assert_eq!((told.status, told.code()), (401, "unauthorized"), "{}", told.body);
    let next = post(&server, "two", FETCH, &fetch()).await.body["jobs"][0].clone();
    assert_eq!((&next["id"], &next["attempt"]), (&json!(id), &json!(1)), "{next}");
    server.stop().await;
}

#[tokio::test]
async fn who_waits_for_events_is_told_none_once_the_token_is_gone() {
    let (server, tokens) = server().await;
    let (told, id) =
        tokio::join!(server.ask(Method::GET, "/ojs/v1/events?wait_ms=20000", None, bearer("one")), async {
            waits(&server).await;
            tokens.replace(vec![Token::all("new", "two")]);
            enqueue(&server).await
        });
    assert_eq!((told.status, told.code()), (401, "unauthorized"), "{}", told.body);
    assert!(!told.body.to_string().contains(&id), "{}", told.body);
    // A token that is still valid sees it.
    let log = server.ask(Method::GET, "/ojs/v1/events", None, bearer("two")).await;
    assert_eq!(log.body["events"][0]["subject"], json!(id), "{}", log.body);
    server.stop().await;
}
