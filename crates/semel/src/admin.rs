//! The server inside the program: tools, other languages and people reach the same queue.

use std::net::SocketAddr;

use semel_server::{Config, Limits, check_listen, serve};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::queue::Semel;

/// A server that runs inside the program. Dropped, it stops at once.
#[must_use = "the server stops when this is dropped"]
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    stop: CancellationToken,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Semel {
    /// The server's routes (Open Job Spec at `/ojs/v1`, explanations, keys, metrics, health), to be mounted in a
    /// router of yours: `app.nest("/jobs", semel.router()?)`. It lets everybody in: put your own authentication
    /// around it.
    ///
    /// It keeps the store open: [`close`](Semel::close) waits for the router to be dropped.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn router(&self) -> Result<axum::Router, Error> {
        let config = Config { templates: self.template_set(), ..Config::default() };
        Ok(semel_server::router(self.engine()?, config))
    }

    /// Serves the queue at this address, of this machine only: `127.0.0.1:8080`, or port 0 for a free one. Where the
    /// store is a file, the `semel` command finds the server by it.
    ///
    /// # Errors
    /// [`Error::Listen`] when it cannot listen there, or other machines could come in.
    pub async fn serve_admin(&self, address: impl ToSocketAddrs) -> Result<Admin, Error> {
        let refuse = |reason: String| Error::Listen { reason };
        let listener = TcpListener::bind(address).await.map_err(|error| refuse(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| refuse(error.to_string()))?;
        check_listen(address, &Config::default()).map_err(|_| {
            refuse(format!(
                "other machines can reach {address} and nobody would be asked who they are; listen on 127.0.0.1, or mount router() behind your own authentication"
            ))
        })?;
        let router = self.router()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serving = tokio::spawn(serve(listener, router, Limits::default(), async move {
            stopped.cancelled().await;
        }));
        let admin = Admin { address, stop, serving: Some(serving) };
        self.announce(&admin.url());
        Ok(admin)
    }
}

impl Admin {
    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets the requests under way end.
    ///
    /// # Errors
    /// [`Error::Listen`] when the listener had failed before.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.stop.cancel();
        let Some(serving) = self.serving.take() else { return Ok(()) };
        match serving.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::Listen { reason: error.to_string() }),
            Err(error) => Err(Error::Listen { reason: error.to_string() }),
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
