//! Single enqueues over HTTP on kept connections, one request at a time on each, compared with the same
//! accept loop answering every request with constant bytes.
//!
//! The same client on the same processors drives both. Then new jobs in an open loop, on as many connections.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::{StatusCode, header};
use bytes::Bytes;
use semel_engine::Engine;
use semel_server::{Config, Limits, router, serve};
use semel_sqlite::Sqlite;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::Options;
use crate::load::drive;
use crate::open_loop::{self, Pace};
use crate::report::{BenchError, Figure};

/// The cases' names: callers that wait for their answers, and jobs in an open loop.
pub const NAMES: [&str; 2] = [NAME, OPEN];
const NAME: &str = "unique enqueue over HTTP";
const OPEN: &str = "new jobs over HTTP, open loop";
/// The name of the limit.
const LIMIT: &str = "limit: a constant answer over HTTP";
const PATH: &str = "/ojs/v1/jobs";
const MEDIA_TYPE: &str = "application/openjobspec+json";
/// Answers have a few hundred bytes; a longer one than this is an error.
const ANSWER_MAX: usize = 64 * 1024;

/// Measures all cases on a new embedded store in the options' folder: the limit, the enqueues as a share of
/// it, and an open loop, by default at half of their rate.
///
/// # Errors
/// When the server cannot be started, or answers anything but that a job was created.
pub async fn measure(options: &Options, progress: impl Fn(&str)) -> Result<Vec<Figure>, BenchError> {
    let engine = Engine::start(Arc::new(Sqlite::open(options.folder.join("http.db"))?))?;
    let server = Served::start(router(engine.clone(), Config::default())).await?;
    let measured = figures(server.address, options, progress).await;
    server.stop().await?;
    engine.close().await;
    measured
}

async fn figures(
    server: SocketAddr,
    options: &Options,
    progress: impl Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    // The answer to a new job, so that both servers answer as many bytes.
    let first = Asker::connect(server).await?.ask(&request(options.args_bytes, 0)).await?;
    progress(LIMIT);
    let constant = Served::start(answering(first)).await?;
    let limit = ask_all(LIMIT, constant.address, options).await;
    constant.stop().await?;
    let limit = limit?;
    progress(NAME);
    let mut figure = ask_all(NAME, server, options).await?;
    figure.share_of_limit = Some(figure.per_second / limit.per_second);
    let (mut figures, next) = (vec![limit], figure.jobs + options.connections as u64 + 1);
    let pace = options.pace(figure.per_second);
    figures.push(figure);
    if options.wants(OPEN) {
        progress(OPEN);
        figures.push(offer_all(OPEN, server, options, pace, next).await?);
    }
    Ok(figures)
}

/// A server that reads each request and gives always the same answer.
fn answering(answer: Bytes) -> Router {
    let handler = move |body: Bytes| {
        let status = if body.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::CREATED };
        let answer = answer.clone();
        async move { (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], answer) }
    };
    Router::new().route(PATH, axum::routing::post(handler))
}

/// Kept connections without a request.
#[derive(Clone)]
struct Idle {
    askers: Arc<Mutex<Vec<Asker>>>,
    count: Arc<Semaphore>,
}

impl Idle {
    async fn connect(address: SocketAddr, count: usize) -> Result<Self, BenchError> {
        let mut askers = Vec::with_capacity(count);
        for _ in 0..count {
            askers.push(Asker::connect(address).await?);
        }
        Ok(Self { askers: Arc::new(Mutex::new(askers)), count: Arc::new(Semaphore::new(count)) })
    }

    /// Sends a request on one of them, as soon as one is idle.
    async fn ask(&self, request: &[u8]) -> Result<(), BenchError> {
        let none = || BenchError::Invalid("no connection is idle".to_owned());
        let _one = self.count.acquire().await.map_err(|_| none())?;
        let asker = self.askers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut asker = asker.ok_or_else(none)?;
        asker.ask(request).await?;
        self.askers.lock().unwrap_or_else(PoisonError::into_inner).push(asker);
        Ok(())
    }
}

async fn ask_all(name: &str, address: SocketAddr, options: &Options) -> Result<Figure, BenchError> {
    let idle = Idle::connect(address, options.connections).await?;
    let bytes = options.args_bytes;
    drive(name, options.connections, options.duration, move |turn| {
        let idle = idle.clone();
        async move { idle.ask(&request(bytes, turn + 1)).await.map(|()| 1) }
    })
    .await
}

/// New jobs in an open loop. A job that finds no connection idle waits for one; the wait counts as its
/// latency.
async fn offer_all(
    name: &str,
    address: SocketAddr,
    options: &Options,
    pace: Pace,
    from: u64,
) -> Result<Figure, BenchError> {
    let idle = Idle::connect(address, options.connections).await?;
    let bytes = options.args_bytes;
    open_loop::drive(name, pace, move |number| {
        let idle = idle.clone();
        async move { idle.ask(&request(bytes, from + number)).await }
    })
    .await
}

/// The request for the job with this number, unique by its args.
fn request(args_bytes: usize, number: u64) -> Vec<u8> {
    let mut body = String::with_capacity(args_bytes + 256);
    // Writing to a `String` cannot fail.
    let _ = write!(
        body,
        "{{\"type\":\"bench.work\",\"args\":[{{\"order\":{number},\"user\":\"u-{}\",\"note\":\"{}\"}}],\"options\":{{\"queue\":\
         \"bench\",\"unique\":{{\"keys\":[\"type\",\"args\"],\"on_conflict\":\"ignore\"}}}}}}",
        number % 9973,
        "x".repeat(args_bytes.saturating_sub(60))
    );
    let length = body.len();
    format!("POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// A kept connection. It understands only as much HTTP as these two servers answer.
struct Asker {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Asker {
    async fn connect(address: SocketAddr) -> Result<Self, BenchError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(4096) })
    }

    /// Sends a request, and answers the body of a `201 Created`; anything else is an error.
    async fn ask(&mut self, request: &[u8]) -> Result<Bytes, BenchError> {
        self.stream.write_all(request).await?;
        self.read.clear();
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 || self.read.len() > ANSWER_MAX {
                return Err(BenchError::Invalid("an answer over HTTP broke off".to_owned()));
            }
            if let Some((head, body)) = parts(&self.read) {
                if head.starts_with("HTTP/1.1 201 ") {
                    return Ok(Bytes::copy_from_slice(body));
                }
                let body = String::from_utf8_lossy(body);
                return Err(BenchError::Invalid(format!("over HTTP it was answered {head}\n{body}")));
            }
        }
    }
}

/// The head and the body of an answer, once it is complete.
fn parts(read: &[u8]) -> Option<(&str, &[u8])> {
    let end = read.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&read[..end]).ok()?;
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = lengths.next()?.1.trim().parse().ok()?;
    read.get(end + 4..end + 4 + length).map(|body| (head, body))
}

/// A server on a port of its own.
struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn start(router: Router) -> Result<Self, BenchError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve(listener, router, Limits::default(), async {
            // A dropped sender also means stop.
            drop(stopped.await);
        }));
        Ok(Self { address, stop, serving })
    }

    async fn stop(self) -> Result<(), BenchError> {
        // The server may have ended already.
        let _ = self.stop.send(());
        let ended = self.serving.await.map_err(|error| BenchError::Invalid(error.to_string()))?;
        Ok(ended?)
    }
}
