//! An in-process server that answers as a test tells it to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use semel_client::{Bytes, Client};
use tokio::net::TcpListener;

/// A request as it arrived.
pub(super) type Seen = Request<String>;

/// A running server.
pub(super) struct Canned {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Canned {
    /// A server that answers request number n with the result of `answer`, given n and the request.
    pub(super) async fn start(
        answer: impl Fn(usize, &Seen) -> Response<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let canned = Self { url, seen: Arc::clone(&seen) };
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let request = Request::from_parts(head, String::from_utf8(body.to_vec()).unwrap());
                        let mut seen = seen.lock().unwrap();
                        let reply = answer(seen.len(), &request);
                        seen.push(request);
                        Ok::<_, Infallible>(reply.map(|body| Full::new(Bytes::from(body))))
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        canned
    }

    /// A server that gives every request the same status and body.
    pub(super) async fn always(status: u16, body: &str) -> Self {
        let body = body.to_owned();
        Self::start(move |_, _| reply(status, &body)).await
    }

    pub(super) fn client(&self) -> Client {
        Client::new(&self.url).unwrap()
    }

    /// The requests so far: method, path, content type and body.
    pub(super) fn seen(&self) -> Vec<(String, String, Option<String>, String)> {
        let seen = self.seen.lock().unwrap();
        let header = |request: &Seen| {
            request.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned())
        };
        seen.iter()
            .map(|request| {
                (
                    request.method().to_string(),
                    request.uri().to_string(),
                    header(request),
                    request.body().clone(),
                )
            })
            .collect()
    }
}

/// A reply with the headers that OJS requires.
pub(super) fn reply(status: u16, body: &str) -> Response<String> {
    Response::builder()
        .status(status)
        .header("content-type", "application/openjobspec+json")
        .header("ojs-version", "1.0")
        .body(body.to_owned())
        .unwrap()
}
