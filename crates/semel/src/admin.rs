//! The server inside the program, through which tools, other languages and people reach the same queue.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Extension;
use semel_engine::Engine;
use semel_server::webhooks::{Courier, Rules};
use semel_server::{Config, Drain, Limits, check_listen, serve};
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::queue::Semel;

/// State shared by all servers of one queue.
pub(crate) struct Serving {
    /// Begins when the queue is closed.
    closing: Drain,
    /// The URLs of the servers that listen, newest last.
    listening: Mutex<Vec<String>>,
    /// Where webhooks may go.
    rules: Rules,
    /// Delivers webhooks; started once somebody can subscribe.
    courier: Mutex<Option<Courier>>,
    /// The runtime that deliveries run on: routes may be asked for outside any runtime.
    runtime: Handle,
}

impl Serving {
    /// Must be called inside a tokio runtime.
    pub(crate) fn by(rules: Rules) -> Self {
        Self {
            closing: Drain::default(),
            listening: Mutex::default(),
            rules,
            courier: Mutex::default(),
            runtime: Handle::current(),
        }
    }

    /// Starts webhook deliveries, unless they run already or the queue is closing.
    fn deliver(&self, engine: &Engine) {
        let mut courier = self.courier.lock().unwrap_or_else(PoisonError::into_inner);
        if courier.is_none() && !self.closing.has_begun() {
            let _inside = self.runtime.enter();
            *courier = Some(Courier::start(engine, self.rules));
        }
    }

    /// Stops all servers: waiting requests are answered, event streams end, and the courier stops after the
    /// deliveries under way.
    pub(crate) async fn end(&self) {
        self.closing.begin();
        let courier = self.courier.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(courier) = courier {
            courier.stop().await;
        }
    }
}

/// A server that runs inside the program. Dropping it stops it at once.
#[must_use = "the server stops when this is dropped"]
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    semel: Semel,
    stop: Drain,
    /// `None` once the server was stopped.
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl Semel {
    /// The server's routes (Open Job Spec at `/ojs/v1`, explanations, keys, metrics, health), to be mounted
    /// in a router of your own: `app.nest("/jobs", semel.router()?)`.
    ///
    /// They let everybody in: put your own authentication around them. This program delivers the webhooks
    /// subscribed to there. Once the queue is [closed](Semel::close), the routes answer 503.
    ///
    /// # Errors
    /// [`Error::Closed`] once the queue is closed.
    pub fn router(&self) -> Result<axum::Router, Error> {
        self.routes(self.serving().closing.clone())
    }

    fn routes(&self, drain: Drain) -> Result<axum::Router, Error> {
        let (engine, serving) = (self.engine()?, self.serving());
        serving.deliver(&engine);
        let (templates, webhooks) = (self.template_set(), serving.rules);
        let config = Config { templates, webhooks, drain, ..Config::default() };
        // The routes may outlive all handles on the queue, and so may subscriptions.
        Ok(semel_server::router(engine, config).layer(Extension(Arc::clone(serving))))
    }

    /// Serves the queue at this address, which only this machine can reach: `127.0.0.1:8080`, or port 0 for a
    /// free port. If the store is a file, the `semel` command finds the server by that file. Webhooks are
    /// delivered as with [`router`](Semel::router).
    ///
    /// # Errors
    /// [`Error::Listen`] if it cannot listen there, or other machines could connect; [`Error::Closed`] once
    /// the queue is closed.
    pub async fn serve_admin(&self, address: impl ToSocketAddrs) -> Result<Admin, Error> {
        let refuse = |reason: String| Error::Listen { reason };
        let listener = TcpListener::bind(address).await.map_err(|error| refuse(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| refuse(error.to_string()))?;
        check_listen(address, &Config::default()).map_err(|_| {
            refuse(format!(
                "other machines can reach {address}, and requests would not be authenticated; listen on 127.0.0.1, or mount router() behind your own authentication"
            ))
        })?;
        let stop = Drain::default();
        let router = self.routes(stop.clone())?;
        let (stopped, closing) = (stop.clone(), self.serving().closing.clone());
        let serving = tokio::spawn(serve(listener, router, Limits::default(), async move {
            tokio::select! {
                () = stopped.begun() => {}
                // The server's own requests watch only its own drain.
                () = closing.begun() => stopped.begin(),
            }
        }));
        let admin = Admin { address, semel: self.clone(), stop, serving: Some(serving) };
        self.tell_who_listens(|listening| listening.push(admin.url()));
        Ok(admin)
    }

    /// Directs programs that find the file in use to the newest of the servers that are left, if any.
    fn tell_who_listens(&self, change: impl FnOnce(&mut Vec<String>)) {
        let mut listening = self.serving().listening.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut listening);
        self.announce(listening.last().map(String::as_str));
    }
}

impl Admin {
    /// The address that the server listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the server after the requests under way: waiting requests are answered at once, and event
    /// streams end.
    ///
    /// # Errors
    /// [`Error::Listen`] if the listener had already failed.
    pub async fn stop(mut self) -> Result<(), Error> {
        let Some(serving) = self.end() else { return Ok(()) };
        match serving.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::Listen { reason: error.to_string() }),
            Err(error) => Err(Error::Listen { reason: error.to_string() }),
        }
    }

    /// Begins to stop, unless it has begun already. The address is withdrawn first: another program may
    /// listen there next.
    fn end(&mut self) -> Option<JoinHandle<std::io::Result<()>>> {
        let (serving, url) = (self.serving.take()?, self.url());
        self.semel.tell_who_listens(|listening| listening.retain(|other| *other != url));
        self.stop.begin();
        Some(serving)
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.end());
    }
}
