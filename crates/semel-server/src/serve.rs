//! The accept loop: HTTP/1 with kept connections, bounded in number and in the time to send a header, and drained at
//! the end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tower_service::Service as _;

use crate::extract::{Closing, Peer};

/// How long to rest when the system has no more descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; more wait to be accepted.
    pub connections: usize,
    /// How long a client may take to send a request's header, and how long a kept connection may be idle.
    pub header_timeout: Duration,
    /// How long requests under way may take after the shutdown began.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 4_096, header_timeout: Duration::from_secs(60), drain: Duration::from_secs(10) }
    }
}

/// Serves until `shutdown` is done, then lets the requests under way end.
///
/// # Errors
/// When the listener cannot be used any more.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .keep_alive(true)
        .pipeline_flush(true);
    let graceful = GracefulShutdown::new();
    let (close, closing) = watch::channel(false);
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            () = &mut shutdown => break,
        };
        // The semaphore is never closed.
        let Ok(place) = place else { break };
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_REST).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection broke before it was served");
            continue;
        }
        let router = router.clone();
        let closing = Closing(Some(closing.clone()));
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            request.extensions_mut().insert(closing.clone());
            let mut router = router.clone();
            async move { Ok::<_, Infallible>(answer(&mut router, request).await) }
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended with an error");
            }
            drop(place);
        });
    }
    drop(listener);
    // Streams would not end by themselves.
    close.send_replace(true);
    if tokio::time::timeout(limits.drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way when the time to drain was over");
    }
    Ok(())
}

async fn answer(router: &mut Router, request: hyper::Request<Incoming>) -> axum::response::Response {
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Whether the listener itself is broken; anything else concerns one connection, or passes.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected)
}
