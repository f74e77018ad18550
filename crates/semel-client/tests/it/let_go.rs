//! Requests whose callers stop waiting for the answer. It may still arrive, and must never answer another
//! request.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use semel_client::{Bytes, Client, HeaderMap, Method};
use semel_testkit::let_go::{Moment, at_every_await, let_go};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::canned::{read_request, reply};

type Call = Pin<Box<dyn Future<Output = Value> + Send>>;

macro_rules! calls {
    ($($name:ident: |$client:ident, $path:ident| $call:expr;)*) => {
        /// Every call of a client; each returns what the server answered.
        const CALLS: &[(&str, fn(Client, String) -> Call)] = &[$((stringify!($name), |$client, $path| {
            Box::pin(async move { $call })
        }),)*];
    };
}

calls! {
    request: |client, path| {
        let answer = client.request(Method::PUT, &path, Some(Bytes::from_static(b"{}")), HeaderMap::new()).await;
        client.read(answer.unwrap()).unwrap()
    };
    get_json: |client, path| client.get_json(&path).await.unwrap();
    post_json: |client, path| client.post_json(&path, &json!({ "at": path })).await.unwrap();
    delete_json: |client, path| client.delete_json(&path).await.unwrap();
}

#[test]
fn every_call_of_a_client_is_let_go() {
    let source = include_str!("../../src/client.rs");
    let public: BTreeSet<&str> =
        source.split("pub async fn ").skip(1).map(|call| call.split(['(', '<']).next().unwrap()).collect();
    assert_eq!(public, CALLS.iter().map(|(name, _)| *name).collect());
}

/// A server that echoes the request's path in pieces: each piece but the first needs a permit.
struct Echo {
    client: Client,
    permits: Arc<Semaphore>,
    asked: Arc<Mutex<Vec<String>>>,
    /// Number of requests being answered.
    under_way: watch::Receiver<usize>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let (permits, asked) = (Arc::new(Semaphore::new(0)), Arc::default());
        let (begin, under_way) = watch::channel(0);
        let echo = Self { client, permits: Arc::clone(&permits), asked: Arc::clone(&asked), under_way };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // Sends each piece as it is written.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(converse(stream, Arc::clone(&permits), Arc::clone(&asked), begin.clone()));
            }
        });
        echo
    }

    /// Asserts that the answer is the one to this request.
    async fn is_answered(&self, path: &str) {
        assert_eq!(self.client.get_json(path).await.unwrap(), json!({ "asked": path }));
    }
}

async fn converse(
    mut stream: TcpStream,
    permits: Arc<Semaphore>,
    asked: Arc<Mutex<Vec<String>>>,
    under_way: watch::Sender<usize>,
) {
    while let Some(request) = read_request(&mut stream).await {
        let path = request.split(' ').nth(1).unwrap().to_owned();
        asked.lock().unwrap().push(path.clone());
        under_way.send_modify(|number| *number += 1);
        let is_sent = answer(&mut stream, &path, &permits).await;
        under_way.send_modify(|number| *number -= 1);
        if is_sent.is_err() {
            return;
        }
    }
}

async fn answer(stream: &mut TcpStream, path: &str, permits: &Semaphore) -> std::io::Result<()> {
    let reply = reply("200 OK", &json!({ "asked": path }).to_string());
    let (head, body) = reply.split_at(reply.find("\r\n\r\n").unwrap() + 4);
    let (status, headers) = head.split_at(7);
    let (begin, end) = body.split_at(body.len() / 2);
    stream.write_all(status.as_bytes()).await?;
    for piece in [headers, begin, end] {
        permits.acquire().await.unwrap().forget();
        stream.write_all(piece.as_bytes()).await?;
    }
    Ok(())
}

/// Whether the connection was used before or is new, and whether the next request is sent at once or after
/// the abandoned answer was sent.
#[derive(Clone, Copy, Debug)]
struct Way {
    is_kept: bool,
    is_patient: bool,
}

/// Returns whether the request was answered before it was dropped.
async fn once(call: fn(Client, String) -> Call, way: Way, polls: u32, moment: Moment) -> bool {
    let mut server = Echo::start().await;
    if way.is_kept {
        server.permits.add_permits(3);
        server.is_answered("/before").await;
    }
    let mut asked = call(server.client.clone(), "/let-go".to_owned());
    // Each poll lets the answer advance, so that every drop finds it at another point.
    let paced = poll_fn(|context| {
        server.permits.add_permits(1);
        asked.as_mut().poll(context)
    });
    let answer = let_go(paced, polls, moment).await;
    drop(asked);
    server.permits.add_permits(100);
    if way.is_patient {
        server.under_way.wait_for(|requests| *requests == 0).await.unwrap();
    }
    for path in ["/next", "/after"] {
        server.is_answered(path).await;
    }
    let times = server.asked.lock().unwrap().iter().filter(|path| *path == "/let-go").count();
    assert!(times <= 1, "sent again behind the caller's back: {times} times");
    if let Some(answer) = &answer {
        assert_eq!((answer, times), (&json!({ "asked": "/let-go" }), 1));
    }
    answer.is_some()
}

#[tokio::test]
async fn an_answer_that_nobody_waited_for_is_not_that_of_another_request() {
    for (name, call) in CALLS {
        for (is_kept, is_patient) in [(false, false), (false, true), (true, false), (true, true)] {
            let way = Way { is_kept, is_patient };
            let dropped =
                at_every_await(name, async |polls, moment| once(*call, way, polls, moment).await).await;
            // At least with its request unsent, and in the answer's head and body.
            assert!(dropped >= 6, "{name}, {way:?}: {dropped}");
        }
    }
}
