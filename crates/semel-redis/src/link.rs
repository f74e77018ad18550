//! The connection to Redis: one for all requests, which are pipelined on it; made anew when it is lost. Nothing is sent again here:
//! who asked knows whether that is right.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, Pipeline, TlsCertificates, Value};
use semel_store::random;

use crate::address::Address;
use crate::durability::{Durability, Server};
use crate::error::RedisError;
use crate::scripts::Script;
use crate::survey::Survey;
use crate::values;

/// How long a connection may take, on a machine that does other things as well.
const CONNECT: Duration = Duration::from_secs(20);
/// How long an answer may take: whoever is silent for so long is taken for lost.
const ANSWER: Duration = Duration::from_secs(30);
/// The layout that this program reads and writes.
const LAYOUT: &str = "1";
/// The oldest Redis that is supported.
const OLDEST: u32 = 7;

/// What is known of the store once it has been spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The store's secret.
    pub secret: [u8; 16],
    /// What Redis says of its durability.
    pub durability: Durability,
}

/// What is sent together: it arrives whole or, when the connection is lost, in part.
pub enum Request {
    /// One command.
    One(Cmd),
    /// So many.
    Many(Pipeline, usize),
}

impl Request {
    /// Of these commands, in their order.
    pub fn of(mut commands: Vec<Cmd>) -> Self {
        if commands.len() == 1
            && let Some(command) = commands.pop()
        {
            return Self::One(command);
        }
        let count = commands.len();
        let mut pipeline = Pipeline::with_capacity(count);
        for command in commands {
            pipeline.add_command(command);
        }
        Self::Many(pipeline, count)
    }
}

/// What each command of a request did.
pub type Said = Vec<Result<Value, RedisError>>;

/// The connection.
pub struct Link {
    client: Client,
    base: String,
    replicas: u32,
    sums: OnceLock<Vec<String>>,
    now: Mutex<Now>,
    /// Held while a connection is made, so that one is made at a time.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Now {
    connection: Option<MultiplexedConnection>,
    /// The number of the connection, so that one is given up once.
    number: u64,
    known: Option<Known>,
}

