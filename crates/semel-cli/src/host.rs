//! A server inside this process: what `serve` runs, and what other verbs talk to when nobody else owns the store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel_core::draft::Reads;
use semel_core::ident::JobId;
use semel_core::retention::Retention;
use semel_engine::Engine;
use semel_ojs::outbox;
use semel_postgres::Postgres;
use semel_redis::Redis;
use semel_server::webhooks::{Courier, Rules};
use semel_server::{Config, Drain, Limits, TemplateSet, Tls, check_listen, router, serve_with};
use semel_sqlite::{Sqlite, SqliteError};
use semel_store::clock::Offset;
use semel_store::copy::{is_empty, unfinished};
use semel_store::memory::Memory;
use semel_store::outbox::Outbox;
use semel_store::{Backend, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::failure::{Context, Exit, Failure, is_forbidden};
use crate::link::{no_postgres, no_redis};
use crate::place::Place;
use crate::progress::telling;

/// How often the store's health is checked.
const HEALTH_EVERY: Duration = Duration::from_millis(500);
/// How long the store may take to tell its time; a signal to stop the server waits for it meanwhile.
const OFFSET_PATIENCE: Duration = Duration::from_secs(1);

/// An open store, with the handles for what only a file or only a database can do.
pub struct Opened {
    backend: Arc<dyn Backend>,
    file: Option<Arc<Sqlite>>,
    database: Option<Arc<Postgres>>,
    retention: Retention,
    only_looks: bool,
}

impl Opened {
    fn of(backend: Arc<dyn Backend>) -> Self {
        Self { backend, file: None, database: None, retention: Retention::default(), only_looks: false }
    }

    /// Opens a store to work with it.
    ///
    /// # Errors
    /// When the store cannot be reached or used, another process owns it, or it is an unfinished copy.
    pub async fn open(place: &Place) -> Result<Self, Failure> {
        let opened = Self::open_as_it_is(place).await?;
        if unfinished(&*opened.backend).await.context("cannot read the store")? {
            return Err(Failure::failed(format!(
                "{place} is an incomplete copy of another store: the copy is still running or was interrupted"
            ))
            .next("run the same semel copy command again to continue it, or use the store that it was copied from"));
        }
        Ok(opened)
    }

    /// Opens a store, even if it is an unfinished copy.
    ///
    /// # Errors
    /// When the store cannot be reached or used, or another process owns it.
    pub async fn open_as_it_is(place: &Place) -> Result<Self, Failure> {
        telling(Self::open_unsaid(place), || format!("opening {place}")).await
    }

    async fn open_unsaid(place: &Place) -> Result<Self, Failure> {
        let path = match place {
            Place::Sqlite(path) => path,
            Place::Memory => {
                return Ok(Self::of(Arc::new(Memory::default())));
            }
            Place::Postgres(address) => {
                let store = Postgres::open(address).await.map_err(|error| no_postgres(address, &error))?;
                let database = Arc::new(store);
                let backend = Arc::clone(&database) as Arc<dyn Backend>;
                return Ok(Self { database: Some(database), ..Self::of(backend) });
            }
            Place::Redis(address) => {
                let store = Redis::open(address).await.map_err(|error| no_redis(address, &error))?;
                store.warn_of_settings().await;
                return Ok(Self::of(Arc::new(store)));
            }
        };
        let path = path.clone();
        // Reading a large file takes a while.
        let opened = tokio::task::spawn_blocking(move || open_file(&path))
            .await
            .context("cannot open the store")??;
        let file = Arc::new(opened);
        let backend: Arc<dyn Backend> = file.clone();
        Ok(Self { file: Some(file), ..Self::of(backend) })
    }

    /// Sets the retention rules for jobs that end from now on.
    #[must_use]
    pub fn keeping(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Leaves what is due in the store to others: it is opened only to be read.
    #[must_use]
    pub fn only_to_look(self) -> Self {
        Self { only_looks: true, ..self }
    }

    /// Logs a warning if the store is empty, as a new one is: where there should be data, it is not the store
    /// that was meant. A store in memory always starts empty.
    pub async fn warn_if_empty(&self, place: &Place) {
        if !matches!(place, Place::Memory) && is_empty(&*self.backend).await.unwrap_or(false) {
            tracing::warn!(
                store = %place,
                "the store is empty, as if it had just been created: if it should not be, the volume or the address is wrong"
            );
        }
    }

    /// The store.
    pub fn store(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The outbox of a store that has one.
    pub fn outbox(&self) -> Option<&dyn Outbox> {
        self.database.as_deref().map(|database| database as &dyn Outbox)
    }
}

fn open_file(path: &PathBuf) -> Result<Sqlite, Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        return Err(Failure::failed(format!(
            "there is no directory {} to keep a store in",
            folder.display()
        ))
        .next("create it, or name another file with --store sqlite:PATH"));
    }
    Sqlite::open(path).map_err(|error| match error {
        SqliteError::Owned { .. } => {
            let failure = Failure::new(
                Exit::Unreachable,
                format!("{} is in use: only one process at a time can open an embedded store", path.display()),
            );
            match semel_sqlite::lock::owner(path) {
                Some(owner) if owner.server().is_some() => failure.next(format!(
                    "its server is {0}; use it (other commands find it by themselves, or give --server {0}), or stop it first",
                    owner.word
                )),
                Some(owner) => failure.next(format!("{} has it open; wait until it is done, or stop it", owner.word)),
                None => failure.next("the process that had it open has just ended; try again"),
            }
        }
        ref full if full.is_want_of_room() => Failure::failed(format!("cannot open {}: {error}", path.display()))
            .next("free some space on its disk, and try again; nothing is lost"),
        SqliteError::Held { .. } => Failure::new(Exit::Unreachable, error.to_string()),
        SqliteError::Io { ref source, .. } if is_forbidden(source) => {
            Failure::failed(format!("cannot open {}: {error}", path.display()))
                .next("give this account read and write access to the file and its directory, or name another store with --store")
        }
        ref damaged if damaged.is_fatal() => {
            Failure::failed(format!("cannot open {}: {error}", path.display())).next(
                "check the disk (dmesg, df -h); if this is a store and it is damaged, move it away with all the files beside it and restore \
                 a backup: semel restore (step by step in the guide, under \"Going back to a copy\")",
            )
        }
        other => Failure::failed(format!("cannot open {}: {other}", path.display())),
    })
}

/// A running server.
pub struct Host {
    address: SocketAddr,
    engine: Engine,
    /// Delivers webhooks, if anything does.
    courier: Option<Courier>,
    file: Option<Arc<Sqlite>>,
    /// The database, until something relays its outbox.
    database: Option<Arc<Postgres>>,
    is_secure: bool,
    drain: Drain,
    /// How long requests and deliveries in progress may take at shutdown.
    drain_time: Duration,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Host {
    /// Starts a server on an open store. `listen` is `HOST:PORT`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the server cannot listen there, or may not.
    pub async fn start(opened: Opened, listen: &str, config: Config) -> Result<Self, Failure> {
        Self::start_with(opened, listen, config, Limits::default(), None).await
    }

    /// Like [`start`](Self::start), within these limits and with TLS if given.
    ///
    /// # Errors
    /// When the server cannot listen there, or may not.
    pub async fn start_with(
        opened: Opened,
        listen: &str,
        config: Config,
        limits: Limits,
        tls: Option<Tls>,
    ) -> Result<Self, Failure> {
        let listener = bind(listen, &config).await?;
        let address = listener.local_addr().context("cannot determine where the server listens")?;
        let engine = if opened.only_looks {
            // This engine decides nothing, but reports the rules in effect.
            Store::keeping(opened.backend, opened.retention).map(Engine::on)
        } else {
            Engine::keeping(opened.backend, opened.retention)
        };
        let engine = engine.context("cannot start the engine")?;
        let (drain, drain_time, is_secure) = (config.drain.clone(), limits.drain, tls.is_some());
        let router = router(engine.clone(), config);
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve_with(listener, router, limits, tls, async {
            // A dropped sender means stop, too.
            drop(stopped.await);
        }));
        let (file, database) = (opened.file, opened.database);
        let courier = None;
        Ok(Self { address, engine, courier, file, database, is_secure, drain, drain_time, stop, serving })
    }

    /// Starts to deliver webhooks and to relay the outbox, reading entries by the templates then in effect.
    /// Only a server that stays does so: the short-lived one of another verb would go by other rules.
    pub fn deliver(&mut self, rules: Rules, templates: TemplateSet) {
        if let Some(database) = self.database.take() {
            let read = move |id: JobId, text: &str| outbox::read_with(id, text, Some(&templates.get()));
            tokio::spawn(self.engine.relay(database, Arc::new(read)));
        }
        self.courier = Some(Courier::start(&self.engine, rules));
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_secure { "https" } else { "http" }, self.address)
    }

    /// How far the store's time is from this machine's clock; `None` if the store does not answer in time.
    pub async fn time_offset(&self) -> Option<Offset> {
        let asked = tokio::time::timeout(OFFSET_PATIENCE, self.engine.time_offset());
        asked.await.ok()?.ok()
    }

    /// Whether only this machine can reach it.
    pub const fn is_local(&self) -> bool {
        self.address.ip().is_loopback()
    }

    /// Writes the server's URL into the lock's file, where a process that finds the store taken looks for it.
    ///
    /// # Errors
    /// When the lock's file cannot be written.
    pub fn announce(&self) -> Result<(), Failure> {
        match &self.file {
            Some(file) => {
                file.announce(&self.url(), semel_server::instance()).context("cannot announce the server")
            }
            None => Ok(()),
        }
    }

    /// Why the store cannot go on, if it has failed for good; a transient failure does not count.
    pub async fn poison(&self) -> Option<String> {
        match self.engine.store().load(Reads::default()).await {
            Err(error @ (StoreError::Poisoned(_) | StoreError::Corrupt(_))) => Some(error.to_string()),
            _ => None,
        }
    }

    /// Waits until the server cannot go on, and says why.
    pub async fn broken(&self) -> String {
        loop {
            tokio::time::sleep(HEALTH_EVERY).await;
            if let Some(why) = self.poison().await {
                return why;
            }
            if self.has_ended() {
                return "the server can no longer accept connections".to_owned();
            }
        }
    }

    /// Whether the server has stopped serving.
    pub fn has_ended(&self) -> bool {
        self.serving.is_finished()
    }

    /// Lets requests and deliveries in progress end, both within the same time, stops the duties, and closes
    /// the store.
    ///
    /// # Errors
    /// When the listener had failed.
    pub async fn stop(self) -> Result<(), Failure> {
        // A process that finds the file taken must not be sent to an address where nobody listens.
        if let Some(file) = &self.file
            && let Err(error) = file.withdraw()
        {
            tracing::debug!(%error, "the server's address was not removed from beside the store");
        }
        // Long polls are answered now, so that they do not hold up the end.
        self.drain.begin();
        // The serving task may have ended by itself.
        let _ = self.stop.send(());
        let (courier, drain_time) = (self.courier, self.drain_time);
        let delivered = async move {
            if let Some(courier) = courier {
                courier.stop_within(drain_time).await;
            }
        };
        let (served, ()) = tokio::join!(self.serving, delivered);
        // The last handle on the file except the engine's own.
        drop(self.file);
        self.engine.close().await;
        served.context("the server failed")?.context("the server can no longer listen")
    }
}

async fn bind(listen: &str, config: &Config) -> Result<TcpListener, Failure> {
    let addresses: Vec<SocketAddr> = match tokio::net::lookup_host(listen).await {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            return Err(Failure::usage(format!("cannot listen on {listen:?}: {error}"))
                .next("write HOST:PORT, such as --listen 127.0.0.1:8080"));
        }
    };
    for address in &addresses {
        check_listen(*address, config).map_err(|refused| {
            Failure::usage(refused.to_string())
                .next("run semel token create --tokens FILE --role admin, then semel serve --tokens FILE; or use --listen 127.0.0.1:8080")
        })?;
    }
    TcpListener::bind(&addresses[..]).await.map_err(|error| {
        Failure::failed(format!("cannot listen on {listen}: {error}"))
            .next("stop the program that listens there, or choose another address with --listen HOST:PORT")
    })
}
