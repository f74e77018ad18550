//! A running server and shortcuts for requests.

use std::net::SocketAddr;
use std::sync::Arc;

use semel_client::{Bytes, Client, HeaderMap, HeaderValue, Method, Response};
use semel_engine::Engine;
use semel_postgres::{Address, Postgres};
use semel_server::{Config, Limits, router, serve};
use semel_sqlite::Sqlite;
use semel_store::Backend;
use semel_store::memory::Memory;
use semel_testkit::TempDir;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server on its own port.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) engine: Engine,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<std::io::Result<()>>>,
    folder: Option<TempDir>,
}

/// An answer with its body.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Told {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or("")
    }

    pub(crate) fn pointer(&self) -> &str {
        self.body["error"]["details"]["pointer"].as_str().unwrap_or("")
    }

    pub(crate) fn job_id(&self) -> &str {
        self.body["job"]["id"].as_str().unwrap_or_else(|| panic!("no job in {}", self.body))
    }
}

impl From<Response> for Told {
    fn from(response: Response) -> Self {
        let body = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
        Self { status: response.status.as_u16(), headers: response.headers, body }
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(Config { allow_reset: true, ..Config::default() }).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        Self::with_limits(config, Limits::default()).await
    }

    pub(crate) async fn with_limits(config: Config, limits: Limits) -> Self {
        let folder = TempDir::new();
        let store = Sqlite::open(folder.path().join("semel.db")).unwrap();
        Self::on(Arc::new(store), Some(folder), config, limits).await
    }

    /// A server on an in-memory store.
    pub(crate) async fn in_memory() -> Self {
        let config = Config { allow_reset: true, ..Config::default() };
        Self::on(Arc::new(Memory::default()), None, config, Limits::default()).await
    }

    /// A server on any store.
    pub(crate) async fn on_store(store: Arc<dyn Backend>, config: Config) -> Self {
        Self::on(store, None, config, Limits::default()).await
    }

    /// A server on the PostgreSQL or Redis store at `url`.
    pub(crate) async fn on_shared(url: &str) -> Self {
        let store: Arc<dyn Backend> = if url.starts_with("redis") {
            let address = semel_redis::Address::parse(url).unwrap();
            Arc::new(semel_redis::Redis::open(&address).await.unwrap())
        } else {
            Arc::new(Postgres::open(&Address::parse(url).unwrap()).await.unwrap())
        };
        let config = Config { allow_reset: true, ..Config::default() };
        Self::on(store, None, config, Limits::default()).await
    }

    /// Reopens the same file with a new server, as after a restart.
    pub(crate) async fn restarted(mut self) -> Self {
        let folder = self.folder.take();
        self.stop().await;
        let path = folder.as_ref().unwrap().path().join("semel.db");
        // The engine's thread releases the file a moment after the last handle is dropped.
        let store = loop {
            match Sqlite::open(&path) {
                Ok(store) => break store,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let config = Config { allow_reset: true, ..Config::default() };
        Self::on(Arc::new(store), folder, config, Limits::default()).await
    }

    async fn on(store: Arc<dyn Backend>, folder: Option<TempDir>, config: Config, limits: Limits) -> Self {
        let engine = Engine::start(store).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let app = router(engine.clone(), config);
        let running =
            tokio::spawn(async move { serve(listener, app, limits, async { drop(stopped.await) }).await });
        let client = Client::new(&format!("http://{address}")).unwrap();
        Self { client, engine, address, stop: Some(stop), running: Some(running), folder }
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&str>,
        headers: HeaderMap,
    ) -> Told {
        let body = body.map(|text| Bytes::from(text.to_owned()));
        self.client.request(method, path, body, headers).await.unwrap().into()
    }

    pub(crate) async fn get(&self, path: &str) -> Told {
        self.ask(Method::GET, path, None, HeaderMap::new()).await
    }

    /// Gets an answer that is not JSON.
    pub(crate) async fn get_text(&self, path: &str) -> String {
        let answer = self.client.request(Method::GET, path, None, HeaderMap::new()).await.unwrap();
        String::from_utf8(answer.body.to_vec()).unwrap()
    }

    pub(crate) async fn delete(&self, path: &str) -> Told {
        self.ask(Method::DELETE, path, None, HeaderMap::new()).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Told {
        self.ask(Method::PUT, path, Some(&body.to_string()), HeaderMap::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Told {
        self.post_text(path, &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> Told {
        self.ask(Method::POST, path, Some(body), HeaderMap::new()).await
    }

    /// Enqueues a job, which must be created.
    pub(crate) async fn create(&self, body: &Value) -> Told {
        let told = self.post("/ojs/v1/jobs", body).await;
        assert_eq!(told.status, 201, "{}", told.body);
        told
    }

    /// Leases one job, which must be available.
    pub(crate) async fn take(&self, queue: &str, worker: &str) -> Value {
        let told =
            self.post("/ojs/v1/workers/fetch", &json!({ "queues": [queue], "worker_id": worker })).await;
        assert_eq!(told.status, 200, "{}", told.body);
        let job = told.body["jobs"][0].clone();
        assert!(job.is_object(), "{}", told.body);
        job
    }

    /// Number of stored jobs.
    pub(crate) async fn stored(&self) -> usize {
        let told = self.get("/ojs/v1/jobs?limit=200").await;
        told.body["jobs"].as_array().unwrap().len()
    }

    /// Shuts the server down gracefully.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        self.running.take().unwrap().await.unwrap().unwrap();
        self.engine.stop().await;
    }
}

/// Makes a header map with one header.
pub(crate) fn header(name: &'static str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::try_from(value).unwrap());
    headers
}

/// A job of one type with one object as args.
pub(crate) fn job(args: &Value, options: &Value) -> Value {
    json!({ "type": "email.send", "args": [args], "options": options })
}
