//! The accept loop: HTTP/1 with keep-alive, with or without TLS, bounded in the number of connections and in
//! every wait for a peer, and drained on shutdown.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower_service::Service as _;

use crate::extract::Peer;
use crate::patience::Patient;
use crate::tls::Tls;

/// How long to pause when the system is out of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Buffer per connection and direction; a request's head must fit into it.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; further ones wait to be accepted.
    pub connections: usize,
    /// Connections of one address (IPv6: of one /64), not counting this machine's own; further ones are closed at once.
    pub connections_per_client: usize,
    /// How long a client may take to send a request's header or to complete the TLS handshake, and how long a
    /// connection may be idle between requests.
    pub header_timeout: Duration,
    /// How long a client may leave an answer unread.
    pub write_timeout: Duration,
    /// How long requests in progress may take once the shutdown has begun.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_client: 1_024,
            header_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

/// Serves until `shutdown` is done, then lets the requests in progress finish.
///
/// # Errors
/// When the listener can no longer be used.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_with(listener, router, limits, None, shutdown).await
}

/// As [`serve`], but over TLS if it is given: then plain connections are not served.
///
/// # Errors
/// When the listener can no longer be used.
pub async fn serve_with(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    tls: Option<Tls>,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    let clients = Clients::default();
    // Dropped when the shutdown begins.
    let (serving, ended) = watch::channel(());
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
        let Some(client) = clients.enter(peer.ip(), limits.connections_per_client) else {
            tracing::debug!(client = %peer.ip(), "a client has too many connections; its new one was closed");
            continue;
        };
        let connection = Connection { router: router.clone(), limits, peer, ended: ended.clone() };
        let (tls, watcher) = (tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            connection.run(stream, tls, watcher).await;
            drop((place, client));
        });
    }
    drop((listener, serving));
    if tokio::time::timeout(limits.drain, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way when the time to drain ran out");
    }
    Ok(())
}

/// One connection, and what serves it.
struct Connection {
    router: Router,
    limits: Limits,
    peer: SocketAddr,
    ended: watch::Receiver<()>,
}

impl Connection {
    async fn run(mut self, stream: TcpStream, tls: Option<Tls>, watcher: Watcher) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection broke before it was served");
            return;
        }
        let stream = Patient::new(stream, self.limits.write_timeout);
        let Some(tls) = tls else { return self.serve(stream, watcher).await };
        let agreed = tokio::time::timeout(self.limits.header_timeout, tls.acceptor().accept(stream));
        let agreed = tokio::select! {
            agreed = agreed => agreed,
            // No request has begun, so shutdown has nothing to wait for.
            _ = self.ended.changed() => return,
        };
        match agreed {
            Ok(Ok(stream)) => self.serve(stream, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "the TLS handshake with a client failed"),
            Err(_) => tracing::debug!("the TLS handshake with a client timed out"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let Self { router, limits, peer, .. } = self;
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            let mut router = router.clone();
            async move { Ok::<_, Infallible>(answer(&mut router, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .keep_alive(true)
            // Pipelined answers are written one by one: gathered, they would be unbounded while nobody reads.
            .max_buf_size(BUFFER_BYTES_MAX)
            .max_header_size(BUFFER_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "a connection ended with an error");
        }
    }
}

/// Number of connections of each client. This machine's own are not counted, because a local proxy's serve everybody.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Clients {
    /// Counts one more connection, unless the client has as many as allowed.
    fn enter(&self, address: IpAddr, most: usize) -> Option<Client> {
        let address = client_of(address);
        if address.is_loopback() {
            return Some(Client { clients: None, address });
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Client { clients: Some(self.clone()), address })
    }
}

/// The client that an address counts as. An IPv6 address counts as its /64, because whoever has one has the
/// network's 2^64 addresses. An IPv4 address counts as itself in either notation.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

/// One connection of a client; counted until dropped.
struct Client {
    clients: Option<Clients>,
    address: IpAddr,
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(clients) = &self.clients else { return };
        let mut counts = clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

async fn answer(router: &mut Router, request: hyper::Request<Incoming>) -> axum::response::Response {
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Whether the listener itself is broken; other errors concern a single connection, or pass.
fn is_fatal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_connections() {
        let clients = Clients::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let first = clients.enter(address, 1);
        assert!(first.is_some() && clients.enter(address, 1).is_none());
        assert!(clients.enter(IpAddr::from([192, 0, 2, 2]), 1).is_some(), "another client");
        drop(first);
        assert!(clients.enter(address, 1).is_some());
        let own = IpAddr::from([127, 0, 0, 1]);
        let (_one, two) = (clients.enter(own, 1), clients.enter(own, 1));
        assert!(two.is_some(), "a proxy on this machine");
    }

    /// A client with one IPv6 address has as many others as it likes.
    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let clients = Clients::default();
        let enter = |text: &str| clients.enter(text.parse().unwrap(), 1);
        let first = enter("2001:db8:1:2::1");
        assert!(first.is_some() && enter("2001:db8:1:2:ffff::9").is_none(), "the same /64");
        assert!(enter("2001:db8:1:3::1").is_some(), "another one");
        drop(first);
        assert!(enter("2001:db8:1:2::2").is_some() && clients.0.lock().unwrap().len() < 3);
        let mapped = enter("::ffff:192.0.2.1");
        assert!(mapped.is_some() && enter("192.0.2.1").is_none(), "two notations of one");
        assert!(enter("::ffff:192.0.2.2").is_some(), "another one of IPv4");
        let (_one, two) = (enter("::1"), enter("::1"));
        assert!(two.is_some(), "this machine");
    }
}