impl Link {
    /// A link to what is at `address`, not connected yet.
    pub fn new(address: &Address) -> Result<Self, RedisError> {
        if matches!(address.info().addr(), ConnectionAddr::TcpTls { .. }) {
            // The process may have chosen another one already.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let client = match address.roots() {
            None => Client::open(address.info().clone())?,
            Some(path) => {
                let roots = std::fs::read(path);
                let roots = roots.map_err(|error| {
                    RedisError::Address(format!(
                        "the certificates {} cannot be read: {error}",
                        path.display()
                    ))
                })?;
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots) };
                Client::build_with_tls(address.info().clone(), certificates)?
            }
        };
        Ok(Self {
            client,
            base: address.base(),
            replicas: address.replicas(),
            sums: OnceLock::new(),
            now: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the store, once it was spoken to.
    pub fn known(&self) -> Option<Known> {
        self.now().known
    }

    /// Another link to the same store: should it have to make it anew, then with the same secret.
    pub fn with_known(self, known: Option<Known>) -> Self {
        self.now().known = known;
        self
    }

    /// The client, for connections of another kind.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A call of a script, without its arguments.
    pub fn call(&self, script: Script) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        let sum = self.sums.get().and_then(|sums| sums.get(script as usize));
        command.arg(sum.map_or("", String::as_str)).arg(1).arg(&self.base);
        command
    }

    /// The connection, and its number.
    pub async fn connection(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        if let Some(found) = self.present() {
            return Ok(found);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(found) = self.present() {
            return Ok(found);
        }
        let mut connection = self.fresh().await?;
        let known = self.introduce(&mut connection).await?;
        let mut now = self.now();
        // Keys of tenants are made with it: with another one they would be others.
        if now.known.is_some_and(|before| before.secret != known.secret) {
            return Err(RedisError::Unsupported(
                "another store is at this address than the one that was opened: start the program again to use it"
                    .to_owned(),
            ));
        }
        now.number += 1;
        now.known = Some(known);
        now.connection = Some(connection.clone());
        Ok((connection, now.number))
    }

    fn present(&self) -> Option<(MultiplexedConnection, u64)> {
        let now = self.now();
        now.connection.clone().map(|connection| (connection, now.number))
    }

    /// The connection of that number is lost.
    pub fn lose(&self, number: u64) {
        let mut now = self.now();
        if now.number == number {
            now.connection = None;
        }
    }

    /// Sends a request, and answers what each of its commands did. An error is that of the connection.
    pub async fn send(&self, request: &Request) -> Result<Said, RedisError> {
        let (mut connection, number) = self.connection().await?;
        let sent = match request {
            Request::One(command) => {
                plain(connection.send_packed_command(command).await).map(|said| vec![said])
            }
            Request::Many(pipeline, count) => {
                let values = connection.send_packed_commands(pipeline, 0, *count).await.map_err(lost);
                values.map(|values| {
                    values.into_iter().map(|value| value.extract_error().map_err(lost)).collect()
                })
            }
        };
        if sent.as_ref().is_err_and(RedisError::is_lost_connection) {
            self.lose(number);
        }
        sent
    }

    /// A connection of its own, on which nothing was said yet.
    async fn fresh(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// How Redis is set.
    pub async fn survey(&self) -> Result<Survey, RedisError> {
        let mut connection = self.fresh().await?;
        let () = redis::cmd("PING").exec_async(&mut connection).await?;
        Ok(Survey::of(&mut connection, self.replicas).await)
    }

    /// Whether a store is there. Makes none.
    pub async fn is_there(&self) -> Result<bool, RedisError> {
        let mut connection = self.fresh().await?;
        let found: i64 =
            redis::cmd("EXISTS").arg(format!("{}!", self.base)).query_async(&mut connection).await?;
        Ok(found > 0)
    }

    /// Has Redis know the scripts again.
    pub async fn teach(&self) -> Result<(), RedisError> {
        let (mut connection, _) = self.connection().await?;
        self.load_scripts(&mut connection).await
    }

    async fn load_scripts(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let mut pipeline = Pipeline::with_capacity(Script::ALL.len());
        for script in Script::ALL {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        let sums: Vec<String> = pipeline.query_async(connection).await?;
        // The same text has the same sum.
        self.sums.get_or_init(|| sums);
        Ok(())
    }

    /// What is said first on a connection: which Redis it is, the scripts, and which layout the store has.
    async fn introduce(&self, connection: &mut MultiplexedConnection) -> Result<Known, RedisError> {
        let server: String = redis::cmd("INFO").arg("server").query_async(connection).await?;
        let server = Server::of(&server);
        if server.version < OLDEST {
            return Err(RedisError::Unsupported(format!(
                "this is Redis {}: the store needs {OLDEST} or later",
                server.version
            )));
        }
        if server.is_cluster {
            return Err(RedisError::Unsupported(
                "this Redis is a node of a cluster, which cannot be used yet: name one that is not"
                    .to_owned(),
            ));
        }
        self.load_scripts(connection).await?;
        let mut open = self.call(Script::Open);
        // A Redis that came back with nothing is the same store, emptied.
        let secret = self.known().map_or_else(random::secret, |known| known.secret);
        open.arg(LAYOUT).arg(&secret[..]).arg(&server.run);
        let mut opened = values::Values::of(plain(connection.send_packed_command(&open).await)??)?;
        let layout = values::text(opened.take()?)?;
        if layout != LAYOUT {
            return Err(RedisError::Unsupported(format!(
                "the store has layout {layout}, and this program knows {LAYOUT}: use the program that wrote it, or a later one"
            )));
        }
        let secret = values::bytes(opened.take()?)?;
        let secret = secret.try_into().map_err(|_| RedisError::Answer("a secret has 16 bytes"))?;
        Ok(Known { secret, durability: Survey::of(connection, self.replicas).await.durability() })
    }
}

/// What Redis says, or that the connection failed.
fn plain(said: redis::RedisResult<Value>) -> Result<Result<Value, RedisError>, RedisError> {
    match said.and_then(Value::extract_error).map_err(lost) {
        Err(error) if error.is_lost_connection() => Err(error),
        said => Ok(said),
    }
}

fn lost(error: redis::RedisError) -> RedisError {
    if error.is_timeout() { RedisError::Silent } else { RedisError::Redis(error) }
}
